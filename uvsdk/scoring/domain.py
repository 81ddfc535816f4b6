"""Where the embeddings of those a calibration was measured on lie, so that others are noticed (SPEC 17).

Strangers of one foreign domain (another microphone, another language) share a common offset from the people of the
calibration, so they score higher with each other by the square of its length: a threshold that was right for one
accepts too many of the other. A single embedding shows that offset where it lies far out in directions in which the
people of the calibration hardly differ:

    D(e) = sum_i a_i^2 / (l_i + r),   a_i the coordinates of e - mu in principal directions, l_i the people's variances,
                                      r their mean,

a Mahalanobis distance with a ridge. :meth:`Domain.rise` reads the square of the offset's length from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, Self, TypeAlias

import numpy as np

from uvsdk.arrays import Float, Float32, Float64, Int64
from uvsdk.scoring.moments import Moments

LEADING: Final = 60
"""Principal directions of people's embeddings that are kept; the others count with their mean variance (SPEC 17)."""

QUANTILES: Final = (0.05, 0.5, 0.99)
"""Shares of people whose distances a domain keeps: the low end, the middle, and the limit."""

Verdict: TypeAlias = Literal["inside", "outside", "unknown"]

_FOLDS = 10
_NOWHERE = 1e-9  # variance of people who all have one embedding, to rounding
# Fewer people than this have no 99 % quantile worth its name; their spread is then taken from the variances.
_LEAST_PEOPLE = 50


