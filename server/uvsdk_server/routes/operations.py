"""For whoever keeps the server running."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from uvsdk_server import problems
from uvsdk_server.authentication import Served, operator
from uvsdk_server.problems import Problem
from uvsdk_server.store import ledger

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """``ok``, or the answer is a problem document."""

    status: str = "ok"


@router.get("/healthz")
async def get_health() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses=problems.responses(503))
async def get_readiness(served: Served) -> Health:
    """The database takes writes, the model is loaded, and rounds are being moved on."""
    try:
        await served.database.ping()
        await asyncio.to_thread(served.models.current.session)
    except (OSError, SQLAlchemyError) as error:
        raise Problem(503, "not-ready", "the database takes no writes; is the disk full?") from error
    if served.rounds.stalled:
        detail = f"rounds are stalled by {served.rounds.stalled} and tried again; the log says where"
        raise Problem(503, "not-ready", detail)
    if not served.driving:
        raise Problem(503, "not-ready", "rounds are no longer moved on; restart the server, its log holds the reason")
    return Health()


class RoundListing(BaseModel):
    """One round. Times are Unix seconds; ``accepted`` counts updates, while it collects those so far."""

    model_config = ConfigDict(protected_namespaces=())

    round_id: int
    state: str
    cohort: int
    quorum: int
    accepted: int
    model_version: str
    result_version: str | None
    opened: float
    deadline: float | None
    closed: float | None
    reason: str | None


class RoundsAnswer(BaseModel):
    """A page, newest first; ``next_before`` is the ``before`` of the next page, ``null`` on the last."""

    rounds: list[RoundListing]
    next_before: int | None


@router.get("/v1/rounds", dependencies=[Depends(operator)])
async def get_rounds(
    served: Served,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> RoundsAnswer:
    """What became of the rounds, as ``uvsdk rounds list`` shows it."""
    async with served.database.read() as connection:
        rows = await ledger.list_rounds(connection, limit + 1, before)
    page = [RoundListing(**{name: getattr(row, name) for name in RoundListing.model_fields}) for row in rows[:limit]]
    return RoundsAnswer(rounds=page, next_before=page[-1].round_id if len(rows) > limit else None)


@router.get("/metrics", response_class=Response)
async def get_metrics(served: Served, request: Request) -> Response:
    """Prometheus metrics; needs an operator's token unless the settings make them public."""
    if not served.settings.metrics_public:
        await operator(request)
    return Response(generate_latest(served.metrics.registry), media_type=CONTENT_TYPE_LATEST)
