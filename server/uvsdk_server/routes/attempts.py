"""Failed attempts: what an operator sees of them, and resets."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel

from uvsdk.rest.problems import Problem
from uvsdk.templates.attempts import wait_s
from uvsdk_server.authentication import Operator, Served, operator
from uvsdk_server.store import counts
from uvsdk_server.store.counts import Subject, Whose

router = APIRouter(tags=["attempts"], dependencies=[Depends(operator)])


class AttemptsListing(BaseModel):
    """The failures of one caller at one person (``whose`` is ``pair``, ``name`` ``TOKEN:HASH``), of one caller (the id
    of a token) or at one person (a hashed user id).

    ``failures`` are in a row; only a pair waits for them. ``last_hour`` and ``last_day`` is how full the windows are,
    whatever was accepted in between. ``unusable`` counts samples that could not be used since the last acceptance.
    ``wait_s`` is how long the next attempt must wait (at a person: of callers who do not know them), ``null`` where it
    is ``disabled`` until it is reset.
    """

    whose: Whose
    name: str
    failures: int
    unusable: int
    last_hour: float
    last_day: float
    wait_s: float | None
    disabled: bool


class AttemptsAnswer(BaseModel):
    """Most failures first."""

    attempts: list[AttemptsListing]


@router.get("/v1/attempts")
async def get_attempts(served: Served, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> AttemptsAnswer:
    """Who has failed, as ``uvsdk lockouts list`` shows it."""
    policies, now = served.settings.retry_policies(), served.clock()
    async with served.database.read() as connection:
        found = await counts.list_counts(connection, limit)
    listed = []
    for subject, state in found:
        policy = policies[subject.whose]
        remaining_s, recent = wait_s(state, policy, now), state.recent.at(policy, now)
        disabled = math.isinf(remaining_s)
        listed.append(
            AttemptsListing(
                whose=subject.whose,
                name=subject.name,
                failures=state.failures,
                unusable=state.unusable,
                last_hour=recent.hour,
                last_day=recent.day,
                wait_s=None if disabled else remaining_s,
                disabled=disabled,
            )
        )
    return AttemptsAnswer(attempts=listed)


@router.delete("/v1/attempts/{whose}/{name}", status_code=204)
async def delete_attempts(
    served: Served,
    shown: Operator,
    whose: Whose,
    name: Annotated[str, Path(pattern="^[0-9a-f]{1,64}(:[0-9a-f]{64})?$")],
) -> None:
    """Forget them, once the person has been identified in another way; doing it again is fine.

    A person's are forgotten at every caller; what one caller did to others stays.
    """
    try:
        subject = Subject.parse(whose, name)
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from error
    async with served.database.write() as connection:
        await counts.reset(connection, subject, served.keys.files.mark, now=served.now(), by=shown.actor)
