"""Verification over REST."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from uvsdk_server import problems
from uvsdk_server.authentication import Served, verifier
from uvsdk_server.problems import Problem
from uvsdk_server.routes.devices import UserId
from uvsdk_server.verification import Probe

router = APIRouter(tags=["verify"])


class VerifyRequest(BaseModel, extra="forbid"):
    """Either ``embedding`` (unit norm) with the ``model_version`` it was made with, or ``sample`` in base64."""

    model_config = ConfigDict(protected_namespaces=())

    user: UserId
    embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None
    model_version: Annotated[str, Field(max_length=64)] | None = None
    sample: str | None = None
    fmr: Annotated[float, Field(gt=0, lt=1)] | None = None

    def probe(self) -> Probe:
        """What is to be compared. Raises :class:`Problem` 400, 422."""
        if (self.embedding is None) == (self.sample is None):
            raise Problem(422, "invalid-request", "send either an embedding or a sample")
        if self.sample is not None:
            try:
                return Probe(sample=base64.b64decode(self.sample, validate=True))
            except binascii.Error as error:
                raise Problem(400, "malformed", "the sample is not base64") from error
        if self.model_version is None:
            raise Problem(422, "invalid-request", "an embedding comes with the model_version it was made with")
        return Probe(embedding=np.array(self.embedding, np.float32), model_version=self.model_version)


class ThresholdAnswer(BaseModel):
    """The score from which a probe is accepted, and the measurement behind it."""

    score: float
    fmr: float
    trials: int
    interval: tuple[float, float]


class QualityAnswer(BaseModel):
    """What was measured in the sample; empty for an embedding."""

    measured: dict[str, float]
    advice: tuple[str, ...]


class VerifyAnswer(BaseModel):
    """The decision. ``score`` is a cosine similarity."""

    model_config = ConfigDict(protected_namespaces=())

    accepted: bool
    score: float
    threshold: ThresholdAnswer
    model_version: str
    quality: QualityAnswer


@router.post("/v1/verify", dependencies=[Depends(verifier)], responses=problems.responses(404, 409))
async def post_verify(served: Served, body: VerifyRequest) -> VerifyAnswer:
    """Compare a probe with the template that the user's device left here.

    Answered 403 ``edge-only`` where the algorithm lets no template leave the device.
    """
    served.training.check_verifies()
    decision = await served.verifier.verify(body.user, body.probe(), body.fmr)
    threshold = decision.threshold
    return VerifyAnswer(
        accepted=decision.accepted,
        score=decision.score,
        threshold=ThresholdAnswer(
            score=threshold.score, fmr=threshold.fmr, trials=threshold.trials, interval=threshold.interval
        ),
        model_version=decision.model_version,
        quality=QualityAnswer(measured=decision.quality.measured, advice=decision.quality.advice),
    )
