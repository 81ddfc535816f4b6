"""Who lies nearest to whom among unit rows: the k nearest classes of each anchor, numpy only, one block at a time.

:func:`nearest` is exact. Up to :data:`DENSE_LIMIT` candidates all distances are computed in float64. Above, a float32
product finds the few candidates that can be among the k nearest (its rounding error is bounded, so none is missed) and
only those are computed again in float64, in half the time of computing all. Rows that the screen cannot decide, such as
those of a collapsed matrix, are searched in float64.

:func:`from_lists` is approximate and cheap: each row keeps the list of classes that were nearest when it was last
searched exactly, and only those are compared again. A share of the anchors is searched exactly in each round, oldest
lists first; what their old lists had missed measures the recall and sets the next share.

Ties are broken by the smaller class index throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from uvsdk.arrays import Bool, Float32, Float64, Int64

Int32 = npt.NDArray[np.int32]

TIED = 1e-6
"""Rows at a smaller cosine distance have no usable direction apart (SPEC 2.8)."""

DENSE_LIMIT = 4096
"""Candidates up to which all distances are computed in float64."""

LIST_LENGTH = 64
"""Classes that a kept list holds."""

FIRST_SHARE = 0.1
"""Of the anchors with a list, the share searched exactly before anything has been measured."""

_NEVER = -1

# Blocks: what is gathered row by row stays in cache; below so many rows a product with all candidates waits for memory.
_GATHERED_NUMBERS = 1 << 17
_DENSE_NUMBERS, _DENSE_ROWS = 1 << 17, 32
_SCREEN_ROWS, _SCREEN_COLUMNS, _SCREEN_NUMBERS = 512, 4096, 1 << 26

# The screen: candidates of a group, and how many more groups and candidates than wanted are looked at.
_GROUP, _SPARE = 64, 16

# Lists: candidates more than wanted that are compared in float64, and places at the end of a list for what others tell.
_LOOKED_AT, _TOLD_PLACES = 2, 8

# Recall falls from 1 for the newest list to this for the oldest, so that of all ages together is about 0.96.
_OLDEST_RECALL = 0.92
_SMALLEST_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest candidates of each anchor.

    Args:
        indices: int64 (A, k), classes; -1 where an anchor has fewer than k.
        distances: float64 (A, k), cosine distances, ``inf`` where there is none.
        following: float64 (A,), distance of the (k+1)-th; 2, the largest, where there is none (SPEC 2.8).
        tied: int64, the classes that lie closer than :data:`TIED` to another, sorted.
    """

    indices: Int64
    distances: Float64
    following: Float64
    tied: Int64


@dataclass(frozen=True, slots=True)
class Lists:
    """What :func:`from_lists` keeps between rounds.

    Args:
        members: int32 (C, :data:`LIST_LENGTH`), nearest first as of the last look; -1 where there is none.
        searched: int64 (C,), the round in which a row was last searched exactly; -1 for never.
        round_id: rounds so far.
        share: of the anchors with a list, how many are searched exactly in the next round.
        recall: of the true k nearest of those searched exactly in the last round, the share that was in their lists:
            a low estimate of the recall of the others, whose lists are newer. 1 before anything was measured.
    """

    members: Int32
    searched: Int64
    round_id: int = 0
    share: float = FIRST_SHARE
    recall: float = 1.0


def empty(count: int) -> Lists:
    """No lists yet, for ``count`` classes."""
    return Lists(np.full((count, LIST_LENGTH), _NEVER, np.int32), np.full(count, _NEVER, np.int64))


def insert(lists: Lists, index: int) -> Lists:
    """``lists`` with a new class at ``index``; the others move up."""
    members = np.where(lists.members >= index, lists.members + 1, lists.members).astype(np.int32)
    return replace(
        lists,
        members=np.insert(members, index, _NEVER, axis=0),
        searched=np.insert(lists.searched, index, _NEVER),
    )


def remove(lists: Lists, index: int) -> Lists:
    """``lists`` without the class at ``index``."""
    members = np.delete(lists.members, index, axis=0)
    members = np.where(members == index, _NEVER, members - (members > index)).astype(np.int32)
    return replace(lists, members=members, searched=np.delete(lists.searched, index))


