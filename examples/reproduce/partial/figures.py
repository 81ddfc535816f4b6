"""Error rates of several groups of people together, with intervals over people, and differences of two models.

People are resampled, not trials: one resample draws as many people as there are, with replacement; a genuine trial
then counts as often as its person was drawn, an impostor trial as often as the template's person times the probe's. Of
two models the same people are drawn, so that what both find hard cancels. Trials are within a group; a pooled rate is
the mean over the groups, for each has a model, and so a threshold, of its own. A comparison that is not made, as of
people who took part among each other where impostors are to be strangers, is a score that is not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64

_RESAMPLES = 400
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Scores:
    """One group's comparisons: of each person the scores of the probes against everybody's template, (n, people); NaN
    where the two are not compared.
    """

    names: tuple[str, ...]
    probes: tuple[Float64, ...]

    def sorted(self) -> Sorted:
        """All comparisons in the order of their scores, so that a resample need not sort."""
        scores = np.concatenate(self.probes)
        owners = np.repeat(np.arange(len(self.names)), [len(rows) for rows in self.probes])
        order = np.argsort(scores.ravel(), kind="stable")[: np.count_nonzero(np.isfinite(scores))]  # NaN comes last
        probe, template = order // len(self.names), order % len(self.names)
        last = np.append(np.diff(scores.ravel()[order]) > 0, True)  # equal scores fall together
        return Sorted(owners[probe], template, last, len(self.names))

    def eer(self) -> float:
        """The equal error rate, a fraction."""
        return self.sorted().eer(np.ones(len(self.names), np.int64))


@dataclass(frozen=True, slots=True)
class Enrolled:
    """People with their unit templates, float64 (people, d), and everybody's unit probes, float64 (n, d) each."""

    names: tuple[str, ...]
    templates: Float64
    probes: tuple[Float64, ...]

    def scores(self) -> Scores:
        """Everybody's probes against everybody's template."""
        return Scores(self.names, tuple(rows @ self.templates.T for rows in self.probes))

    def against(self, strangers: Enrolled) -> Scores:
        """Everybody's probes against their own template, and strangers' probes, who are the impostors."""
        names, size = (*self.names, *strangers.names), len(self.names)
        found = list[Float64]()
        for place, probes in enumerate((*self.probes, *strangers.probes)):
            met = slice(place, place + 1) if place < size else slice(0, size)
            rows = np.full((len(probes), len(names)), np.nan)
            rows[:, met] = probes @ self.templates[met].T
            found.append(rows)
        return Scores(names, tuple(found))


PARTS = ("seen", "strangers", "unseen")
"""Those who trained against each other, the same against people who did not, and these against each other."""


def parts(seen: Enrolled, unseen: Enrolled) -> dict[str, Scores]:
    """See :data:`PARTS`."""
    return dict(zip(PARTS, (seen.scores(), seen.against(unseen), unseen.scores()), strict=True))


@dataclass(frozen=True, slots=True)
class Sorted:
    """Whose probe was compared with whose template, by ascending score; ``last`` marks the last of equal scores."""

    probe: Int64
    template: Int64
    last: Bool
    people: int

    def meets(self, counts: Int64) -> bool:
        """Whether, with people drawn so often, there are genuine and impostor trials."""
        both = (counts[self.probe] > 0) & (counts[self.template] > 0)
        genuine = self.probe == self.template
        return bool((both & genuine).any() and (both & ~genuine).any())

    def eer(self, counts: Int64) -> float:
        """Where the false match and the false non-match rate meet; ``counts`` says how often each person was drawn.

        >>> scores = Scores(("a", "b"), (np.array([[0.9, 0.8]]), np.array([[0.1, 0.7]])))
        >>> scores.eer()  # at 0.75 one genuine of two, 0.7, is below, and one impostor of two, 0.8, above
        0.5
        """
        genuine = self.probe == self.template
        drawn = counts[self.probe]
        weights = np.where(genuine, drawn, drawn * counts[self.template])
        own = np.where(genuine, weights, 0).cumsum(dtype=np.float64)
        other = np.where(genuine, 0, weights).cumsum(dtype=np.float64)
        fnmr = np.concatenate([[0.0], own[self.last] / own[-1]])
        fmr = np.concatenate([[1.0], 1.0 - other[self.last] / other[-1]])
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
    ordered = [group.sorted() for group in groups]
    draws = _draws(groups, ordered)
    return _figure("eer", _mean(ordered, _once(groups)), [_mean(ordered, counts) for counts in draws])


def gain(before: Sequence[Scores], after: Sequence[Scores]) -> Figure:
    """By how much the equal error rate fell; above 0 where ``after`` is better."""

    old, new = [group.sorted() for group in before], [group.sorted() for group in after]

    def fallen(counts: Sequence[Int64]) -> float:
        return _mean(old, counts) - _mean(new, counts)

    return _figure("gain", fallen(_once(before)), [fallen(counts) for counts in _draws(before, old)])


def _mean(groups: Sequence[Sorted], counts: Sequence[Int64]) -> float:
    return float(np.mean([group.eer(count) for group, count in zip(groups, counts, strict=True)]))


def _once(groups: Sequence[Scores]) -> list[Int64]:
    return [np.ones(len(group.names), np.int64) for group in groups]


def _draws(groups: Sequence[Scores], ordered: Sequence[Sorted]) -> list[list[Int64]]:
    """How often each person of each group is drawn in each resample; who is in several groups is drawn for all."""
    people = sorted({name for group in groups for name in group.names})
    places = [np.searchsorted(people, group.names) for group in groups]
    rng, found = np.random.default_rng(0), list[list[Int64]]()
    while len(found) < _RESAMPLES:
        drawn = np.bincount(rng.integers(0, len(people), len(people)), minlength=len(people))
        counts = [drawn[place] for place in places]
        if all(group.meets(count) for group, count in zip(ordered, counts, strict=True)):  # one person meets nobody
            found.append(counts)
    return found


def _figure(name: str, value: float, resampled: Sequence[float]) -> Figure:
    tails = ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
    low, high = np.quantile(resampled, tails).tolist()
    return Figure(name, value, low, high)
