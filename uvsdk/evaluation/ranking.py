"""Retrieval metrics (P@k, MAP@R) and the collapse monitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from uvsdk.arrays import Bool, Float, Float64, Int64

BLOCK_ROWS = 1024


def precision_at_k(scores: Float, relevant: Bool, *, k: int) -> float:
    """P@k: share of the k best classes that are relevant, mean over samples.

    The denominator is k even where fewer classes are relevant, and equal scores rank by ascending class id: P@1 of a
    collapsed model is then the frequency of class 0, so look at :func:`collapse` beside it (S0 section 6).

    Args:
        scores: (n, C), higher is better.
        relevant: bool (n, C).
        k: at least 1.

    >>> precision_at_k(np.array([[0.1, 0.9, 0.5]]), np.array([[True, True, False]]), k=2)  # picks classes 1 and 2
    0.5
    """
    _check(scores, relevant, k)
    order = np.argsort(-np.asarray(scores, np.float64), axis=1, kind="stable")[:, :k]
    return float(np.take_along_axis(relevant, order, axis=1).sum() / (k * len(scores)))


def map_at_r(
    similarity: Float,
    query_labels: Int64,
    *,
    reference_labels: Int64,
    r: int | Literal["class"] = 10,
    same_set: bool = False,
) -> float:
    """MAP@R: mean over queries of (1 / R) sum over i <= R of P(i) rel(i).

    R = 10 for every query follows FedSS (S4 Eq 9), so a query with fewer than R relevant references cannot reach 1;
    ``r="class"`` takes R = the number of references of the query's class (Musgrave et al. 2020). Equal similarities
    rank by ascending reference index; queries whose class has no reference are left out.

    Args:
        similarity: (q, m), higher is nearer.
        query_labels: int (q,).
        reference_labels: int (m,).
        r: a fixed R, or ``"class"``.
        same_set: queries and references are the same samples, so a query never retrieves itself.

    >>> labels = np.array([1, 0, 1])
    >>> map_at_r(np.array([[0.9, 0.8, 0.7]]), np.array([1]), reference_labels=labels, r="class")  # (1/2)(1/1 + 0)
    0.5
    """
    relevant = query_labels[:, None] == reference_labels[None, :]
    values = np.array(similarity, np.float64)
    if values.shape != relevant.shape:
        raise ValueError(f"similarity has shape {values.shape}, the labels ask for {relevant.shape}")
    if same_set:
        np.fill_diagonal(values, -np.inf)
        np.fill_diagonal(relevant, False)
    counts = relevant.sum(axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    hit = np.take_along_axis(relevant, order, axis=1)
    precision = np.cumsum(hit, axis=1) / np.arange(1, values.shape[1] + 1)
    sizes = counts if r == "class" else np.full(len(counts), r)
    inside = np.arange(values.shape[1])[None, :] < sizes[:, None]
    kept = counts > 0
    if not kept.any():
        raise ValueError("no query has a reference of its own class")
    return float(((precision * hit * inside).sum(axis=1)[kept] / sizes[kept]).mean())


@dataclass(frozen=True, slots=True)
class Collapse:
    """How far embeddings or class vectors have fallen together.

    Args:
        mean_cosine: mean of the off-diagonal cosines; near 1 when collapsed.
        minimum_distance: smallest chord distance of two rows, in [0, 2].
        effective_rank: exp of the entropy of the normalised singular values (Roy and Vetterli 2007), in [1, d].
        fmr_at_0_7: share of ordered pairs of different rows whose cosine is at least 0.7.
    """

    mean_cosine: float
    minimum_distance: float
    effective_rank: float
    fmr_at_0_7: float


def collapse(rows: Float, subjects: Int64 | None = None) -> Collapse:
    """The collapse monitor of one round, over class vectors or a batch of embeddings.

    Memory is O(rows); time is O(rows² d).

    Args:
        rows: (n, d), n >= 2, rows need not be unit.
        subjects: int (n,), whose row each is; pairs of one subject are left out. None: every row is another subject.

    >>> monitor = collapse(np.eye(3))
    >>> monitor.mean_cosine, round(monitor.minimum_distance, 4), round(monitor.effective_rank, 4), monitor.fmr_at_0_7
    (0.0, 1.4142, 3.0, 0.0)
    """
    values = np.asarray(rows, np.float64)
    owners = np.arange(len(values)) if subjects is None else np.asarray(subjects)
    unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    total, pairs, near, highest = 0.0, 0, 0, -np.inf
    for start in range(0, len(unit), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        cosines = (unit[block] @ unit.T)[owners[block, None] != owners[None, :]]
        total, pairs, near = total + float(cosines.sum()), pairs + cosines.size, near + int((cosines >= 0.7).sum())
        highest = max(highest, float(cosines.max(initial=-np.inf)))
    if pairs == 0:
        raise ValueError("the collapse monitor needs rows of at least two subjects")
    return Collapse(total / pairs, float(np.sqrt(max(0.0, 2 - 2 * highest))), effective_rank(unit), near / pairs)


def effective_rank(rows: Float) -> float:
    """exp(-sum p log p), p = singular values over their sum; 1 when all rows are parallel.

    >>> round(effective_rank(np.ones((4, 3))), 6)
    1.0
    """
    singular: Float64 = np.linalg.svd(np.asarray(rows, np.float64), compute_uv=False)
    share = singular / singular.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def _check(scores: Float, relevant: Bool, k: int) -> None:
    if scores.ndim != 2 or scores.shape != relevant.shape or scores.size == 0:
        raise ValueError(f"scores and relevant are (samples, classes), got {scores.shape} and {relevant.shape}")
    if k < 1:
        raise ValueError(f"k is at least 1, got {k}")
