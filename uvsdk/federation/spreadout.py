"""Pushing class vectors apart on the unit sphere: the server's half of the loss (SPEC 2.2-2.8), float64.

With D_cy = 1 - w_c . w_y, the regulariser sums over **ordered** pairs (c, y), c in the anchors, y != c in the
candidates, so a mutual pair counts twice:

* ``hinge`` (FedAwS Eq 7): a_cy max(0, nu - D_cy)^2 over all pairs, with a fixed margin nu;
* ``topk_neg_sq`` (Eq 8, literal): -a_cy D_cy^2 over the k nearest candidates of each anchor;
* ``topk_hinge`` (the adaptive margin that section 4.2 describes in words): a_cy max(0, nu_c - D_cy)^2 over the k
  nearest, nu_c being the distance of the (k+1)-th, held constant.

For all three the Euclidean gradient is G = 2 (A + A^T) W. A step moves each row along the tangent part of -G and
back onto the sphere. Differences from the paper: the step is projected and clipped to 0.3 rad, so that its angles
are exact and can be watched; one ``step_size`` stands for the product lambda x eta_s, which alone acts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.errors import SettingsError

MODES = ("hinge", "topk_neg_sq", "topk_hinge")
REDUCTIONS = ("sum", "mean")

TIED = 1e-6
"""Rows at a smaller cosine distance have no usable direction apart (SPEC 2.8)."""

_JITTER = 1e-3
_BLOCK_NUMBERS = 1 << 20


class CollapseWarning(UserWarning):
    """One class alone cannot be spread: training on it is pure collapse (SPEC 2.8)."""


@dataclass(frozen=True, slots=True)
class Spreadout:
    """How class vectors are spread.

    Args:
        mode: one of :data:`MODES`. Default ``hinge``: the adaptive margin collapsed on Bibtex (SPEC 16).
        step_size: lambda x eta_s, radians per unit of gradient. 0 moves nothing. The default 0.1 (SPEC Appendix B)
            is for pair weights of mean 1 and reduction ``sum``: with no weights, all are 1.
        margin: nu, a cosine distance; ``None`` takes :func:`default_margin` (SPEC 2.5).
        neighbours: k; ``None`` takes :func:`default_neighbours`; more than C - 1 is clamped.
        reduction: ``sum`` as printed, or ``mean``, which divides A by the number of neighbours of a row.
        max_angle_radians: longest step of a row.
        exact_limit: classes above which ``hinge`` looks at the k nearest only.
    """

    mode: str = "hinge"
    step_size: float = 0.1
    margin: float | None = None
    neighbours: int | None = None
    reduction: str = "sum"
    max_angle_radians: float = 0.3
    exact_limit: int = 20_000

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"spreadout mode {self.mode!r} is not one of {MODES}")
        if self.reduction not in REDUCTIONS:
            raise SettingsError(f"spreadout reduction {self.reduction!r} is not one of {REDUCTIONS}")
        if not 0 <= self.step_size < math.inf:
            raise SettingsError(f"spreadout step is {self.step_size}; it must be finite and not negative")
        if self.margin is not None and not 0 < self.margin <= 2:
            raise SettingsError(f"a margin is a cosine distance in (0, 2], got {self.margin}")
        if self.neighbours is not None and self.neighbours < 1:
            raise SettingsError(f"spreadout looks at {self.neighbours} neighbours; it must be at least 1")
        if not 0 < self.max_angle_radians <= math.pi / 2:
            raise SettingsError(f"the longest step is {self.max_angle_radians} rad; it must lie in (0, pi/2]")


@dataclass(frozen=True, slots=True)
class Spread:
    """The outcome of one step.

    Args:
        vectors: float64 (C, d), unit rows.
        median_angle_radians: median over the moved rows; 0.01 to 0.1 early in training is healthy (SPEC 2.4).
        jittered: rows that were tied with another and got tangent noise first.
    """

    vectors: Float64
    median_angle_radians: float
    jittered: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which ordered pairs (c, y) the regulariser runs over; ``None`` stands for all classes.

    Args:
        anchors: int64, C_t: the rows c, distinct.
        candidates: int64, C': the rows y, distinct. Neighbours are sought within C' only (SPEC 2.2).
        weights: float64 (C, C), a_cy >= 0, e.g. FedALC's sigma scaled by :func:`unit_mean`.
    """

    anchors: Int64 | None = None
    candidates: Int64 | None = None
    weights: Float64 | None = None


