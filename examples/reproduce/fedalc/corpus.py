"""Bibtex as a federation: one device a label, holding every instance that carries it (S2 section V-C)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from examples.reproduce.data import MultiLabel, bibtex
from uvsdk.privacy.identifiers import canonical_instance, hash_instance
from uvsdk.simulation import Tensors

DEPLOYMENT = "bibtex"
_PEPPER = bytes(range(32))  # Nothing here is secret, and a run is to be repeatable.


@dataclass(frozen=True, slots=True)
class Part:
    """Some instances.

    Args:
        words: int64 (n, longest), the words of each, filled up with the number of words that exist.
        labels: bool (n, 159).
    """

    words: Tensor
    labels: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is trained on, what is measured on, and how many words exist."""

    train: Part
    test: Part
    features: int

    def population(self) -> Tensors:
        """159 devices; each hashes what it holds, and the server finds the label sets by equal hashes."""
        digests = np.stack(
            [
                np.frombuffer(
                    hash_instance(canonical_instance(row), deployment=DEPLOYMENT, pepper=_PEPPER), dtype=np.uint8
                )
                for row in self.train.words.numpy().astype(np.uint16)
            ]
        )
        held = {user: np.flatnonzero(self.train.labels[:, place]) for place, user in enumerate(self.users())}
        return Tensors(
            features={user: self.train.words[torch.from_numpy(rows)] for user, rows in held.items()},
            instances={user: digests[rows] for user, rows in held.items()},
        )

    def users(self) -> tuple[str, ...]:
        """Names of the devices in the order of the labels, which is their alphabetical order."""
        return tuple(f"label {number:03d}" for number in range(self.train.labels.shape[1]))


def corpus(*, validate: bool) -> Corpus:
    """The published split, or the training part cut at 85 % with its rest in place of the test part."""
    found = bibtex()
    train = _part(found.train, found.features, found.labels)
    if not validate:
        return Corpus(train, _part(found.test, found.features, found.labels), found.features)
    order = np.random.default_rng(7).permutation(len(train.labels))
    first, last = np.split(order, [int(0.85 * len(order))])
    return Corpus(_chosen(train, first), _chosen(train, last), found.features)


def dense(part: Part, features: int) -> NDArray[np.float32]:
    """Rows of length 1 of the bag of words, float32 (n, features)."""
    counts = np.zeros((len(part.words), features + 1), np.float32)
    np.put_along_axis(counts, part.words.numpy(), 1.0, axis=1)
    words = counts[:, :features]
    result: NDArray[np.float32] = words / np.sqrt(np.maximum(words.sum(axis=1, keepdims=True), 1))
    return result


def precision(scores: NDArray[np.floating], labels: NDArray[np.bool_], at: tuple[int, ...] = (1, 3, 5)) -> list[float]:
    """P@k in percent; of equal scores the smaller label comes first (S2 Eq 15)."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(at)]
    hits = np.take_along_axis(labels, order, axis=1)
    return [100.0 * float(hits[:, :k].mean()) for k in at]


def _part(found: MultiLabel, features: int, labels: int) -> Part:
    lengths = np.diff(found.x_pointers)
    words = np.full((len(found), int(lengths.max())), features, np.int64)
    words[np.arange(words.shape[1])[None, :] < lengths[:, None]] = found.x_indices
    marks = np.zeros((len(found), labels), np.bool_)
    marks[np.repeat(np.arange(len(found)), np.diff(found.y_pointers)), found.y_indices] = True
    return Part(torch.from_numpy(words), marks)


def _chosen(part: Part, rows: NDArray[np.int64]) -> Part:
    return Part(part.words[torch.from_numpy(rows)], part.labels[rows])
