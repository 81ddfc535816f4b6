"""What the operating system and the database say when they cannot, sorted by what helps.

``full`` needs an operator, or time: free space, or a larger quota. ``busy`` passes by itself: a lock that others
hold, a pool without a free connection, a database server that is being started again. Both leave everything that was
acknowledged as it was.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import Literal

from sqlalchemy import exc

Trouble = Literal["full", "busy"]

_FULL_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# SQLite calls only ENOSPC "full"; a quota or a limit on the file's size is a failed write, and so is a shared memory
# file that cannot grow.
_FULL_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_BUSY_SQLITE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# https://www.postgresql.org/docs/current/errcodes-appendix.html: classes by their first two characters
_FULL_SQLSTATE = "53100"
_BUSY_CLASSES = frozenset({"08", "40", "53", "55", "57"})


def trouble(error: Exception) -> Trouble | None:
    """Which of the two ``error`` is; ``None`` for every other failure."""
    if isinstance(error, exc.TimeoutError):  # no connection of the pool became free
        return "busy"
    if isinstance(error, exc.DBAPIError):
        return _database_trouble(error)
    if isinstance(error, ConnectionError):
        return "busy"
    if isinstance(error, OSError) and error.errno in _FULL_ERRNO:
        return "full"
    return None


def _database_trouble(error: exc.DBAPIError) -> Trouble | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if isinstance(code, int):
        if code in _FULL_SQLITE:
            return "full"
        return "busy" if code & 0xFF in _BUSY_SQLITE else None  # the low byte is the primary code
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if state == _FULL_SQLSTATE:
        return "full"
    return "busy" if state[:2] in _BUSY_CLASSES or error.connection_invalidated else None
