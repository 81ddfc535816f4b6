"""A user leaves: everything of theirs goes, and "gone" is said only once it is true of every byte.

One transaction deletes the rows, points to the algorithm's state (and the one that training may
return to) without the user, and orders the files away: uploads,
the user's own key, and the key of the former states, so that copies of the database and the blobs made earlier cannot
be read any more. SQLite keeps former pages in its write-ahead log until nobody reads them; a long reader can hold that
up, so the log is emptied again and again, the files are searched for the user's id, and only then is the deletion
complete. What a crash interrupts goes on at the next start.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.records.codec import pack, unpack
from uvsdk_server import observer
from uvsdk_server.keys import KeyRing
from uvsdk_server.monitoring import Log
from uvsdk_server.rounds import Rounds
from uvsdk_server.shielding import to_its_end
from uvsdk_server.store import audit, course, ledger, removals, traces
from uvsdk_server.store.quarantine import Quarantine
from uvsdk_server.store.rows import every, first
from uvsdk_server.store.schema import deletions, users

PATIENCE_S: Final = 2.0
"""How long a request waits for the log to be emptied before it is answered 202."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 30.0
_KEPT_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """One user's deletion; says nothing of whose.

    Args:
        deletion_id: 32 hexadecimal digits, told to whoever asked for it. Empty where there was nothing to delete.
        requested: Unix seconds.
        completed: Unix seconds, ``None`` while it is under way.
        sealed: the user's id until then, for whoever goes on with it.
    """

    deletion_id: str
    requested: float
    completed: float | None
    sealed: bytes | None = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        """Whether nothing of the user is left."""
        return self.completed is not None


