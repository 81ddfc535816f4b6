"""How impostors score, from sums over people: nobody's embedding is needed (SPEC 17).

Of each person only the mean of their unit embeddings, its outer product and the covariance within the person enter a
sum. From three sums follow mean and variance of the score between two different people, and under a normal tail the
score that a share of impostors reaches.

>>> rng = np.random.default_rng(0)
>>> people = [unit(rng.normal(size=(5, 8)) + 3 * rng.normal(size=8)) for _ in range(200)]
>>> sums = Moments.none(8)
>>> for rows in people:
...     sums += Moments.of(rows)
>>> law = between_people(sums, samples=1)
>>> scores = [first[0] @ other[0] for place, first in enumerate(people) for other in people[:place]]
>>> bool(abs(law.mean - np.mean(scores)) < 0.01), bool(abs(law.deviation / np.std(scores) - 1) < 0.03)
(True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from uvsdk.arrays import Float, Float64


@dataclass(frozen=True, slots=True)
class ScoreLaw:
    """A normal distribution of impostors' scores."""

    mean: float
    deviation: float

    def score_at(self, fmr: float) -> float:
        """The score that a share ``fmr`` of impostors reaches.

        >>> round(ScoreLaw(0.1, 0.1).score_at(0.01), 4)
        0.3326
        """
        return self.mean - NormalDist().inv_cdf(fmr) * self.deviation

    def fmr_at(self, score: float) -> float:
        """The share of impostors who reach ``score``."""
        if self.deviation <= 0.0:
            return float(score <= self.mean)
        return 0.5 * math.erfc((score - self.mean) / (self.deviation * math.sqrt(2.0)))


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
        """Of one person's unit embeddings, float (k, d)."""
        embeddings = np.asarray(rows, np.float64)
        count, dimension = embeddings.shape
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
    def person_covariance(self) -> Float64:
        """S without what the scatter of k_i samples adds to a mean: S - W mean(1 / k_i)."""
        return np.asarray(self.between - self.scatter * (self.inverse_samples / max(self.people, 1)), np.float64)


def unit(rows: Float) -> Float64:
    """Rows of length 1; a row of zeros stays."""
    values = np.asarray(rows, np.float64)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12), np.float64)


def between_people(sums: Moments, *, samples: int) -> ScoreLaw:
    """How a sample of one person scores against the mean of ``samples`` samples of another, both among ``sums``.

    SPEC 17: S_p is the covariance of the people themselves. The mean of a template is not normalised here: a template's
    length divides the score.

    Args:
        sums: of three people at least.
        samples: k of the template; 1 compares sample with sample.
    """
    count = sums.people
    if count < 3:
        raise ValueError(f"moments of {count} people say nothing of other people; three are the least")
    centre, scatter = sums.centre, sums.scatter
    people = sums.person_covariance
    degrees = count - 1
    trace, square = float(np.trace(people)), float((people * people).sum())
    spread = degrees**2 / ((degrees - 1) * (degrees + 2)) * (square - trace**2 / degrees)
    along = max(float(centre @ people @ centre) - square / count, 0.0)
    noise = (1.0 + 1.0 / samples) * (float((people * scatter).sum()) + float(centre @ scatter @ centre))
    variance = max(spread, 0.0) + 2.0 * along + noise + float((scatter * scatter).sum()) / samples
    return ScoreLaw(float(centre @ centre) - trace / count, math.sqrt(max(variance, 1e-12)))


def against_templates(strangers: Moments, templates: Moments) -> ScoreLaw:
    """How a sample of a stranger scores against a template: nothing that both share is squared (SPEC 17).

    Args:
        strangers: of people who did not train.
        templates: one unit row of each enrolled person, :meth:`Moments.of` of shape (1, d).
    """
    if min(strangers.people, templates.people) < 2:
        raise ValueError("cross moments need two strangers and two templates at least")
    probes = strangers.person_covariance + strangers.scatter
    first, second, spread = strangers.centre, templates.centre, templates.between
    variance = float((probes * spread).sum() + first @ spread @ first + second @ probes @ second)
    return ScoreLaw(float(first @ second), math.sqrt(max(variance, 1e-12)))
