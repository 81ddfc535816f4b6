"""Error rates of several groups of people together, with intervals over people, and differences of two models.

People are resampled, not trials: one resample draws as many people of each group as it has, with replacement; a
genuine trial then counts as often as its person was drawn, an impostor trial as often as the template's person times
the probe's. Of two models the same people are drawn, so that what both find hard cancels. Trials are within a group;
a pooled rate is the mean over the groups, for each has a model, and so a threshold, of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float64, Int64

_RESAMPLES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Scores:
    """One group's comparisons: of each person the scores of the probes against everybody's template, (n, people)."""

    names: tuple[str, ...]
    probes: tuple[Float64, ...]

    def eer(self, counts: Int64 | None = None) -> float:
        """The equal error rate, a fraction; ``counts`` says how often each person was drawn."""
        drawn = np.ones(len(self.names), np.int64) if counts is None else counts
        scores = np.concatenate(self.probes)
        owners = np.repeat(np.arange(len(self.names)), [len(rows) for rows in self.probes])
        genuine = owners[:, None] == np.arange(len(self.names))
        weights = np.where(genuine, drawn[owners][:, None], drawn[owners][:, None] * drawn[None, :])
        return weighted_eer(scores.ravel(), genuine.ravel(), weights.ravel())


def weighted_eer(scores: Float64, genuine: np.ndarray, weights: np.ndarray) -> float:
    """Where the weighted false match and false non-match rates meet, between two thresholds on a line.

    >>> weighted_eer(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]), np.ones(4))
    0.5
    """
    order = np.argsort(scores, kind="stable")
    own = np.where(genuine, weights, 0)[order].cumsum(dtype=np.float64)
    other = np.where(genuine, 0, weights)[order].cumsum(dtype=np.float64)
    last = np.append(np.diff(scores[order]) > 0, True)  # equal scores fall together
    fnmr = np.concatenate([[0.0], own[last] / own[-1]])
    fmr = np.concatenate([[1.0], 1.0 - other[last] / other[-1]])
    place = int(np.argmax(fnmr >= fmr))
    before, after = fmr[place - 1] - fnmr[place - 1], fnmr[place] - fmr[place]
    share = before / (before + after)
    return float(fnmr[place - 1] + share * (fnmr[place] - fnmr[place - 1]))


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its 95 % interval over people."""

    name: str
    value: float
    low: float
    high: float


def interval(groups: Sequence[Scores]) -> Figure:
    """The equal error rate, the mean over ``groups``."""
    return _figure("eer", _mean(groups, None), [_mean(groups, counts) for counts in _draws(groups)])


def gain(before: Sequence[Scores], after: Sequence[Scores]) -> Figure:
    """By how much the equal error rate fell; above 0 where ``after`` is better."""

    def fallen(counts: Sequence[Int64] | None) -> float:
        return _mean(before, counts) - _mean(after, counts)

    return _figure("gain", fallen(None), [fallen(counts) for counts in _draws(before)])


def _mean(groups: Sequence[Scores], counts: Sequence[Int64] | None) -> float:
    drawn = [None] * len(groups) if counts is None else counts
    return float(np.mean([group.eer(count) for group, count in zip(groups, drawn, strict=True)]))


def _draws(groups: Sequence[Scores]) -> list[list[Int64]]:
    """How often each person is drawn in each resample; those with one person only are drawn again."""
    rng, found = np.random.default_rng(0), list[list[Int64]]()
    while len(found) < _RESAMPLES:
        sizes = [len(group.names) for group in groups]
        counts = [np.bincount(rng.integers(0, size, size), minlength=size) for size in sizes]
        if all(np.count_nonzero(count) > 1 for count in counts):
            found.append(counts)
    return found


def _figure(name: str, value: float, resampled: Sequence[float]) -> Figure:
    tails = ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
    low, high = np.quantile(resampled, tails).tolist()
    return Figure(name, value, low, high)
