"""Error rates of subsets of the trials at one threshold: of groups of people, of good and of poor samples.

Intervals are 95 % percentile bootstrap over people (:mod:`uvsdk.evaluation.bootstrap`). Where a subset shows no error,
or nothing but errors, resampling cannot make one appear; the interval then ends at the exact bound of a proportion
with each *person* as one trial. That is wide on purpose: an error rate is never above the share of people who have
errors at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import clopper_pearson

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """One error rate with what it was counted of.

    Args:
        errors: trials decided wrongly.
        trials: trials in all, at least one.
        people: people behind them.
        low: lower end of the 95 % interval over people.
        high: upper end.
    """

    errors: int
    trials: int
    people: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """Errors by trials."""
        return self.errors / self.trials


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Errors and trials of each subset, as measured and in every resample.

    Args:
        errors: int64 (K,).
        trials: int64 (K,).
        people: who is behind each subset's trials.
        drawn_errors: float64 (R, K).
        drawn_trials: float64 (R, K).
    """

    errors: Int64
    trials: Int64
    people: tuple[frozenset[int], ...]
    drawn_errors: Float64
    drawn_trials: Float64

    def rate(self, subset: int) -> Rate | None:
        """The error rate of one subset; ``None`` where it has no trial."""
        return self._rate(np.arange(len(self.errors)) == subset)

    def rest(self, subset: int) -> Rate | None:
        """The error rate of all other subsets together; ``None`` where they have no trial."""
        return self._rate(np.arange(len(self.errors)) != subset)

    def _rate(self, chosen: Bool) -> Rate | None:
        errors, trials = int(self.errors[chosen].sum()), int(self.trials[chosen].sum())
        if trials == 0:
            return None
        people = len(frozenset[int]().union(*(self.people[index] for index in np.flatnonzero(chosen).tolist())))
        if errors in (0, trials):
            return Rate(errors, trials, people, *clopper_pearson(people if errors else 0, people))
        drawn = self.drawn_trials[:, chosen].sum(axis=1)
        rates = self.drawn_errors[:, chosen].sum(axis=1)[drawn > 0] / drawn[drawn > 0]
        # With a single pair of people it can happen that no resample holds the pair.
        low, high = np.quantile(rates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) if len(rates) else (0.0, 1.0)
        return Rate(errors, trials, people, float(low), float(high))


class Resampled:
    """The people of some trials, drawn anew many times, each time as many as there are.

    Args:
        trials: every trial that will be asked for.
        resamples: how often.
        seed: of the draw.
    """

    def __init__(self, trials: Trials, *, resamples: int, seed: int) -> None:
        present, compact = np.unique(
            np.concatenate([trials.template_subject, trials.probe_subject]), return_inverse=True
        )
        self._template = compact[: len(trials.scores)].astype(np.int64)
        self._probe = compact[len(trials.scores) :].astype(np.int64)
        self._people = len(present)
        rng = np.random.default_rng(seed)
        self._counts = np.stack(
            [np.bincount(rng.integers(0, len(present), len(present)), minlength=len(present)) for _ in range(resamples)]
        )

    def tally(self, wrong: Bool, memberships: Sequence[Int64], subsets: int) -> Tally:
        """Count errors by subset.

        Args:
            wrong: bool (N,), whether a trial was decided wrongly.
            memberships: int64 (N,) each, the subset of a trial, in [0, subsets), or -1; several where a trial
                may belong to more than one.
            subsets: how many there are.
        """
        errors, totals = np.zeros((len(self._counts), subsets)), np.zeros((len(self._counts), subsets))
        seen_errors, seen = np.zeros(subsets, np.int64), np.zeros(subsets, np.int64)
        people: list[set[int]] = [set() for _ in range(subsets)]
        for subset in memberships:
            template, probe, place, wrongs, counts = self._by_pair(wrong, subset)
            seen_errors += np.bincount(place, wrongs, subsets).astype(np.int64)
            seen += np.bincount(place, counts, subsets).astype(np.int64)
            for index in range(subsets):
                here = place == index
                people[index] |= {*template[here].tolist(), *probe[here].tolist()}
            for resample, drawn in enumerate(self._counts):
                # A genuine trial counts as often as its person, an impostor trial as the product of both people.
                weight = np.where(template == probe, drawn[template], drawn[template] * drawn[probe])
                errors[resample] += np.bincount(place, weight * wrongs, subsets)
                totals[resample] += np.bincount(place, weight * counts, subsets)
        return Tally(seen_errors, seen, tuple(frozenset(found) for found in people), errors, totals)

    def _by_pair(self, wrong: Bool, subset: Int64) -> tuple[Int64, Int64, Int64, Int64, Int64]:
        """Trials of one template person, probe person and subset together: the three, errors, trials."""
        inside = subset >= 0
        key = (subset[inside] * self._people + self._template[inside]) * self._people + self._probe[inside]
        present, where = np.unique(key, return_inverse=True)
        wrongs = np.bincount(where, wrong[inside], len(present)).astype(np.int64)
        counts = np.bincount(where, minlength=len(present)).astype(np.int64)
        pair = present // self._people
        return pair % self._people, present % self._people, pair // self._people, wrongs, counts


def difference(one: Rate, other: Rate) -> Interval:
    """``one`` - ``other`` with its 95 % interval, from the intervals of both, which rest on different people.

    Square-and-add: Newcombe, "Interval estimation for the difference between independent proportions", 1998, method
    10; Zou and Donner, 2008, for any two intervals.

    >>> found = difference(Rate(3, 8, 5, 0.25, 0.5), Rate(1, 8, 5, 0.125, 0.25))
    >>> found.value, round(found.low, 4), found.high  # 1/4, 1/4 - sqrt(2) / 8, 1/4 + 1/8
    (0.25, 0.0732, 0.375)
    """
    gap = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Interval(gap, gap - below, gap + above)
