"""Exact intervals of proportions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from uvsdk.arrays import Float64, Int64

_WINDOW: Final = 40


def clopper_pearson(events: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
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
    # What lies so many standard deviations below the highest count adds nothing that a float can hold.
    lowest = max(0, events - int(_WINDOW * math.sqrt(events + 1)))
    k = np.arange(lowest, events + 1)
    log_choose = math.lgamma(trials + 1) - _lgamma(k + 1) - _lgamma(trials - k + 1)

    def cdf(p: float) -> float:
        if p <= 0.0:
            return 1.0
        if p >= 1.0:
            return 1.0 if events >= trials else 0.0
        if lowest and p * trials < lowest + (events - lowest) / 4:
            return 1.0
        terms = log_choose + k * math.log(p) + (trials - k) * math.log1p(-p)
        top = terms.max()
        return float(min(1.0, np.exp(terms - top).sum() * math.exp(top)))

    return cdf


def _lgamma(values: Int64) -> Float64:
    return np.array([math.lgamma(value) for value in values.tolist()])
