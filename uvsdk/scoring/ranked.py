"""Impostors' scores, kept so that the threshold of a low rate is exact however many trials there were.

Of more trials than are worth keeping, all scores above a quantile are kept, and below it some; each with its count, how
many of *all* trials score at least as high. Thresholds and rates are read from the counts,
never from how many scores happen to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Float, Float32, Int64

TAIL_SHARE: Final = 0.5
"""Share of the kept scores that is the tail: the highest of all trials, every one of them."""

MOST_TRIALS: Final = 1 << 53
"""More are not counted exactly by a float, and nobody makes so many."""


@dataclass(frozen=True, slots=True, eq=False)
class RankedScores:
    """Scores in ascending order with their counts.

    Args:
        values: float32 (n,), ascending.
        above: int64 (n,): how many of all scores are at least as high as each; equal scores have equal counts.

    >>> scores = keep(np.arange(10.0), 4)
    >>> scores.values.tolist(), scores.above.tolist(), scores.trials
    ([0.0, 7.0, 8.0, 9.0], [10, 3, 2, 1], 10)
    >>> scores.threshold(2)  # seven is refused, eight and nine are let in
    7.000000476837158
    >>> scores.count(8.0), scores.count(5.0)  # of those between 0 and 7 it is not known how many reach 5
    ((2, 2), (3, 9))
    """

    values: Float32
    above: Int64

    def __post_init__(self) -> None:
        values, above = self.values, self.above
        if values.ndim != 1 or above.shape != values.shape or above.dtype != np.int64:
            raise ValueError(f"every score has a count, got {above.dtype} {above.shape} for {values.shape}")
        if not len(values):
            return
        if (np.diff(above) > 0).any() or above[-1] < 1 or above[0] > MOST_TRIALS:
            raise ValueError("counts of scores at least as high are positive and fall as the scores ascend")
        if (above < len(values) - np.searchsorted(values, values, side="left")).any():
            raise ValueError("more scores are kept than were counted")
        if ((np.diff(values) == 0) != (np.diff(above) == 0)).any():
            raise ValueError("equal scores have equal counts, and different scores different ones")

    @classmethod
    def of(cls, values: Float32, above: Int64 | None = None) -> RankedScores:
        """All there are, where ``above`` is left out."""
        if above is None:
            above = (len(values) - np.searchsorted(values, values, side="left")).astype(np.int64)
        return cls(values, above)

    @property
    def trials(self) -> int:
        """How many scores there were; the lowest is always kept."""
        return int(self.above[0]) if len(self.above) else 0

    @property
    def weights(self) -> Int64:
        """int64 (n,): how many scores each stands for, those between two of them counting as the higher one."""
        first = np.flatnonzero(np.diff(self.values, prepend=-np.inf) > 0)
        strictly = self._strictly_above(first)
        counts = np.zeros(len(self.values), np.int64)
        counts[first] = np.concatenate([[self.trials], strictly[:-1]]) - strictly
        if len(first):
            counts[first[-1]] += strictly[-1]
        return counts

    @property
    def mean(self) -> float:
        """Of all scores, those that are not kept counted as :attr:`weights` has them."""
        return float(np.average(self.values.astype(np.float64), weights=self.weights))

    @property
    def median(self) -> float:
        """The lowest score that half of all do not exceed, or the next kept one above it."""
        reached = np.cumsum(self.weights)
        return float(self.values[int(np.searchsorted(reached, self.trials / 2))])

    def threshold(self, allowed: int) -> float:
        """The least score that at most ``allowed`` scores reach; where it is not known, one that is higher."""
        place = int(np.searchsorted(-self.above, -allowed, side="left"))
        if place == 0:
            return float(self.values[0])
        blocked = place - 1
        first = int(np.searchsorted(self.values, self.values[blocked], side="left"))
        beyond = int(self.above[place]) if place < len(self.above) else 0
        # Nothing lies between them only where as many were counted as are kept.
        if int(self._strictly_above(np.array([first]))[0]) > beyond and place < len(self.values):
            return float(self.values[place])
        return float(np.nextafter(self.values[blocked], np.float32(np.inf)))

    def count(self, score: float) -> tuple[int, int]:
        """How many scores are at least ``score``: at least and at most; the same number where it is known."""
        place = int(np.searchsorted(self.values, np.float32(score), side="left"))
        least = int(self.above[place]) if place < len(self.values) else 0
        if place == 0:
            return least, least
        if place < len(self.values) and self.values[place] == np.float32(score):
            return least, least
        first = int(np.searchsorted(self.values, self.values[place - 1], side="left"))
        return least, int(self._strictly_above(np.array([first]))[0])

    def _strictly_above(self, first: Int64) -> Int64:
        """At most so many scores are higher than the value whose first copy is kept at ``first``."""
        copies = np.searchsorted(self.values, self.values[first], side="right") - first
        return np.asarray(self.above[first] - copies, np.int64)


def keep(scores: Float, limit: int, *, above: Int64 | None = None) -> RankedScores:
    """All of ``scores``, or ``limit`` of them: the tail whole, and below it from each to the next the same share more.

    So any rate is off by that share at most, 0.3 % for 5,000 of three million. Lowest and highest are kept. Equal
    scores are never divided between tail and bulk, so that many equal ones make the tail shorter.

    Args:
        scores: float (n,), in any order; ascending where ``above`` is given.
        limit: scores to keep at most, at least 4.
        above: counts of scores that were thinned already.
    """
    if above is None:
        ordered = RankedScores.of(np.sort(np.asarray(scores, np.float32).ravel()))
    else:
        ordered = RankedScores(np.asarray(scores, np.float32), above)
    values = ordered.values
    if len(values) <= limit:
        return ordered
    end = int(np.searchsorted(values, values[len(values) - int(limit * TAIL_SHARE) - 1], side="right"))
    room = limit - (len(values) - end)
    wanted = np.geomspace(ordered.above[end - 1], ordered.trials, room).round().astype(np.int64)
    bulk = np.unique(np.searchsorted(-ordered.above[:end], -wanted, side="left").clip(0, end - 1))
    chosen = np.concatenate([bulk, np.arange(end, len(values))])
    return RankedScores(values[chosen], ordered.above[chosen])
