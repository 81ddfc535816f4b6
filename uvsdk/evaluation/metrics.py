"""Error rates of score lists. A higher score means "same person"; a probe is accepted iff score >= threshold.

Everything is read off one :class:`Curve`: the exact integer counts of false matches and false non-matches at every
distinct score and at +inf. Thresholds lie only there, so equal scores always move together, and a model that gives
every pair the same score has an equal error rate of 0.5, never 0. Counts stay integers until the last division, and
building a curve costs one sort.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float, Float64, Int64
from uvsdk.errors import ThresholdError

TRIALS_PER_RATE = 30
"""A rate ``a`` is reported only from ``30 / a`` trials on: the rule of 30 (ISO/IEC 19795-1, annex B)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Counts of both errors at every threshold that can change a decision.

    Args:
        thresholds: float64 (T + 1,), ascending: the T distinct scores, then +inf.
        false_matches: int64 (T + 1,), impostor trials accepted at each threshold, never rising.
        false_non_matches: int64 (T + 1,), genuine trials rejected at each threshold, never falling.
        impostor: number of impostor trials (in a bootstrap resample: their total weight).
        genuine: number of genuine trials, likewise.
    """

    thresholds: Float64
    false_matches: Int64
    false_non_matches: Int64
    impostor: int
    genuine: int

    def __post_init__(self) -> None:
        if self.impostor < 1 or self.genuine < 1:
            raise ValueError(
                f"error rates need genuine and impostor trials, got {self.genuine} genuine and {self.impostor} "
                "impostor; evaluate at least two people with a probe each"
            )

    @property
    def fmr(self) -> Float64:
        """False match rate at each threshold, float64 (T + 1,)."""
        return self.false_matches / self.impostor

    @property
    def fnmr(self) -> Float64:
        """False non-match rate at each threshold, float64 (T + 1,)."""
        return self.false_non_matches / self.genuine


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One threshold and both error rates at it."""

    threshold: float
    fmr: float
    fnmr: float


def curve(genuine: Float, impostor: Float) -> Curve:
    """Both error counts at every distinct score and at +inf.

    Args:
        genuine: scores of genuine trials, any float dtype and shape, finite.
        impostor: scores of impostor trials, likewise.

    Raises:
        ValueError: one of the lists is empty, or holds a value that is not finite.

    >>> c = curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0]))
    >>> c.thresholds.tolist()
    [0.0, 0.1, 0.4, 0.9, inf]
    >>> c.fmr.tolist(), c.fnmr.tolist()
    ([1.0, 0.5, 0.25, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5, 1.0])
    """
    low, high = _finite(impostor), _finite(genuine)
    thresholds = np.append(np.unique(np.concatenate([low, high])), np.inf)
    return Curve(
        thresholds,
        len(low) - np.searchsorted(np.sort(low), thresholds, side="left").astype(np.int64),
        np.searchsorted(np.sort(high), thresholds, side="left").astype(np.int64),
        len(low),
        len(high),
    )


def at_threshold(points: Curve, threshold: float) -> OperatingPoint:
    """Both error rates when probes at or above ``threshold`` are accepted; any real number will do.

    >>> at_threshold(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1])), 0.7)
    OperatingPoint(threshold=0.7, fmr=0.0, fnmr=0.5)
    """
    index = int(np.searchsorted(points.thresholds, threshold, side="left"))
    return OperatingPoint(
        threshold,
        int(points.false_matches[index]) / points.impostor,
        int(points.false_non_matches[index]) / points.genuine,
    )


def equal_error_point(points: Curve) -> OperatingPoint:
    """The threshold where |FMR - FNMR| is smallest; of two such, the lower."""
    index = int(np.argmin(_gap(points)))
    return at_threshold(points, float(points.thresholds[index]))


def eer(points: Curve) -> float:
    """Equal error rate on the step curve: (FMR + FNMR) / 2 where |FMR - FNMR| is smallest.

    Two thresholds can share the smallest gap, one on each side of the crossing; their values are averaged, which
    keeps EER(-scores) = 1 - EER(scores) exact.

    >>> eer(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0])))  # at 0.4: FMR 1/4, FNMR 0
    0.125
    >>> eer(curve(np.ones(5), np.ones(9)))  # a collapsed model
    0.5
    """
    gap = _gap(points)
    tied = np.flatnonzero(gap == gap.min())
    value = points.false_matches[tied] / points.impostor + points.false_non_matches[tied] / points.genuine
    return float(value.mean() / 2)


def eer_convex_hull(points: Curve) -> float:
    """Equal error rate on the ROC convex hull: where the lower hull of (FMR, FNMR) crosses FMR = FNMR.

    Never above 0.5, since the hull holds the segment from (1, 0) to (0, 1). See Brümmer and de Villiers, "The
    BOSARIS Toolkit", 2013, section 3.

    >>> round(eer_convex_hull(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0]))), 4)  # (1/4, 0) to (0, 1/2)
    0.1667
    """
    hull = _lower_hull(points)
    for (x1, y1), (x2, y2) in itertools.pairwise(hull):
        # In units of 1 / (impostor * genuine) both rates are integers, so the crossing is found without rounding.
        before, after = x1 * points.genuine - y1 * points.impostor, x2 * points.genuine - y2 * points.impostor
        if before >= 0 >= after:
            share = before / (before - after) if before != after else 0.0
            return (x1 + share * (x2 - x1)) / points.impostor
    raise AssertionError("the hull runs from (1, 0) to (0, 1), so it crosses the diagonal")