@dataclass(frozen=True, slots=True)
class Placement:
    """Whether template and probe lie where a calibration was measured.

    Args:
        verdict: ``unknown`` where the calibration does not say where its people lie.
        template: distance D of the template; ``None`` where it is unknown.
        probe: likewise.
        limit: that one in a hundred people of the calibration's kind exceed.
        reasons: what lies outside: ``template``, ``probe``, or either with the name of a condition of which there is
            less than in anything that was measured.
        rise: how much higher strangers may score here, on the scale of the scores that are compared: compensated where
            there is a likelihood ratio; 0 inside.
        cosine_rise: the same on the scale of the cosine.
    """

    verdict: Verdict = "unknown"
    template: float | None = None
    probe: float | None = None
    limit: float | None = None
    reasons: tuple[str, ...] = ()
    rise: float = 0.0
    cosine_rise: float = 0.0

    @property
    def words(self) -> str:
        """One clause for a person; it tells nothing of the template.

        >>> Placement("inside").words
        'template and probe lie within what was measured'
        """
        return {
            "inside": "template and probe lie within what was measured",
            "outside": "template or probe lies outside of what was measured",
            "unknown": "whether that speaks for this person is not known",
        }[self.verdict]


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """Moments of the people behind a calibration; of nobody in particular.

    They are of the rows that are compared: compensated where the calibration has a likelihood ratio.

    Args:
        mean: float32 (d,), the mean of their means.
        directions: float32 (k, d), orthonormal rows: the leading principal directions of their embeddings.
        variances: float64 (k,), descending.
        rest: the variance outside of these directions, all together.
        people: behind them.
        distances: float64 (3,): the distance D that shares :data:`QUANTILES` of people of this kind stay within who are
            not among them.
    """

    mean: Float32
    directions: Float32
    variances: Float64
    rest: float
    people: int
    distances: Float64

    def __post_init__(self) -> None:
        kept, dimension = self.directions.shape if self.directions.ndim == 2 else (-1, -1)
        if self.mean.shape != (dimension,) or self.variances.shape != (kept,) or not kept <= dimension:
            raise ValueError("a domain has a mean, directions of its dimension and a variance along each")
        parts = (self.mean, self.directions, self.variances, self.distances)
        if not all(np.isfinite(part).all() for part in parts) or not math.isfinite(self.rest):
            raise ValueError("a domain holds numbers that are not finite")
        if (self.variances < 0).any() or self.rest < 0 or not self.ridge > 0 or self.people < 1:
            raise ValueError("variances of people are not negative, and not all of them 0")
        if self.distances.shape != (3,) or (np.diff(self.distances) < 0).any() or self.distances[0] < 0:
            raise ValueError("the distances of a domain are three and ascend from 0")
        gram = self.directions.astype(np.float64) @ self.directions.T.astype(np.float64)
        if not np.allclose(gram, np.eye(kept), atol=1e-3):
            raise ValueError("the directions of a domain are orthonormal")

    @classmethod
    def of(cls, moments: Moments, *, directions: int = LEADING) -> Self | None:
        """Of people's sums; ``None`` where all of them lie in one place. At most so many ``directions`` are kept.

        How far others lie follows from the variances, as if embeddings were normal.
        """
        covariance = _covariance(moments)
        if not float(np.trace(covariance)) > _NOWHERE:
            return None
        values, vectors = np.linalg.eigh(covariance)
        kept = min(directions, max(moments.people - 1, 1), len(values))
        order = np.argsort(values)[::-1]
        every = np.maximum(values[order], 0.0)
        return cls(
            moments.centre.astype(np.float32),
            np.ascontiguousarray(vectors[:, order[:kept]].T, np.float32),
            np.asarray(every[:kept], np.float64),
            max(float(every.sum() - every[:kept].sum()), 0.0),
            moments.people,
            _expected(every, moments.people),
        )

    @classmethod
    def of_people(cls, rows: Float, person: Int64) -> Self | None:
        """:meth:`of` people's rows; how far others lie is measured on a tenth of them at a time, away from the moments.

        Args:
            rows: float (n, d), those that are compared.
            person: int64 (n,), whose each is.
        """
        people = np.unique(person)
        single = [Moments.of(rows[person == one]) for one in people]
        total = _sum(single)
        found = cls.of(total)
        if found is None or len(people) < _LEAST_PEOPLE:
            return found
        place = np.searchsorted(people, person)
        distances = np.zeros(len(rows))
        for fold in range(_FOLDS):
            own = np.arange(len(people)) % _FOLDS == fold
            sums = _sum([item for item, left in zip(single, own, strict=True) if not left])
            others = cls.of(sums)
            if others is None:
                return found
            # The fewer people there are, the further out lies whoever is not among them.
            fewer = float(_expected(_spectrum(total), len(people))[1] / _expected(_spectrum(sums), sums.people)[1])
            for index in np.flatnonzero(own[place]):
                distances[index] = others.distance(rows[index]) * fewer
        return cls(
            found.mean,
            found.directions,
            found.variances,
            found.rest,
            found.people,
            _quantiles(distances, 1.0 / np.bincount(place)[place]),
        )

    @property
    def ridge(self) -> float:
        """r: the mean variance over all directions."""
        return (float(self.variances.sum()) + self.rest) / len(self.mean)

    @property
    def limit(self) -> float:
        """The distance that one in a hundred people of this kind exceed."""
        return float(self.distances[2])

    def distance(self, row: Float) -> float:
        """D of one row, float (d,)."""
        offset = np.asarray(row, np.float64) - self.mean
        along = self.directions.astype(np.float64) @ offset
        outside = max(float(offset @ offset - along @ along), 0.0)
        others = len(self.mean) - len(self.variances)
        mean_rest = self.rest / others if others else 0.0
        return float((along**2 / (self.variances + self.ridge)).sum()) + outside / (mean_rest + self.ridge)

    @property
    def gain(self) -> float:
        """By how much an offset of length 1 raises D on average, whatever its direction.

        With ``f = sum l / (l + r)`` and T the sum of all variances, an offset delta has ``D = |delta|^2 (d - f) / T``
        on average over directions. Embeddings keep their length, so what people differ by shrinks as it grows, and with
        it their own D, of which m is the middle: ``(d - f - m) / T`` remain. Where there are so few people that m says
        little, a quarter of ``d - f`` is taken at least.
        """
        dimension, total = len(self.mean), self.ridge * len(self.mean)
        others = dimension - len(self.variances)
        rest = self.rest / others if others else 0.0
        within = float((self.variances / (self.variances + self.ridge)).sum()) + others * rest / (rest + self.ridge)
        free = dimension - within
        return max(free - float(self.distances[1]), free / 4) / total

    def rise(self, template: Float, probe: Float, *, upper: bool = False) -> float:
        """By how much strangers score higher than those of the calibration, from the one pair that is known.

        With ``t = mu + delta + u`` and ``x = mu + delta + v``, u and v of different people, the score is
        ``|mu|^2 + (t - mu) . mu + (x - mu) . mu + |delta|^2`` on average. The two products are read off, the square is
        what D exceeds those of the calibration by, over :attr:`gain`: the geometric mean of both sides, since an
        offset counts that both share. Either side tells of it alone, so a genuine pair is asked no more than strangers
        are.

        Args:
            template: float (d,), as it is compared.
            probe: likewise.
            upper: take D of those of the calibration at its low end, 5 %, in place of its middle.
        """
        expected = float(self.distances[0 if upper else 1])
        beyond = [max(self.distance(row) - expected, 0.0) for row in (template, probe)]
        mean = self.mean.astype(np.float64)
        linear = float((np.asarray(template, np.float64) + np.asarray(probe, np.float64) - 2 * mean) @ mean)
        return max(math.sqrt(beyond[0] * beyond[1]) / self.gain + linear, 0.0)

    def place(self, template: Float, probe: Float, *, lacking: tuple[str, ...] = ()) -> Placement:
        """Whether a template and a probe lie within, float (d,) each.

        Either side exceeds the limit for one in a hundred people of this kind, so at most 2 % of pairs are called
        outside that are not.

        Args:
            template: as it is compared.
            probe: likewise.
            lacking: conditions of which there is less than in anything that was measured; then it is outside wherever
                the embeddings lie, and what it costs is taken at the upper end.
        """
        distances = self.distance(template), self.distance(probe)
        sides = zip(("template", "probe"), distances, strict=True)
        reasons = (*(name for name, distance in sides if distance > self.limit), *lacking)
        if not reasons:
            return Placement("inside", *distances, self.limit)
        rise = self.rise(template, probe, upper=bool(lacking))
        return Placement("outside", *distances, self.limit, reasons, rise, rise)


