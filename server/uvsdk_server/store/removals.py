"""Files whose removal the database orders.

The transaction that stops naming a file writes its path into ``removals``, and the file is unlinked after the commit.
Where a crash comes in between, the next start finds the order. A file that no row names and that was never ordered
away is another matter: it may be what a wrong database does not know (:mod:`uvsdk_server.store.quarantine`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sqlalchemy import delete

from uvsdk_server.store import ledger
from uvsdk_server.store.blobs import flush_folder
from uvsdk_server.store.database import Database
from uvsdk_server.store.schema import removals

# Whoever can write into the database still cannot have signing.key or at-rest.key removed.
_REMOVABLE: Final = re.compile(r"blobs/[0-9a-f]{64}|keys/(?:user|state)-[0-9a-f]{32}\.key")


async def carry_out(database: Database, data: Path) -> set[str]:
    """At the start, before anybody writes: unlink what was ordered away and is named by no row, and note it.

    Args:
        database: holds the orders.
        data: the data folder.

    Returns:
        The paths that were ordered away.
    """
    async with database.read() as connection:
        paths = await ledger.ordered_blobs(connection)
        wanted = {ledger.blob_path(name) for name in await ledger.wanted_blobs(connection)} if paths else set()
    remove(data, paths - wanted)
    await _forget(database, paths)
    return paths - wanted


async def settle(database: Database, data: Path) -> None:
    """Note what is gone. What is not waits for the next start, for it may be being named again."""
    async with database.read() as connection:
        paths = await ledger.ordered_blobs(connection)
    await _forget(database, {path for path in paths if not (data / path).exists()})


async def _forget(database: Database, paths: Collection[str]) -> None:
    if paths:
        async with database.write() as connection:
            await connection.execute(delete(removals).where(removals.c.path.in_(paths)))


def remove(data: Path, paths: Collection[str]) -> None:
    """Unlink files of the data folder; absent ones are fine."""
    folders = set()
    for path in paths:
        if _REMOVABLE.fullmatch(path) and (data / path).exists():
            (data / path).unlink()
            folders.add((data / path).parent)
    for folder in folders:
        flush_folder(folder)
