"""What a device reports as whole numbers on fixed grids, so that reports can be summed, and masked, exactly.

A contribution is bounded: every person adds :data:`SHARE` to the histogram of genuine scores however many samples they
have, one to each column of the table of people, and moments whose entries are bounded by the unit length of an
embedding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from uvsdk.arrays import Float, Float64, Int64
from uvsdk.scoring.moments import ScoreLaw

BINS: Final = 1000
"""Bins of a histogram of cosines over [-1, 1], each 0.002 wide."""

SHARE: Final = 5040
"""What one person adds to a histogram of genuine scores: divisible by every number of samples up to ten."""

STEPS: Final = 200
"""Thresholds of the table of people, 0.01 apart from -1 on."""

LEVELS: Final = 11
"""Rates of the table of people: 0, 0.1, ..., 1."""

UNIT: Final = 1 << 20
"""What 1.0 is in quantised moments."""


def bin_of(scores: Float) -> Int64:
    """The bin of each cosine, int64 (n,)."""
    return np.clip(np.floor((np.asarray(scores, np.float64) + 1.0) * (BINS / 2)), 0, BINS - 1).astype(np.int64)


def histogram(scores: Float) -> Int64:
    """int64 (BINS,): how many scores fall in each bin."""
    return np.bincount(bin_of(scores), minlength=BINS).astype(np.int64)


def shares(scores: Float) -> Int64:
    """int64 (BINS,) that sums to :data:`SHARE`, whatever the number of scores; zeros where there is none."""
    found = np.zeros(BINS, np.int64)
    if len(scores):
        each, rest = divmod(SHARE, len(scores))
        weights = np.full(len(scores), each, np.int64)
        weights[:rest] += 1
        np.add.at(found, bin_of(np.sort(scores)), weights)
    return found


def table(scores: Float) -> Int64:
    """int64 (STEPS, LEVELS): for every threshold a one at the rate at which this person would be rejected there."""
    found = np.zeros((STEPS, LEVELS), np.int64)
    if len(scores):
        thresholds = np.arange(STEPS) * (2.0 / STEPS) - 1.0
        rates = (np.asarray(scores, np.float64)[None] < thresholds[:, None]).mean(axis=1)
        found[np.arange(STEPS), np.rint(rates * (LEVELS - 1)).astype(np.int64)] = 1
    return found


def share_below(counts: Int64, score: float) -> float:
    """The share of a histogram below ``score``, linear within its bin; NaN of an empty one.

    >>> share_below(histogram(np.array([0.5, 0.7])), 0.6)
    0.5
    """
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    place = min(max((score + 1.0) * (BINS / 2), 0.0), float(BINS))
    whole = min(int(place), BINS - 1)
    return float(counts[:whole].sum() + counts[whole] * min(place - whole, 1.0)) / total


def law(counts: Int64) -> ScoreLaw:
    """Mean and deviation of what a histogram counts, of which there is something.

    >>> law(histogram(np.array([0.401, 0.601])))
    ScoreLaw(mean=0.501, deviation=0.1, skewness=0.0)
    """
    centres = (np.arange(BINS) + 0.5) * (2.0 / BINS) - 1.0
    mean = float(np.average(centres, weights=counts))
    deviation = float(np.sqrt(np.average((centres - mean) ** 2, weights=counts)))
    return ScoreLaw(round(mean, 12), round(deviation, 12))


def worst_share(counts: Int64, score: float, share: float = 0.1) -> float:
    """The mean rate of rejection at ``score`` of the worst ``share`` of people in a table; NaN of an empty one.

    >>> rejected = table(np.array([0.1, 0.9])) + 9 * table(np.array([0.8, 0.9]))
    >>> worst_share(rejected, 0.5)
    0.5
    """
    column = counts[min(max(int(np.ceil((score + 1.0) * (STEPS / 2) - 1e-9)), 0), STEPS - 1)]
    left = share * float(column.sum())
    if left <= 0:
        return float("nan")
    wanted, total = left, 0.0
    for level in range(LEVELS - 1, -1, -1):
        taken = min(left, float(column[level]))
        total += taken * level / (LEVELS - 1)
        left -= taken
    return total / wanted


def quantised(values: Float) -> Int64:
    """Entries in [-1, 1] as whole multiples of 1 / UNIT; others are brought to its ends."""
    return np.rint(np.clip(np.asarray(values, np.float64), -1.0, 1.0) * UNIT).astype(np.int64)


def restored(values: Int64) -> Float64:
    """The inverse of :func:`quantised`, of sums as well."""
    return np.asarray(values / UNIT, np.float64)


def packed_symmetric(matrix: Float) -> Float64:
    """The upper triangle of a symmetric matrix, row by row: float64 (d (d + 1) / 2,)."""
    values = np.asarray(matrix, np.float64)
    return values[_triangle(len(values))]


def symmetric(packed: Float, dimension: int) -> Float64:
    """The inverse of :func:`packed_symmetric`."""
    matrix = np.zeros((dimension, dimension))
    rows, columns = _triangle(dimension)
    matrix[rows, columns] = packed
    matrix[columns, rows] = packed
    return matrix


@lru_cache(maxsize=4)
def _triangle(dimension: int) -> tuple[Int64, Int64]:
    return np.triu_indices(dimension)
