"""Which trials a calibration makes of people's samples: cells of one kind of template with one kind of probe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.evaluation.observations import Observations
from uvsdk.scoring.conditions import Conditions, together

_TRIALS_A_CELL = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Templates or probes of one kind: rows with their people, recordings (-1 for several) and conditions."""

    rows: Float32
    person: Int64
    recording: Int64
    conditions: tuple[Conditions, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Trials of one kind of template with one kind of probe: indices of both, int64 (n,) each."""

    template: Side
    probe: Side
    pairs: tuple[Int64, Int64]

    @property
    def is_genuine(self) -> Bool:
        """bool (n,): both are of one person."""
        own: Bool = self.template.person[self.pairs[0]] == self.probe.person[self.pairs[1]]
        return own

    def weights(self) -> Float64:
        """float64 (n,): 1 is shared by the impostor trials, and by the genuine ones so that people weigh the same."""
        own = self.is_genuine
        people = self.template.person[self.pairs[0]]
        weights = np.full(len(own), 1.0 / max(int((~own).sum()), 1))
        if own.any():
            counts = np.bincount(people[own])[people[own]]
            weights[own] = 1.0 / (counts * len(np.unique(people[own])))
        return weights


def cells(seen: Observations, rng: np.random.Generator) -> Iterator[Cell]:
    """A good template with probes of each copy, and both of the same copy; empty cells are left out."""
    for means in (False, True):
        for copy in range(len(seen.copies)):
            for template_copy in {0, copy}:
                template = _means(seen, template_copy) if means else singles(seen, seen.copy == template_copy)
                probe = singles(seen, (seen.copy == copy) & (~seen.enrolled if means else True))
                cell = _cell(template, probe, rng)
                if cell is not None:
                    yield cell


def _cell(template: Side, probe: Side, rng: np.random.Generator) -> Cell | None:
    impostor = _impostor_pairs(template.person, probe.person, rng)
    if not len(impostor[0]):
        return None
    same = template.person[:, None] == probe.person
    own, other = np.nonzero(same & (template.recording[:, None] != probe.recording))
    if len(own) > _TRIALS_A_CELL:
        chosen = rng.choice(len(own), _TRIALS_A_CELL, replace=False)
        own, other = own[chosen], other[chosen]
    pairs = np.concatenate([own, impostor[0]]), np.concatenate([other, impostor[1]])
    return Cell(template, probe, pairs)


def _impostor_pairs(template: Int64, probe: Int64, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """One comparison for each ordered pair of people, or as many such pairs as a cell may have."""
    first, second = np.unique(template), np.unique(probe)
    a, b = (part.ravel() for part in np.meshgrid(first, second, indexing="ij"))
    kept = np.flatnonzero(a != b)
    if len(kept) > _TRIALS_A_CELL:
        kept = rng.choice(kept, _TRIALS_A_CELL, replace=False)
    return _one_each(template, a[kept], rng), _one_each(probe, b[kept], rng)


def _one_each(owner: Int64, wanted: Int64, rng: np.random.Generator) -> Int64:
    """For each person wanted, the index of a random row of theirs."""
    order = np.argsort(owner, kind="stable")
    start = np.searchsorted(owner[order], wanted, side="left")
    stop = np.searchsorted(owner[order], wanted, side="right")
    return order[start + (rng.random(len(wanted)) * (stop - start)).astype(np.int64)]


def singles(seen: Observations, chosen: np.ndarray) -> Side:
    """Rows of the observations that are ``chosen``, bool (n,), each as it is."""
    found = np.flatnonzero(chosen)
    conditions = tuple(seen.conditions[index] for index in found)
    return Side(seen.embeddings[found], seen.person[found], seen.recording[found], conditions)


def _means(seen: Observations, copy: int) -> Side:
    """Templates of people with two enrolment samples or more."""
    rows, people, conditions = [], [], []
    for person in np.unique(seen.person):
        own = np.flatnonzero((seen.person == person) & (seen.copy == copy) & seen.enrolled)
        if len(own) > 1:
            mean = seen.embeddings[own].mean(axis=0, dtype=np.float64)
            rows.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
            people.append(int(person))
            conditions.append(together([seen.conditions[index] for index in own]))
    matrix = np.array(rows, np.float32).reshape(len(rows), seen.embeddings.shape[1])
    return Side(matrix, np.array(people, np.int64), np.full(len(rows), -1, np.int64), tuple(conditions))


def of_originals(seen: Observations) -> Cell:
    """Every original probe against everyone's mean template, or where nobody has probes, every pair of originals."""
    original = seen.copy == 0
    if (original & ~seen.enrolled).any():
        template = one_template_each(singles(seen, original & seen.enrolled))
        probe = singles(seen, original & ~seen.enrolled)
        a, b = (part.ravel() for part in np.indices((len(template.rows), len(probe.rows))))
    else:
        template = probe = singles(seen, original)
        a, b = np.triu_indices(len(template.rows), 1)
    return Cell(template, probe, (a, b))


def one_template_each(enrolled: Side) -> Side:
    """The normalised mean of each person's rows."""
    rows, conditions = [], []
    people = np.unique(enrolled.person)
    for person in people:
        own = np.flatnonzero(enrolled.person == person)
        mean = enrolled.rows[own].mean(axis=0, dtype=np.float64)
        rows.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
        conditions.append(together([enrolled.conditions[index] for index in own]))
    matrix = np.array(rows, np.float32).reshape(len(rows), enrolled.rows.shape[1])
    return Side(matrix, people, np.full(len(people), -1, np.int64), tuple(conditions))
