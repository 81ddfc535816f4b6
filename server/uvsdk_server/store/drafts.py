"""Blobs that a transaction is about to name, and what becomes of them where it fails.

A state is written to the disk before the row that names it. Where the row then cannot be written, e.g. because the
disk is full, each new try would leave another file behind and take the rest of the space. Which files are nobody's is
asked of the database and not concluded from the error, because a commit whose answer was lost may have arrived.
"""

from __future__ import annotations

from uvsdk.arrays import Float32
from uvsdk_server.store import ledger
from uvsdk_server.store.blobs import Blobs, raw
from uvsdk_server.store.database import Database


class Drafts:
    """Used by one writer at a time: from :meth:`write` to :meth:`settle` the caller holds a lock."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._names: set[str] = set()

    @property
    def pending(self) -> bool:
        """Whether something was written and not settled."""
        return bool(self._names)

    def write(self, data: bytes) -> str:
        """Store bytes durably and give their name."""
        return self._noted(data)

    def write_array(self, array: Float32) -> str:
        """Store float32 values durably and give their name."""
        return self._noted(raw(array))

    def settle(self) -> None:
        """The transaction that names them is durable."""
        self._names.clear()

    async def discard(self) -> None:
        """Remove those that no row names."""
        async with self._database.read() as connection:
            wanted = await ledger.wanted_blobs(connection)
        self._blobs.remove(*(self._names - wanted))
        self._names.clear()

    def _noted(self, data: bytes | memoryview) -> str:
        name, new = self._blobs.add(data)
        if new:  # what was there before is not ours to remove
            self._names.add(name)
        return name
