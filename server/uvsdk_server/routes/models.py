"""Model versions: which is current, the files, the calibration."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Header, Path, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import FileResponse, Response

from uvsdk.rest.problems import Problem
from uvsdk_server import problems
from uvsdk_server.authentication import Served, operator, reader
from uvsdk_server.models import Download

router = APIRouter(tags=["models"])

Version = Annotated[str, Path(pattern="^([0-9a-f]{64}|current)$")]
_SOURCE_LIMIT = 200


class ModelAnswer(BaseModel):
    """The current model version and the round that made it, 0 for the one the server started from."""

    model_config = ConfigDict(protected_namespaces=())

    model_version: str
    round_id: int


@router.get("/v1/models/current", dependencies=[Depends(reader)])
async def get_current_model(served: Served) -> ModelAnswer:
    """Which model version is current."""
    return ModelAnswer(model_version=served.models.current.version, round_id=served.models.round_id)


@router.get(
    "/v1/models/{version}/bundle",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={304: {"description": "The entity tag still holds."}, **problems.responses(404)},
)
async def get_bundle(served: Served, request: Request, version: Version) -> Response:
    """The whole bundle, with the calibration where there is one."""
    return _send(request, await served.models.bundle_file(version))


@router.get(
    "/v1/models/{version}/theta",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={304: {"description": "The entity tag still holds."}, **problems.responses(404)},
)
async def get_theta(served: Served, request: Request, version: Version) -> Response:
    """theta alone, raw little-endian float32: all that changes from version to version."""
    return _send(request, await served.models.theta_file(version))


@router.get(
    "/v1/models/{version}/control",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses=problems.responses(404),
)
async def get_control(served: Served, version: Version) -> Response:
    """SCAFFOLD's c that goes with the current version, raw little-endian float32.

    Answered 404 ``no-control`` for any other version, and where the configuration has no control variates.
    """
    current = served.models.current.version
    if not served.training.config.control_variates or version not in ("current", current):
        raise Problem("no-control", "there are control variates of the current model only, where they are used")
    control = served.training.optimiser.control.astype("<f4", copy=False)
    return Response(control.tobytes(), media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


@router.put(
    "/v1/models/{version}/calibration",
    status_code=204,
    dependencies=[Depends(operator)],
    responses=problems.responses(404),
)
async def put_calibration(
    served: Served, request: Request, version: Version, uvsdk_source: Annotated[str, Header()]
) -> None:
    """Impostor scores of this version, raw little-endian float32; ``UVSDK-Source`` says whose recordings they are."""
    body = await request.body()
    if len(body) % 4:
        raise Problem("malformed", f"{len(body)} bytes are no whole number of float32 values")
    if not 0 < len(uvsdk_source) <= _SOURCE_LIMIT:
        raise Problem("invalid-request", f"UVSDK-Source has 1 to {_SOURCE_LIMIT} characters")
    await served.models.calibrate(version, np.frombuffer(body, "<f4"), uvsdk_source)


def _send(request: Request, download: Download) -> Response:
    # no-cache: may be stored, but asked for again with If-None-Match, since "current" moves
    headers = {"ETag": download.etag, "Cache-Control": "private, no-cache"}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if download.etag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return _ModelFile(download.path, media_type="application/octet-stream", headers=headers)


class _ModelFile(FileResponse):
    """A file in pieces large enough that the change of threads which each of them costs does not count."""

    chunk_size = 1 << 20
