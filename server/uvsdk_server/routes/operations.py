"""For whoever keeps the server running."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from uvsdk.rest.problems import Problem
from uvsdk_server import problems
from uvsdk_server.authentication import Served, auditor
from uvsdk_server.evaluators import Evaluators
from uvsdk_server.store import evaluations, ledger

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
    """The database takes writes, the model is loaded, and rounds are being moved on.

    Tells what the server found by itself a moment ago: anybody may ask, as often as they like.
    """
    if not served.readiness.takes_writes:
        raise Problem("not-ready", "the database takes no writes; is the disk full?")
    if served.driver.stalled:
        detail = f"rounds are stalled by {served.driver.stalled} and tried again; the log says where"
        raise Problem("not-ready", detail)
    if not served.driving:
        raise Problem("not-ready", "rounds are no longer moved on; restart the server, its log holds the reason")
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


@router.get("/v1/rounds", dependencies=[Depends(auditor)])
async def get_rounds(
    served: Served,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> RoundsAnswer:
    """What became of the rounds, as ``uvsdk rounds list`` shows it."""
    async with served.database.read() as connection:
        rows = await ledger.list_rounds(connection, limit + 1, before)
    page = [RoundListing.model_validate(row, from_attributes=True) for row in rows[:limit]]
    return RoundsAnswer(rounds=page, next_before=page[-1].round_id if len(rows) > limit else None)


class TrainingAnswer(BaseModel):
    """What is being trained and how far it has come.

    ``mean_offdiagonal_cosine`` is near 1 when all class vectors have fallen onto one point, ``null`` where there are
    none. ``report`` is what the algorithm says of this training, e.g. that its users' secrets are none. ``evaluators``
    counts the users who only evaluate, ``outlook`` says how many more people must join until enough of them do, empty
    where they do, and ``stopped`` why training rests although rounds are left. ``step`` is what the server's step is
    multiplied by, after evaluations that found a candidate worse than the best.
    """

    algorithm: str
    config_digest: str
    committed_rounds: int
    rounds: int
    users: int
    evaluators: int
    outlook: str
    stopped: str | None
    step: float
    verifies_on_server: bool
    mean_offdiagonal_cosine: float | None
    report: dict[str, str | int | float | bool | None]


@router.get("/v1/training", dependencies=[Depends(auditor)])
async def get_training(served: Served) -> TrainingAnswer:
    """What is being trained, and what its algorithm reports."""
    training = served.training
    cosine = training.mean_offdiagonal_cosine()
    async with served.database.read() as connection:
        row = await ledger.deployment_row(connection)
        devices = await evaluations.respondents(connection)
    assert row is not None
    found = Evaluators.of(training.config, devices)
    moved = served.models.candidate.version != (await served.releases.row()).model_version
    lacking = found.impostors != "off" and not found.suffice
    return TrainingAnswer(
        algorithm=training.config.algorithm,
        config_digest=training.config.digest(),
        committed_rounds=row.committed_rounds,
        rounds=training.config.rounds,
        users=len(training.method.server.users(training.state)),
        evaluators=len({item.user for item in devices if item.evaluates}),
        outlook=found.words(candidate=moved) if lacking else "",
        stopped=row.stopped,
        step=training.step,
        verifies_on_server=training.method.server.verifies_on_server,
        mean_offdiagonal_cosine=cosine if math.isfinite(cosine) else None,
        report=training.report(),
    )


@router.get("/metrics", response_class=Response)
async def get_metrics(served: Served, request: Request) -> Response:
    """Prometheus metrics; needs an operator's or auditor's token unless the settings make them public."""
    if not served.settings.metrics_public:
        await auditor(request)
    return Response(generate_latest(served.metrics.registry), media_type=CONTENT_TYPE_LATEST)
