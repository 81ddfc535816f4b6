"""Servers that cost no imports: everything is loaded once, and each server is a fork of that process.

Reads one JSON object a line, forks, and answers with the child's process id. A child has the working folder, the
environment and the files of whoever asked, and plays ``serve.py``. Children are reaped at once, so a process id that no
longer answers has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A child of the process that forks, as :class:`subprocess.Popen` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """``None`` while it runs; its exit status is nobody's."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return None
        return 0

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        ends = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.poll() is None:
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As a power cut would."""
        self.send_signal(signal.SIGKILL)


class Preforked:
    """The process that all are forks of; it ends with this one."""

    def __init__(self) -> None:
        path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.prefork"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        atexit.register(self.dismiss)

    def fork(self, arguments: Sequence[str], *, printed: Path, log: Path) -> Forked:
        """Start ``serve.py`` with those arguments."""
        order = {
            "arguments": list(arguments),
            "printed": str(printed),
            "log": str(log),
            "folder": str(Path.cwd()),
            "environment": {**os.environ, "OMP_NUM_THREADS": "1"},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()))

    def dismiss(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=120)


@functools.cache
def preforked() -> Preforked:
    """The one of this process, started when the first is asked for."""
    return Preforked()


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        from tests.integration import serve

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        printed = os.open(order["printed"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(printed, 1)
        os.dup2(log, 2)
        sys.stdin.close()
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        serve.main(order["arguments"])
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    from tests.integration import serve  # noqa: F401 - what every child needs

    gc.freeze()  # so that no child's collector touches, and copies, what all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    for line in sys.stdin:
        print(_fork(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
