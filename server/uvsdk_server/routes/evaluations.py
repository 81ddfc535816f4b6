"""Evaluations as a device sees them, and as an operator does."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response

from uvsdk.federation.messages import EvaluationHeader
from uvsdk_server import observer, problems
from uvsdk_server.authentication import ClaimedDevice, Operator, Served, SignedDevice, auditor, check_body
from uvsdk_server.deployment import Deployment
from uvsdk_server.store import evaluations as store
from uvsdk_server.store.rows import EvaluationRow

router = APIRouter(tags=["evaluations"])

EvaluationId = Annotated[int, Path(ge=1, lt=1 << 31)]


class EvaluationAnswer(BaseModel):
    """An evaluation that asks the device; ``asked`` counts devices, ``server_public_key`` is base64 of a raw X25519
    key.

    ``signature`` is base64 of the server's signature over the ``EvaluationHeader`` that the other fields make up, and
    over the two times between which it holds.
    """

    deployment: str
    algorithm: str
    evaluation_id: int
    candidate: str
    released: str
    impostors: str
    config_digest: str
    deadline_unix_s: float
    server_key_id: str
    server_public_key: str
    asked: int
    issued_unix_s: float
    expires_unix_s: float
    signature: str


class EvaluationListing(BaseModel):
    """One evaluation. Times are Unix seconds; ``arrived`` counts reports, while it collects those so far.

    ``cause`` is ``start``, ``centred``, ``rounds``, ``rest``, ``people`` or ``request``; ``outcome`` is ``released``,
    ``calibrated`` or ``kept``, and ``release`` the number of the release that came of it. ``reasons`` say why the
    candidate was kept, ``summary`` what was measured.
    """

    model_config = ConfigDict(protected_namespaces=())

    evaluation_id: int
    state: str
    cause: str
    candidate: str
    released: str
    impostors: str
    opened: float
    deadline: float | None
    closed: float | None
    asked: int
    arrived: int
    outcome: str | None
    release: int | None
    reasons: list[str]
    summary: dict[str, Any] | None

    @classmethod
    def of(cls, row: EvaluationRow) -> EvaluationListing:
        """As it is answered."""
        summary = None if row.summary is None else json.loads(row.summary)
        names = set(cls.model_fields) - {"reasons", "summary"}
        values = {name: getattr(row, name) for name in names}
        return cls(**values, reasons=[] if summary is None else summary["reasons"], summary=summary)


class EvaluationsAnswer(BaseModel):
    """A page, newest first; ``next_before`` is the ``before`` of the next page, ``null`` on the last."""

    evaluations: list[EvaluationListing]
    next_before: int | None


@router.get(
    "/v1/evaluations/current",
    response_model=EvaluationAnswer,
    responses={204: {"description": "No evaluation asks this device."}},
)
async def get_current_evaluation(
    served: Served, device: SignedDevice, after: Annotated[int, Query(ge=0, lt=1 << 31)] = 0
) -> Response:
    """The evaluation above ``after`` that asks this device; ``GET /v1/rounds/current`` says when there is one."""
    header = served.rounds.board.notice.asks(device.device_id, after)
    if header is None:
        return Response(status_code=204)
    return JSONResponse(_answer(header, served).model_dump())


@router.get("/v1/evaluations/{evaluation_id}/task", response_class=Response, responses=problems.responses(409, 410))
async def get_evaluation_task(served: Served, device: SignedDevice, evaluation_id: EvaluationId) -> Response:
    """What this device is asked: an envelope of an ``EvaluationTask``, sealed to it and signed by the server."""
    sealed = await served.reports.task(device, evaluation_id)
    return Response(sealed, media_type="application/octet-stream")


@router.put(
    "/v1/evaluations/{evaluation_id}/report",
    status_code=201,
    response_class=Response,
    responses={200: {"description": "The very same report was accepted before."}, **problems.responses(409, 410)},
)
async def put_report(served: Served, device: ClaimedDevice, request: Request, evaluation_id: EvaluationId) -> Response:
    """Hand in a report: an envelope of an ``EvaluationReport``. Answered once it is durable."""
    new = await served.reports.receive(device, evaluation_id, request.body, partial(check_body, request))
    answered = BackgroundTask(served.rounds.observer.reached, observer.REPORT_ANSWERED)
    return Response(status_code=201 if new else 200, background=answered)


@router.get("/v1/evaluations", dependencies=[Depends(auditor)])
async def get_evaluations(
    served: Served,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> EvaluationsAnswer:
    """What evaluations found, and what came of them."""
    async with served.database.read() as connection:
        rows = await store.listed(connection, limit + 1, before)
    page = [EvaluationListing.of(row) for row in rows[:limit]]
    return EvaluationsAnswer(evaluations=page, next_before=page[-1].evaluation_id if len(rows) > limit else None)


@router.post("/v1/evaluations", status_code=202, responses=problems.responses(409))
async def post_evaluation(served: Served, shown: Operator) -> EvaluationListing:
    """Have the candidate evaluated once no round is open; gives the evaluation, or the one that is under way."""
    return EvaluationListing.of(await served.evaluations.request(shown.actor))


@router.post("/v1/training/resume", status_code=204)
async def post_resume(served: Served, shown: Operator) -> None:
    """Let training go on where it has stopped by itself; doing it again, or where it has not, changes nothing."""
    await served.evaluations.resume(shown.actor)


def _answer(header: EvaluationHeader, served: Deployment) -> EvaluationAnswer:
    validity = served.validity()
    return EvaluationAnswer(
        deployment=header.deployment,
        algorithm=header.algorithm,
        evaluation_id=header.evaluation_id,
        candidate=header.candidate,
        released=header.released,
        impostors=header.impostors,
        config_digest=header.config_digest,
        deadline_unix_s=header.deadline_unix_s,
        server_key_id=header.server_key_id,
        server_public_key=base64.b64encode(header.server_public_key).decode(),
        asked=header.asked,
        issued_unix_s=validity.issued_unix_s,
        expires_unix_s=validity.expires_unix_s,
        signature=base64.b64encode(served.keys.stand_behind(header, validity)).decode(),
    )
