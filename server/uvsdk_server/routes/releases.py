"""Releases: which model verifies, what did before, and what an operator may change of that."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from uvsdk.records.codec import unpack
from uvsdk.release.record import Calibrator, Policy, Release
from uvsdk_server import problems
from uvsdk_server.authentication import Operator, Served, SignedDevice, auditor, reader
from uvsdk_server.bodies import StrictRoute
from uvsdk_server.deployment import Deployment
from uvsdk_server.releases import Candidate
from uvsdk_server.routes.models import send_file
from uvsdk_server.store.rows import ReleaseRow

router = APIRouter(tags=["releases"], route_class=StrictRoute)

Number = Annotated[int, Path(ge=1, lt=1 << 31)]


class EvaluationAnswer(BaseModel):
    """What was measured of a model and its calibration; rates are shares, intervals 95 %, times Unix seconds."""

    model_config = ConfigDict(from_attributes=True)

    evaluation_id: int
    impostors: str
    people: int
    trials: int
    fmr: float
    fmr_low: float
    fmr_high: float
    threshold: float
    fnmr: float
    fnmr_low: float
    fnmr_high: float
    worst_fnmr: float
    measured_unix_s: float


class ReleaseAnswer(BaseModel):
    """A release. ``bundle`` and ``calibration`` are digests, the latter empty where there is none.

    ``record`` is base64 of exactly the bytes whose SHA-256 is signed, ``signature`` base64 of the deployment's
    signature; the other fields are read from it. ``kept`` says whether its bundle can be downloaded and rolled back to,
    ``refusals`` how many devices have tried it and stay with another one; ``calibrated_by`` who made its calibration.
    """

    model_config = ConfigDict(protected_namespaces=(), from_attributes=True)

    deployment: str
    number: int
    model_version: str
    bundle: str
    calibration: str
    replaces: int
    round_id: int
    algorithm: str
    config_digest: str
    cause: str
    evaluation: tuple[EvaluationAnswer, ...]
    created_unix_s: float
    kept: bool
    refusals: int
    calibrated_by: Calibrator
    record: str
    signature: str

    @classmethod
    def of(cls, row: ReleaseRow, refusals: int, calibrator: Calibrator) -> ReleaseAnswer:
        """As it is answered."""
        release = unpack(Release, row.record)
        return cls(
            deployment=release.deployment,
            number=release.number,
            model_version=release.model_version,
            bundle=release.bundle,
            calibration=release.calibration,
            replaces=release.replaces,
            round_id=release.round_id,
            algorithm=release.algorithm,
            config_digest=release.config_digest,
            cause=release.cause,
            evaluation=tuple(EvaluationAnswer.model_validate(item) for item in release.evaluation),
            created_unix_s=release.created_unix_s,
            kept=row.kept,
            refusals=refusals,
            calibrated_by=calibrator,
            record=base64.b64encode(row.record).decode(),
            signature=base64.b64encode(row.signature).decode(),
        )


class ReleasesAnswer(BaseModel):
    """A page, newest first; ``next_before`` is the ``before`` of the next page, ``null`` on the last.

    ``in_force`` is the number of the one that verifies.
    """

    releases: list[ReleaseAnswer]
    in_force: int
    next_before: int | None


class ChangeAnswer(BaseModel):
    """False non-match rate of the candidate less the released model's, and its 95 % interval."""

    model_config = ConfigDict(from_attributes=True)

    change: float
    low: float
    high: float


class VerdictAnswer(BaseModel):
    """What the gate said, and why not; ``change`` and ``evaluation`` are empty where they are not known."""

    model_config = ConfigDict(from_attributes=True)

    passes: bool
    reasons: tuple[str, ...]
    change: tuple[ChangeAnswer, ...]
    evaluation: tuple[EvaluationAnswer, ...]
    judged_unix_s: float


class CandidateAnswer(BaseModel):
    """What training goes on from. ``reasons`` say why it is not released, and are empty where it is.

    ``policy`` is the one in force, ``held`` says that it is so because of a roll-back.
    """

    model_config = ConfigDict(protected_namespaces=())

    model_version: str
    round_id: int
    calibrated: bool
    policy: Policy
    held: bool
    reasons: tuple[str, ...]
    verdict: VerdictAnswer | None

    @classmethod
    def of(cls, candidate: Candidate) -> CandidateAnswer:
        """As it is answered."""
        return cls(
            model_version=candidate.model_version,
            round_id=candidate.round_id,
            calibrated=candidate.calibrated,
            policy=candidate.policy,
            held=candidate.held,
            reasons=candidate.reasons,
            verdict=None if candidate.judged is None else VerdictAnswer.model_validate(candidate.judged),
        )


