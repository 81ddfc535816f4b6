"""Verification over REST."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from uvsdk.modality import FacesRule
from uvsdk.scoring import Decision, Presentation, QualityPolicy, Scale
from uvsdk_server import problems
from uvsdk_server.authentication import BearerFirst, Caller, Served
from uvsdk_server.problems import Problem
from uvsdk_server.routes.devices import UserId
from uvsdk_server.verification import Probe

router = APIRouter(tags=["verify"], route_class=BearerFirst)

_EXAMPLE_USER = "3f" * 32


class VerifyRequest(BaseModel, extra="forbid"):
    """Either ``embedding`` (unit norm) with the ``model_version`` it was made with, or ``sample`` in base64.

    ``quality`` and ``faces`` may only be stricter than the server's settings: ``off`` < ``standard`` < ``strict``, and
    ``largest`` < ``single`` < ``only``.
    """

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"user": _EXAMPLE_USER, "sample": "UklGRiQAAABXQVZF...", "fmr": 0.001, "quality": "strict"},
                {"user": _EXAMPLE_USER, "embedding": [0.6, 0.8], "model_version": "9c" * 32},
            ]
        },
    )

    user: Annotated[UserId, Field(description="hashed user id, 64 hexadecimal digits")]
    embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None
    model_version: Annotated[str, Field(max_length=64)] | None = None
    sample: Annotated[str, Field(description="a recording or picture, the file's bytes in base64")] | None = None
    fmr: Annotated[float, Field(gt=0, lt=1, description="false match rate in place of the server's")] | None = None
    quality: Annotated[QualityPolicy, Field(description="what the sample must reach before it is matched")] | None = (
        None
    )
    faces: Annotated[FacesRule, Field(description="whose face is meant where a picture has several")] | None = None

    def probe(self) -> Probe:
        """What is to be compared. Raises :class:`Problem` 400, 422."""
        if (self.embedding is None) == (self.sample is None):
            raise Problem(422, "invalid-request", "send either an embedding or a sample")
        if self.sample is not None:
            try:
                sample = base64.b64decode(self.sample, validate=True)
            except binascii.Error as error:
                raise Problem(400, "malformed", "the sample is not base64") from error
            return Probe(sample=sample, quality=self.quality, faces=self.faces)
        if self.model_version is None:
            raise Problem(422, "invalid-request", "an embedding comes with the model_version it was made with")
        if self.quality is not None or self.faces is not None:
            raise Problem(
                422, "invalid-request", "quality and faces say how a sample is taken; an embedding was taken elsewhere"
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
    """What one presentation attack detector says of the sample: ``bona_fide`` where ``score`` reaches ``threshold``."""

    detector: str
    bona_fide: bool
    score: float
    threshold: float
    reasons: tuple[str, ...]
    measured: dict[str, float]

    @classmethod
    def of(cls, item: Presentation) -> PresentationAnswer:
        """As it is answered."""
        return cls(
            detector=item.detector,
            bona_fide=item.bona_fide,
            score=item.score,
            threshold=item.threshold,
            reasons=item.reasons,
            measured=item.measured,
        )


class VerifyAnswer(BaseModel):
    """The decision and its evidence.

    ``score`` is a cosine similarity. ``llr`` is the natural logarithm of P(score | same person) / P(score | another
    person) under the measured conditions, ``null`` where the model is not calibrated for it. ``presentations`` is
    empty where no detector looked at the sample; one that sees an attack keeps the probe from being accepted.
    """

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "accepted": True,
                    "score": 0.83,
                    "llr": 7.2,
                    "threshold": {
                        "score": 4.6,
                        "fmr": 0.01,
                        "trials": 20_000,
                        "interval": [0.0087, 0.0115],
                        "scale": "llr",
                    },
                    "model_version": "9c" * 32,
                    "quality": {
                        "measured": {"speech_s": 3.4, "snr_db": 21.0},
                        "advice": ["speech 3.4 s, need at least 5 s: speak longer"],
                    },
                    "presentations": [],
                }
            ]
        },
    )

    accepted: bool
    score: float
    llr: float | None
    threshold: ThresholdAnswer
    model_version: str
    quality: QualityAnswer
    presentations: tuple[PresentationAnswer, ...]

    @classmethod
    def of(cls, decision: Decision) -> VerifyAnswer:
        """As it is answered."""
        threshold = decision.threshold
        return cls(
            accepted=decision.accepted,
            score=decision.score,
            llr=decision.llr,
            threshold=ThresholdAnswer(
                score=threshold.score,
                fmr=threshold.fmr,
                trials=threshold.trials,
                interval=threshold.interval,
                scale=threshold.scale,
            ),
            model_version=decision.model_version,
            quality=QualityAnswer(measured=decision.quality.measured, advice=decision.quality.advice),
            presentations=tuple(PresentationAnswer.of(item) for item in decision.presentations),
        )


@router.post("/v1/verify", responses=problems.responses(404, 409, 423, 429))
async def post_verify(served: Served, caller: Caller, body: VerifyRequest) -> VerifyAnswer:
    """Compare a probe with the template that the user's device left here.

    Answered 403 ``edge-only`` where the algorithm lets no template leave the device; 429 ``too-many-attempts`` with
    ``Retry-After`` after failed attempts in a row, for this person or by this token, without looking at the probe; 423
    ``disabled`` after more of them, until the operator resets it. A sample that cannot be used is 422 (``no-speech``,
    ``no-face``, ``low-quality`` with what was ``measured``, ...) and not a rejection.
    """
    served.training.check_verifies()
    return VerifyAnswer.of(await served.verifier.verify(body.user, body.probe(), body.fmr, caller=caller.token_id))
