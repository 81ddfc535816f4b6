"""Rounds as a device sees them: wait for one, choose where that is asked, fetch the task, upload the update."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response

from uvsdk.errors import UnknownNameError, UpdateRejectedError
from uvsdk.federation import messages
from uvsdk.federation.messages import RoundHeader
from uvsdk.records.codec import unpack
from uvsdk.rest.problems import Problem
from uvsdk_server import envelopes, observer, problems, protocol
from uvsdk_server.authentication import ClaimedDevice, Served, SignedDevice, check_body
from uvsdk_server.deployment import Deployment
from uvsdk_server.people import Device
from uvsdk_server.rounds import check_collecting
from uvsdk_server.store.rows import Round

router = APIRouter(tags=["rounds"])

LONGEST_WAIT_S = 30.0

RoundId = Annotated[int, Path(ge=1, lt=1 << 31)]


class RoundAnswer(BaseModel):
    """A round that asks the device to take part; ``server_public_key`` is base64 of a raw X25519 key, ``clip_norm``
    the longest update that counts.

    ``signature`` is base64 of the server's signature over the ``RoundHeader`` that the other fields make up, and over
    the two times between which it holds.
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
    clip_norm: float
    issued_unix_s: float
    expires_unix_s: float
    signature: str


@router.get(
    "/v1/rounds/current",
    response_model=RoundAnswer,
    responses={
        204: {
            "description": "No round for this device; the header UVSDK-Training says waiting, evaluating (ask for "
            "evaluations/current), finished or stopped."
        }
    },
)
async def get_current_round(
    served: Served,
    device: SignedDevice,
    after: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
    wait_s: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
    evaluated: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
) -> Response:
    """Long poll for a round above ``after`` that this device is asked to take part in, or for an evaluation above
    ``evaluated``.
    """
    board = served.rounds.board
    header = await board.wait(device.device_id, after, min(wait_s, LONGEST_WAIT_S), evaluated=evaluated)
    if header is None:
        asked = board.notice.asks(device.device_id, evaluated) is not None
        rests = "stopped" if board.notice.stopped else "finished" if board.notice.finished else "waiting"
        state = "evaluating" if asked else rests
        return Response(status_code=204, headers={"UVSDK-Training": state})
    return JSONResponse(_answer(header, served).model_dump())


@router.get("/v1/rounds/{round_id}/task", response_class=Response, responses=problems.responses(409, 410))
async def get_task(served: Served, device: SignedDevice, round_id: RoundId) -> Response:
    """The algorithm's task for this device: an envelope sealed to it and signed by the server.

    Answered 409 ``request-needed`` where a device says first what it asks for.
    """
    row = await _collecting(served, device, round_id)
    with served.rounds.asking(device.device_id, round_id):
        return _sealed(await asyncio.to_thread(_task, served, device, row))


@router.get("/v1/rounds/{round_id}/invitation", response_class=Response, responses=problems.responses(409, 410))
async def get_invitation(served: Served, device: SignedDevice, round_id: RoundId) -> Response:
    """What this device may choose from: an envelope sealed to it and signed by the server.

    Answered 409 ``nothing-to-request`` where a device chooses nothing.
    """
    row = await _collecting(served, device, round_id)
    with served.rounds.asking(device.device_id, round_id):
        return _sealed(await asyncio.to_thread(_invitation, served, device, row))


@router.post("/v1/rounds/{round_id}/task", response_class=Response, responses=problems.responses(404, 409, 410))
async def post_task(served: Served, device: SignedDevice, request: Request, round_id: RoundId) -> Response:
    """The task for what this device asks for: an envelope of a ``Request`` in, one of the ``Task`` out.

    Asking again for the same gives the same task, and for anything else 409 ``already-requested``: a device asks once
    in a round. Something that is not offered is answered 404 ``unknown-request``, which never says what.
    """
    row = await _collecting(served, device, round_id)
    expected = envelopes.Expected.of(served.training.config, "request", row)
    with served.rounds.asking(device.device_id, round_id):
        asked = unpack(messages.Request, envelopes.open_single(await request.body(), device, expected, served.keys))
        if (asked.round_id, asked.algorithm) != (round_id, served.training.config.algorithm):
            raise Problem("wrong-round", "the request inside the seal is of another round than the seal")
        task = await asyncio.to_thread(_task, served, device, row, asked.body)
        await served.rounds.settle_request(device.device_id, round_id, asked.body)
    return _sealed(task)


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


async def _collecting(served: Deployment, device: Device, round_id: int) -> Round:
    """The round, where it collects and asks this device.

    From the row and not from the board: a server that was just started again knows the round before it has announced
    it, and a device that is told "closed" then would leave the round out.
    """
    row, _ = await served.rounds.admits(device.device_id, round_id)
    check_collecting(row)
    return row


def _invitation(served: Deployment, device: Device, row: Round) -> bytes:
    _check_turn(served, device, asks=True)
    return protocol.invitation(served.training, device, row, served.keys)


def _task(served: Deployment, device: Device, row: Round, request: bytes | None = None) -> bytes:
    """Raises :class:`Problem` 404 for a request that names what there is not, without saying what."""
    _check_turn(served, device, asks=request is not None)
    try:
        return protocol.task(served.training, device, row, served.keys, request=request)
    except (UpdateRejectedError, UnknownNameError) as error:
        if request is None:
            raise Problem("not-selected", str(error)) from error
        # The algorithm's own words may name what was asked for.
        raise Problem("unknown-request", "something that was asked for is not offered in this round") from error


def _check_turn(served: Deployment, device: Device, *, asks: bool) -> None:
    """Raise :class:`Problem` 403 for a user who is not admitted, 409 where a request is missing or unexpected."""
    method = served.training.method
    if device.user not in method.server.users(served.training.state):
        raise Problem("not-selected", "that user is not among those admitted; send an admission first")
    if asks and method.request is None:
        raise Problem("nothing-to-request", "in this deployment a device chooses nothing; fetch its task")
    if not asks and method.request is not None:
        raise Problem("request-needed", "in this deployment a device says what it asks for; fetch invitation")


def _sealed(envelope: bytes) -> Response:
    return Response(envelope, media_type="application/octet-stream")


def _answer(header: RoundHeader, served: Deployment) -> RoundAnswer:
    validity = served.validity()
    return RoundAnswer(
        deployment=header.deployment,
        algorithm=header.algorithm,
        round_id=header.round_id,
        model_version=header.model_version,
        config_digest=header.config_digest,
        deadline_unix_s=header.deadline_unix_s,
        server_key_id=header.server_key_id,
        server_public_key=base64.b64encode(header.server_public_key).decode(),
        cohort=header.cohort,
        clip_norm=header.clip_norm,
        issued_unix_s=validity.issued_unix_s,
        expires_unix_s=validity.expires_unix_s,
        signature=base64.b64encode(served.keys.stand_behind(header, validity)).decode(),
    )