class Promotion(BaseModel, extra="forbid"):
    """The model version to release: the candidate, or another that is kept."""

    model_config = ConfigDict(protected_namespaces=())

    model_version: Annotated[str, Field(pattern="^([0-9a-f]{64}|candidate)$")]


class RollBack(BaseModel, extra="forbid"):
    """The release to go back to; left out, the one that the present bundle took the place of."""

    number: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None


class PolicyBody(BaseModel, extra="forbid"):
    """``automatic`` is what the settings say; ``manual`` and ``frozen`` can only be stricter than that."""

    policy: Literal["automatic", "manual", "frozen"]


class PolicyAnswer(BaseModel):
    """The policy in force."""

    policy: Policy


@router.get("/v1/releases", dependencies=[Depends(reader)])
async def get_releases(
    served: Served,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> ReleasesAnswer:
    """What has verified here, as ``uvsdk releases list`` shows it."""
    rows = await served.releases.list(limit + 1, before)
    current = await served.releases.row()
    page = await _answers(served, rows[:limit])
    more = page[-1].number if len(rows) > limit else None
    return ReleasesAnswer(releases=page, in_force=current.number, next_before=more)


@router.post("/v1/releases", status_code=201, responses=problems.responses(404, 409))
async def post_release(served: Served, shown: Operator, body: Promotion) -> ReleaseAnswer:
    """Release a model version. Where exactly it verifies already nothing is made, and that release is answered.

    Answered 409 ``release-frozen`` where nothing new is released, ``uncalibrated`` where there are no impostor scores
    of it and what verifies now has some.
    """
    version = served.models.candidate.version if body.model_version == "candidate" else body.model_version
    release = await served.releases.promote(version, by=shown.actor)
    return await _answer(served, release.number)


@router.get("/v1/releases/current", dependencies=[Depends(reader)])
async def get_current_release(served: Served) -> ReleaseAnswer:
    """The release that verifies."""
    return await _answer(served, None)


@router.get("/v1/releases/candidate", dependencies=[Depends(auditor)])
async def get_release_candidate(served: Served) -> CandidateAnswer:
    """What training goes on from, what the gate last said of it, and why it is not released."""
    return CandidateAnswer.of(await served.releases.candidate())


@router.post("/v1/releases/roll-back", status_code=201, responses=problems.responses(404))
async def post_roll_back(served: Served, shown: Operator, body: RollBack) -> ReleaseAnswer:
    """Release what an earlier release was, bit for bit, under a new number; also where releases are frozen.

    What the gate lets pass waits for an operator's promotion from then on.
    """
    release = await served.releases.roll_back(body.number, by=shown.actor)
    return await _answer(served, release.number)


@router.put("/v1/releases/policy")
async def put_policy(served: Served, shown: Operator, body: PolicyBody) -> PolicyAnswer:
    """Follow a stricter policy than that of the settings, or theirs again; this also lifts what a roll-back held."""
    chosen = None if body.policy == "automatic" else body.policy
    return PolicyAnswer(policy=await served.releases.override(chosen, by=shown.actor))


@router.get("/v1/releases/{number}", dependencies=[Depends(reader)], responses=problems.responses(404))
async def get_release(served: Served, number: Number) -> ReleaseAnswer:
    """One release."""
    return await _answer(served, number)


@router.get(
    "/v1/releases/{number}/bundle",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={304: {"description": "The entity tag still holds."}, **problems.responses(404)},
)
async def get_release_bundle(served: Served, request: Request, number: Number) -> Response:
    """The bundle of a release, signed; its digest is the release's."""
    return send_file(request, await served.releases.bundle_file(await served.releases.row(number)))


@router.post("/v1/releases/{number}/refusal", status_code=204, responses=problems.responses(404))
async def post_refusal(served: Served, device: SignedDevice, number: Number) -> None:
    """This device tried a release and stays with the one it had. It says no more than that, and is counted once."""
    await served.releases.refuse(number, device.device_id, device.user)


async def _answers(served: Deployment, rows: Sequence[ReleaseRow]) -> list[ReleaseAnswer]:
    refusals = await served.releases.refusals(rows)
    by = await served.releases.calibrators()
    return [ReleaseAnswer.of(row, refusals[row.number], by[row.calibration]) for row in rows]


async def _answer(served: Deployment, number: int | None) -> ReleaseAnswer:
    (answer,) = await _answers(served, [await served.releases.row(number)])
    return answer
