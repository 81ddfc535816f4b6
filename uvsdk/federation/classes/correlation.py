"""Which classes share instances, and the pair weights that follow (FedALC, S2 section IV; SPEC 3).

Devices send a keyed hash of each sample once. Equal hashes are one instance with several labels, so the server counts,
without seeing a sample,

* n_all: distinct instances; N_u: those with label u; N_uv: those with labels u and v.

Only the pairs with N_uv > 0 are kept: everything else follows from N_u alone, and S2's negative pairs are never made.
With off-diagonal u, v:

* sigma_uv = (N_u - N_uv) / n_all, the share of instances with u and without v (S2 Eq 9); asymmetric;
* gamma_uv = sigma_uv / sum over v' of sigma_uv' (S2 Eq 10); rows sum to 1, or are 0;
* pi_uv = N_uv / n_all (S2 Eq 12); symmetric.

sigma and gamma have one form: a number for each row, less a sparse correction. Two users whose admissions link them
as one person count as one label: an instance of either is an instance of both, so sigma is 0 between them.

Differences from the paper: n_all counts an instance once however many devices hold it; pairs with few common instances
can be left out, since a rare coincidence says who has the same file rather than how labels relate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64, UInt8

MOST_LABELS = 1000
"""An instance with more labels than this (a silent clip, a stock photo) relates nobody; it makes no pairs."""

_HASH_BYTES = 32


def _no_numbers() -> Int64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Correlation:
    """Counts over label sets; pairs are stored once, u < v, in order.

    Args:
        positives: int64 (C,), N_u.
        rows: int64 (P,), u of each pair.
        columns: int64 (P,), v of each pair.
        together: int64 (P,), N_uv >= 1.
        instances: n_all.
    """

    positives: Int64 = field(default_factory=_no_numbers)
    rows: Int64 = field(default_factory=_no_numbers)
    columns: Int64 = field(default_factory=_no_numbers)
    together: Int64 = field(default_factory=_no_numbers)
    instances: int = 0

    def frequent(self, smallest: int, *, kept: Bool | None = None) -> Correlation:
        """Without pairs of fewer than ``smallest`` common instances; those marked ``kept``, bool (P,), stay."""
        stay = self.together >= smallest
        if kept is not None:
            stay = stay | kept
        return Correlation(self.positives, self.rows[stay], self.columns[stay], self.together[stay], self.instances)

    def inseparable(self) -> Bool:
        """Pairs that always occur together, bool (P,): no push and only pull (SPEC 3.3), so they become one point."""
        always = self.together == self.positives[self.rows]
        result: Bool = always & (self.together == self.positives[self.columns])
        return result


@dataclass(frozen=True, slots=True)
class PairWeights:
    """a_uv = levels_u - corrections_uv off the diagonal, 0 on it; the corrections are sparse, in CSR form.

    Args:
        levels: float64 (C,).
        pointers: int64 (C + 1,), where each row's corrections begin.
        columns: int64 (Q,), ascending within a row.
        corrections: float64 (Q,).
    """

    levels: Float64
    pointers: Int64
    columns: Int64
    corrections: Float64

    def __getitem__(self, pairs: tuple[Int64, Int64], /) -> Float64:
        """a of the pairs that two integer arrays name after broadcasting, as numpy's indexing does."""
        rows, columns = pairs
        if rows.ndim == 2 and columns.ndim == 2 and rows.shape[1] == columns.shape[0] == 1:
            return self.block(rows[:, 0], columns[0])
        rows, columns = np.broadcast_arrays(rows, columns)
        count = len(self.levels)
        keys, wanted = self._row_of_correction() * count + self.columns, rows * count + columns
        result: Float64 = self.levels[rows].copy()
        if len(keys):
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            result -= np.where(keys[place] == wanted, self.corrections[place], 0.0)
        return np.where(rows == columns, 0.0, np.maximum(result, 0.0))

    def block(self, anchors: Int64, candidates: Int64) -> Float64:
        """a over ``anchors`` x ``candidates``, float64; memory is that block's."""
        count = len(self.levels)
        place = np.full(count, -1, np.int64)
        place[candidates] = np.arange(len(candidates))
        result = np.repeat(self.levels[anchors][:, None], len(candidates), axis=1)
        lengths = self.pointers[anchors + 1] - self.pointers[anchors]
        rows = np.repeat(np.arange(len(anchors)), lengths)
        entries = np.repeat(self.pointers[anchors] - np.cumsum(lengths) + lengths, lengths) + np.arange(len(rows))
        columns = place[self.columns[entries]]
        wanted = columns >= 0
        result[rows[wanted], columns[wanted]] -= self.corrections[entries[wanted]]
        itself = place[anchors]
        result[np.flatnonzero(itself >= 0), itself[itself >= 0]] = 0.0
        # What remains of a row whose instances are all shared is rounding, and a weight is never negative.
        return np.maximum(result, 0.0)

    @classmethod
    def constant(cls, count: int, value: float) -> PairWeights:
        """The same weight for every pair of ``count`` classes."""
        return cls(np.full(count, value), np.zeros(count + 1, np.int64), _no_numbers(), np.empty(0))

    def dense(self) -> Float64:
        """The whole matrix, float64 (C, C)."""
        everyone = np.arange(len(self.levels))
        return self.block(everyone, everyone)

    def row_sums(self) -> Float64:
        """Sum of each row, float64 (C,)."""
        sums = self.levels * max(len(self.levels) - 1, 0)
        np.subtract.at(sums, self._row_of_correction(), self.corrections)
        result: Float64 = np.maximum(sums, 0.0)
        return result

    def scale(self, factor: float | Float64) -> PairWeights:
        """Every row times its factor, float64 (C,), or all times one."""
        rows = np.broadcast_to(np.asarray(factor, np.float64), self.levels.shape)
        return PairWeights(
            self.levels * rows, self.pointers, self.columns, self.corrections * rows[self._row_of_correction()]
        )

    def mean(self) -> float:
        """Mean off the diagonal; 0 for fewer than two classes."""
        count = len(self.levels)
        return float(self.row_sums().sum()) / (count * (count - 1)) if count > 1 else 0.0

    def with_unit_mean(self) -> PairWeights:
        """Scaled so that the mean off the diagonal is 1, as step sizes expect; unchanged where all are 0."""
        mean = self.mean()
        return self.scale(1.0 / mean) if mean > 0 else self

    def _row_of_correction(self) -> Int64:
        return np.repeat(np.arange(len(self.levels)), np.diff(self.pointers))


