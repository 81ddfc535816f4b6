"""A hundred worlds: a poisoned or diverged candidate is never released, a better one is, by the second evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from tests import federated_gate as gate
from uvsdk.arrays import Float64
from uvsdk.errors import BundleError
from uvsdk.release.gate import judge
from uvsdk.release.measurement import Measured

WORLDS = 100
ROUNDS = 3
"""Before the model that is released."""


def test_a_hundred_tries() -> None:
    outcomes = [_tried(gate.World.of(seed)) for seed in range(WORLDS)]
    poisons = set().union(*(poisoned for poisoned, _ in outcomes))
    assert not poisons, f"released: {sorted(poisons)}"
    assert sum(better for _, better in outcomes) == WORLDS


def _tried(world: gate.World) -> tuple[set[str], bool]:
    """Which poisoned candidates pass, and whether one of two better ones does."""
    model = world.start
    for _ in range(ROUNDS):
        model = model + gate.delta(world, model, gate.class_matrix(world, model))
    released = gate.measured(world, model, "released")
    classes = gate.class_matrix(world, model)
    step = gate.delta(world, model, classes)
    one_point = np.repeat(classes.mean(axis=0, keepdims=True), gate.TRAINERS, axis=0)
    one_point /= np.linalg.norm(one_point[0])
    candidates = {
        "sign-flipped update": (model - step, classes),
        "rate times 100": (model + 100 * step, classes),
        "class vectors set to one point": (model + gate.delta(world, model, one_point), one_point),
    }
    poisoned = {name for name, made in candidates.items() if _passes(world, *made, released)}
    for _ in range(2):
        model = model + gate.delta(world, model, gate.class_matrix(world, model))
        if _passes(world, model, gate.class_matrix(world, model), released):
            return poisoned, True
    return poisoned, False


def _passes(world: gate.World, model: Float64, classes: Float64, released: Measured) -> bool:
    candidate = gate.measured(world, model, "candidate")
    return judge(candidate, released, collapse=gate.mean_cosine(classes)).passes


def test_an_embedding_of_one_point_is_refused_without_its_class_matrix() -> None:
    """Every embedding the same but for a hair: whatever tells people apart is finer than a histogram, and counts for
    nothing."""
    world = gate.World.of(1)
    released = gate.measured(world, world.start, "released")
    into_one = world.start * 1e-9 + 100.0 * np.ones((gate.FEATURES, gate.DIMENSION))
    verdict = judge(gate.measured(world, np.abs(into_one), "candidate"), released, collapse=float("nan"))
    assert not verdict.passes


def test_a_model_that_diverged_to_no_number_is_told_of_by_nobody() -> None:
    world = gate.World.of(2)
    with pytest.raises(BundleError, match="not finite"):
        gate.measured(world, np.full_like(world.start, np.nan), "candidate")
