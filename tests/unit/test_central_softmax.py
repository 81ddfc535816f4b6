"""The central reference: what it pools, its rate, and that it learns classes that can be told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.simulation import Tensors
from uvsdk.simulation.references import central_softmax
from uvsdk.simulation.references.central_softmax import Settings


def corners(devices: int = 4, samples: int = 6) -> Tensors:
    """One device for each axis, its samples near it."""
    noise = 0.1 * torch.randn(devices, samples, devices, generator=torch.Generator().manual_seed(0))
    return Tensors({f"device-{place}": torch.eye(devices)[place] + noise[place] for place in range(devices)})


def trunk(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(4, 3)


def test_a_device_without_class_names_is_one_class() -> None:
    population = Tensors({"b": torch.full((2, 1), 2.0), "a": torch.full((1, 1), 1.0)})
    features, labels, classes = central_softmax.pool(population)
    assert features.ravel().tolist() == [1.0, 2.0, 2.0]
    assert labels.tolist() == [0, 1, 1]
    assert classes == ("a", "b")


def test_a_class_held_by_two_devices_is_one_row() -> None:
    population = Tensors(
        {"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)},
        classes={"a": np.array([1, 0]), "b": np.array([0, 0, 1])},
        class_names={"a": ("x", "y"), "b": ("y", "z")},
    )
    _, labels, classes = central_softmax.pool(population)
    assert classes == ("x", "y", "z")
    assert labels.tolist() == [1, 0, 1, 1, 2]


def test_a_class_without_a_sample_is_refused() -> None:
    population = Tensors({"a": torch.zeros(2, 1)}, classes={"a": np.array([0, 0])}, class_names={"a": ("x", "y")})
    with pytest.raises(SettingsError, match="1 of 2 classes have no sample"):
        central_softmax.pool(population)


def test_the_first_loss_of_equal_logits_is_the_logarithm_of_the_classes() -> None:
    # A trunk that maps everything to 0 has cosine 0 with every row: the loss is log C, and no gradient reaches it.
    dead = nn.Linear(4, 3)
    with torch.no_grad():
        dead.weight.zero_()
        dead.bias.zero_()
    outcome = central_softmax.train(dead, corners(), Settings(steps=1, batch_size=8, warmup_steps=0))
    assert outcome.losses == (pytest.approx(math.log(4), abs=1e-6),)


def test_it_learns_classes_that_can_be_told_apart() -> None:
    module = trunk()
    settings = Settings(steps=150, batch_size=12, learning_rate=2e-2, warmup_steps=5)
    outcome = central_softmax.train(module, corners(), settings)
    assert outcome.losses[-1] < 0.05 < outcome.losses[0]
    assert not module.training
    assert np.linalg.norm(outcome.class_matrix, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    features, labels, classes = central_softmax.pool(corners())
    assert classes == outcome.classes
    with torch.no_grad():
        nearest = (nn.functional.normalize(module(features), dim=1).numpy() @ outcome.class_matrix.T).argmax(axis=1)
    assert nearest.tolist() == labels.tolist()


def test_the_same_seed_gives_the_same_trunk_and_leaves_the_global_generator_alone() -> None:
    settings = Settings(steps=5, batch_size=4, seed=3)
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, second, other = trunk(), trunk(), trunk()
    central_softmax.train(first, corners(), settings)
    central_softmax.train(second, corners(), settings)
    central_softmax.train(other, corners(), Settings(steps=5, batch_size=4, seed=4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)


def test_views_come_from_the_population_and_every_pass_holds_every_sample_once() -> None:
    seen: list[float] = []

    def watched(samples: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        seen.extend(samples[:, 0].tolist())
        return samples

    values = torch.arange(6.0)
    population = Tensors(
        {"a": torch.stack([values[:3], values[:3]], dim=1), "b": torch.stack([values[3:], values[3:]], dim=1)},
        augment=watched,
    )
    central_softmax.train(nn.Linear(2, 2), population, Settings(steps=3, batch_size=4))
    # Three steps of four are two passes over six samples; the second batch spans both.
    assert sorted(seen[:6]) == sorted(seen[6:]) == values.tolist()


def test_progress_is_told_step_by_step() -> None:
    told: list[tuple[int, float]] = []
    outcome = central_softmax.train(
        trunk(), corners(), Settings(steps=3, batch_size=4), on_step=lambda step, loss: told.append((step, loss))
    )
    assert told == list(enumerate(outcome.losses))


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    module = trunk()
    with torch.no_grad():
        module.bias.fill_(math.nan)
    with pytest.raises(UpdateRejectedError, match="lower the learning rate"):
        central_softmax.train(module, corners(), Settings(steps=2, batch_size=4))


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 0}, {"warmup_steps": -1}, {"learning_rate": 0.0}, {"scale": math.inf}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        Settings(**wrong)  # type: ignore[arg-type]