class Deletions:
    """Deletes users, and sees to it that deletions come to their end."""

    def __init__(self, rounds: Rounds, data: Path, quarantine: Quarantine, log: Log) -> None:
        self._rounds = rounds
        self._database = rounds.database
        self._keys: KeyRing = rounds.keys
        self._data = data
        self._quarantine = quarantine
        self._log = log
        self._finishing = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None

    async def delete(self, user: str, *, by: str) -> Deletion:
        """Delete everything of ``user`` but what the model has learned.

        Waits for an aggregation that is under way. Doing it again changes nothing, and tells how far it is. Once begun
        it goes on whether or not the caller stays. ``by`` names who wants it in the audit log.
        """
        return await to_its_end(self._delete(user, by))

    async def find(self, deletion_id: str) -> Deletion | None:
        """The deletion of that id; it is known for 30 days after its end."""
        async with self._database.read() as connection:
            return await first(connection, Deletion, select(deletions).where(deletions.c.deletion_id == deletion_id))

    async def start(self) -> None:
        """Take up what a crash interrupted."""
        async with self._database.write() as connection:
            await connection.execute(delete(deletions).where(deletions.c.completed < self._rounds.clock() - _KEPT_S))
            waiting = await _pending(connection)
        if waiting:
            self._go_on()

    async def close(self) -> None:
        """Stop trying; the next start goes on."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)

    async def _delete(self, user: str, by: str) -> Deletion:
        try:
            row = await self._forget(user, by)
        finally:
            self._rounds.wake()  # after a failure too: its draft is to be discarded
        if row is None:
            now = self._rounds.clock()
            return Deletion("", now, now)
        until, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while not await self._finished(row, user):
            if time.monotonic() > until:
                self._go_on()
                break
            await asyncio.sleep(pause_s)
            pause_s *= 2
        return await self.find(row.deletion_id) or row

    async def _forget(self, user: str, by: str) -> Deletion | None:
        """Delete rows and files, and give the row of the deletion; ``None`` where there is nothing of that user."""
        training, files = self._rounds.training, self._keys.files
        async with self._rounds.state_lock:
            former_key = files.state_key_id
            known = user in training.method.server.users(training.state)
            async with self._database.read() as connection:
                former = next((row for row in await _pending(connection) if self._user_of(row) == user), None)
                known = known or await ledger.is_known(connection, user)
            if not known:
                return former
            key = await asyncio.to_thread(files.new_state_key)
            state = await asyncio.to_thread(training.method.server.remove, training.state, user)
            blob = await asyncio.to_thread(self._rounds.drafts.write, files.seal_state(pack(state), key))
            async with self._database.read() as connection:
                best = await course.of(connection)
            without = await asyncio.to_thread(self._without, best, user, key)
            async with self._database.write() as connection:
                deployment = await ledger.deployment_row(connection)
                assert deployment is not None
                gone = await ledger.device_ids(connection, user)
                spent = await ledger.forget_user(connection, user)
                names = [ledger.blob_path(name) for name in (deployment.algorithm_blob, *spent)]
                names += [ledger.key_path(name) for name in (files.user_file(user), files.state_file(former_key))]
                await ledger.keep_state(connection, blob)
                if without != best:
                    names += [ledger.blob_path(name) for name in await course.keep(connection, without)]
                await ledger.order_removal(connection, names)
                row = former or await self._record(connection, user)
                # Under a mark that nobody can make any more once the user's key is gone.
                whom = files.mark(user)
                await audit.append(connection, self._rounds.clock(), by, "user-left", subject=whom, **_told(row))
            # From here to the last file nothing waits, so that whoever registers the user anew finds no former key.
            self._rounds.drafts.settle()
            training.state, files.state_key_id = state, key
            await self._rounds.observer.reached(observer.DELETION_RECORDED)
            removals.remove(self._data, names)
            self._quarantine.drop(name.rpartition("/")[2] for name in names)
            await self._rounds.observer.reached(observer.DELETION_FILES_GONE)
            await removals.settle(self._database, self._data)
        self._rounds.board.strike(gone)
        self._rounds.awaited.forget(gone)
        self._rounds.reporting.forget(gone)
        return row

    def _without(self, best: course.CourseRow, user: str, key: str) -> course.CourseRow:
        """The state that training may return to, without ``user`` and under the new key."""
        if best.algorithm_blob is None:
            return best
        server, files = self._rounds.training.method.server, self._keys.files
        state = unpack(server.state, files.open_state(self._rounds.blobs.read(best.algorithm_blob)))
        sealed = files.seal_state(pack(server.remove(state, user)), key)
        return replace(best, algorithm_blob=self._rounds.drafts.write(sealed))

    async def _record(self, connection: AsyncConnection, user: str) -> Deletion:
        name = secrets.token_hex(16)
        sealed = self._keys.at_rest.seal(json.dumps({"user": user}).encode(), _purpose(name))
        new = Deletion(name, self._rounds.clock(), None, sealed)
        await connection.execute(insert(deletions).values(**asdict(new)))
        return new

    def _user_of(self, row: Deletion) -> str:
        assert row.sealed is not None  # until it is complete
        user: str = json.loads(self._keys.at_rest.open(row.sealed, _purpose(row.deletion_id)))["user"]
        return user

    async def _finished(self, row: Deletion, user: str) -> bool:
        """Whether nothing is left of the user; notes that where it is so."""
        async with self._finishing:
            found = await self.find(row.deletion_id)
            if found is None or found.complete:
                return True
            if not await self._database.purge() or not await self._unseen(user):
                return False
            async with self._database.write() as connection:
                await connection.execute(
                    update(deletions)
                    .where(deletions.c.deletion_id == row.deletion_id)
                    .values(completed=self._rounds.clock(), sealed=None)
                )
                await audit.append(connection, self._rounds.clock(), audit.SERVER, "user-deleted", **_told(row))
            return True

    async def _unseen(self, user: str) -> bool:
        """Whether the database's files hold no byte of the id; a table that has been moved about may still."""
        async with self._database.read() as connection:
            if (await connection.execute(select(users.c.user).where(users.c.user == user))).first() is not None:
                return True  # has joined anew meanwhile
        if not await asyncio.to_thread(traces.hold, self._database.files, user.encode()):
            return True
        await self._database.rewrite()
        if not await self._database.purge():
            return False
        if await asyncio.to_thread(traces.hold, self._database.files, user.encode()):
            self._log.error("a deleted user is still named in the database; the deletion stays pending")
            return False
        return True

    def _go_on(self) -> None:
        if self._background is None or self._background.done():
            self._background = asyncio.create_task(self._finish_all(), name="deletions")

    async def _finish_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async with self._database.read() as connection:
                    waiting = await _pending(connection)
                if not waiting:
                    return
                for row in waiting:
                    await self._finished(row, self._user_of(row))
            except (OSError, SQLAlchemyError) as error:
                self._log.warning("deletion pending", error=type(error).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _pending(connection: AsyncConnection) -> list[Deletion]:
    return await every(connection, Deletion, select(deletions).where(deletions.c.completed.is_(None)))


def _told(row: Deletion) -> dict[str, str]:
    """What the audit log tells of which deletion it was: not the whole id, which is a permission to ask for it."""
    return {"deletion": row.deletion_id[:12]}


def _purpose(deletion_id: str) -> str:
    return f"deletion/{deletion_id}"
