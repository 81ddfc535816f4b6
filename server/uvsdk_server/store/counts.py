"""The table of failed attempts: read and written for many at once, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sqlalchemy import ColumnElement, and_, delete, insert, or_, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.templates.attempts import DAY_S, Attempts, Recent
from uvsdk_server.store import audit
from uvsdk_server.store.rows import every
from uvsdk_server.store.schema import attempts, users

Whose: TypeAlias = Literal["pair", "person", "caller"]
WHOSE: tuple[Whose, ...] = get_args(Whose)

_LOCK = 0x7576_7364_6B01
"""Key of PostgreSQL's advisory lock; any number that nothing else in this database takes."""


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Whose attempts are counted: a caller's at one person, a caller's at anybody, anybody's at one person.

    Args:
        caller: id of the token that asks; empty for every caller.
        user: hashed id of the person who is claimed; empty for everybody.
    """

    caller: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        if not self.caller and not self.user:
            raise ValueError("attempts are of a caller, at a person, or both")

    @property
    def whose(self) -> Whose:
        """Which of the three it is."""
        if self.caller and self.user:
            return "pair"
        return "caller" if self.caller else "person"

    @property
    def name(self) -> str:
        """As operators see it and name it: ``TOKEN:HASH``, ``TOKEN`` or ``HASH``."""
        return ":".join(part for part in (self.caller, self.user) if part)

    @classmethod
    def parse(cls, whose: Whose, name: str) -> Subject:
        """The inverse of :attr:`whose` and :attr:`name`. Raises ``ValueError``."""
        caller, colon, user = name.partition(":") if whose == "pair" else (name, "", "")
        if whose == "pair" and not (caller and colon and user):
            raise ValueError("a pair is TOKEN:HASH, the ids of the token and of the person")
        return cls(user=name) if whose == "person" else cls(caller, user)


async def serialise(connection: AsyncConnection) -> None:
    """Let nobody else change counts before this transaction ends.

    SQLite's writers take turns anyway. At PostgreSQL's READ COMMITTED two transactions, of two processes, would both
    read a count and both write it one higher; rows that do not exist yet cannot be locked, so the whole table is, by an
    advisory lock.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


async def read(connection: AsyncConnection, subjects: Collection[Subject]) -> dict[Subject, Attempts]:
    """The counts of ``subjects``; zero where there is no row. Those of persons who are not known here are left out."""
    people = sorted({subject.user for subject in subjects if subject.user})
    known = set((await connection.execute(select(users.c.user).where(users.c.user.in_(people)))).scalars())
    found = {subject: Attempts() for subject in subjects if not subject.user or subject.user in known}
    return found | dict(await every(connection, _counted, select(attempts).where(_among(found))))


async def write(connection: AsyncConnection, changed: Mapping[Subject, Attempts]) -> None:
    """Keep these counts in place of the ones that were read in this transaction.

    A count of nothing takes no row; that a person was accepted through a caller is something.
    """
    if changed:
        await connection.execute(delete(attempts).where(_among(changed)))
    rows = [
        {
            "caller": subject.caller,
            "user": subject.user,
            "failures": state.failures,
            "unusable": state.unusable,
            "since_s": state.since_s,
            "hour_level": state.recent.hour,
            "day_level": state.recent.day,
            "levels_s": state.recent.at_s,
            "accepted_s": state.accepted_s if subject.whose == "pair" else None,
        }
        for subject, state in changed.items()
        if _has_row(subject, state)
    ]
    if rows:
        await connection.execute(insert(attempts), rows)


async def reset(
    connection: AsyncConnection, subject: Subject, mark: Callable[[str], str], *, now: float, by: str
) -> bool:
    """Forget a subject's failures; false where there were none. A person's are those at every caller as well.

    That a caller is known for a person stays.

    Args:
        connection: in a transaction that writes.
        subject: whose failures.
        mark: gives the audit log's mark of a hashed user id.
        now: seconds since 1970.
        by: who does it, as the audit log names them.
    """
    await serialise(connection)
    mine = and_(attempts.c.caller == subject.caller, attempts.c.user == subject.user)
    if subject.whose == "person":
        mine = attempts.c.user == subject.user
    counted = or_(attempts.c.failures > 0, attempts.c.unusable > 0, attempts.c.day_level > 0)
    nothing = {"failures": 0, "unusable": 0, "hour_level": 0.0, "day_level": 0.0}
    result = await connection.execute(update(attempts).where(mine, counted).values(**nothing))
    if result.rowcount > 0:
        whom = mark(subject.user) if subject.user else ""
        told = {"whose": subject.whose, "caller": subject.caller}
        await audit.append(connection, now, by, "attempts-reset", subject=whom, **told)
    return result.rowcount > 0


async def list_counts(connection: AsyncConnection, limit: int) -> Sequence[tuple[Subject, Attempts]]:
    """Those with failures or unusable samples, most failures in a row first, then most in a day."""
    counted = or_(attempts.c.failures > 0, attempts.c.unusable > 0, attempts.c.day_level > 0)
    order = (attempts.c.failures.desc(), attempts.c.day_level.desc(), attempts.c.caller, attempts.c.user)
    query = select(attempts).where(counted).order_by(*order).limit(limit)
    return await every(connection, _counted, query)


async def prune(connection: AsyncConnection, now: float, known_s: float) -> None:
    """Remove the rows that say nothing any more: windows that have run dry, acceptances of long ago."""
    dry = attempts.c.levels_s < now - DAY_S
    of_one = or_(attempts.c.caller == "", attempts.c.user == "")
    idle = and_(attempts.c.failures == 0, attempts.c.unusable == 0)
    forgotten = or_(attempts.c.accepted_s.is_(None), attempts.c.accepted_s < now - known_s)
    await connection.execute(delete(attempts).where(dry, or_(of_one, and_(idle, forgotten))))


def _among(subjects: Collection[Subject]) -> ColumnElement[bool]:
    keys = [(subject.caller, subject.user) for subject in subjects]
    return tuple_(attempts.c.caller, attempts.c.user).in_(keys)


def _has_row(subject: Subject, state: Attempts) -> bool:
    counted = bool(state.failures or state.unusable or state.recent.hour or state.recent.day)
    return counted or (subject.whose == "pair" and state.accepted_s is not None)


def _counted(
    *,
    caller: str,
    user: str,
    failures: int,
    unusable: int,
    since_s: float,
    hour_level: float,
    day_level: float,
    levels_s: float,
    accepted_s: float | None,
) -> tuple[Subject, Attempts]:
    recent = Recent(hour_level, day_level, levels_s)
    return Subject(caller, user), Attempts(failures, unusable, since_s, recent, accepted_s)
