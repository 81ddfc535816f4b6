"""Model versions: which verifies, which is trained, the files, the calibration."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Header, Path, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import FileResponse, Response

from uvsdk import modality
from uvsdk.errors import BundleError
from uvsdk.records.codec import unpack
from uvsdk.release.record import Release
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Calibration
from uvsdk.scoring.record import MAGICS, from_bytes
from uvsdk_server import problems
from uvsdk_server.authentication import Operator, Served, reader
from uvsdk_server.deployment import Deployment
from uvsdk_server.models import Download

router = APIRouter(tags=["models"])

Version = Annotated[str, Path(pattern="^([0-9a-f]{64}|current|candidate)$")]
_SOURCE_LIMIT = 200


class ModelAnswer(BaseModel):
    """A model version and the round that made it, 0 for the one the server started from."""

    model_config = ConfigDict(protected_namespaces=())

    model_version: str
    round_id: int


@router.get("/v1/models/current", dependencies=[Depends(reader)])
async def get_current_model(served: Served) -> ModelAnswer:
    """Which model version verifies: that of the release in force."""
    release = unpack(Release, (await served.releases.row()).record)
    return ModelAnswer(model_version=release.model_version, round_id=release.round_id)


@router.get("/v1/models/candidate", dependencies=[Depends(reader)])
async def get_candidate_model(served: Served) -> ModelAnswer:
    """Which model version training goes on from; admissions are made under it, and nobody is verified by it."""
    return ModelAnswer(model_version=served.models.candidate.version, round_id=served.models.round_id)


@router.get(
    "/v1/models/{version}/bundle",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={304: {"description": "The entity tag still holds."}, **problems.responses(404)},
)
async def get_bundle(served: Served, request: Request, version: Version) -> Response:
    """The whole bundle, with the calibration where there is one; of the version that verifies, as it was released."""
    released = await served.releases.row()
    if version in ("current", released.model_version):
        return send_file(request, await served.releases.bundle_file(released))
    return send_file(request, await served.models.bundle_file(version))


@router.get(
    "/v1/models/{version}/theta",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={304: {"description": "The entity tag still holds."}, **problems.responses(404)},
)
async def get_theta(served: Served, request: Request, version: Version) -> Response:
    """theta alone, raw little-endian float32: all that changes from version to version."""
    if version == "current":
        version = (await served.releases.row()).model_version
    return send_file(request, await served.models.theta_file(version))


@router.get(
    "/v1/models/{version}/control",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses=problems.responses(404),
)
async def get_control(served: Served, version: Version) -> Response:
    """SCAFFOLD's c that goes with the candidate, raw little-endian float32.

    Answered 404 ``no-control`` for any other version, and where the configuration has no control variates.
    """
    candidate = served.models.candidate.version
    if not served.training.config.control_variates or version not in ("candidate", candidate):
        raise Problem("no-control", "there are control variates of the candidate only, where they are used")
    control = served.training.optimiser.control.astype("<f4", copy=False)
    return Response(control.tobytes(), media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


@router.put(
    "/v1/models/{version}/calibration",
    status_code=204,
    responses=problems.responses(404, 409),
)
async def put_calibration(
    served: Served,
    shown: Operator,
    request: Request,
    version: Version,
    uvsdk_source: Annotated[str | None, Header()] = None,
) -> None:
    """Impostor scores of this version, raw little-endian float32, and whose recordings they are (``UVSDK-Source``); or
    a calibration as a bundle holds it (``calibration.bin``), which says so itself.

    Of the version that verifies it makes a new release, refused with 409 ``release-frozen`` where nothing new is
    released. Of another version it is kept, and that version can be promoted from then on; the candidate is promoted
    by it where the release policy is automatic: the operator has measured it.
    """
    body = await request.body()
    if version == "current":
        version = (await served.releases.row()).model_version
    elif version == "candidate":
        version = served.models.candidate.version
    calibration = _calibration(served, body, version, uvsdk_source)
    await served.releases.calibrate(version, calibration, by=shown.actor)


def _calibration(served: Deployment, body: bytes, version: str, source: str | None) -> Calibration:
    """What an operator sends. Raises :class:`Problem` 400, 422."""
    if body.startswith(MAGICS):
        conditions = modality.get(served.training.config.modality).conditions
        try:
            calibration = from_bytes(body, conditions)
        except BundleError as error:
            raise Problem("invalid-request", str(error)) from error
        if calibration.model_version != version:
            raise Problem("invalid-request", f"this calibration is of the model {calibration.model_version[:12]}")
        return calibration
    if len(body) % 4:
        raise Problem("malformed", f"{len(body)} bytes are no whole number of float32 values")
    if source is None or not 0 < len(source) <= _SOURCE_LIMIT:
        raise Problem("invalid-request", f"UVSDK-Source has 1 to {_SOURCE_LIMIT} characters")
    scores = np.frombuffer(body, "<f4")
    if not len(scores) or not np.isfinite(scores).all() or float(np.abs(scores).max()) > 1 + 1e-5:
        raise Problem("invalid-request", "impostor scores are cosines: at least one, finite, in [-1, 1]")
    return Calibration.from_scores(scores, model_version=version, source=source)


def send_file(request: Request, download: Download) -> Response:
    """A file, unless the caller has it."""
    # no-cache: may be stored, but asked for again with If-None-Match, since "current" moves
    headers = {"ETag": download.etag, "Cache-Control": "private, no-cache"}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if download.etag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return _ModelFile(download.path, media_type="application/octet-stream", headers=headers)


class _ModelFile(FileResponse):
    """A file in pieces large enough that the change of threads which each of them costs does not count."""

    chunk_size = 1 << 20
