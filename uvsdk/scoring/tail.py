"""Impostors' scores as a law with its uncertainty, in place of single trials (SPEC 17)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import ThresholdError
from uvsdk.records.later import later
from uvsdk.scoring.moments import ScoreLaw, jackknife

SHAPE_ERROR: Final = 0.06
"""Standard error of a normal law's quantiles, as a share of their distance from the mean: scores are not quite normal.
Seven domains let 0.9 to 1.4 % in at 1 % and 0.02 to 0.19 % at 0.1 % where mean and deviation were those of everybody
(examples/reproduce/selfcalibration)."""

MOST_SKEWED: Final = 0.5
"""Either way. A stronger skewness is not believed of people who are few enough to be summed one by one."""

_LOWEST_QUANTILE, _VALUES = 1e-6, 2_000


@dataclass(frozen=True, slots=True)
class Tail:
    """A law of impostors' scores, estimated from sums over people: normal, or skewed.

    Args:
        mean: of the scores.
        deviation: of the scores.
        people: strangers whose moments were summed.
        templates: enrolled people whose templates were.
        lowest_fmr: the lowest false match rate for which the law has been shown to hold with so many people.
        replicates: float64 (g, 2): mean and deviation with one group of devices left out; (g, 3) with the skewness
            beside them.
        skewness: of the law (:mod:`uvsdk.scoring.skewness`); 0 is a normal one.
    """

    mean: float
    deviation: float
    people: int
    templates: int
    lowest_fmr: float
    replicates: Float64
    skewness: float = later(float)

    def __post_init__(self) -> None:
        if not (self.deviation > 0.0 and math.isfinite(self.mean) and math.isfinite(self.deviation)):
            raise ThresholdError("a law of impostors' scores has a finite mean and a positive deviation")
        if not 0.0 < self.lowest_fmr < 1.0 or min(self.people, self.templates) < 0:
            raise ThresholdError("a law of impostors' scores names the people behind it and the rate it supports")
        if self.replicates.ndim != 2 or self.replicates.shape[1] not in (2, 3):
            raise ThresholdError("replicates are rows of a mean and a deviation, and of a skewness where there is one")
        if not np.isfinite(self.replicates).all():
            raise ThresholdError("replicates are finite")
        skewed = [self.skewness, *self.replicates[:, 2:].ravel().tolist()]
        if not all(abs(value) <= MOST_SKEWED for value in skewed):
            raise ThresholdError(f"a law of impostors' scores has a skewness of {MOST_SKEWED} at most, either way")

    @property
    def law(self) -> ScoreLaw:
        """The estimate."""
        return ScoreLaw(self.mean, self.deviation, self.skewness)

    def threshold(self, fmr: float) -> float:
        """The score that a share ``fmr`` of impostors reaches on average over what is not known of the law.

        With few people it lies higher than the estimate. Where the score of the estimate, z deviations above the
        mean, has a standard error of e deviations, normal as well, the expected rate at z sqrt(1 + e^2) is the asked
        one: E Phi(-(z' + e N)) = Phi(-z' / sqrt(1 + e^2)).

        Raises:
            ThresholdError: the law has not been shown to hold so far out.
        """
        if fmr < self.lowest_fmr * (1 - 1e-9):
            raise ThresholdError(
                f"the moments of {self.people} people support a false match rate of {self.lowest_fmr:g} or more, asked "
                f"is {fmr:g}; ask for a higher rate, or calibrate with more people"
            )
        error = jackknife([ScoreLaw(*row).score_at(fmr) for row in self.replicates.tolist()]) / self.deviation
        away = self.law.score_at(fmr) - self.mean
        return self.mean + away * (math.sqrt(1.0 + error**2) if away > 0.0 else 1.0)

    def interval(self, score: float) -> tuple[float, float]:
        """95 % interval of the false match rate at ``score``: by the jackknife over groups on the probit scale, and by
        :data:`SHAPE_ERROR`, which more people do not make smaller."""
        if len(self.replicates) < 2:
            return 0.0, 1.0
        place = self.law.place(score)
        drawn = jackknife([ScoreLaw(*row).place(score) for row in self.replicates.tolist()])
        error = math.hypot(drawn, SHAPE_ERROR * place)
        law = ScoreLaw(0.0, 1.0)
        return law.fmr_at(place + 1.96 * error), law.fmr_at(place - 1.96 * error)

    def values(self) -> Float32:
        """float32 (n,), ascending: evenly spaced quantiles of the law, for whoever looks at single scores."""
        rates = np.linspace(1.0 - _LOWEST_QUANTILE, _LOWEST_QUANTILE, _VALUES)
        return np.clip([self.law.score_at(rate) for rate in rates.tolist()], -1.0, 1.0).astype(np.float32)
