"""Failed attempts in a row: what an operator sees of them, and resets."""

from __future__ import annotations

import math
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel

from uvsdk.attempts import wait_s
from uvsdk_server.authentication import Served, operator
from uvsdk_server.store import counts
from uvsdk_server.store.counts import Subject, Whose

router = APIRouter(tags=["attempts"], dependencies=[Depends(operator)])


class AttemptsListing(BaseModel):
    """The failures in a row of one person (``name`` is a hashed user id) or one caller (the id of a token).

    ``unusable`` counts samples that could not be used since the last acceptance. ``wait_s`` is how long the next
    attempt must wait, ``null`` where it is ``disabled`` until it is reset.
    """

    whose: Whose
    name: str
    failures: int
    unusable: int
    wait_s: float | None
    disabled: bool


class AttemptsAnswer(BaseModel):
    """Most failures first."""

    attempts: list[AttemptsListing]


@router.get("/v1/attempts")
async def get_attempts(served: Served, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> AttemptsAnswer:
    """Who has failed in a row, as ``uvsdk lockouts list`` shows it."""
    policies, now = served.settings.retry_policies(), time.time()
    async with served.database.read() as connection:
        found = await counts.listed(connection, limit)
    listed = []
    for subject, state in found:
        remaining_s = wait_s(state, policies[subject.whose], now)
        disabled = math.isinf(remaining_s)
        listed.append(
            AttemptsListing(
                whose=subject.whose,
                name=subject.name,
                failures=state.failures,
                unusable=state.unusable,
                wait_s=None if disabled else remaining_s,
                disabled=disabled,
            )
        )
    return AttemptsAnswer(attempts=listed)


@router.delete("/v1/attempts/{whose}/{name}", status_code=204)
async def delete_attempts(served: Served, whose: Whose, name: Annotated[str, Path(pattern="^[0-9a-f]{1,64}$")]) -> None:
    """Forget them, once the person has been identified in another way; doing it again is fine."""
    async with served.database.write() as connection:
        await counts.reset(connection, Subject(whose, name))
