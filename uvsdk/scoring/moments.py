"""How impostors score, from sums over people: nobody's embedding is needed (SPEC 17).

The score of a sample x against a template t is linear in either, and its square is linear in x x^T and in t t^T. So
sums of these over people give mean and variance of the scores of all pairs of two different people, without a pair:
exactly, and whatever the distribution of the embeddings. People are summed by groups, and pairs within one group are
left out, since nobody may be compared with themselves. Under a normal tail follows the score that a share of impostors
reaches.

>>> rng = np.random.default_rng(0)
>>> people = [unit(rng.normal(size=(5, 8)) + rng.normal(size=8)) for _ in range(200)]
>>> templates = [unit(rows.mean(axis=0)) for rows in people]
>>> pairs = ImpostorPairs.of(
...     [total(Moments.of(rows) for rows in people[group::10]) for group in range(10)],
...     [total(Moments.of(row[None]) for row in templates[group::10]) for group in range(10)],
... )
>>> scores = [sample @ templates[j] for i in range(200) for j in range(200) if i % 10 != j % 10 for sample in people[i]]
>>> law = pairs.law()
>>> bool(abs(law.mean - np.mean(scores)) < 1e-9), bool(abs(law.deviation / np.std(scores) - 1) < 0.01)
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from uvsdk.arrays import Float, Float64
from uvsdk.errors import ThresholdError

_HARDLY_SKEWED: Final = 1e-6  # less than this changes no digit, and would be divided by


@dataclass(frozen=True, slots=True)
class ScoreLaw:
    """A distribution of impostors' scores: normal, or skewed.

    A skewed one is the gamma distribution of that mean, deviation and skewness (Pearson III), by the approximation of
    Wilson and Hilferty 1931: the cube root of a gamma variable is normal.
    """

    mean: float
    deviation: float
    skewness: float = 0.0

    def score_at(self, fmr: float) -> float:
        """The score that a share ``fmr`` of impostors reaches.

        >>> round(ScoreLaw(0.1, 0.1).score_at(0.01), 4)
        0.3326
        >>> round(ScoreLaw(0.1, 0.1, -0.2).score_at(0.01), 3)  # tables of Pearson III have 0.1 + 0.1 * 2.178
        0.318
        """
        place, skewness = -NormalDist().inv_cdf(fmr), self.skewness
        if abs(skewness) > _HARDLY_SKEWED:
            place = 2.0 / skewness * ((1.0 + skewness * place / 6.0 - skewness**2 / 36.0) ** 3 - 1.0)
        return self.mean + place * self.deviation

    def place(self, score: float) -> float:
        """The standard normal value that as many exceed as impostors exceed ``score``, of a positive deviation."""
        place, skewness = (score - self.mean) / self.deviation, self.skewness
        if abs(skewness) > _HARDLY_SKEWED:
            place = 6.0 / skewness * (math.cbrt(1.0 + skewness * place / 2.0) - 1.0) + skewness / 6.0
        return place

    def fmr_at(self, score: float) -> float:
        """The share of impostors who reach ``score``."""
        if self.deviation <= 0.0:
            return float(score <= self.mean)
        return 0.5 * math.erfc(self.place(score) / math.sqrt(2.0))


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Sums over people; ``a + b`` is of both.

    Args:
        people: n, whose means are summed.
        mean: float64 (d,), sum of the means m_i.
        outer: float64 (d, d), sum of m_i m_i^T.
        within_people: of how many the covariance is known: those with two samples or more.
        within: float64 (d, d), sum of their unbiased covariances W_i.
        inverse_samples: sum of 1 / k_i, k_i the samples behind m_i.
    """

    people: int
    mean: Float64
    outer: Float64
    within_people: int
    within: Float64
    inverse_samples: float

    @classmethod
    def none(cls, dimension: int) -> Moments:
        """Of nobody."""
        square = np.zeros((dimension, dimension))
        return cls(0, np.zeros(dimension), square, 0, square, 0.0)

    @classmethod
    def of(cls, rows: Float) -> Moments:
        """Of one person's unit embeddings, float (k, d), k >= 1.

        Raises:
            ValueError: no row, or values that are not finite.
        """
        embeddings = np.asarray(rows, np.float64)
        count, dimension = embeddings.shape
        if not count or not np.isfinite(embeddings).all():
            raise ValueError(f"moments are of one finite embedding or more, got {count} of shape ({dimension},)")
        mean = embeddings.mean(axis=0)
        apart = embeddings - mean
        within = apart.T @ apart / (count - 1) if count > 1 else np.zeros((dimension, dimension))
        return cls(1, mean, np.outer(mean, mean), int(count > 1), within, 1.0 / count)

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.people + other.people,
            self.mean + other.mean,
            self.outer + other.outer,
            self.within_people + other.within_people,
            self.within + other.within,
            self.inverse_samples + other.inverse_samples,
        )

    def __sub__(self, other: Moments) -> Moments:
        return Moments(
            self.people - other.people,
            self.mean - other.mean,
            self.outer - other.outer,
            self.within_people - other.within_people,
            self.within - other.within,
            self.inverse_samples - other.inverse_samples,
        )

    @property
    def centre(self) -> Float64:
        """mu, float64 (d,): the mean of the means."""
        return np.asarray(self.mean / max(self.people, 1), np.float64)

    @property
    def between(self) -> Float64:
        """S, float64 (d, d): unbiased covariance of the means m_i, the part that their samples add included."""
        if self.people < 2:
            return np.zeros_like(self.outer)
        centre = self.centre
        return np.asarray((self.outer - self.people * np.outer(centre, centre)) / (self.people - 1), np.float64)

    @property
    def scatter(self) -> Float64:
        """W, float64 (d, d): the mean covariance within a person."""
        return np.asarray(self.within / max(self.within_people, 1), np.float64)

    @property
    def second(self) -> Float64:
        """float64 (d, d), sum over people of the mean x x^T of their samples: of one person m m^T + (1 - 1/k) W.

        Where numbers of samples differ, the factor of all is their mean: exact where scatter does not go with k.
        """
        if not self.within_people:
            return self.outer
        share = (self.people - self.inverse_samples) / self.within_people
        return np.asarray(self.outer + share * self.within, np.float64)


