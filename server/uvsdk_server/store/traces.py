"""Whether SQLite's files hold certain bytes, looked up by a process of its own.

Never by the server's: a process that opens and closes a database's files beside SQLite lets go of the locks that its
connections hold on them (POSIX advisory locks are a process's, https://www.sqlite.org/howtocorrupt.html, 2.2). The next
process to connect then believes itself alone and truncates the shared memory that this one has mapped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PIECE_BYTES = 1 << 22
_FOUND, _ABSENT = 10, 11


def hold(files: Sequence[Path], wanted: bytes) -> bool:
    """Whether any of ``files`` holds ``wanted``; those that do not exist hold nothing.

    Raises:
        OSError: they cannot be read.
    """
    if not files:
        return False
    # What is wanted goes through a pipe: arguments are shown to every account of the machine.
    command = [sys.executable, "-I", "-S", __file__, *(str(path) for path in files)]
    done = subprocess.run(command, input=wanted, capture_output=True, check=False)
    if done.returncode not in (_FOUND, _ABSENT):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"the database's files cannot be searched: {lines[-1] if lines else done.returncode}")
    return done.returncode == _FOUND


def _search(path: Path, wanted: bytes) -> bool:
    """Read and not mapped: a log that is cut short under a mapping kills the process."""
    try:
        with path.open("rb") as file:
            before = b""
            while piece := file.read(_PIECE_BYTES):
                if wanted in before + piece:
                    return True
                before = piece[-len(wanted) :]
    except FileNotFoundError:
        return False
    return False


if __name__ == "__main__":
    text = sys.stdin.buffer.read()
    sys.exit(_FOUND if any(_search(Path(name), text) for name in sys.argv[1:]) else _ABSENT)