def fnmr_at_fmr(points: Curve, rate: float) -> OperatingPoint:
    """FNMR at the smallest threshold, among the distinct scores and +inf, whose FMR is at most ``rate``.

    No interpolation.

    Raises:
        ThresholdError: fewer than ``30 / rate`` impostor trials.

    >>> impostor = np.arange(300) / 300
    >>> fnmr_at_fmr(curve(np.array([0.5, 0.95, 2.0, 3.0]), impostor), 0.1).fnmr  # 30 impostors reach 0.9
    0.25
    """
    if not 0.0 < rate < 1.0:
        raise ThresholdError(f"a false match rate lies between 0 and 1, got {rate}")
    if points.impostor * rate < TRIALS_PER_RATE * (1 - 1e-12):
        raise ThresholdError(
            f"reporting at a false match rate of {rate:g} needs {math.ceil(TRIALS_PER_RATE / rate)} impostor trials, "
            f"there are {points.impostor}; report at a higher rate or add people"
        )
    return lowest_within(points, rate)


def lowest_within(points: Curve, rate: float) -> OperatingPoint:
    """As :func:`fnmr_at_fmr` without asking whether the trials support the rate: for resamples."""
    allowed = math.floor(rate * points.impostor + 1e-9)
    # false_matches never rises, so the first index within the limit is found in its reverse.
    index = len(points.thresholds) - int(np.searchsorted(points.false_matches[::-1], allowed, side="right"))
    return at_threshold(points, float(points.thresholds[index]))


def min_dcf(points: Curve, prior: float, *, miss_cost: float = 1.0, false_match_cost: float = 1.0) -> float:
    """Smallest normalised detection cost over all thresholds, +-inf among them, so at most 1.

    ``min [C_m P FNMR + C_f (1 - P) FMR] / min(C_m P, C_f (1 - P))`` (NIST SRE).

    >>> min_dcf(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0])), 0.5)  # (1/4 + 0) or (0 + 1/2)
    0.25
    >>> min_dcf(curve(np.ones(5), np.ones(9)), 0.01)  # accepting nobody costs exactly 1
    1.0
    """
    miss, false_match = _costs(prior, miss_cost, false_match_cost)
    return float((miss * points.fnmr + false_match * points.fmr).min() / min(miss, false_match))


def act_dcf(
    points: Curve, threshold: float, *, prior: float, miss_cost: float = 1.0, false_match_cost: float = 1.0
) -> float:
    """Normalised detection cost at a threshold that was set beforehand (NIST SRE's actual DCF); never under
    :func:`min_dcf`.

    For calibrated natural-log likelihood ratios the threshold is :func:`bayes_threshold` of the same prior and costs.

    >>> act_dcf(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0])), 0.7, prior=0.5)  # FNMR 1/2, FMR 0
    0.5
    """
    miss, false_match = _costs(prior, miss_cost, false_match_cost)
    point = at_threshold(points, threshold)
    return (miss * point.fnmr + false_match * point.fmr) / min(miss, false_match)


def bayes_threshold(prior: float, *, miss_cost: float = 1.0, false_match_cost: float = 1.0) -> float:
    """The natural-log likelihood ratio from which accepting costs less than refusing: ``ln C_f (1 - P) / (C_m P)``.

    >>> bayes_threshold(0.5)
    0.0
    >>> round(bayes_threshold(0.01), 4)  # ln 99
    4.5951
    """
    miss, false_match = _costs(prior, miss_cost, false_match_cost)
    return math.log(false_match / miss)


def cllr(genuine: Float, impostor: Float) -> float:
    """Cost of natural-log likelihood ratios in bits: 0 for certainty that is right, 1 for ratios that say nothing.

    ``[mean log2(1 + exp(-l_gen)) + mean log2(1 + exp(l_imp))] / 2`` (Brümmer and du Preez, "Application-independent
    evaluation of speaker detection", 2006, eq. 26). Infinite ratios are allowed where they are right.

    >>> cllr(np.zeros(3), np.zeros(5))
    1.0
    >>> round(cllr(np.log([3.0]), np.log([1.0, 1 / 3])), 4)  # [log2(4/3) + (log2 2 + log2 4/3) / 2] / 2
    0.5613
    """
    high, low = (np.asarray(values, np.float64).ravel() for values in (genuine, impostor))
    if not len(high) or not len(low) or np.isnan(high).any() or np.isnan(low).any():
        raise ValueError(f"cllr needs genuine and impostor ratios that are numbers, got {len(high)} and {len(low)}")
    return float((np.logaddexp(0.0, -high).mean() + np.logaddexp(0.0, low).mean()) / (2 * math.log(2)))


