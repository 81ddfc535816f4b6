"""Processes of the tests that cost no imports: torch and the rest are loaded once, and every role is a fork.

Reads one JSON object a line, ``{"role": ..., "log": ..., "arguments": {...}}``, forks, and answers with the child's
process id; the role ``prepare`` is played by the process itself. Children are reaped at once, so a process id that no
longer answers has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.integration import roles

ROLES: Mapping[str, Callable[..., None]] = {
    "device": roles.device,
    "server": roles.server,
    "simulation": roles.simulation,
}


def fork(order: Mapping[str, Any]) -> int:
    """Play a role in a process of its own; gives its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        sys.stdin.close()
        ROLES[order["role"]](**order["arguments"])
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["role"] == "prepare":
            roles.prepare(**order["arguments"])
            print(0, flush=True)
        else:
            print(fork(order), flush=True)


def is_alive(pid: int) -> bool:
    """Whether that child has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def read(path: Path) -> str:
    """A log, empty where there is none yet."""
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
