"""What a forked child finds: locks that nobody holds, models that it opens anew, and nothing cut in two.

A fork copies the memory and one thread of the parent. What the other threads held at that moment stays held in the
child for ever: a lock, a mutex inside onnxruntime, the import of a module (numpy and Pillow import the rest of
themselves when they first need it). So a fork waits until nothing is half done that a child could not do without: no
import, and nothing under :func:`steady`, where sessions are built and galleries changed. And what owns a lock or a
session says with :func:`in_child` how it is made fresh.
"""

from __future__ import annotations

import _imp
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Owner = TypeVar("Owner")

_PATIENCE_S = 10.0
"""How long a fork waits for imports: one that itself waits for the thread that forks would never end."""

_steady = threading.RLock()
# By identity, because not every owner can be hashed.
_owners: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
_at_import: list[Callable[[], None]] = []


def steady() -> threading.RLock:
    """Held while something is done that a fork must not cut in two; a thread may take it again.

    Take it last, after every other lock, and hold it for no longer than a session takes to build.
    """
    return _steady


def in_child(owner: Owner, renew: Callable[[Owner], None]) -> None:
    """Call ``renew(owner)`` in every forked child while ``owner`` lives; ``renew`` must not hold on to it."""
    key = id(owner)
    _owners[key] = (weakref.ref(owner, lambda _: _owners.pop(key, None)), renew)


def in_child_of_this_module(renew: Callable[[], None]) -> None:
    """The same for what a module keeps: call ``renew()`` in every forked child."""
    _at_import.append(renew)


def _before() -> None:
    """Come back with :func:`steady` held and with Python's lock of imports, under which none can begin."""
    ends_s = time.monotonic() + _PATIENCE_S
    while True:
        _steady.acquire()
        _imp.acquire_lock()
        if not _importing() or time.monotonic() > ends_s:
            return
        _imp.release_lock()
        _steady.release()
        time.sleep(0.001)


def _importing() -> bool:
    """Whether another thread is in the middle of an import. Python has no public way to ask; where this one is gone, a
    fork does not wait.

    A module's lock lives no longer than somebody imports the module or is about to: what nobody owns yet, a thread has
    just fetched under the lock of imports and takes next.
    """
    references = vars(sys.modules["_frozen_importlib"]).get("_module_locks", {})
    locks = [lock for reference in list(references.values()) if (lock := reference()) is not None]
    return any(getattr(lock, "owner", None) != threading.get_ident() for lock in locks)


def _after() -> None:
    _imp.release_lock()
    _steady.release()


def _renew() -> None:
    global _steady
    _imp.release_lock()
    _steady = threading.RLock()
    for renew in _at_import:
        renew()
    for reference, function in list(_owners.values()):
        owner = reference()
        if owner is not None:
            function(owner)


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_renew)
