"""What is asked of the rounds from outside: by devices that take part, and by users who leave.

:mod:`uvsdk_server.driver` moves rounds on; what both touch lies here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from uvsdk.errors import UvsdkError
from uvsdk.rest.problems import Problem
from uvsdk_server.awaited import Awaited
from uvsdk_server.board import Board
from uvsdk_server.clocks import Clock
from uvsdk_server.keys import KeyRing
from uvsdk_server.observer import Observer
from uvsdk_server.store import ledger
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database
from uvsdk_server.store.drafts import Drafts
from uvsdk_server.store.rows import Receipt, Round
from uvsdk_server.training import Training


class Rounds:
    """The newest round and the state it acts on, for handlers.

    Attributes:
        clock: seconds since 1970, which may be set.
        awaited: whom the round in progress waits for.
        reporting: whom the evaluation in progress waits for; the numbers are those of evaluations.
        board: what those who wait for a round are told.
        drafts: blobs that a transaction is about to name; written under ``state_lock``.
        state_lock: held while the algorithm's state changes: by selection, by aggregation, and by a user who leaves.
        woken: set when something happened that may move a round on.
    """

    def __init__(
        self, database: Database, blobs: Blobs, keys: KeyRing, training: Training, *, watcher: Observer, clock: Clock
    ) -> None:
        self.database = database
        self.blobs = blobs
        self.keys = keys
        self.training = training
        self.observer = watcher
        self.clock = clock
        self.board = Board()
        self.drafts = Drafts(database, blobs)
        self.state_lock = asyncio.Lock()
        self.woken = asyncio.Event()
        self.awaited = Awaited()
        self.reporting = Awaited()

    def wake(self) -> None:
        """Something happened that may move a round on."""
        self.woken.set()

    @contextmanager
    def asking(self, device_id: str, round_id: int) -> Iterator[None]:
        """Around the handing out of a task: who cannot have one is not waited for."""
        try:
            yield
        except (Problem, UvsdkError):
            self.awaited.stall(device_id, round_id)
            self.wake()
            raise
        self.awaited.begin(device_id, round_id)

    async def admits(self, device_id: str, round_id: int) -> tuple[Round, Receipt | None]:
        """The round a device may upload to, and its receipt where it has. Raises :class:`Problem` 403, 409, 410."""
        async with self.database.read() as connection:
            row = await ledger.round_row(connection, round_id)
            if row is None:
                raise Problem("wrong-round", "there is no such round; ask for the current one")
            former = await ledger.receipt(connection, round_id, device_id)
            if former is None:
                check_collecting(row)
                if device_id not in await ledger.cohort_of(connection, round_id):
                    raise Problem("not-selected", "this device is not in the cohort of that round")
        return row, former

    async def settle_request(self, device_id: str, round_id: int, request: bytes) -> None:
        """Hold a device to the first thing it asks for in a round, so that it cannot ask for one after another.

        Raises :class:`Problem` 409 for another request than the first, 403 where the device has left the cohort.
        """
        purpose = f"request/{round_id}/{device_id}"
        digest = hashlib.sha256(request).digest()
        async with self.database.write() as connection:
            row = await ledger.member(connection, round_id, device_id)
            if row is None:
                raise Problem("not-selected", "this device is not in the cohort of that round")
            if row.request_sealed is None:
                # Sealed, for the digest of what may be a choice among few would tell the choice.
                sealed = self.keys.files.user(row.user).seal(digest, purpose)
                await ledger.keep_request(connection, round_id, device_id, sealed)
            elif self.keys.files.user(row.user).open(row.request_sealed, purpose) != digest:
                raise Problem("already-requested", "this device asked for something else in this round")

    async def record(self, new: Receipt) -> Receipt | None:
        """Accept an update; gives the one that was accepted before, where there is one. Raises :class:`Problem`."""
        async with self.database.write() as connection:
            former = await ledger.receipt(connection, new.round_id, new.device_id)
            if former is not None:
                return former
            row = await ledger.round_row(connection, new.round_id)
            assert row is not None  # admits() found it, and rounds are never deleted
            check_collecting(row)
            if new.device_id not in await ledger.cohort_of(connection, new.round_id):
                raise Problem("not-selected", "the device left the cohort while its update was received")
            # What an update says of its samples gives it no weight: the admission's number does.
            samples = await ledger.admitted_samples(connection, new.user)
            await ledger.insert_receipt(connection, replace(new, samples=samples))
        self.board.strike(frozenset({new.device_id}))
        self.awaited.arrive(new.device_id)
        self.wake()
        return None

    async def discard(self, blob: str) -> None:
        """Remove the file of an update that could not be recorded, unless it was: a commit whose answer was lost.

        Where the database cannot be asked the file stays, and the next start puts it aside.
        """
        with contextlib.suppress(OSError, SQLAlchemyError):
            async with self.database.read() as connection:
                recorded = await ledger.names_upload(connection, blob)
            if not recorded:
                self.blobs.remove(blob)

    def excuse(self, device_id: str, round_id: int, *, stalled: bool) -> None:
        """Stop waiting for a device whose update was refused, or whose upload stalled; a better one still counts."""
        if stalled:
            self.awaited.stall(device_id, round_id)
        else:
            self.awaited.refuse(device_id, round_id)
        self.wake()

    def dismiss(self, device_ids: frozenset[str]) -> None:
        """Stop waiting for devices that may no longer train."""
        if device_ids:
            self.board.strike(device_ids)
            self.wake()


def check_collecting(row: Round) -> None:
    """Raise :class:`Problem` 410 unless that round takes updates."""
    if row.state != "collecting":
        raise Problem("round-closed", f"round {row.round_id} is {row.state}; ask for the current one")
