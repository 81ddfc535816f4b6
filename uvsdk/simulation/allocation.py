"""Memory that stays with the process between steps."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# From glibc's malloc.h. The threshold is the largest it accepts.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 << 20
_NEVER_BYTES = (1 << 31) - 1


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, where it can be told; whether it was.

    Stacked gradients are tens of megabytes, which glibc by default gives back to the kernel at each step and faults in
    again, page by page, at the next: a quarter of the time of a stacked round. The process's memory stays at its peak
    from then on.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library than glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER_BYTES))