def sigma(correlation: Correlation) -> PairWeights:
    """sigma_uv = (N_u - N_uv) / n_all (S2 Eq 9); a class without instances has a row of zeros.

    >>> labels = [np.array([[1], [2]]), np.array([[2], [3], [4]])]  # instance 2 has both labels; n_all = 4
    >>> hashes = np.concatenate(labels).astype(np.uint8).repeat(32, axis=1)
    >>> sigma(count(hashes, np.array([0, 2, 5]))).dense()
    array([[0.  , 0.25],
           [0.5 , 0.  ]])
    """
    everything = max(correlation.instances, 1)
    rows = np.concatenate([correlation.rows, correlation.columns])
    columns = np.concatenate([correlation.columns, correlation.rows])
    order = np.lexsort((columns, rows))
    lengths = np.bincount(rows, minlength=len(correlation.positives))
    return PairWeights(
        levels=correlation.positives / everything,
        pointers=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        columns=columns[order],
        corrections=np.tile(correlation.together, 2)[order] / everything,
    )


def gamma(correlation: Correlation) -> PairWeights:
    """sigma with rows that sum to 1 (S2 Eq 10); a row that sums to 0 stays 0."""
    weights = sigma(correlation)
    sums = weights.row_sums()
    tiny = np.finfo(np.float64).eps * len(sums)
    return weights.scale(np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > tiny))


