"""Nothing of the demonstration outlives it, however it ends: Ctrl-C, a signal, kill -9.

``python leash.py MODULE [ARGUMENT...]`` runs a module as ``python -m MODULE`` does, and ends it as soon as its standard
input does. :func:`start` gives it a pipe there that this process alone holds the other end of: the system closes that
when this process ends, whatever ended it. Works wherever there are pipes.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

GRACE_S = 10.0
"""What a process that is asked to end may take before it is ended."""


def start(
    module: str, arguments: Sequence[str], *, log: BinaryIO, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A module as a process of its own that ends with this one; in a session of its own, for Ctrl-C is our affair."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), module, *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process of :func:`start` to end, and wait until it has."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=2 * GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin is not None:
        process.stdin.close()


@contextlib.contextmanager
def put_away() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block by an exception, as Ctrl-C does, so that what it began is put away."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    former = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_the_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are the demonstration's
    sys.argv = sys.argv[1:]
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
