"""Pushing class vectors apart on the unit sphere: the server's share of the loss (SPEC 2.2-2.8), float64.

With D_cy = 1 - w_c . w_y, the regulariser sums over **ordered** pairs (c, y), c in the anchors, y != c in the
candidates, so a mutual pair counts twice:

* ``hinge`` (S0 Eq 7): a_cy max(0, nu - D_cy)^2 over all pairs, with a fixed margin nu;
* ``topk_neg_sq`` (S0 Eq 8, literal): -a_cy D_cy^2 over the k nearest candidates of each anchor;
* ``topk_hinge`` (the adaptive margin that S0 section 4.2 describes in words): a_cy max(0, nu_c - D_cy)^2 over the k
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
from typing import Protocol

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.errors import SettingsError
from uvsdk.federation.classes import neighbours
from uvsdk.federation.classes.neighbours import Lists

MODES = ("hinge", "topk_neg_sq", "topk_hinge")
REDUCTIONS = ("sum", "mean")

TIED = neighbours.TIED
"""Rows at a smaller cosine distance have no usable direction apart (SPEC 2.8)."""

_JITTER = 1e-3
_BLOCK_NUMBERS, _CACHED_NUMBERS = 1 << 20, 1 << 16


class CollapseWarning(UserWarning):
    """One class alone cannot be spread: training on it is pure collapse (SPEC 2.8)."""


@dataclass(frozen=True, slots=True)
class Spreadout:
    """How class vectors are spread.

    Args:
        mode: one of :data:`MODES`. Default ``hinge``: the adaptive margin collapsed on Bibtex at settings that were
            not searched for it (SPEC 16).
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
        median_angle_radians: median over the rows that a pair pulls and that may move; 0.01 to 0.1 early in training is
            healthy (SPEC 2.4).
        jittered: rows that were tied with another and got tangent noise first.
        lists: the kept lists that were handed in, brought up to date.
    """

    vectors: Float64
    median_angle_radians: float
    jittered: int
    lists: Lists | None = None


class Weights(Protocol):
    """Pair weights by numpy's indexing with two arrays; an array is such, and so is what never makes all of it."""

    def __getitem__(self, pairs: tuple[Int64, Int64], /) -> Float64:
        """a_cy of the pairs (c, y) that the two arrays name after broadcasting."""
        ...


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which ordered pairs (c, y) the regulariser runs over; ``None`` stands for all classes.

    Args:
        anchors: int64, C_t: the rows c, distinct.
        candidates: int64, C': the rows y, distinct. Neighbours are sought within C' only (SPEC 2.2).
        weights: a_cy >= 0, float64 (C, C) or what gives the entries that are asked for, e.g. FedALC's sigma
            (:class:`uvsdk.federation.classes.correlation.PairWeights`).
    """

    anchors: Int64 | None = None
    candidates: Int64 | None = None
    weights: Weights | None = None


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


def regulariser(vectors: Float64, options: Spreadout, pairs: Pairs = _ALL) -> float:
    """The value that :func:`gradient` differentiates; same cost."""
    if _sees_everything(vectors, options):
        return sum(
            float((block.scale * block.slack**2)[block.counted].sum()) for block in _blocks(vectors, options, pairs)
        )
    return _links(vectors, options, pairs, None).value


def gradient(vectors: Float64, options: Spreadout, pairs: Pairs = _ALL) -> Float64:
    """G = 2 (A + A^T) W, float64 (C, d), not projected.

    Exact, in row blocks: O(|C_t| |C'| d) time, for modes of nearest neighbours in float32 where there are many
    candidates, and memory far below a C x C matrix; none is made unless the caller hands one in as weights. Above
    ``options.exact_limit`` classes ``hinge`` keeps the k nearest pairs of each anchor.
    """
    result = np.zeros_like(vectors)
    for rows, values in _slope(vectors, options, pairs, None, None).blocks:
        result[rows] = values
    return result


def step(
    vectors: Float64,
    options: Spreadout,
    rng: np.random.Generator,
    *,
    pairs: Pairs = _ALL,
    moved: Int64 | None = None,
    lists: Lists | None = None,
) -> Spread:
    """One step of projected gradient descent (SPEC 2.2, Appendix C).

    Args:
        vectors: float64 (C, d) with unit rows; not changed.
        rng: draws the noise that separates tied rows (SPEC 2.8); unused where none are tied.
        moved: rows that may move, distinct, ``None`` for all; the others are constants.
        lists: kept lists to seek neighbours in, approximately; ``None`` seeks them exactly. Only where all classes
            are candidates.
    """
    count = len(vectors)
    if count < 2:
        warnings.warn(
            "one class alone cannot be spread, so training collapses; let a second person join", CollapseWarning, 2
        )
    rows = None if moved is None else np.unique(np.asarray(moved, np.int64))
    if count < 2 or (rows is not None and len(rows) == 0) or options.step_size == 0:
        return Spread(vectors.copy(), 0.0, 0, lists)
    start = vectors
    slope = _slope(start, options, pairs, rows, lists)
    loosened = slope.tied if rows is None else np.intersect1d(slope.tied, rows)
    if len(loosened):
        start = _jitter(start, loosened, rng)
        slope = _slope(start, options, pairs, rows, lists)
    result = start.copy()
    lengths = [np.empty(0)]
    for part, values in slope.blocks:
        result[part], length = _turned(start[part], values, options)
        lengths.append(length)
    # A tangent move of length u turns a unit row by atan(u).
    angles = np.arctan(np.concatenate(lengths))
    return Spread(result, float(np.median(angles)) if len(angles) else 0.0, len(loosened), slope.lists)


def unit_rows(matrix: Float64) -> Float64:
    """Rows divided by their norms; none may be zero."""
    result: Float64 = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return result


@dataclass(frozen=True, slots=True)
class _Slope:
    """The gradient of the rows that some pair pulls, in blocks: rows, ascending, and float64 (rows, d).

    ``tied`` rows lie on another.
    """

    blocks: Iterator[tuple[Int64, Float64]]
    tied: Int64
    lists: Lists | None


def _sees_everything(vectors: Float64, options: Spreadout) -> bool:
    return options.mode == "hinge" and len(vectors) <= options.exact_limit


def _slope(vectors: Float64, options: Spreadout, pairs: Pairs, rows: Int64 | None, lists: Lists | None) -> _Slope:
    """2 (A + A^T) W of ``rows``, ``None`` for all."""
    if not _sees_everything(vectors, options):
        links = _links(vectors, options, pairs, lists)
        return _Slope(_gathered(vectors, links, rows), links.tied, links.lists)
    values, tied = np.zeros_like(vectors), np.zeros(len(vectors), np.bool_)
    for block in _blocks(vectors, options, pairs):
        pull = np.where(block.counted, block.slack, 0.0) * block.scale
        values[block.anchors] += 2.0 * (pull @ vectors[block.candidates])
        values[block.candidates] += 2.0 * (pull.T @ vectors[block.anchors])
        tied[block.anchors] |= block.tied.any(axis=1)
        tied[block.candidates] |= block.tied.any(axis=0)
    wanted = np.arange(len(vectors)) if rows is None else rows
    return _Slope(iter([(wanted, values if rows is None else values[rows])]), np.flatnonzero(tied), lists)


def _turned(rows: Float64, slope: Float64, options: Spreadout) -> tuple[Float64, Float64]:
    """The rows moved against ``slope``, which is used up, and the lengths of the moves, (rows,)."""
    slope -= np.einsum("rd,rd->r", slope, rows)[:, None] * rows
    lengths = options.step_size * _norms(slope)
    slope *= (options.step_size * np.minimum(1.0, options.max_angle_radians / np.maximum(lengths, 1e-12)))[:, None]
    moved = np.subtract(rows, slope, out=slope)
    moved /= _norms(moved)[:, None]
    return moved, np.minimum(lengths, options.max_angle_radians)


def _norms(rows: Float64) -> Float64:
    """Euclidean norms of the rows, without a copy of them."""
    lengths: Float64 = np.sqrt(np.einsum("rd,rd->r", rows, rows))
    return lengths


@dataclass(frozen=True, slots=True)
class _Block:
    """The pairs of a few anchors: arrays of shape (anchors, candidates); those ``counted`` are of two classes."""

    anchors: Int64
    candidates: Int64
    slack: Float64
    counted: Bool
    scale: Float64
    tied: Bool


def _blocks(vectors: Float64, options: Spreadout, pairs: Pairs) -> Iterator[_Block]:
    """All pairs of ``hinge``, a block of anchors at a time."""
    anchors, candidates = _sides(vectors, pairs)
    if len(vectors) < 2 or len(candidates) == 0:
        return
    height = max(1, _BLOCK_NUMBERS // len(candidates))
    for first in range(0, len(anchors), height):
        part = anchors[first : first + height]
        others = part[:, None] != candidates[None, :]
        distances = 1.0 - vectors[part] @ vectors[candidates].T
        scale = np.ones((1, 1)) if pairs.weights is None else pairs.weights[part[:, None], candidates[None, :]]
        if options.reduction == "mean":
            scale = scale / np.maximum(others.sum(axis=1, keepdims=True), 1)
        slack = np.maximum(0.0, _margin(vectors, options) - distances)
        tied = others & (distances < TIED)
        yield _Block(part, candidates, slack, others, np.broadcast_to(scale, distances.shape), tied)


@dataclass(frozen=True, slots=True)
class _Links:
    """The pairs of anchors and their nearest: A_cy = ``pulls`` at c = ``heads``, y = ``tails``, all (pairs,)."""

    heads: Int64
    tails: Int64
    pulls: Float64
    value: float
    tied: Int64
    lists: Lists | None


def _links(vectors: Float64, options: Spreadout, pairs: Pairs, lists: Lists | None) -> _Links:
    anchors, candidates = _sides(vectors, pairs)
    if len(vectors) < 2 or len(candidates) == 0 or len(anchors) == 0:
        nothing = np.empty(0, np.int64)
        return _Links(nothing, nothing, np.empty(0), 0.0, nothing, lists)
    wanted = options.neighbours if options.neighbours is not None else default_neighbours(len(vectors))
    k = min(wanted, len(candidates))
    if lists is None or pairs.candidates is not None:
        found = neighbours.nearest(vectors, anchors, candidates, k)
    else:
        found, lists = neighbours.from_lists(vectors, anchors, k, lists)
    there = found.indices >= 0
    heads, tails = np.repeat(anchors, there.sum(axis=1)), found.indices[there]
    distances = found.distances[there]
    scale = np.ones(len(heads)) if pairs.weights is None else pairs.weights[heads, tails]
    if options.reduction == "mean":
        scale = scale / np.repeat(there.sum(axis=1), there.sum(axis=1))
    if options.mode == "topk_neg_sq":
        pulls = scale * distances
        return _Links(heads, tails, pulls, -float(pulls @ distances), found.tied, lists)
    margins = found.following[:, None] if options.mode == "topk_hinge" else _margin(vectors, options)
    slack = np.maximum(0.0, np.broadcast_to(margins, there.shape)[there] - distances)
    pulls = scale * slack
    return _Links(heads, tails, pulls, float(pulls @ slack), found.tied, lists)


def _gathered(vectors: Float64, links: _Links, rows: Int64 | None) -> Iterator[tuple[Int64, Float64]]:
    """Sum the pulls at both ends of each pair by the row that they move, a few rows at a time: these stay in cache."""
    receivers = np.concatenate([links.heads, links.tails])
    givers = np.concatenate([links.tails, links.heads])
    pulls = 2.0 * np.concatenate([links.pulls, links.pulls])
    if rows is not None:
        mine = np.isin(receivers, rows)
        receivers, givers, pulls = receivers[mine], givers[mine], pulls[mine]
    order = np.argsort(receivers, kind="stable")
    givers, pulls = givers[order], pulls[order, None]
    touched, starts, counts = np.unique(receivers[order], return_index=True, return_counts=True)
    height = max(1, _CACHED_NUMBERS // vectors.shape[1])
    for first in range(0, len(touched), height):
        part = slice(first, first + height)
        start, count = starts[part], counts[part]
        values = vectors[givers[start]]
        values *= pulls[start]
        for place in range(1, int(count.max())):
            more = np.flatnonzero(count > place)
            entry = start[more] + place
            values[more] += pulls[entry] * vectors[givers[entry]]
        yield touched[part], values


def _sides(vectors: Float64, pairs: Pairs) -> tuple[Int64, Int64]:
    everyone = np.arange(len(vectors))
    anchors = everyone if pairs.anchors is None else np.asarray(pairs.anchors, np.int64)
    return anchors, everyone if pairs.candidates is None else np.sort(np.asarray(pairs.candidates, np.int64))


def _margin(vectors: Float64, options: Spreadout) -> float:
    return options.margin if options.margin is not None else default_margin(len(vectors))


def _jitter(vectors: Float64, rows: Int64, rng: np.random.Generator) -> Float64:
    """Tangent noise N(0, 1e-3) on ``rows``: exactly equal rows have a zero tangent and would never part."""
    noise = rng.normal(0.0, _JITTER, (len(rows), vectors.shape[1]))
    here = vectors[rows]
    noise -= (noise * here).sum(axis=1, keepdims=True) * here
    result = vectors.copy()
    result[rows] = unit_rows(here + noise)
    return result