def pi(correlation: Correlation, *, largest: float = np.inf) -> Float64:
    """pi_uv = N_uv / n_all of each stored pair, float64 (P,) (S2 Eq 12), at most ``largest``.

    The cap bounds what a device that lies about its instances can do: hold two vectors together that are not its own.
    """
    shares: Float64 = np.minimum(correlation.together / max(correlation.instances, 1), largest)
    return shares


def count(hashes: UInt8, pointers: Int64, groups: Int64 | None = None) -> Correlation:
    """Merge equal instances and count, O(n log n + pairs).

    Args:
        hashes: uint8 (n, 32), the instances of one class after another.
        pointers: int64 (C + 1,), where each class begins.
        groups: int64 (C,), a number for each class, equal for classes of one person; all different where ``None``.
    """
    classes = len(pointers) - 1
    labels = np.arange(classes) if groups is None else np.unique(groups, return_inverse=True)[1].astype(np.int64)
    if len(hashes) == 0:
        return Correlation(np.zeros(classes, np.int64))
    plain = np.ascontiguousarray(hashes).view(f"V{_HASH_BYTES}")[:, 0]
    distinct, instance = np.unique(plain, return_inverse=True)
    label = np.repeat(labels, np.diff(pointers))
    width = int(labels.max()) + 1
    once = np.unique(instance.astype(np.int64) * width + label)  # one label of one instance, ordered by instance
    instance, label = once // width, once % width
    sizes = np.bincount(label, minlength=width)
    rows, columns, together = _pairs(instance, label, len(distinct), width)
    return _of_classes(labels, sizes, (rows, columns, together), len(distinct))


def _pairs(instance: Int64, label: Int64, instances: int, width: int) -> tuple[Int64, Int64, Int64]:
    """Pairs of labels u < v of the same instance and how many instances have both."""
    keys, counts = _no_numbers(), _no_numbers()
    for found in _pair_keys(instance, label, instances, width):
        merged, inverse = np.unique(np.concatenate([keys, found]), return_inverse=True)
        weights = np.concatenate([counts, np.ones(len(found), np.int64)])
        keys, counts = merged, np.bincount(inverse, weights=weights, minlength=len(merged)).astype(np.int64)
    return keys // width, keys % width, counts


def _pair_keys(instance: Int64, label: Int64, instances: int, width: int) -> Iterator[Int64]:
    """The pairs of all instances with the same number of labels at a time, as u * width + v."""
    lengths = np.bincount(instance, minlength=instances)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for length in np.unique(lengths):
        if not 2 <= length <= MOST_LABELS:
            continue
        sets = label[starts[lengths == length][:, None] + np.arange(length)[None, :]]
        first, second = np.triu_indices(int(length), 1)
        yield (sets[:, first] * width + sets[:, second]).ravel()


def _of_classes(labels: Int64, sizes: Int64, pairs: tuple[Int64, Int64, Int64], instances: int) -> Correlation:
    """From counts over labels to counts over classes, where several classes can carry one label."""
    order = np.argsort(labels, kind="stable")
    members = np.bincount(labels, minlength=len(sizes))
    rows, columns, together = pairs
    if len(order) == len(sizes):
        return Correlation(sizes[labels], rows, columns, together, instances)
    begins = np.concatenate([[0], np.cumsum(members)[:-1]])
    found: list[tuple[int, int, int]] = []
    for u, v, common in zip(rows.tolist(), columns.tolist(), together.tolist(), strict=True):
        mine, theirs = order[begins[u] : begins[u] + members[u]], order[begins[v] : begins[v] + members[v]]
        found.extend((min(a, b), max(a, b), common) for a in mine.tolist() for b in theirs.tolist())
    for label in np.flatnonzero((members > 1) & (sizes > 0)).tolist():
        mine = np.sort(order[begins[label] : begins[label] + members[label]]).tolist()
        found.extend((a, b, int(sizes[label])) for place, a in enumerate(mine) for b in mine[place + 1 :])
    found.sort()
    table = np.array(found, np.int64).reshape(-1, 3)
    return Correlation(sizes[labels], table[:, 0], table[:, 1], table[:, 2], instances)
