"""From a score and the conditions of both sides to a likelihood ratio.

Under worse conditions impostors score lower or, where both sides share the noise, higher; one threshold on the score
is then many false match rates. So the score is first measured against what impostors reach under those conditions,

    z = (score - location(template, probe)) / scale(template, probe),

which makes the false match rate at any z the same everywhere, and the ratio of z is a straight line fitted by logistic
regression, ``ln P(z | same) / P(z | another) = slope z + offset``. It is the ratio of what z alone says, over the mix
of conditions it was fitted on. Rises with the score under fixed conditions, since scale and slope are positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import Condition, Conditions
from uvsdk.scoring.ranked import RankedScores


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """Conditions as numbers around 0: logarithm where doubling counts, held to the range seen, standardised.

    Args:
        conditions: which, some of the modality's.
        low: smallest value seen, float64 (k,), after the logarithm.
        high: largest value seen, likewise.
        mean: likewise.
        spread: standard deviation, likewise, above 0.
    """

    conditions: tuple[Condition, ...]
    low: Float64
    high: Float64
    mean: Float64
    spread: Float64

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"every condition counts once, got {', '.join(self.names)}")
        for part in (self.low, self.high, self.mean, self.spread):
            if part.shape != (len(self.conditions),) or not np.isfinite(part).all():
                raise ValueError("a condition has one finite number of each kind")
        if (self.low > self.high).any() or (self.spread <= 0).any():
            raise ValueError("a condition's range ascends and its spread is positive")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the conditions."""
        return tuple(condition.name for condition in self.conditions)

    @classmethod
    def of(cls, samples: Sequence[Conditions], conditions: Sequence[Condition] = ()) -> Surroundings:
        """Of those of ``conditions`` that every one of ``samples`` has and in which they differ."""
        kept, columns = [], []
        for item in conditions:
            values = np.array([item.place(sample[item.name]) for sample in samples if item.name in sample])
            if len(samples) and len(values) == len(samples) and values.std() > 1e-9:
                kept.append(item)
                columns.append(values)
        if not kept:
            return cls((), *(np.zeros(0) for _ in range(4)))
        stacked = np.stack(columns)
        return cls(tuple(kept), stacked.min(1), stacked.max(1), stacked.mean(1), stacked.std(1))

    def lacking(self, sample: Conditions) -> tuple[str, ...]:
        """The names of those of which a sample has less than any that was seen; more of one does no harm."""
        return tuple(
            item.name
            for item, low in zip(self.conditions, self.low.tolist(), strict=True)
            if item.name in sample and item.place(sample[item.name]) < low - 1e-9
        )

    def place(self, samples: Sequence[Conditions]) -> Float64:
        """float64 (n, k); 0, the mean, where a condition was not measured."""
        rows = np.zeros((len(samples), len(self.conditions)))
        for row, sample in zip(rows, samples, strict=True):
            for column, item in enumerate(self.conditions):
                if item.name in sample:
                    value = min(max(item.place(sample[item.name]), self.low[column]), self.high[column])
                    row[column] = (value - self.mean[column]) / self.spread[column]
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodRatio:
    """The fitted map. Everything in it is about scores; the embeddings behind them are not in it.

    Args:
        compensation: applied to both embeddings before they are compared.
        top: cohort scores that :class:`uvsdk.scoring.cohort.Normalisation` looks at; 0 leaves the score as it is.
        surroundings: the conditions it depends on.
        location: weights of :func:`features`, float64 (1 + 3 k,): what impostors score on average.
        log_scale: likewise, natural logarithm of their standard deviation.
        limits: float64 (2, 2), least and greatest location, then log scale, that were fitted; held to these.
        slope: of the ratio in z, above 0.
        offset: ratio at z = 0.
        lowest: least ratio that the genuine trials can support, ``-ln`` of their number.
        highest: greatest ratio that the impostor trials can support, ``ln`` of their number.
        impostor: ratios of the impostor trials, float32 (n,), ascending; of worse copies of recordings as well.
        trials: impostor comparisons of original recordings behind them; copies of a recording are no new trials.
        above: int64 (n,): how many of all ratios are at least as high as each of ``impostor``, where not all are kept;
            ``None`` where all are.
    """

    compensation: Compensation
    top: int
    surroundings: Surroundings
    location: Float64
    log_scale: Float64
    limits: Float64
    slope: float
    offset: float
    lowest: float
    highest: float
    impostor: Float32
    trials: int
    above: Int64 | None = None
    ranked: RankedScores = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = (1 + 3 * len(self.surroundings.conditions),)
        if self.location.shape != size or self.log_scale.shape != size or self.limits.shape != (2, 2):
            raise ValueError(f"weights have shape {size}, got {self.location.shape} and {self.log_scale.shape}")
        numbers = [*self.location, *self.log_scale, *self.limits.ravel(), self.slope, self.offset]
        if not all(math.isfinite(number) for number in (*numbers, self.lowest, self.highest)):
            raise ValueError("a likelihood ratio is made of finite numbers")
        if not self.slope > 0 or not self.lowest < self.highest or (self.limits[:, 0] > self.limits[:, 1]).any():
            raise ValueError("a likelihood ratio rises with the score, between a lower and an upper bound")
        if self.top < 0 or self.top == 1 or self.trials < 1:
            raise ValueError(f"cohort scores are 0 or at least 2, trials at least 1; got {self.top} and {self.trials}")
        if not len(self.impostor) or not np.isfinite(self.impostor).all() or (np.diff(self.impostor) < 0).any():
            raise ValueError("impostor ratios are finite and ascend")
        object.__setattr__(self, "ranked", RankedScores.of(self.impostor, self.above))

    def standardise(self, scores: Float64, rows: Float64) -> Float64:
        """z of each score, float64 (n,).

        Args:
            scores: compensated, and normalised where :attr:`top` says so, float64 (n,).
            rows: :func:`features` of the conditions of both sides, float64 (n, 1 + 3 k).
        """
        (low, high), (narrow, wide) = self.limits
        location = np.clip(rows @ self.location, low, high)
        scale = np.exp(np.clip(rows @ self.log_scale, narrow, wide))
        return np.asarray((scores - location) / scale, np.float64)

    def ratios(self, scores: Float64, rows: Float64) -> Float64:
        """Natural-log likelihood ratio of each score, float64 (n,); arguments as for :meth:`standardise`."""
        return np.clip(self.slope * self.standardise(scores, rows) + self.offset, self.lowest, self.highest)


def features(template: Float64, probe: Float64) -> Float64:
    """What location and scale are linear in: 1, and of each condition sum, product and difference of both sides.

    Swapping the sides changes nothing. Product and difference are there since noise that both sides share raises
    their score, and noise on one of them lowers it.

    >>> features(np.array([[1.0]]), np.array([[3.0]])).tolist()
    [[1.0, 4.0, 3.0, 2.0]]
    """
    return np.concatenate(
        [np.ones((len(template), 1)), template + probe, template * probe, np.abs(template - probe)], axis=1
    )
