"""The value from which a probe is accepted, with the measurement behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from uvsdk.errors import ThresholdError

Scale: TypeAlias = Literal["cosine", "llr"]
"""On which scale a threshold lies: cosine similarity, or the natural logarithm of a likelihood ratio."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The score from which a probe is accepted, and the measurement it comes from.

    Args:
        score: the value at or above which a probe is accepted: a cosine similarity in [-1, 1], or on the scale
            ``llr`` any finite number.
        fmr: false match rate that was aimed for, in (0, 1).
        trials: impostor trials behind it.
        interval: 95 % interval (Clopper-Pearson) of the false match rate at ``score``.
        model_version: the model the trials were made with; empty only for a threshold set by hand.
        scale: which of a :class:`Decision`'s values is compared, ``score`` or ``llr``.
        calibration: digest of the calibration the trials belong to (:attr:`uvsdk.scoring.Calibration.digest`); empty
            for a threshold set by hand, or read by a version that did not keep it.
        by_default: nobody named ``fmr``: it is the model's default and follows the next model's.
        centre: names what is subtracted from both sides before a cosine is held against it
            (:attr:`uvsdk.scoring.Calibration.centre_digest`); empty for nothing, and on the scale ``llr``.
    """

    score: float
    fmr: float
    trials: int
    interval: tuple[float, float] = (0.0, 1.0)
    model_version: str = ""
    scale: Scale = "cosine"
    calibration: str = ""
    by_default: bool = False
    centre: str = ""

    def __post_init__(self) -> None:
        if self.scale not in ("cosine", "llr"):
            raise ThresholdError(f"a threshold lies on the scale cosine or llr, got {self.scale!r}")
        if self.scale == "llr" and not math.isfinite(self.score):
            raise ThresholdError(f"a threshold is a finite number, got {self.score}")
        if self.scale == "cosine" and not -1.0 <= self.score <= 1.0 + 1e-6:
            raise ThresholdError(f"a cosine threshold lies in [-1, 1], got {self.score}")
        if not 0.0 < self.fmr < 1.0:
            raise ThresholdError(f"a false match rate lies between 0 and 1, got {self.fmr}")
        if self.trials < 0:
            raise ThresholdError(f"impostor trials cannot be {self.trials}")
