"""libmpg123 and libtiff without their remarks.

About damaged files they write lines to C's standard error, and neither libsndfile nor Pillow has a way to tell them not
to. The descriptor belongs to the whole process and is left alone: here the variable ``stderr`` of the C library, which
Python itself does not use, is set to a file that goes nowhere while they work. What another thread's C code says there
in those milliseconds is lost; what Python writes, in any thread, is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from functools import lru_cache

from uvsdk.system import forking

_lock = threading.Lock()
_depth = 0
_saved: int | None = None


@contextlib.contextmanager
def standard_error() -> Iterator[None]:
    """Let C's ``stderr`` go nowhere; with a C library other than glibc, where it may be a constant, do nothing."""
    global _depth, _saved
    variable, nowhere = _variables()
    if variable is None:
        yield
        return
    with _lock:
        if _depth == 0:
            _saved, variable.value = variable.value, nowhere
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                variable.value = _saved


@lru_cache(maxsize=1)
def _variables() -> tuple[ctypes.c_void_p | None, int | None]:
    """The variable ``stderr`` and a stream that goes nowhere."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return None, None
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    nowhere = library.fopen(os.devnull.encode(), b"w")
    return (ctypes.c_void_p.in_dll(library, "stderr"), nowhere) if nowhere else (None, None)


def _in_a_child() -> None:
    """A fork copies the variable as it was, and the lock in whatever state another thread held it."""
    global _lock, _depth
    _lock = threading.Lock()
    if _depth:
        _depth = 0
        variable, _ = _variables()
        if variable is not None:
            variable.value = _saved


forking.in_child_of_this_module(_in_a_child)
