"""Verification over REST."""

from __future__ import annotations

import base64
from typing import Annotated

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from uvsdk.modality import FacesRule
from uvsdk.rest.problems import Problem
from uvsdk.rest.verification import FIELDS, decision_document
from uvsdk.scoring import QualityPolicy, Scale
from uvsdk.scoring.domain import Verdict
from uvsdk_server import problems, tokens
from uvsdk_server.authentication import BearerFirst, Caller, Served
from uvsdk_server.deployment import Deployment
from uvsdk_server.routes.devices import UserId
from uvsdk_server.tokens import Bearer
from uvsdk_server.verification import Probe, check_verifies

router = APIRouter(tags=["verify"], route_class=BearerFirst)

_EXAMPLE_USER = "3f" * 32


def _truth(value: object) -> object:
    """A form has words alone."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class VerifyRequest(BaseModel, extra="forbid"):
    """Either ``sample`` in base64, or ``embedding`` (unit norm) with the ``model_version`` it was made with.

    An embedding was looked at by nobody: neither its quality nor whether it is live. So it needs a token with the scope
    ``embeddings`` and a server whose settings take some.

    ``quality`` and ``faces`` may only be stricter than the server's settings: ``off`` < ``standard`` < ``strict``, and
    ``largest`` < ``single`` < ``only``.
    """

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "user": _EXAMPLE_USER,
                    "sample": "UklGRiQAAABXQVZF...",
                    "fmr": 0.0001,
                    "fallback": True,
                    "quality": "strict",
                },
                {"user": _EXAMPLE_USER, "embedding": [0.6, 0.8], "model_version": "9c" * 32},
            ]
        },
    )

    user: Annotated[UserId, Field(description=FIELDS["user"])]
    embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None
    model_version: Annotated[str, Field(max_length=64)] | None = None
    sample: Annotated[str, Field(description=FIELDS["sample"])] | None = None
    fmr: Annotated[float, Field(gt=0, lt=1, description=FIELDS["fmr"])] | None = None
    fallback: Annotated[bool, BeforeValidator(_truth), Field(strict=True, description=FIELDS["fallback"])] = False
    quality: Annotated[QualityPolicy, Field(description=FIELDS["quality"])] | None = None
    faces: Annotated[FacesRule, Field(description=FIELDS["faces"])] | None = None

    def probe(self) -> Probe:
        """What is to be compared. Raises :class:`Problem` 400, 422."""
        if (self.embedding is None) == (self.sample is None):
            raise Problem("invalid-request", "send either an embedding or a sample")
        if self.sample is not None:
            try:
                sample = base64.b64decode(self.sample, validate=True)
            except ValueError as error:  # letters beyond ASCII are no binascii.Error
                raise Problem("malformed", "the sample is not base64") from error
            return Probe(sample=sample, quality=self.quality, faces=self.faces)
        if self.model_version is None:
            raise Problem("invalid-request", "an embedding comes with the model_version it was made with")
        if self.quality is not None or self.faces is not None:
            raise Problem(
                "invalid-request", "quality and faces say how a sample is taken; an embedding was taken elsewhere"
            )
        return Probe(embedding=np.array(self.embedding, np.float32), model_version=self.model_version)


class ThresholdAnswer(BaseModel):
    """From where a probe is accepted, and the measurement behind it.

    ``scale`` says what is compared with ``score``: the decision's ``score`` (``cosine``) or its ``llr``.
    """

    score: float
    fmr: float
    trials: int
    interval: tuple[float, float]
    scale: Scale


class QualityAnswer(BaseModel):
    """What was measured in the sample, and what a person can do to make it better; empty for an embedding."""

    measured: dict[str, float]
    advice: tuple[str, ...]


class PresentationAnswer(BaseModel):
    """What one presentation attack detector says of the sample: ``bona_fide`` where ``score`` reaches ``threshold``.

    By how much and why is told with the scope ``scores`` only: it would teach an attacker to pass.
    """

    detector: str
    bona_fide: bool
    score: float | None = None
    threshold: float | None = None
    reasons: tuple[str, ...] = ()
    measured: dict[str, float] = {}


class StatisticsAnswer(BaseModel):
    """Where template and probe lie: their distances from the people of the calibration, the distance that one in a
    hundred of those exceed, and how much higher strangers may score outside of it (on the scale of the compensated
    scores behind ``llr``, and on that of the cosine)."""

    template: float | None
    probe: float | None
    limit: float | None
    rise: float
    cosine_rise: float


class BasisAnswer(BaseModel):
    """What the threshold was read from, and whether that speaks for this comparison.

    ``asked_fmr`` is ``null`` where nobody named a rate; ``fmr`` is the rate that the trials support. ``release`` and
    ``measured_unix_s`` are 0 where they are not known. With ``domain`` ``outside`` no false match rate was measured for
    such a comparison, and more is asked of the probe: the threshold then has no trials and the interval [0, 1].
    ``reasons`` (what lies outside: ``template``, ``probe``, or either with a condition that it lacks) and
    ``statistics`` are ``null`` without the scope ``scores``.
    """

    words: str
    source: str
    people: int
    trials: int
    measured_unix_s: float
    release: int
    asked_fmr: float | None
    fmr: float | None
    domain: Verdict
    reasons: tuple[str, ...] | None
    statistics: StatisticsAnswer | None


class VerifyAnswer(BaseModel):
    """The decision, and to a token with the scope ``scores`` its evidence.

    ``fmr`` is the false match rate that was aimed for. ``score`` is a cosine similarity. ``llr`` is the natural
    logarithm of P(score | same person) / P(score | another person) under the measured conditions, ``null`` where the
    model is not calibrated for it. Without the scope ``scores`` these two and ``threshold`` are ``null``: as many
    scores as the embedding has dimensions are the template. ``quality`` is of the sample alone. ``presentations`` is
    empty where no detector looked at the sample; one that sees an attack keeps the probe from being accepted.
    """

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "accepted": True,
                    "fmr": 0.0002,
                    "score": 0.83,
                    "llr": 7.2,
                    "threshold": {
                        "score": 6.1,
                        "fmr": 0.0002,
                        "trials": 40_860,
                        "interval": [0.000085, 0.00039],
                        "scale": "llr",
                    },
                    "model_version": "9c" * 32,
                    "quality": {
                        "measured": {"speech_s": 3.4, "snr_db": 21.0},
                        "advice": ["speech 3.4 s, need at least 5 s: speak longer"],
                    },
                    "presentations": [],
                    "basis": {
                        "words": "false match rate 0.0002 measured on 261 people of LibriSpeech (read English, CC BY "
                        "4.0), 34,972 impostor trials; template and probe lie within what was measured",
                        "source": "261 people of LibriSpeech (read English, CC BY 4.0)",
                        "people": 261,
                        "trials": 34_972,
                        "measured_unix_s": 0,
                        "release": 0,
                        "asked_fmr": None,
                        "fmr": 0.0002,
                        "domain": "inside",
                        "reasons": [],
                        "statistics": {"template": 61.2, "probe": 64.0, "limit": 81.5, "rise": 0.0, "cosine_rise": 0.0},
                    },
                }
            ]
        },
    )

    accepted: bool
    fmr: float
    score: float | None
    llr: float | None
    threshold: ThresholdAnswer | None
    model_version: str
    quality: QualityAnswer
    presentations: tuple[PresentationAnswer, ...]
    basis: BasisAnswer


@router.post("/v1/verify", response_model=VerifyAnswer, responses=problems.responses(404, 409, 423, 429))
async def post_verify(served: Served, caller: Caller, body: VerifyRequest) -> dict[str, object]:
    """Compare a probe with the template that the user's device left here.

    The body may also be a multipart form of the same fields, where ``sample`` is a file.

    Answered 403 ``forbidden`` to a token that is for other people, 403 ``edge-only`` where the algorithm lets no
    template leave the device, 403 ``embeddings-off`` where the server takes no embeddings; 422 ``laxer-rate`` for an
    ``fmr`` above the one in force; 429 ``too-many-attempts`` with ``Retry-After`` after failed attempts, for this
    person by this token or by this token at all, without looking at the probe; 423 ``disabled`` after more of them in
    a row, until the operator resets it. A sample that cannot be used is 422 (``no-speech``, ``no-face``,
    ``low-quality`` with what was ``measured``, ...) and not a rejection.
    """
    check_verifies(served.training)
    await _check_person(served, caller, body.user)
    if body.embedding is not None:
        _check_embeddings(served, caller)
    told = "scores" in caller.scopes
    decision = await served.verifier.verify(
        body.user, body.probe(), body.fmr, fallback=body.fallback, caller=caller.token_id, told=told
    )
    return decision_document(decision, told=told)


async def _check_person(served: Deployment, caller: Bearer, user: str) -> None:
    """A token for some people is told nothing of others, not even whether they are here."""
    if caller.limited:
        async with served.database.read() as connection:
            if not await tokens.serves(connection, caller.token_id, user):
                raise Problem("forbidden", "this token does not verify this person; ask the operator")


def _check_embeddings(served: Deployment, caller: Bearer) -> None:
    if not served.settings.embedding_probes:
        raise Problem("embeddings-off", "this server takes no embeddings as probes; send the sample")
    if "embeddings" not in caller.scopes:
        raise Problem("forbidden", "an embedding as a probe needs a token of scope embeddings; send the sample")
