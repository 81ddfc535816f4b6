"""A small federation in NumPy whose candidates are trained, poisoned or diverged, with the production records of an
evaluation and the production gate.

People are points in a space of identities; a sample shows its person's through a fixed mixing, among nuisances that
are larger. The model is linear: it starts as one that looks at everything alike and learns, from people who train, what
tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.release.measurement import Measured, measure
from uvsdk.release.report import report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring.moments import unit

FEATURES, IDENTITY, DIMENSION = 48, 16, 24
EVALUATORS, TRAINERS, SAMPLES = 20, 20, 8


@dataclass(frozen=True)
class World:
    """Features of everybody's samples: float64 (people, samples, FEATURES)."""

    trainers: Float64
    evaluators: Float64
    start: Float64

    @classmethod
    def of(cls, seed: int) -> World:
        """A world of its own for each seed."""
        rng = np.random.default_rng(seed)
        mixing = rng.normal(size=(IDENTITY, FEATURES)) / np.sqrt(IDENTITY)
        nuisance = rng.normal(size=(8, FEATURES))

        def people(count: int) -> Float64:
            own = rng.normal(size=(count, 1, IDENTITY)) @ mixing
            other = rng.normal(size=(count, SAMPLES, 8)) @ nuisance
            return np.asarray(own + 0.35 * other + 0.3 * rng.normal(size=(count, SAMPLES, FEATURES)), np.float64)

        return cls(people(TRAINERS), people(EVALUATORS), rng.normal(size=(FEATURES, DIMENSION)) / np.sqrt(FEATURES))


def class_matrix(world: World, model: Float64) -> Float64:
    """float64 (TRAINERS, DIMENSION), unit: the mean embedding of each who trains."""
    return unit(unit(world.trainers @ model).mean(axis=1))


def delta(world: World, model: Float64, classes: Float64, *, steps: int = 5, rate: float = 0.3) -> Float64:
    """The mean update of a round: steps of descent of the softmax of scaled cosines to the class vectors."""
    current, scale = model.copy(), 8.0
    rows = world.trainers.reshape(-1, FEATURES)
    owner = np.repeat(np.arange(TRAINERS), SAMPLES)
    for _ in range(steps):
        raw = rows @ current
        norms = np.linalg.norm(raw, axis=1, keepdims=True)
        embedded = raw / norms
        logits = scale * embedded @ classes.T
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(rows)), owner] -= 1.0
        towards = scale * share @ classes
        across = (towards - (towards * embedded).sum(axis=1, keepdims=True) * embedded) / norms
        current -= rate * rows.T @ across / len(rows)
    return np.asarray(current - model, np.float64)


def measured(world: World, model: Float64, name: str, fmr: float = 0.01) -> Measured:
    """What an evaluation says of a model: devices report, groups are summed, a calibration is made."""
    reports = []
    everybody = [(rows, True) for rows in world.evaluators] + [(rows, False) for rows in world.trainers]
    for place, (features, evaluates) in enumerate(everybody):
        rows: Float32 = unit(features @ model).astype(np.float32)
        nobody = np.zeros((0, DIMENSION), np.float32)
        report = report_on(rows, model_version=name, impostors="moments", evaluates=evaluates, strangers=nobody)
        reports.append((place, report))
    sums = ModelSums.of(reports, model_version=name, impostors="moments")
    return measure(sums, fmr=fmr, source="a simulated world", now=1.0)


def mean_cosine(classes: Float64) -> float:
    """Of two different rows of a class matrix."""
    cosines = classes @ classes.T
    return float((cosines.sum() - np.trace(cosines)) / (len(classes) * (len(classes) - 1)))