def nearest(vectors: Float64, anchors: Int64, candidates: Int64, k: int) -> Nearest:
    """The k nearest candidates of each anchor, itself excepted; exact.

    Args:
        vectors: float64 (C, d), unit rows.
        anchors: int64 (A,).
        candidates: int64, distinct, sorted.
        k: at least 1.

    Time O(A x candidates x d); memory 4 bytes x candidates x d and one block.
    """
    wanted = k + 1
    if len(candidates) <= max(DENSE_LIMIT, 2 * wanted + _SPARE):
        found, tied = _dense(vectors, anchors, candidates, wanted)
    else:
        found, tied = _screened(vectors, anchors, candidates, wanted)
    return _split(found, tied)


def from_lists(vectors: Float64, anchors: Int64, k: int, lists: Lists) -> tuple[Nearest, Lists]:
    """The k nearest classes of each anchor as far as the kept lists know, and the lists brought up to date.

    Anchors without a list are searched exactly, so the first rounds cost what :func:`nearest` costs; with small
    numbers of classes this is :func:`nearest`. Distances are exact in any case. Arguments as there.
    """
    everyone = np.arange(len(vectors))
    wanted = k + 1
    if len(vectors) <= max(DENSE_LIMIT, 2 * LIST_LENGTH) or wanted > LIST_LENGTH // 2:
        return nearest(vectors, anchors, everyone, k), replace(lists, round_id=lists.round_id + 1)
    rough = vectors.astype(np.float32)
    kept = _reordered(rough, anchors, lists.members)
    due, known = _due(anchors, lists)
    before = kept[due[known[due]], :wanted]
    screen = _Screen(rough, everyone, LIST_LENGTH, len(due))
    for rows in screen.blocks(due):
        kept[rows] = screen(anchors[rows]).columns[:, :LIST_LENGTH]
    after = kept[due[known[due]], :wanted]
    recall = float((before[:, :, None] == after[:, None, :]).any(axis=2).mean()) if before.size else lists.recall
    members, searched = lists.members.copy(), lists.searched.copy()
    members[anchors] = kept
    _tell(members, anchors, kept[:, :wanted])
    searched[anchors[due]] = lists.round_id
    found = _exact(vectors, anchors, kept[:, : wanted + _LOOKED_AT].astype(np.int64), wanted)
    updated = Lists(members, searched, lists.round_id + 1, _next_share(lists.share, recall), recall)
    return _split(found, _ties(anchors, found)), updated


@dataclass(frozen=True, slots=True)
class _Found:
    """Indices int64 (A, k + 1), nearest first, and distances float64; -1 and ``inf`` where there is none."""

    indices: Int64
    distances: Float64


def _split(found: _Found, tied: Int64) -> Nearest:
    following = found.distances[:, -1]
    return Nearest(found.indices[:, :-1], found.distances[:, :-1], np.where(np.isinf(following), 2.0, following), tied)


def _ties(anchors: Int64, found: _Found) -> Int64:
    rows, places = np.nonzero(found.distances < TIED)
    return np.union1d(anchors[rows], found.indices[rows, places])


def _dense(vectors: Float64, anchors: Int64, candidates: Int64, wanted: int) -> tuple[_Found, Int64]:
    """All distances in float64, in blocks of rows."""
    indices = np.full((len(anchors), wanted), _NEVER, np.int64)
    distances = np.full((len(anchors), wanted), np.inf)
    tied = np.zeros(len(vectors), np.bool_)
    used = min(wanted, len(candidates))
    others = vectors[candidates] if len(candidates) < len(vectors) else vectors
    for rows in _slices(np.arange(len(anchors)), len(candidates), numbers=_DENSE_NUMBERS, least=_DENSE_ROWS):
        block = anchors[rows]
        searched = np.where(block[:, None] == candidates, np.inf, 1.0 - vectors[block] @ others.T)
        columns = _smallest(searched, used)
        found = np.take_along_axis(searched, columns, axis=1)
        indices[rows, :used] = np.where(np.isinf(found), _NEVER, candidates[columns])
        distances[rows, :used] = found
        close = searched < TIED
        tied[block[close.any(axis=1)]] = True
        tied[candidates[close.any(axis=0)]] = True
    return _Found(indices, distances), np.flatnonzero(tied)


