"""The other systems of the paper's table, as laboratory baselines: they rank labels and verify nobody.

Ridge regression and SLEEC have all data in one place and are the ceiling. FedMLH and FLAG are federations of devices
with one label each, as S2 runs them: with its FedAvg-fixed's random class vectors and positive loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch.nn import functional

from examples.reproduce.fedalc import plans
from examples.reproduce.fedalc.corpus import Corpus, Part, dense
from examples.reproduce.fedalc.federation import Federation

Scores = NDArray[np.float64]

RIDGE_PENALTY = 1.0
# FedMLH: tables R and buckets B; R x B is the number of labels here, so its heads are no larger than one for all.
TABLES, BUCKETS, TABLE_ROUNDS = 3, 53, 100
# SLEEC (Bhatia et al. 2015, table of settings for small sets): neighbours kept, dimension, learners; neighbours asked.
KEPT, DIMENSION, LEARNERS, ASKED = 15, 100, 3, 25
_INNER = 4


def label_prior(corpus: Corpus, seed: int) -> Scores:
    """Every instance given the labels in order of how often they occur; deterministic."""
    return np.tile(corpus.train.labels.astype(np.float64).mean(axis=0), (len(corpus.test.labels), 1))


def ridge(corpus: Corpus, seed: int) -> Scores:
    """Labels regressed on bags of words of length 1; deterministic."""
    words, labels = dense(corpus.train, corpus.features).astype(np.float64), corpus.train.labels.astype(np.float64)
    weights = _regression(words, labels, RIDGE_PENALTY)
    result: Scores = dense(corpus.test, corpus.features).astype(np.float64) @ weights
    return result


def sleec(corpus: Corpus, seed: int) -> Scores:
    """Sparse local embeddings: label sets embedded so that inner products of near ones are kept, regressed on words;
    the labels of the nearest training instances are added up, over several learners.

    One cluster, as for sets of this size; ridge in place of the sparse regression. Learners differ by the instances
    that they leave out (a tenth).
    """
    rng = np.random.default_rng(seed)
    words, labels = dense(corpus.train, corpus.features).astype(np.float64), corpus.train.labels.astype(np.float64)
    asked = dense(corpus.test, corpus.features).astype(np.float64)
    total = np.zeros((len(asked), labels.shape[1]))
    for _ in range(LEARNERS):
        rows = np.sort(rng.choice(len(words), int(0.9 * len(words)), replace=False))
        weights = _regression(words[rows], _label_embedding(labels[rows], rng), RIDGE_PENALTY)
        here, there = _unit(words[rows] @ weights), _unit(asked @ weights)
        near = there @ here.T
        nearest = np.argpartition(-near, ASKED, axis=1)[:, :ASKED]
        share = np.maximum(np.take_along_axis(near, nearest, axis=1), 0.0)
        for column in range(ASKED):
            total += share[:, column : column + 1] * labels[rows[nearest[:, column]]]
    return total / LEARNERS


def fedmlh(corpus: Corpus, seed: int) -> Scores:
    """Labels hashed into R tables of B buckets, one federation of B devices for each table; scores are averaged."""
    rng = np.random.default_rng((seed, 1))
    total = np.zeros((len(corpus.test.labels), corpus.train.labels.shape[1]))
    for table in range(TABLES):
        bucket = rng.permutation(total.shape[1]) % BUCKETS
        plan = replace(plans.find("fixed", ""), training={"rounds": TABLE_ROUNDS, "cooldown_rounds": TABLE_ROUNDS // 2})
        total += _federated(plan, _hashed(corpus, bucket), seed + 100 * table)[:, bucket]
    return total / TABLES


def flag(corpus: Corpus, seed: int) -> Scores:
    """Devices weighted by how much of each label's occurrences they hold, averaged over the labels.

    A device with one label holds all of it, so here all weigh the same, whatever their number of instances.
    """
    return _federated(replace(plans.find("fixed", ""), training={"weighting": "uniform"}), corpus, seed)


BASELINES: dict[str, Callable[[Corpus, int], Scores]] = {
    "label_prior": label_prior,
    "ridge": ridge,
    "sleec": sleec,
    "fedmlh": fedmlh,
    "flag": flag,
}
SEEDS = {"label_prior": (0,), "ridge": (0,), "sleec": plans.SEEDS, "fedmlh": plans.SEEDS, "flag": plans.SEEDS}


def _regression(words: Scores, targets: Scores, penalty: float) -> Scores:
    gram = words.T @ words + penalty * np.eye(words.shape[1])
    result: Scores = np.linalg.solve(gram, words.T @ targets)
    return result


def _unit(rows: Scores) -> Scores:
    result: Scores = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return result


def _label_embedding(labels: Scores, rng: np.random.Generator, steps: int = 20, rate: float = 0.5) -> Scores:
    """Z, (n, DIMENSION): singular value projection (Bhatia et al. 2015, Alg 3) on the entries of Y Y^T between
    instances and their nearest by labels."""
    sets = _unit(labels)
    likeness = sets @ sets.T
    np.fill_diagonal(likeness, 1.0)
    near = np.argpartition(-(likeness + 1e-6 * rng.random(likeness.shape)), KEPT, axis=1)[:, :KEPT]
    count = len(sets)
    rows, columns = np.repeat(np.arange(count), KEPT), near.ravel()
    marks = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(count, count))
    rows, columns = marks.maximum(marks.T).nonzero()
    wanted = likeness[rows, columns]
    embedding, basis = np.zeros((count, DIMENSION)), rng.standard_normal((count, DIMENSION))
    for _ in range(steps):
        residue = wanted - np.einsum("pd,pd->p", embedding[rows], embedding[columns])
        sparse = csr_matrix((rate * residue, (rows, columns)), shape=(count, count))
        # The leading eigenvectors of Z Z^T + rate x residue, by subspace iteration from the step before.
        for _ in range(_INNER):
            basis, _ = np.linalg.qr(embedding @ (embedding.T @ basis) + sparse @ basis)
        small = (basis.T @ embedding) @ (embedding.T @ basis) + basis.T @ (sparse @ basis)
        values, turned = np.linalg.eigh((small + small.T) / 2)
        embedding = (basis @ turned) * np.sqrt(np.maximum(values, 0.0))
    return embedding


def _hashed(corpus: Corpus, bucket: NDArray[np.int64]) -> Corpus:
    marks = np.zeros((len(corpus.train.labels), BUCKETS), np.bool_)
    for label, place in enumerate(bucket.tolist()):
        marks[:, place] |= corpus.train.labels[:, label]
    return replace(corpus, train=Part(corpus.train.words, marks))


@torch.no_grad()
def _embedded(federation: Federation, part: Part) -> Scores:
    trunk = federation.trunk.eval()
    rows = torch.cat([functional.normalize(trunk(words), dim=1) for words in part.words.split(512)])
    result: Scores = rows.double().numpy()
    return result


def _federated(plan: plans.Plan, corpus: Corpus, seed: int) -> Scores:
    torch.manual_seed(seed)
    federation = Federation(plans.config(plan, seed), plan.trunk(corpus.features), corpus, fraction=plan.fraction)
    federation.run()
    _, vectors = federation.class_matrix()
    result: Scores = _embedded(federation, corpus.test) @ vectors.T
    return result