def _sum(single: list[Moments]) -> Moments:
    total = single[0]
    for item in single[1:]:
        total += item
    return total


def _covariance(moments: Moments) -> Float64:
    """Of single samples of different people: that of their means, and what those have averaged out."""
    missing = 1.0 - moments.inverse_samples / max(moments.people, 1)
    return np.asarray(moments.between + moments.scatter * missing, np.float64)


def _spectrum(moments: Moments) -> Float64:
    return np.asarray(np.maximum(np.linalg.eigvalsh(_covariance(moments)), 0.0), np.float64)


def _quantiles(distances: Float64, weights: Float64) -> Float64:
    """Of a normal distribution of that mean and deviation: the highest of a hundred people is too rough a limit."""
    mean = float(np.average(distances, weights=weights))
    deviation = math.sqrt(float(np.average((distances - mean) ** 2, weights=weights)))
    return np.array([max(mean + NormalDist().inv_cdf(share) * deviation, 0.0) for share in QUANTILES])


def _expected(variances: Float64, people: int) -> Float64:
    """Quantiles of D of somebody who is not among the people, from variances of every direction.

    Among them D averages ``h = sum l / (l + r)``; whoever is left out of the covariance has ``h / (1 - h / n)``
    (Sherman and Morrison). With normal coordinates it deviates by ``sqrt(2 sum (l / (l + r))^2)``, as much larger;
    embeddings have longer tails, so the limit takes that factor twice (LibriSpeech: 1.7 to 2.3 times the normal one).
    """
    shares = variances / (variances + variances.mean())
    within = float(shares.sum())
    left_out = 1.0 / max(1.0 - within / people, 1.0 / people)
    middle = within * left_out
    deviation = math.sqrt(2.0 * float((shares**2).sum())) * left_out
    low, _, limit = (NormalDist().inv_cdf(share) for share in QUANTILES)
    return np.array([max(middle + low * deviation, 0.0), middle, middle + limit * deviation * left_out])