def _smallest(values: Float64, count: int) -> Int64:
    """Columns of the ``count`` smallest of each row, in order; of equals, the smaller column."""
    last = np.partition(values, count - 1, axis=1)[:, count - 1 : count]
    below, equal = values < last, values == last
    room = count - below.sum(axis=1, keepdims=True)
    chosen = below | (equal & (np.cumsum(equal, axis=1) <= room))
    columns = np.nonzero(chosen)[1].reshape(len(values), count)
    order = np.argsort(np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


@dataclass(frozen=True, slots=True)
class _Picked:
    """Of each query the candidates that may be among the nearest, int64 (A, wanted + spare), best first.

    ``decided`` marks the queries for which no other candidate can be.
    """

    columns: Int64
    decided: Bool


class _Screen:
    """Finds in float32 which candidates can be among the ``wanted`` of highest cosine.

    The scores of a block of queries are split into groups; the best ``wanted`` all lie in groups whose largest score
    is among the ``wanted`` largest of all groups, so only few groups are looked into.
    """

    def __init__(self, rough: Float32, candidates: Int64, wanted: int, queries: int) -> None:
        self._rough, self._candidates, self._wanted = rough, candidates, wanted
        self._sought = rough if len(candidates) == len(rough) else rough[candidates]
        self._groups = -(-len(candidates) // _GROUP)
        self._height = max(1, min(queries, _SCREEN_ROWS, _SCREEN_NUMBERS // (self._groups * _GROUP)))
        self._scores = np.full((self._height, self._groups * _GROUP), -np.inf, np.float32)
        # A float32 product of unit rows errs by at most (d + 2) units of rounding; two of them are compared.
        self._doubt = np.float32(2.0 * (rough.shape[1] + 4) * 2.0**-24)

    def blocks(self, rows: Int64) -> list[Int64]:
        """``rows`` in pieces that one call takes."""
        return [rows[first : first + self._height] for first in range(0, len(rows), self._height)]

    def __call__(self, anchors: Int64) -> _Picked:
        candidates, wanted, groups = self._candidates, self._wanted, self._groups
        height, width = len(anchors), len(candidates)
        scores = self._scores[:height]
        queries = self._rough[anchors]
        for first in range(0, width, _SCREEN_COLUMNS):
            part = slice(first, min(first + _SCREEN_COLUMNS, width))
            np.matmul(queries, self._sought[part].T, out=scores[:, part])
        place = np.minimum(np.searchsorted(candidates, anchors), width - 1)
        itself = np.flatnonzero(candidates[place] == anchors)
        scores[itself, place[itself]] = -np.inf
        grouped = scores.reshape(height, _GROUP, groups)
        best = grouped.max(axis=1)
        opened = min(wanted + _SPARE, groups)
        chosen = np.argpartition(-best, opened - 1, axis=1)[:, :opened]
        inside = grouped[np.arange(height)[:, None], :, chosen].reshape(height, -1)
        kept = min(wanted + _SPARE, inside.shape[1])
        order = np.argpartition(-inside, kept - 1, axis=1)[:, :kept]
        values = np.take_along_axis(inside, order, axis=1)
        columns = (order % _GROUP) * groups + np.take_along_axis(chosen, order // _GROUP, axis=1)
        floor = np.partition(values, kept - wanted, axis=1)[:, kept - wanted] - self._doubt
        # Where the worst that was kept, or the worst group that was opened, is above the floor, more may be.
        decided = values.min(axis=1) < floor
        if opened < groups:
            decided &= np.take_along_axis(best, chosen, axis=1).min(axis=1) < floor
        columns = np.where(np.isneginf(values), _NEVER, candidates[np.minimum(columns, width - 1)])
        descending = np.argsort(-values, axis=1, kind="stable")
        return _Picked(np.take_along_axis(columns, descending, axis=1), decided)


def _screened(vectors: Float64, anchors: Int64, candidates: Int64, wanted: int) -> tuple[_Found, Int64]:
    indices = np.full((len(anchors), wanted), _NEVER, np.int64)
    distances = np.full((len(anchors), wanted), np.inf)
    open_rows = [np.empty(0, np.int64)]
    screen = _Screen(vectors.astype(np.float32), candidates, wanted, len(anchors))
    for rows in screen.blocks(np.arange(len(anchors))):
        picked = screen(anchors[rows])
        found = _exact(vectors, anchors[rows], picked.columns, wanted)
        indices[rows], distances[rows] = found.indices, found.distances
        # With the last one tied, further ties may lie beyond it.
        open_rows.append(rows[~picked.decided | (found.distances[:, -1] < TIED)])
    ties = _ties(anchors, _Found(indices, distances))
    undecided = np.concatenate(open_rows)
    if len(undecided):
        found, more = _dense(vectors, anchors[undecided], candidates, wanted)
        indices[undecided], distances[undecided] = found.indices, found.distances
        ties = np.union1d(ties, more)
    return _Found(indices, distances), ties


def _exact(vectors: Float64, anchors: Int64, chosen: Int64, wanted: int) -> _Found:
    """The ``wanted`` nearest of the classes ``chosen`` (A, m) for each anchor, -1 being none, in float64."""
    ordered = np.sort(chosen, axis=1)
    distances = np.empty(ordered.shape)
    for rows in _slices(np.arange(len(anchors)), ordered.shape[1] * vectors.shape[1]):
        distances[rows] = 1.0 - np.einsum("ad,akd->ak", vectors[anchors[rows]], vectors[ordered[rows]])
    distances[ordered == _NEVER] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")[:, :wanted]
    return _Found(np.take_along_axis(ordered, order, axis=1), np.take_along_axis(distances, order, axis=1))


def _reordered(rough: Float32, anchors: Int64, members: Int32) -> Int32:
    """The list of each anchor, nearest first by what the float32 rows now say."""
    kept = members[anchors]
    scores = np.empty(kept.shape, np.float32)
    for rows in _slices(np.arange(len(anchors)), kept.shape[1] * rough.shape[1]):
        scores[rows] = np.matmul(rough[kept[rows]], rough[anchors[rows], :, None])[:, :, 0]
    scores[kept == _NEVER] = -np.inf
    return np.take_along_axis(kept, np.argsort(-scores, axis=1, kind="stable"), axis=1)


def _tell(members: Int32, anchors: Int64, closest: Int32) -> None:
    """Enter each anchor into the lists of its closest classes, over one of their last places, in place."""
    told = np.repeat(anchors, closest.shape[1])
    hearers = closest.ravel()
    told, hearers = told[hearers != _NEVER], hearers[hearers != _NEVER]
    news = (members[hearers] != told[:, None]).all(axis=1)
    members[hearers[news], -1 - told[news] % _TOLD_PLACES] = told[news]


def _due(anchors: Int64, lists: Lists) -> tuple[Int64, Bool]:
    """Places among ``anchors`` of those to search exactly: all without a list, and the oldest of the others.

    The second array marks the anchors that have a list.
    """
    age = lists.searched[anchors]
    known = age != _NEVER
    share = math.ceil(lists.share * int(known.sum()))
    return np.argsort(age, kind="stable")[: int((~known).sum()) + share], known


def _next_share(share: float, recall: float) -> float:
    """A quarter more where the oldest lists know too little, a twentieth less where they know enough."""
    return min(1.0, max(_SMALLEST_SHARE, share * (1.25 if recall < _OLDEST_RECALL else 0.95)))


def _slices(rows: Int64, width: int, *, numbers: int = _GATHERED_NUMBERS, least: int = 1) -> list[Int64]:
    """``rows`` in pieces of about ``numbers`` numbers, ``width`` in a row, of at least ``least`` rows."""
    height = max(least, numbers // max(1, width))
    return [rows[first : first + height] for first in range(0, len(rows), height)]
