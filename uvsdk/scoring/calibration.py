"""Impostor scores of one model version, and the thresholds they support."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Float, Float32
from uvsdk.errors import ThresholdError
from uvsdk.scoring.intervals import clopper_pearson
from uvsdk.scoring.threshold import Threshold


@dataclass(frozen=True, slots=True)
class Calibration:
    """Impostor scores of one model version, from which a threshold for any supported false match rate is read.

    Args:
        impostor: cosine similarities of impostor trials, float32 (N,), ascending.
        model_version: the model that gave them.
        source: in words, whose recordings the trials were made of.
    """

    impostor: Float32
    model_version: str
    source: str
    # An interval takes milliseconds, a verification asks for the same one each time.
    _known: dict[float, Threshold] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_scores(cls, impostor: Float, *, model_version: str, source: str, keep: int = 100_000) -> Calibration:
        """Sort the scores, keeping at most ``keep`` evenly spaced ones, the highest always among them."""
        scores = np.sort(np.asarray(impostor, np.float32).ravel())
        if len(scores) > keep:
            scores = scores[np.linspace(0, len(scores) - 1, keep).round().astype(np.int64)]
        return cls(scores, model_version, source)

    def threshold(self, fmr: float) -> Threshold:
        """The smallest score at which the measured false match rate is at most ``fmr``.

        Raises:
            ThresholdError: fewer than ``3 / fmr`` trials: by the rule of three not even a clean sheet would show
                such a rate.
        """
        if fmr not in self._known:
            self._known[fmr] = self._measure(fmr)
        return self._known[fmr]

    def _measure(self, fmr: float) -> Threshold:
        if not 0.0 < fmr < 1.0:
            raise ThresholdError(f"a false match rate lies between 0 and 1, got {fmr}")
        trials = len(self.impostor)
        if trials * fmr < 3:
            raise ThresholdError(
                f"a false match rate of {fmr:g} needs at least {math.ceil(3 / fmr)} impostor trials, there are "
                f"{trials}; ask for a higher rate or calibrate with more people"
            )
        allowed = math.floor(fmr * trials + 1e-9)
        # Scores equal to the threshold are accepted, so it must lie above the (allowed + 1)-th highest score.
        blocked = float(self.impostor[trials - allowed - 1])
        score = min(float(np.nextafter(np.float32(blocked), np.float32(2))), 1.0 + 1e-6)
        accepted = int((self.impostor >= np.float32(score)).sum())
        return Threshold(score, fmr, trials, clopper_pearson(accepted, trials), self.model_version)
