"""A score, the threshold it is held against, and the decision that follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Float, Float32, Float64, Int64
from uvsdk.errors import ThresholdError


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured in one sample before any matching.

    Args:
        measured: name with unit -> value, e.g. ``{"voiced_s": 3.2}`` or ``{"face_pixels": 140.0}``.
        advice: what a person can do to make the sample better; empty where nothing is wrong.
    """

    measured: dict[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Threshold:
    """The score from which a probe is accepted, and the measurement it comes from.

    Args:
        score: cosine similarity in [-1, 1]; a probe is accepted at or above it.
        fmr: false match rate that was aimed for, in (0, 1).
        trials: impostor trials behind it.
        interval: 95 % interval (Clopper-Pearson) of the false match rate at ``score``.
        model_version: the model the trials were made with; empty only for a threshold set by hand.
    """

    score: float
    fmr: float
    trials: int
    interval: tuple[float, float] = (0.0, 1.0)
    model_version: str = ""

    def __post_init__(self) -> None:
        if not -1.0 <= self.score <= 1.0 + 1e-6:
            raise ThresholdError(f"a cosine threshold lies in [-1, 1], got {self.score}")
        if not 0.0 < self.fmr < 1.0:
            raise ThresholdError(f"a false match rate lies between 0 and 1, got {self.fmr}")
        if self.trials < 0:
            raise ThresholdError(f"impostor trials cannot be {self.trials}")


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one verification. It has no truth value: write ``decision.accepted``.

    >>> threshold = Threshold(score=0.5, fmr=0.01, trials=1000)
    >>> decision = Decision(score=0.7, threshold=threshold, model_version="m")
    >>> decision.accepted
    True
    >>> bool(decision)
    Traceback (most recent call last):
      ...
    TypeError: a Decision has no truth value, so that `if verify(...)` cannot accept everyone; use .accepted
    """

    score: float
    threshold: Threshold
    model_version: str
    quality: Quality = field(default_factory=Quality)
    timings_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError("a score that is not a number decides nothing")

    @property
    def accepted(self) -> bool:
        """Whether the score reaches the threshold."""
        return self.score >= self.threshold.score

    def __bool__(self) -> bool:
        raise TypeError("a Decision has no truth value, so that `if verify(...)` cannot accept everyone; use .accepted")


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


def clopper_pearson(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a proportion, by bisection on the binomial tail.

    >>> low, high = clopper_pearson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    if trials == 0:
        return 0.0, 1.0
    tail = (1.0 - confidence) / 2
    below, up_to = _binomial_cdf(events - 1, trials), _binomial_cdf(events, trials)
    low = 0.0 if events == 0 else _solve(lambda p: 1.0 - below(p), tail, rising=True)
    high = 1.0 if events == trials else _solve(up_to, tail, rising=False)
    return low, high


def _solve(function: Callable[[float], float], target: float, *, rising: bool) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (function(middle) < target) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _binomial_cdf(events: int, trials: int) -> Callable[[float], float]:
    """p -> P(X <= events), summed in logarithms so that thousands of trials do not underflow."""
    k = np.arange(events + 1)
    log_choose = math.lgamma(trials + 1) - _lgamma(k + 1) - _lgamma(trials - k + 1)

    def cdf(p: float) -> float:
        if p <= 0.0:
            return 1.0
        if p >= 1.0:
            return 1.0 if events >= trials else 0.0
        terms = log_choose + k * math.log(p) + (trials - k) * math.log1p(-p)
        top = terms.max()
        return float(min(1.0, np.exp(terms - top).sum() * math.exp(top)))

    return cdf


def _lgamma(values: Int64) -> Float64:
    return np.array([math.lgamma(value) for value in values.tolist()])
