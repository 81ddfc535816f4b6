"""Percentile bootstrap over people.

Trials of one person depend on each other, so people are resampled, not trials. One resample draws as many people as
there are, with replacement; a genuine trial then counts as often as its person was drawn, an impostor trial as often
as the template's person times the probe's person (two-way resampling: Bolle, Ratha and Pankanti, "Error analysis of
pattern recognition systems", 2004; Owen, "The pigeonhole bootstrap", 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.evaluation.metrics import Curve
from uvsdk.evaluation.trials import Trials

MAXIMUM_REDRAWS = 1000

Statistic = Callable[[Curve], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured value and the percentile interval of its resamples."""

    value: float
    low: float
    high: float


def intervals(
    trials: Trials,
    statistics: Mapping[str, Statistic],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """The value of each statistic on all trials, with its bootstrap interval.

    Resamples that hold no genuine or no impostor trial (possible with very few people) are drawn again.

    Args:
        trials: at least two people, with genuine and impostor trials.
        statistics: name -> function of a curve, e.g. ``{"eer": metrics.eer}``.
        resamples: how often people are drawn anew.
        confidence: share of the resamples inside the interval.
        seed: of the draw, so that a report can be made again.

    Raises:
        ValueError: no genuine or no impostor trial, in all or in 1,000 draws on end; or ``resamples`` below 1.
    """
    if resamples < 1:
        raise ValueError(f"a bootstrap needs at least one resample, got {resamples}")
    observed = trials.curve()
    weighted = _Weighted(trials)
    rng = np.random.default_rng(seed)
    people = weighted.people
    drawn: dict[str, list[float]] = {name: [] for name in statistics}
    for _ in range(resamples):
        for _ in range(MAXIMUM_REDRAWS):
            resample = weighted.curve(np.bincount(rng.integers(0, people, people), minlength=people))
            if resample is not None:
                break
        else:
            raise ValueError("too few people have genuine and impostor trials together for a bootstrap over people")
        for name, statistic in statistics.items():
            drawn[name].append(statistic(resample))
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    found = {}
    for name, statistic in statistics.items():
        low, high = np.quantile(drawn[name], tails)
        found[name] = Interval(statistic(observed), float(low), float(high))
    return found


class _Weighted:
    """Trials sorted once by score, so that a resample costs two gathers and two running sums."""

    def __init__(self, trials: Trials) -> None:
        present, compact = np.unique(
            np.concatenate([trials.template_subject, trials.probe_subject]), return_inverse=True
        )
        template, probe = compact[: len(trials.scores)], compact[len(trials.scores) :]
        values, group = np.unique(trials.scores, return_inverse=True)
        self.people = len(present)
        self._thresholds = np.append(values, np.inf)
        self._sides = []
        for mask in (trials.is_genuine, ~trials.is_genuine):
            order = np.argsort(group[mask], kind="stable")
            # below[k]: how many trials of this side score below threshold k.
            below = np.searchsorted(group[mask][order], np.arange(len(values) + 1), side="left")
            self._sides.append((template[mask][order], probe[mask][order], below))

    def curve(self, counts: Int64) -> Curve | None:
        """The curve of one resample; None where it holds no genuine or no impostor trial."""
        (own, _, below_genuine), (template, probe, below_impostor) = self._sides
        genuine = np.concatenate([[0], np.cumsum(counts[own])])
        impostor = np.concatenate([[0], np.cumsum(counts[template] * counts[probe])])
        if genuine[-1] == 0 or impostor[-1] == 0:
            return None
        return Curve(
            self._thresholds,
            impostor[-1] - impostor[below_impostor],
            genuine[below_genuine],
            int(impostor[-1]),
            int(genuine[-1]),
        )
