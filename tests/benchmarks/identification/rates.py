"""Error rates of open-set identification, in the terms of ISO/IEC 19795-1:2021.

A *mated* search is by somebody who is in the gallery, a *non-mated* one by somebody who is not. FPIR(T) is the share of
non-mated searches that return anybody at or above threshold T. FNIR(R, T) is the share of mated searches whose own
person is not among the R best, or is below T. Both depend on the gallery's size, so it is always told.

Ranks count against the system: everybody with an equal score stands before the mate, so a collapsed model never finds
anybody at rank 1. Counts stay integers until the last division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float, Float64, Int64
from uvsdk.errors import ThresholdError
from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.metrics import TRIALS_PER_RATE


@dataclass(frozen=True, slots=True)
class Searches:
    """What became of every search of one gallery.

    Args:
        mate_score: float64 (M,), the score of each mated search's own person.
        mate_rank: int64 (M,), from 1: how many people score at least as high, the mate among them.
        mated_subject: int64 (M,), who gave the probe.
        best_score: float64 (K,), the highest score of each non-mated search.
        non_mated_subject: int64 (K,), who gave the probe.
        people: size of the gallery.
    """

    mate_score: Float64
    mate_rank: Int64
    mated_subject: Int64
    best_score: Float64
    non_mated_subject: Int64
    people: int

    def __post_init__(self) -> None:
        if not len(self.mate_score) == len(self.mate_rank) == len(self.mated_subject):
            raise ValueError("a mated search has one score, one rank and one subject")
        if len(self.best_score) != len(self.non_mated_subject):
            raise ValueError("a non-mated search has one score and one subject")
        if not (np.isfinite(self.mate_score).all() and np.isfinite(self.best_score).all()):
            raise ValueError("scores must be finite numbers")
        if self.people < 1 or (len(self.mate_rank) and not 1 <= self.mate_rank.min() <= self.mate_rank.max()):
            raise ValueError("a gallery has at least one person, and ranks start at 1")


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """One threshold and both error rates at it."""

    threshold: float
    fpir: float
    fnir: float


@dataclass(frozen=True, slots=True)
class SearchCurve:
    """Both error counts at every threshold that can change an outcome.

    Args:
        thresholds: float64 (T + 1,), ascending: the distinct scores, then +inf.
        false_positives: int64 (T + 1,), non-mated searches that name somebody, never rising.
        false_negatives: int64 (T + 1,), mated searches that miss their person, never falling.
        non_mated: number of non-mated searches (in a resample: their weight).
        mated: number of mated searches, likewise.
    """

    thresholds: Float64
    false_positives: Int64
    false_negatives: Int64
    non_mated: int
    mated: int

    @property
    def fpir(self) -> Float64:
        """False positive identification rate at each threshold, float64 (T + 1,)."""
        return self.false_positives / self.non_mated

    @property
    def fnir(self) -> Float64:
        """False negative identification rate at each threshold, float64 (T + 1,)."""
        return self.false_negatives / self.mated


def searches(scores: Float, *, probe_subject: Int64, gallery_subject: Int64) -> Searches:
    """Read the searches off a score matrix.

    Args:
        scores: (probes, people), any float dtype, finite; higher means "same person".
        probe_subject: int (probes,), who gave each probe.
        gallery_subject: int (people,), who each template is of, everybody once. Probes of others are non-mated.

    Raises:
        ValueError: shapes that do not fit, a person twice in the gallery, or a score that is not finite.

    >>> whose = {"probe_subject": np.array([7, 7, 1]), "gallery_subject": np.array([7, 8])}
    >>> found = searches(np.array([[0.9, 0.2], [0.4, 0.6], [0.3, 0.5]]), **whose)
    >>> found.mate_score.tolist(), found.mate_rank.tolist(), found.best_score.tolist()
    ([0.9, 0.4], [1, 2], [0.5])
    """
    values = np.asarray(scores, np.float64)
    if values.shape != (len(probe_subject), len(gallery_subject)):
        raise ValueError(f"scores have shape {values.shape}, need {(len(probe_subject), len(gallery_subject))}")
    if not 0 < len(np.unique(gallery_subject)) == len(gallery_subject):
        raise ValueError("a gallery holds somebody, and everybody once; merge the templates of one person")
    own = np.asarray(probe_subject)[:, None] == np.asarray(gallery_subject)[None, :]
    mated = own.any(axis=1)
    mate_score = values[mated][own[mated]]
    mate_rank = (values[mated] >= mate_score[:, None]).sum(axis=1).astype(np.int64)
    return Searches(
        mate_score,
        mate_rank,
        np.asarray(probe_subject)[mated].astype(np.int64),
        values[~mated].max(axis=1),
        np.asarray(probe_subject)[~mated].astype(np.int64),
        len(gallery_subject),
    )


def curve(found: Searches, *, rank: int = 1) -> SearchCurve:
    """Both error counts at every distinct score and at +inf.

    Args:
        found: with mated and non-mated searches.
        rank: within how many of the best the mate must be.

    Raises:
        ValueError: no mated or no non-mated search, or a rank below 1.

    >>> whose = {"probe_subject": np.array([7, 7, 1]), "gallery_subject": np.array([7, 8])}
    >>> points = curve(searches(np.array([[0.9, 0.2], [0.4, 0.6], [0.3, 0.5]]), **whose))
    >>> points.thresholds.tolist(), points.fpir.tolist(), points.fnir.tolist()
    ([0.5, 0.9, inf], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0])
    """
    return _curve(found, rank, np.ones(len(found.mate_score), np.int64), np.ones(len(found.best_score), np.int64))


def at_threshold(points: SearchCurve, threshold: float) -> SearchPoint:
    """Both rates when candidates at or above ``threshold`` are named; any real number will do."""
    index = int(np.searchsorted(points.thresholds, threshold, side="left"))
    return SearchPoint(
        threshold,
        int(points.false_positives[index]) / points.non_mated,
        int(points.false_negatives[index]) / points.mated,
    )


def fnir_at_fpir(points: SearchCurve, rate: float) -> SearchPoint:
    """FNIR at the smallest threshold, among the distinct scores and +inf, whose FPIR is at most ``rate``.

    Raises:
        ThresholdError: fewer than ``30 / rate`` non-mated searches (rule of 30).
    """
    if not 0.0 < rate < 1.0:
        raise ThresholdError(f"a false positive identification rate lies between 0 and 1, got {rate}")
    if points.non_mated * rate < TRIALS_PER_RATE * (1 - 1e-12):
        raise ThresholdError(
            f"reporting at a false positive identification rate of {rate:g} needs "
            f"{math.ceil(TRIALS_PER_RATE / rate)} searches by people outside the gallery, there are "
            f"{points.non_mated}; report at a higher rate or add people"
        )
    return lowest_within(points, rate)


def lowest_within(points: SearchCurve, rate: float) -> SearchPoint:
    """As :func:`fnir_at_fpir` without asking whether the searches support the rate: for resamples."""
    allowed = math.floor(rate * points.non_mated + 1e-9)
    index = len(points.thresholds) - int(np.searchsorted(points.false_positives[::-1], allowed, side="right"))
    return at_threshold(points, float(points.thresholds[index]))


def identification_rate(found: Searches, *, rank: int = 1) -> float:
    """Closed-set identification rate: the share of mated searches whose person is among the ``rank`` best.

    >>> whose = {"probe_subject": np.array([7, 7]), "gallery_subject": np.array([7, 8])}
    >>> identification_rate(searches(np.array([[0.9, 0.2], [0.4, 0.6]]), **whose))
    0.5
    """
    if not len(found.mate_rank):
        raise ValueError("an identification rate needs mated searches")
    return float((found.mate_rank <= rank).mean())


def intervals(
    found: Searches,
    *,
    threshold: float,
    fpir: float,
    rank: int = 1,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile intervals over people: those who search are drawn anew, with all their probes.

    The gallery stays as it is, since both rates belong to its size; so the intervals say what other probers would give,
    not what another gallery would.

    Args:
        found: the searches.
        threshold: where ``fpir`` and ``fnir`` are measured.
        fpir: where ``fnir_at_fpir`` is measured.
        rank: within how many of the best the mate must be.
        resamples: how often people are drawn anew.
        confidence: share of the resamples inside the interval.
        seed: of the draw.

    Returns:
        ``fpir`` and ``fnir`` at ``threshold``, ``fnir_at_fpir``.
    """
    if resamples < 1:
        raise ValueError(f"a bootstrap needs at least one resample, got {resamples}")
    observed = _rates(curve(found, rank=rank), threshold, fpir)
    rng = np.random.default_rng(seed)
    mated_people, mated = np.unique(found.mated_subject, return_inverse=True)
    other_people, others = np.unique(found.non_mated_subject, return_inverse=True)
    drawn = np.empty((resamples, len(observed)))
    for row in drawn:
        points = _curve(found, rank, _drawn(len(mated_people), rng)[mated], _drawn(len(other_people), rng)[others])
        row[:] = list(_rates(points, threshold, fpir).values())
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return {
        name: Interval(value, float(low[place]), float(high[place]))
        for place, (name, value) in enumerate(observed.items())
    }


