"""A simulated training that evaluators lead back to its best state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from uvsdk.federation.messages import TrainingConfig
from uvsdk.simulation import Simulation, Tensors
from uvsdk.simulation.evaluations import Evaluations

CONFIG = TrainingConfig("lab", "tensors", "custom", "fedaws", rounds=12, evaluate_every=2, optimiser="adam", seed=1)
NAMES = [f"person {number:02d}" for number in range(20)]


def begun(config: TrainingConfig, *, knowing: bool = False) -> Simulation:
    """Twelve people who train and eight who do not, five samples each; identity is in four of twelve dimensions, and a
    trunk that knows looks at no other.
    """
    rng = np.random.default_rng(5)
    features = {}
    for name in NAMES:
        person = np.concatenate([rng.normal(size=4), np.zeros(8)])
        features[name] = torch.tensor(person + 0.4 * rng.normal(size=(5, 12)), dtype=torch.float32)
    torch.manual_seed(3)
    trunk = torch.nn.Linear(12, 6)
    if knowing:
        torch.nn.init.zeros_(trunk.bias)
        trunk.weight.data = torch.eye(6, 12) * (torch.arange(12) < 4)
    return Simulation(config, trunk, Tensors(features), evaluators=frozenset(NAMES[12:]))


def test_steps_that_are_too_long_lead_back_to_the_start_and_training_rests() -> None:
    simulation = begun(replace(CONFIG, server_learning_rate=1e4), knowing=True)
    evaluations, start = Evaluations(simulation), simulation.theta.copy()
    records = simulation.run(on_round=evaluations)
    assert (len(records), simulation.committed, simulation.stopped) == (6, 6, True)
    assert (evaluations.returns, simulation.step, evaluations.releases) == (3, 0.125, 0)
    np.testing.assert_array_equal(simulation.theta, start)
    np.testing.assert_array_equal(evaluations.released, start)
    np.testing.assert_array_equal(simulation.optimiser.first, np.zeros(78, np.float32))
    assert simulation.optimiser.steps == 6  # rounds are counted on
    assert len(simulation.class_matrix()[0]) == 12
    compared = [found.compared for found in evaluations.concluded]
    assert all(found is not None and found.candidate_around > found.released_around for found in compared)


def test_a_good_course_is_left_alone_and_ends_better() -> None:
    simulation = begun(replace(CONFIG, server_learning_rate=0.02, rounds=6))
    evaluations = Evaluations(simulation)
    simulation.run(on_round=evaluations)
    assert (simulation.committed, simulation.stopped) == (6, False)
    last = evaluations.concluded[-1].compared
    assert last is not None
    assert last.candidate_around < evaluations.concluded[0].compared.released_around  # type: ignore[union-attr]
    assert evaluations.course.best is not None
    assert evaluations.course.best.around <= last.candidate_around


@pytest.mark.parametrize("backtracking", [True, False])
def test_off_leaves_training_as_it_was(backtracking: bool) -> None:
    config = replace(CONFIG, server_learning_rate=1e4, rounds=4, backtracking=backtracking)
    simulation, plain = begun(config, knowing=True), begun(config, knowing=True)
    simulation.run(on_round=Evaluations(simulation))
    plain.run()
    assert np.array_equal(simulation.theta, plain.theta) is not backtracking
    assert simulation.step == (0.25 if backtracking else 1.0)
    assert replace(config, backtracking=True).digest() == replace(CONFIG, server_learning_rate=1e4, rounds=4).digest()
