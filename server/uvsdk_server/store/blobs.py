"""Files named by the SHA-256 of their content, durable before they are named in the database.

A file is written under a temporary name, flushed to the disk, renamed, and the folder is flushed: after that it is
there whole or, if the power went first, not there at all. What a crash leaves behind is removed by :meth:`Blobs.sweep`.
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
        descriptor, path = tempfile.mkstemp(prefix=".tmp-", dir=self._folder)
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
        self._flush_folder()

    def write(self, data: bytes | memoryview) -> str:
        """Store bytes durably and give their name."""
        name = hashlib.sha256(data).hexdigest()
        if not self.path(name).exists():
            temporary = self.temporary()
            try:
                temporary.write_bytes(data)
                self.keep(temporary, name)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return name

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
        return self.write(np.ascontiguousarray(array, "<f4").data.cast("B"))

    def read_array(self, name: str) -> Float32:
        """What :meth:`write_array` stored, read-only."""
        return np.frombuffer(self.read(name), "<f4")

    def remove(self, *names: str | None) -> None:
        """Remove files; absent ones and ``None`` are fine."""
        for name in names:
            if name is not None:
                self.path(name).unlink(missing_ok=True)
        self._flush_folder()

    def sweep(self, wanted: Iterable[str]) -> int:
        """Remove every file that is not in ``wanted``, temporary ones included, and give their number."""
        keep = set(wanted)
        orphans = [path for path in self._folder.iterdir() if path.name not in keep]
        for path in orphans:
            path.unlink()
        self._flush_folder()
        return len(orphans)

    def _flush_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