def _rates(points: SearchCurve, threshold: float, fpir: float) -> dict[str, float]:
    at = at_threshold(points, threshold)
    return {"fpir": at.fpir, "fnir": at.fnir, "fnir_at_fpir": lowest_within(points, fpir).fnir}


def _drawn(people: int, rng: np.random.Generator) -> Int64:
    """How often each of ``people`` is drawn, with replacement."""
    return np.bincount(rng.integers(0, people, people), minlength=people).astype(np.int64)


def _curve(found: Searches, rank: int, mated_weights: Int64, other_weights: Int64) -> SearchCurve:
    if rank < 1:
        raise ValueError(f"ranks start at 1, got {rank}")
    mated, others = int(mated_weights.sum()), int(other_weights.sum())
    if mated < 1 or others < 1:
        raise ValueError(
            f"open-set rates need searches by people inside and outside the gallery, got {mated} and {others}"
        )
    inside = found.mate_rank <= rank
    hits, weights = found.mate_score[inside], mated_weights[inside]
    thresholds = np.append(np.unique(np.concatenate([hits, found.best_score])), np.inf)
    return SearchCurve(
        thresholds,
        others - _below(found.best_score, other_weights, thresholds),
        mated - int(weights.sum()) + _below(hits, weights, thresholds),
        others,
        mated,
    )


def _below(scores: Float64, weights: Int64, thresholds: Float64) -> Int64:
    """The weight of scores below each threshold, int64 (T + 1,)."""
    order = np.argsort(scores, kind="stable")
    total = np.concatenate([[0], np.cumsum(weights[order])])
    below: Int64 = total[np.searchsorted(scores[order], thresholds, side="left")]
    return below


__all__ = [
    "SearchCurve",
    "SearchPoint",
    "Searches",
    "at_threshold",
    "curve",
    "fnir_at_fpir",
    "identification_rate",
    "intervals",
    "lowest_within",
    "searches",
]
