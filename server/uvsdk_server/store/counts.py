"""The table of failed attempts: read and written for many at once, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sqlalchemy import and_, delete, insert, literal, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.attempts import Attempts
from uvsdk_server.store.schema import attempts, users

Whose: TypeAlias = Literal["person", "caller"]
WHOSE: tuple[Whose, ...] = get_args(Whose)


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Whose attempts are counted.

    Args:
        whose: a person who is claimed, or a caller who claims.
        name: a person's hashed user id, or the id of a caller's token.
    """

    whose: Whose
    name: str


async def read(connection: AsyncConnection, subjects: Collection[Subject]) -> dict[Subject, Attempts]:
    """The counts of ``subjects``; zero where there is no row. Persons who are not known here are left out."""
    people, callers = _names(subjects, "person"), _names(subjects, "caller")
    joined = users.outerjoin(attempts, and_(attempts.c.whose == "person", attempts.c.subject == users.c.user))
    columns = (attempts.c.failures, attempts.c.unusable, attempts.c.since_s)
    query = union_all(
        select(literal("person").label("whose"), users.c.user.label("subject"), *columns)
        .select_from(joined)
        .where(users.c.user.in_(people)),
        select(literal("caller"), attempts.c.subject, *columns).where(
            attempts.c.whose == "caller", attempts.c.subject.in_(callers)
        ),
    )
    found = {Subject("caller", name): Attempts() for name in callers}
    for row in (await connection.execute(query)).all():
        counted = row.failures is not None
        state = Attempts(row.failures, row.unusable, row.since_s) if counted else Attempts()
        found[Subject(row.whose, row.subject)] = state
    return found


async def write(
    connection: AsyncConnection, former: Mapping[Subject, Attempts], changed: Mapping[Subject, Attempts]
) -> None:
    """Keep the counts ``changed`` in place of the ``former`` ones, as they were read in this transaction.

    A count of nothing takes no row, so most attempts are one insertion, and one deletion when they are accepted.
    """
    gone = [subject for subject in changed if _has_row(former[subject])]
    if gone:
        by_kind = [and_(attempts.c.whose == whose, attempts.c.subject.in_(_names(gone, whose))) for whose in WHOSE]
        await connection.execute(delete(attempts).where(or_(*by_kind)))
    rows = [
        {
            "whose": subject.whose,
            "subject": subject.name,
            "failures": state.failures,
            "unusable": state.unusable,
            "since_s": state.since_s,
        }
        for subject, state in changed.items()
        if _has_row(state)
    ]
    if rows:
        await connection.execute(insert(attempts), rows)


def _has_row(state: Attempts) -> bool:
    return bool(state.failures or state.unusable)


def _names(subjects: Collection[Subject], whose: Whose) -> list[str]:
    return [subject.name for subject in subjects if subject.whose == whose]


async def reset(connection: AsyncConnection, subject: Subject) -> bool:
    """Forget a subject's failures; false where there were none."""
    result = await connection.execute(
        delete(attempts).where(attempts.c.whose == subject.whose, attempts.c.subject == subject.name)
    )
    return result.rowcount > 0


async def listed(connection: AsyncConnection, limit: int) -> Sequence[tuple[Subject, Attempts]]:
    """Those with failures or unusable samples, most failures first."""
    query = select(attempts).order_by(attempts.c.failures.desc(), attempts.c.whose, attempts.c.subject).limit(limit)
    return [
        (Subject(row.whose, row.subject), Attempts(row.failures, row.unusable, row.since_s))
        for row in (await connection.execute(query)).all()
    ]
