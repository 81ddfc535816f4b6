"""Files named by the SHA-256 of their content, durable before they are named in the database.

A file is written under a temporary name, flushed to the disk, renamed, and the folder is flushed: after that it is
there whole or, if the power went first, not there at all. What a crash leaves behind under a temporary name is removed
at the next start; a whole file that no row names is :meth:`Blobs.strays`' affair.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import StoreError

_TEMPORARY = ".tmp-"


class Blobs:
    """A folder of immutable files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)

    def path(self, name: str) -> Path:
        """Where the file of that name lies."""
        return self._folder / name

    def temporary(self) -> Path:
        """An empty file, readable only by this user, to be handed to :meth:`keep` or unlinked."""
        descriptor, path = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._folder)
        os.close(descriptor)
        return Path(path)

    def keep(self, temporary: Path, name: str) -> None:
        """Make a file written under :meth:`temporary` durable as ``name``, the SHA-256 of its content."""
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(self.path(name))
        flush_folder(self._folder)

    def add(self, data: bytes | memoryview) -> tuple[str, bool]:
        """Store bytes durably; their name, and whether they were not there before."""
        name = hashlib.sha256(data).hexdigest()
        if self.path(name).exists():
            return name, False
        temporary = self.temporary()
        try:
            temporary.write_bytes(data)
            self.keep(temporary, name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return name, True

    def write(self, data: bytes | memoryview) -> str:
        """Store bytes durably and give their name."""
        return self.add(data)[0]

    def read(self, name: str) -> bytes:
        """The bytes of ``name``. Raises :class:`StoreError` where the file is missing or damaged."""
        try:
            data = self.path(name).read_bytes()
        except FileNotFoundError as error:
            raise StoreError(f"blob {name[:12]} is missing from the data folder; restore it from a backup") from error
        if hashlib.sha256(data).hexdigest() != name:
            raise StoreError(f"blob {name[:12]} was damaged on disk; restore it from a backup")
        return data

    def write_array(self, array: Float32) -> str:
        """Store float32 values as they are, little endian."""
        return self.write(raw(array))

    def read_array(self, name: str) -> Float32:
        """What :meth:`write_array` stored, read-only."""
        return np.frombuffer(self.read(name), "<f4")

    def remove(self, *names: str | None) -> None:
        """Remove files; absent ones and ``None`` are fine."""
        for name in names:
            if name is not None:
                self.path(name).unlink(missing_ok=True)
        flush_folder(self._folder)

    def strays(self, wanted: Iterable[str]) -> list[Path]:
        """Whole files that are not in ``wanted``; temporary ones, which nobody was told of, are removed."""
        keep = set(wanted)
        found = []
        for path in self._folder.iterdir():
            if path.name.startswith(_TEMPORARY):
                path.unlink()
            elif path.name not in keep:
                found.append(path)
        flush_folder(self._folder)
        return found


def raw(array: Float32) -> memoryview:
    """The bytes of float32 values, little endian."""
    return np.ascontiguousarray(array, "<f4").data.cast("B")


def flush_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