_ALL = Pairs()


def default_margin(classes: int) -> float:
    """nu: 1.1 for C <= 10, 1.0 to 100, 0.8 above (SPEC 2.5, measured).

    >>> [default_margin(classes) for classes in (2, 10, 11, 100, 101)]
    [1.1, 1.1, 1.0, 1.0, 0.8]
    """
    if classes <= 10:
        return 1.1
    return 1.0 if classes <= 100 else 0.8


def default_neighbours(classes: int) -> int:
    """k = min(C - 1, max(3, ceil(0.01 C))) (SPEC Appendix B).

    >>> [default_neighbours(classes) for classes in (2, 20, 1000)]
    [1, 3, 10]
    """
    return max(0, min(classes - 1, max(3, -(-classes // 100))))


def unit_mean(weights: Float64) -> Float64:
    """Pair weights scaled so that those off the diagonal have mean 1; the diagonal becomes 0."""
    scaled = np.array(weights, np.float64)
    np.fill_diagonal(scaled, 0.0)
    pairs = len(scaled) * (len(scaled) - 1)
    total = float(scaled.sum())
    return scaled * (pairs / total) if total > 0 else scaled


def regulariser(vectors: Float64, options: Spreadout, pairs: Pairs = _ALL) -> float:
    """The value that :func:`gradient` differentiates; same cost."""
    total = 0.0
    for block in _blocks(vectors, options, pairs):
        if options.mode == "topk_neg_sq":
            total -= float((block.scale * block.distances**2)[block.active].sum())
        else:
            total += float((block.scale * block.slack**2)[block.active].sum())
    return total


def gradient(vectors: Float64, options: Spreadout, pairs: Pairs = _ALL) -> Float64:
    """G = 2 (A + A^T) W, float64 (C, d), not projected.

    Exact, in row blocks: O(|C_t| |C'| d) time and O(block x |C'|) memory; no C x C matrix is made unless the
    caller hands one in as weights. Above ``options.exact_limit`` classes ``hinge`` keeps the k nearest pairs of
    each anchor, found by the same blocked search; the time stays O(|C_t| |C'| d), so very many classes want a
    sampled C'.
    """
    result, _ = _gradient(vectors, options, pairs)
    return result


def step(
    vectors: Float64,
    options: Spreadout,
    rng: np.random.Generator,
    *,
    pairs: Pairs = _ALL,
    moved: Int64 | None = None,
) -> Spread:
    """One step of projected gradient descent (SPEC 2.2, Appendix C).

    Args:
        vectors: float64 (C, d) with unit rows; not changed.
        rng: draws the noise that separates tied rows (SPEC 2.8); unused where none are tied.
        moved: rows that may move, ``None`` for all; the others are constants.
    """
    count = len(vectors)
    rows = np.arange(count) if moved is None else np.asarray(moved, np.int64)
    if count < 2:
        warnings.warn(
            "one class alone cannot be spread, so training collapses; let a second person join", CollapseWarning, 2
        )
    if count < 2 or len(rows) == 0 or options.step_size == 0:
        return Spread(vectors.copy(), 0.0, 0)
    start = vectors
    slope, tied = _gradient(start, options, pairs)
    loosened = np.intersect1d(np.flatnonzero(tied), rows)
    if len(loosened):
        start = _jitter(start, loosened, rng)
        slope, _ = _gradient(start, options, pairs)
    here = start[rows]
    tangent = slope[rows] - (slope[rows] * here).sum(axis=1, keepdims=True) * here
    move = options.step_size * tangent
    lengths = np.linalg.norm(move, axis=1, keepdims=True)
    move *= np.minimum(1.0, options.max_angle_radians / np.maximum(lengths, 1e-12))
    result = start.copy()
    result[rows] = unit_rows(here - move)
    # A tangent move of length u turns a unit row by atan(u).
    angles = np.arctan(np.minimum(lengths, options.max_angle_radians))
    return Spread(result, float(np.median(angles)), len(loosened))


def unit_rows(matrix: Float64) -> Float64:
    """Rows divided by their norms; none may be zero."""
    result: Float64 = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return result


@dataclass(frozen=True, slots=True)
class _Block:
    """The pairs of a few anchors: arrays of shape (anchors, candidates); ``active`` marks the pairs that count."""

    anchors: Int64
    candidates: Int64
    distances: Float64
    slack: Float64
    active: Bool
    scale: Float64
    tied: Bool


def _gradient(vectors: Float64, options: Spreadout, pairs: Pairs) -> tuple[Float64, Bool]:
    result = np.zeros_like(vectors)
    tied = np.zeros(len(vectors), np.bool_)
    for block in _blocks(vectors, options, pairs):
        pull = np.where(block.active, block.distances if options.mode == "topk_neg_sq" else block.slack, 0.0)
        pull *= block.scale
        result[block.anchors] += 2.0 * (pull @ vectors[block.candidates])
        result[block.candidates] += 2.0 * (pull.T @ vectors[block.anchors])
        tied[block.anchors] |= block.tied.any(axis=1)
        tied[block.candidates] |= block.tied.any(axis=0)
    return result, tied


def _blocks(vectors: Float64, options: Spreadout, pairs: Pairs) -> Iterator[_Block]:
    count = len(vectors)
    anchors = np.arange(count) if pairs.anchors is None else np.asarray(pairs.anchors, np.int64)
    candidates = np.arange(count) if pairs.candidates is None else np.sort(np.asarray(pairs.candidates, np.int64))
    if count < 2 or len(candidates) == 0:
        return
    height = max(1, _BLOCK_NUMBERS // len(candidates))
    for first in range(0, len(anchors), height):
        yield _block(vectors, options, pairs.weights, anchors[first : first + height], candidates)


def _block(vectors: Float64, options: Spreadout, weights: Float64 | None, anchors: Int64, candidates: Int64) -> _Block:
    itself = anchors[:, None] == candidates[None, :]
    distances = 1.0 - vectors[anchors] @ vectors[candidates].T
    searched = np.where(itself, np.inf, distances)
    others = (~itself).sum(axis=1)
    tied = searched < TIED
    margin = options.margin if options.margin is not None else default_margin(len(vectors))
    if options.mode == "hinge" and len(vectors) <= options.exact_limit:
        near, margins, used = ~itself, np.full((len(anchors), 1), margin), others
    else:
        wanted = options.neighbours if options.neighbours is not None else default_neighbours(len(vectors))
        near, adaptive = _nearest(searched, np.minimum(wanted, others), others)
        margins = np.full((len(anchors), 1), margin) if options.mode == "hinge" else adaptive
        used = near.sum(axis=1)
    slack = np.maximum(0.0, margins - distances)
    scale = np.ones((1, 1)) if weights is None else weights[np.ix_(anchors, candidates)]
    if options.reduction == "mean":
        scale = scale / np.maximum(used, 1)[:, None]
    scale = np.broadcast_to(scale, distances.shape)
    return _Block(anchors, candidates, distances, slack, near, scale, tied)


def _nearest(distances: Float64, wanted: Int64, others: Int64) -> tuple[Bool, Float64]:
    """Marks each row's ``wanted`` nearest and gives the next distance, (rows, 1). Of equals, the smaller index wins.

    A row whose neighbours are all wanted has no next one; its margin is 2, the largest distance (SPEC 2.8).
    ``wanted`` differs between rows only by whether the row itself is among the candidates.
    """
    rows = len(distances)
    near = np.zeros(distances.shape, np.bool_)
    following = np.full((rows, 1), 2.0)
    for k in np.unique(wanted):
        mine = np.flatnonzero(wanted == k)
        if k == 0:
            continue
        part = distances[mine]
        last = np.partition(part, k - 1, axis=1)[:, k - 1 : k]
        below = part < last
        equal = part == last
        room = k - below.sum(axis=1, keepdims=True)
        near[mine] = below | (equal & (np.cumsum(equal, axis=1) <= room))
        more = mine[others[mine] > k]
        if len(more):
            following[more, 0] = np.partition(distances[more], k, axis=1)[:, k]
    return near, following


def _jitter(vectors: Float64, rows: Int64, rng: np.random.Generator) -> Float64:
    """Tangent noise N(0, 1e-3) on ``rows``: exactly equal rows have a zero tangent and would never part."""
    noise = rng.normal(0.0, _JITTER, (len(rows), vectors.shape[1]))
    here = vectors[rows]
    noise -= (noise * here).sum(axis=1, keepdims=True) * here
    result = vectors.copy()
    result[rows] = unit_rows(here + noise)
    return result
