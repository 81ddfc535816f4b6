"""A head that begins centred: what is taken off, when it is not, and what a simulated training makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from uvsdk.arrays import Float32, Float64
from uvsdk.federation.messages import TrainingConfig
from uvsdk.release.centring import LEAST_CENTRED, centre, centred
from uvsdk.release.report import report_on
from uvsdk.release.sums import ModelSums
from uvsdk.simulation import Simulation, Tensors
from uvsdk.simulation.evaluations import Evaluations
from uvsdk.training import backbones
from uvsdk.training.backbones import Affine, Centred, Partial
from uvsdk.training.export import PARITY, export_bundle, parity

NAME = "digits-cnn+centred"
DIMENSION = 8


def people(count: int, *, seed: int = 0) -> list[Float32]:
    """Four samples of each, with an offset that all of them share."""
    rng = np.random.default_rng(seed)
    shared = 1.5 * np.eye(DIMENSION)[0]
    found = []
    for _ in range(count):
        rows = shared + rng.normal(size=DIMENSION) / 2 + rng.normal(size=(4, DIMENSION)) / 3
        found.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    return found


def sums(rows: list[Float32], *, evaluators: int) -> ModelSums:
    nobody = np.empty((0, 0), np.float32)
    reports = [
        (place, report_on(one, model_version="m", impostors="moments", evaluates=place < evaluators, strangers=nobody))
        for place, one in enumerate(rows)
    ]
    return ModelSums.of(reports, model_version="m", impostors="moments")


def begun() -> Float32:
    """Ten numbers of some trunk, and a head as it begins."""
    return np.concatenate([np.ones(10), np.eye(DIMENSION).ravel(), np.zeros(DIMENSION)]).astype(np.float32)


def test_what_is_taken_off_is_as_long_as_what_single_embeddings_share() -> None:
    # t = (3, 4) / 10 and m = (0.2, 0.1): m . t = 0.1, t . t = 0.25, so 0.4 of t
    assert centre(np.array([0.3, 0.4]), np.array([0.2, 0.1])) == pytest.approx([0.12, 0.16])
    assert centre(np.array([0.3, 0.4]), np.array([-0.2, 0.0])).tolist() == [0.0, 0.0]
    assert centre(np.zeros(2), np.zeros(2)).tolist() == [0.0, 0.0]


def test_the_bias_is_minus_the_mean_and_nothing_else_moves() -> None:
    rows = people(30)
    moved = centred(begun(), sums(rows, evaluators=10), dimension=DIMENSION)
    assert moved is not None
    np.testing.assert_array_equal(moved[:-DIMENSION], begun()[:-DIMENSION])
    means = [one.mean(axis=0, dtype=np.float64) for one in rows]
    templates: Float64 = np.mean([mean / np.linalg.norm(mean) for mean in means], axis=0)
    single: Float64 = np.mean(means[:10], axis=0)
    np.testing.assert_allclose(moved[-DIMENSION:], -centre(templates, single), atol=2e-4)  # the grid of the sums


@pytest.mark.parametrize(
    ("count", "evaluators", "place"),
    [(LEAST_CENTRED - 1, 10, None), (LEAST_CENTRED, 0, None), (LEAST_CENTRED, 10, -1), (LEAST_CENTRED, 10, 11)],
)
def test_few_people_or_a_head_that_has_moved_are_left_alone(count: int, evaluators: int, place: int | None) -> None:
    theta = begun()
    if place is not None:
        theta[place] += 0.5
    assert centred(theta, sums(people(count), evaluators=evaluators), dimension=DIMENSION) is None
    assert centred(begun(), sums(people(LEAST_CENTRED), evaluators=10), dimension=DIMENSION) is not None


def test_scores_alone_tell_no_mean() -> None:
    one = report_on(
        people(1)[0], model_version="m", impostors="cohort", evaluates=True, strangers=np.empty((0, 0), np.float32)
    )
    told = ModelSums.of([(0, one)] * 30, model_version="m", impostors="cohort")
    assert centred(begun(), told, dimension=DIMENSION) is None


def test_the_backbone_begins_as_its_trunk() -> None:
    whole = backbones.get(NAME).random(1)
    assert isinstance(whole, Centred)
    views = torch.rand(3, *whole.view_shape)
    with torch.no_grad():
        expected = nn.functional.normalize(whole.trunk(views), dim=1)
        np.testing.assert_allclose(whole(views).numpy(), expected.numpy(), atol=1e-6)
    assert [item.name for item in backbones.parameters(whole)][-2:] == ["head.weight", "head.bias"]
    assert backbones.get(NAME).dimension == whole.inner.dimension


@pytest.mark.parametrize("part", ["head", "block", "all"])
def test_every_part_of_it_is_exported(part: str) -> None:
    backbone = backbones.get(NAME, part).random(1)
    if isinstance(backbone, Partial) and part == "head":
        assert [item.shape for item in backbones.parameters(backbone)] == [(32, 32), (32,)]
    bundle = export_bundle(backbone)
    views = np.random.default_rng(0).random((2, *backbone.view_shape)).astype(np.float32)
    assert parity(backbone, bundle, views=views) < PARITY
    assert bundle.manifest.backbone == NAME


def test_a_simulated_training_begins_centred_and_says_what_that_gave() -> None:
    rows = people(40, seed=3)
    features = {f"person {place:02d}": torch.from_numpy(one) for place, one in enumerate(rows)}
    config = TrainingConfig("lab", "tensors", "custom", "fedaws", rounds=2, seed=1, server_learning_rate=1e-6)
    simulation = Simulation(config, Affine(DIMENSION), Tensors(features), evaluators=frozenset(sorted(features)[20:]))
    evaluations = Evaluations(simulation)
    found = evaluations.concluded[0].compared
    assert found is not None
    assert found.candidate_around < found.released_around
    assert simulation.theta[-DIMENSION] < -0.5
    simulation.run(on_round=evaluations)
    assert simulation.theta[-DIMENSION] < -0.5
    assert evaluations.course.best is not None


def test_a_plain_head_is_never_moved() -> None:
    features = {f"person {place:02d}": torch.from_numpy(one) for place, one in enumerate(people(40))}
    config = TrainingConfig("lab", "tensors", "custom", "fedaws", rounds=2, seed=1)
    trunk = nn.Linear(DIMENSION, DIMENSION)
    simulation = Simulation(config, trunk, Tensors(features), evaluators=frozenset(sorted(features)[20:]))
    start = simulation.theta.copy()
    assert Evaluations(simulation).concluded == []
    np.testing.assert_array_equal(simulation.theta, start)
