"""Class vectors for the whole of training, from label sets alone (S2 Eq 12; SPEC 3.3), float64.

    reg = alpha sum_{u != v} pi_uv D_uv^2 + beta sum_{u != v} sigma_uv max(0, nu - D_uv)^2,  D_uv = 1 - w_u . w_v
    G = -4 alpha (pi * D) W + 2 beta (A + A^T) W,  A_uv = sigma_uv max(0, nu - D_uv)

Descent as in the spreadout: along the tangent part of -G, clipped, back onto the sphere. The paper does not say when to
stop: here when no row's tangent gradient exceeds ``tolerance``, or after ``codebook_steps``. A step that raises the
objective is undone and the step size halved, so that any ``step`` converges.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float64, Int64
from uvsdk.federation.algorithms.fedalc_fixed.payload import Settings
from uvsdk.federation.classes import correlation, spreadout
from uvsdk.federation.classes.correlation import Correlation, PairWeights
from uvsdk.federation.classes.spreadout import CollapseWarning, Pairs, Spreadout

_SMALLEST_STEP = 1e-6
_JITTER = 1e-3


class InseparableWarning(UserWarning):
    """Two classes always occur together: their vectors become one, and nothing can tell them apart (SPEC 3.3)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """S2 Eq 12 for given label sets.

    Args:
        push: beta's part: how pairs are spread.
        weights: of the push, sigma times beta, or beta on every pair where no label set is known.
        rows: int64 (P,), u of the pairs that are pulled together.
        columns: int64 (P,), v of them.
        pull: float64 (P,), alpha times pi.
    """

    push: Spreadout
    weights: PairWeights
    rows: Int64
    columns: Int64
    pull: Float64

    def value(self, vectors: Float64) -> float:
        """The regulariser, sums over ordered pairs."""
        apart = spreadout.regulariser(vectors, self.push, Pairs(weights=self.weights))
        return apart + 2.0 * float((self.pull * self._distances(vectors) ** 2).sum())

    def gradient(self, vectors: Float64) -> Float64:
        """G, float64 (C, d), not projected."""
        result = spreadout.gradient(vectors, self.push, Pairs(weights=self.weights))
        strength = (4.0 * self.pull * self._distances(vectors))[:, None]
        np.subtract.at(result, self.rows, strength * vectors[self.columns])
        np.subtract.at(result, self.columns, strength * vectors[self.rows])
        return result

    def _distances(self, vectors: Float64) -> Float64:
        cosines: Float64 = np.einsum("pd,pd->p", vectors[self.rows], vectors[self.columns])
        return 1.0 - cosines


def objective(counts: Correlation, settings: Settings) -> Objective:
    """S2 Eq 12 with ``counts`` and ``settings``; without any instance every pair is pushed alike, as in FedAwS."""
    push = Spreadout(step_size=settings.step, margin=settings.margin or None, exact_limit=np.iinfo(np.int32).max)
    count = len(counts.positives)
    if counts.instances == 0:
        uniform = PairWeights.constant(count, settings.beta)
        return Objective(push, uniform, counts.rows, counts.columns, np.empty(0))
    sigma = correlation.sigma(counts)
    mean = sigma.mean()
    pull = correlation.pi(counts, largest=settings.largest_pull * mean if mean > 0 else np.inf)
    scale = 1.0 / mean if settings.unit_mean and mean > 0 else 1.0
    weights = sigma.scale(settings.beta * scale)
    return Objective(push, weights, counts.rows, counts.columns, settings.alpha * scale * pull)


def optimise(
    vectors: Float64,
    target: Objective,
    *,
    settings: Settings,
    rng: np.random.Generator,
    moved: Int64 | None = None,
) -> Float64:
    """``vectors``, float64 (C, d) with unit rows, moved to a minimum of ``target``; only rows ``moved`` where given.

    Rows that start as one have no direction apart and get tangent noise first (SPEC 2.8).
    """
    rows = np.arange(len(vectors)) if moved is None else moved
    if len(vectors) < 2:
        warnings.warn("a codebook of one class separates nothing; let a second person join", CollapseWarning, 3)
        return vectors
    here = _separated(vectors, rows, rng)
    value, rate = target.value(here), settings.step
    for _ in range(settings.codebook_steps):
        slope = target.gradient(here)[rows]
        tangent = slope - (slope * here[rows]).sum(axis=1, keepdims=True) * here[rows]
        lengths = np.linalg.norm(tangent, axis=1, keepdims=True)
        if float(lengths.max()) < settings.tolerance:
            break
        move = -rate * tangent * np.minimum(1.0, settings.max_angle_radians / np.maximum(rate * lengths, 1e-12))
        there = here.copy()
        there[rows] = spreadout.unit_rows(here[rows] + move)
        reached = target.value(there)
        if reached <= value:
            here, value = there, reached
        elif rate < _SMALLEST_STEP:
            break
        else:
            rate /= 2
    return here


def _separated(vectors: Float64, rows: Int64, rng: np.random.Generator) -> Float64:
    near = 1.0 - vectors[rows] @ vectors.T < spreadout.TIED
    near[np.arange(len(rows)), rows] = False
    tied = rows[near.any(axis=1)]
    result = vectors.copy()
    noise = rng.normal(0.0, _JITTER, (len(tied), vectors.shape[1]))
    result[tied] = spreadout.unit_rows(vectors[tied] + noise)
    return result


def warn_of_inseparable(counts: Correlation, linked: int) -> None:
    """Warn with :class:`InseparableWarning` where pairs that are not one person's always occur together."""
    pairs = int(counts.inseparable().sum()) - linked
    if pairs > 0:
        warnings.warn(
            f"{pairs} pairs of classes occur only together: each pair gets one class vector and cannot be told apart; "
            "enrol samples that only one of them has",
            InseparableWarning,
            3,
        )
