"""Rounds as a device sees them: wait for one, fetch the task, upload the update."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.messages import RoundHeader
from uvsdk_server import observer, problems
from uvsdk_server.authentication import ClaimedDevice, Served, SignedDevice, check_body
from uvsdk_server.keys import KeyRing
from uvsdk_server.problems import Problem
from uvsdk_server.rounds import check_collecting

router = APIRouter(tags=["rounds"])

LONGEST_WAIT_S = 30.0

RoundId = Annotated[int, Path(ge=1, lt=1 << 31)]


class RoundAnswer(BaseModel):
    """A round that asks the device to take part; ``server_public_key`` is base64 of a raw X25519 key.

    ``signature`` is base64 of the server's signature over the ``RoundHeader`` that the other fields make up.
    """

    model_config = ConfigDict(protected_namespaces=())

    deployment: str
    algorithm: str
    round_id: int
    model_version: str
    config_digest: str
    deadline_unix_s: float
    server_key_id: str
    server_public_key: str
    cohort: int
    signature: str


@router.get(
    "/v1/rounds/current",
    response_model=RoundAnswer,
    responses={204: {"description": "No round for this device; the header UVSDK-Training says waiting or finished."}},
)
async def get_current_round(
    served: Served,
    device: SignedDevice,
    after: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0)] = 0.0,
) -> Response:
    """Long poll for a round above ``after`` that this device is asked to take part in."""
    board = served.rounds.board
    header = await board.wait(device.device_id, after, min(wait_s, LONGEST_WAIT_S))
    if header is None:
        state = "finished" if board.notice.finished else "waiting"
        return Response(status_code=204, headers={"UVSDK-Training": state})
    return JSONResponse(_answer(header, served.keys).model_dump())


@router.get("/v1/rounds/{round_id}/task", response_class=Response, responses=problems.responses(409, 410))
async def get_task(served: Served, device: SignedDevice, round_id: RoundId) -> Response:
    """The algorithm's task for this device: an envelope sealed to it and signed by the server."""
    row, _ = await served.rounds.admits(device.device_id, round_id)
    check_collecting(row)
    try:
        # From the row and not from the board: a server that was just started again knows the round before it has
        # announced it, and a device that is told "closed" then would leave the round out.
        task = served.training.task(device, served.training.header(row, served.keys), served.keys)
    except UpdateRejectedError as error:
        raise Problem(403, "not-selected", str(error)) from error
    return Response(task, media_type="application/octet-stream")


@router.put(
    "/v1/rounds/{round_id}/update",
    status_code=201,
    response_class=Response,
    responses={200: {"description": "The very same update was accepted before."}, **problems.responses(409, 410)},
)
async def put_update(served: Served, device: ClaimedDevice, request: Request, round_id: RoundId) -> Response:
    """Upload an update: an envelope of the head and the delta. Answered once it is durable."""
    new = await served.uploads.receive(device, round_id, request.stream(), partial(check_body, request))
    answered = BackgroundTask(served.rounds.observer.reached, observer.UPLOAD_ANSWERED)
    return Response(status_code=201 if new else 200, background=answered)


def _answer(header: RoundHeader, keys: KeyRing) -> RoundAnswer:
    return RoundAnswer(
        deployment=header.deployment,
        algorithm=header.algorithm,
        round_id=header.round_id,
        model_version=header.model_version,
        config_digest=header.config_digest,
        deadline_unix_s=header.deadline_unix_s,
        server_key_id=header.server_key_id,
        server_public_key=base64.b64encode(header.server_public_key.tobytes()).decode(),
        cohort=header.cohort,
        signature=base64.b64encode(keys.stand_behind(header)).decode(),
    )