def unit(rows: Float) -> Float64:
    """Rows of length 1; a row of zeros stays."""
    values = np.asarray(rows, np.float64)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12), np.float64)


def total(sums: Iterable[Moments]) -> Moments:
    """Of all people in several sums, of which there is one at least."""
    first, *others = sums
    for other in others:
        first = first + other
    return first


@dataclass(frozen=True, slots=True, eq=False)
class ImpostorPairs:
    """Sums over all pairs of a stranger's sample and a template, by the groups of both; zero where these are the same.

    Every stranger weighs the same whatever the number of their samples, and so does every template.

    Args:
        pairs: float64 (g, g), how many there are: strangers by row, templates by column.
        first: float64 (g, g), sum of their scores.
        second: float64 (g, g), sum of their squares.
    """

    pairs: Float64
    first: Float64
    second: Float64

    @classmethod
    def of(cls, strangers: Sequence[Moments], templates: Sequence[Moments]) -> ImpostorPairs:
        """Of sums by group, g each.

        Args:
            strangers: of people's samples.
            templates: of unit rows, one a person: each :meth:`Moments.of` of shape (1, d).
        """
        apart = 1.0 - np.eye(len(strangers))
        counts = np.array([item.people for item in strangers]), np.array([item.people for item in templates])
        means = np.stack([item.mean for item in strangers]), np.stack([item.mean for item in templates])
        squares = [item.second.ravel() for item in strangers], [item.outer.ravel() for item in templates]
        return cls(
            np.outer(*counts) * apart,
            (means[0] @ means[1].T) * apart,
            (np.stack(squares[0]) @ np.stack(squares[1]).T) * apart,
        )

    def law(self) -> ScoreLaw:
        """Mean and deviation of the scores of a stranger's sample against a template.

        The square of an estimated mean is too large by the variance of the estimate, which the jackknife over groups
        tells.

        Raises:
            ThresholdError: fewer than two groups with strangers against templates of others.
        """
        found = self._law(np.ones(len(self.pairs)))
        if found is None:
            raise ThresholdError("impostors' scores are of two groups of people at least; let more devices evaluate")
        return found

    def laws_without(self) -> dict[int, ScoreLaw]:
        """:meth:`law` with one group left out, by the group, for each whose absence changes something."""
        changing = np.flatnonzero(self.pairs.any(axis=0) | self.pairs.any(axis=1)).tolist()
        found = {group: self._law(_without(np.ones(len(self.pairs)), group)) for group in changing}
        return {group: law for group, law in found.items() if law is not None}

    def _law(self, groups: Float64) -> ScoreLaw | None:
        """Of the groups whose weight is one, of (g,); ``None`` where they make no pair."""
        count = float(groups @ self.pairs @ groups)
        if not count:
            return None
        mean = float(groups @ self.first @ groups) / count
        fewer = np.stack([_without(groups, group) for group in np.flatnonzero(groups).tolist()])
        counts = np.einsum("ng,gh,nh->n", fewer, self.pairs, fewer)
        sums = np.einsum("ng,gh,nh->n", fewer, self.first, fewer)
        error = jackknife(sums[counts > 0] / counts[counts > 0])
        variance = float(groups @ self.second @ groups) / count - mean**2 + error**2
        return ScoreLaw(mean, math.sqrt(max(variance, 1e-12)))


def _without(groups: Float64, group: int) -> Float64:
    fewer = groups.copy()
    fewer[group] = 0.0
    return fewer


def jackknife(replicates: Sequence[float] | Float64) -> float:
    """Standard error of an estimate from its values with one group left out each; 0 of fewer than two.

    >>> round(jackknife([(6 - left_out) / 2 for left_out in (1, 2, 3)]), 4)  # the mean of 1, 2, 3: 1 / sqrt(3)
    0.5774
    """
    values = np.asarray(replicates, np.float64)
    count = len(values)
    if count < 2:
        return 0.0
    return float(np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum()))