def min_cllr(points: Curve) -> float:
    """:func:`cllr` after the best monotone map of the scores: what better calibration could still gain is the rest.

    The best map is that of pool adjacent violators; its pools are the segments of the ROC convex hull, and a pool's
    likelihood ratio is the segment's slope (Brümmer and de Villiers, "The BOSARIS Toolkit", 2013, section 3).

    >>> round(min_cllr(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0]))), 4)  # pool 0.4: (1/2) / (1/4)
    0.3444
    >>> min_cllr(curve(np.ones(5), np.ones(9)))
    1.0
    """
    bits = 0.0
    for (x1, y1), (x2, y2) in itertools.pairwise(_lower_hull(points)):
        genuine, impostor = (y2 - y1) / points.genuine, (x1 - x2) / points.impostor
        if genuine > 0:
            bits += genuine * math.log2(1 + impostor / genuine)
        if impostor > 0:
            bits += impostor * math.log2(1 + genuine / impostor)
    return bits / 2


def auroc(points: Curve) -> float:
    """Area under the ROC curve: P(genuine > impostor) + P(equal) / 2 (Mann-Whitney).

    >>> auroc(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1])))  # wins 2 + 1, tie 1: 3.5 of 4
    0.875
    """
    impostor_here = -np.diff(points.false_matches)
    genuine_here = np.diff(points.false_non_matches)
    genuine_above = points.genuine - points.false_non_matches[1:]
    twice = int((impostor_here * (2 * genuine_above + genuine_here)).sum())
    return twice / (2 * points.impostor * points.genuine)


def det_points(points: Curve) -> tuple[Float64, Float64]:
    """FMR and FNMR at the corners of the step curve, from (1, 0) to (0, 1): the points a plot needs.

    >>> fmr, fnmr = det_points(curve(np.array([0.9, 0.4]), np.array([0.4, 0.1, 0.0, 0.0])))
    >>> fmr.tolist(), fnmr.tolist()
    ([1.0, 0.25, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0])
    """
    keep = _corners(points)
    return points.fmr[keep], points.fnmr[keep]


def fnmr_by_subject(scores: Float, subjects: Int64, *, threshold: float) -> dict[int, float]:
    """Each person's own FNMR over their genuine trials.

    >>> fnmr_by_subject(np.array([0.9, 0.2, 0.8]), np.array([4, 4, 7]), threshold=0.5)
    {4: 0.5, 7: 0.0}
    """
    found, where, trials = np.unique(subjects, return_inverse=True, return_counts=True)
    rejected = np.bincount(where, weights=np.asarray(scores) < threshold, minlength=len(found))
    return {int(subject): float(rate) for subject, rate in zip(found, rejected / trials, strict=True)}


def worst_decile(rates: Float | Sequence[float]) -> float:
    """Mean of the highest tenth of the values, rounded up to at least one.

    >>> worst_decile(np.array([0.0] * 10 + [0.5, 0.25]))  # 12 people: the worst two
    0.375
    """
    if len(rates) == 0:
        raise ValueError("the worst tenth of nobody has no error rate")
    return float(np.sort(np.asarray(rates, np.float64))[-math.ceil(len(rates) / 10) :].mean())


def _costs(prior: float, miss_cost: float, false_match_cost: float) -> tuple[float, float]:
    """What a certain miss and a certain false match cost, weighted by how often each can happen."""
    if not 0.0 < prior < 1.0:
        raise ValueError(f"the prior of a genuine trial lies between 0 and 1, got {prior}")
    if not (miss_cost > 0 and false_match_cost > 0):
        raise ValueError(f"costs are positive, got {miss_cost} and {false_match_cost}")
    return miss_cost * prior, false_match_cost * (1 - prior)


def _finite(scores: Float) -> Float64:
    values = np.asarray(scores, np.float64).ravel()
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} scores are not finite numbers")
    return values


def _gap(points: Curve) -> Int64:
    """|FMR - FNMR| in units of 1 / (impostor * genuine), so that ties are exact."""
    gap: Int64 = np.abs(points.false_matches * points.genuine - points.false_non_matches * points.impostor)
    return gap


def _corners(points: Curve) -> Int64:
    """Indices of the first and last threshold and of those where the step curve turns."""
    x, y = np.diff(points.false_matches) != 0, np.diff(points.false_non_matches) != 0
    turns = (x[1:] != x[:-1]) | (y[1:] != y[:-1]) | (x[1:] & y[1:])
    return np.concatenate([[0], np.flatnonzero(turns) + 1, [len(x)]]).astype(np.int64)


def _lower_hull(points: Curve) -> list[tuple[int, int]]:
    """Vertices (false matches, false non-matches) of the lower left hull, from (impostor, 0) to (0, genuine)."""
    keep = _corners(points)
    hull: list[tuple[int, int]] = []
    for x, y in zip(points.false_matches[keep].tolist(), points.false_non_matches[keep].tolist(), strict=True):
        while len(hull) > 1:
            (x1, y1), (x2, y2) = hull[-2], hull[-1]
            if (x2 - x1) * (y - y1) < (y2 - y1) * (x - x1):
                break
            hull.pop()
        hull.append((x, y))
    return hull
