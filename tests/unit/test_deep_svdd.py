"""Deep SVDD as a reference: the centre stays where it began, a network with biases is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from uvsdk.errors import EnrolmentError, SettingsError, UpdateRejectedError
from uvsdk.simulation import references
from uvsdk.simulation.references import deep_svdd
from uvsdk.simulation.references.deep_svdd import Settings


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.LeakyReLU(), nn.Linear(16, 4, bias=False))


def cloud(seed: int, *, count: int = 200, scale: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(6, generator=torch.Generator().manual_seed(seed + 1000))
    return 2.0 * direction + scale * torch.randn(count, 6, generator=generator)


def test_it_is_listed() -> None:
    assert "deep_svdd" in references.names()


def test_the_centre_is_the_mean_before_training_with_no_coordinate_near_0() -> None:
    trunk = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        trunk.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.05], [0.0, -0.05]]))
    features = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    # Means of the coordinates: (1 + 3)/2, 0.05 (0 + 2)/2 = 0.05 -> 0.1 and -0.05 -> -0.1.
    torch.testing.assert_close(deep_svdd.initial_centre(trunk, features), torch.tensor([2.0, 0.1, -0.1]))


def test_the_centre_stays_and_the_samples_come() -> None:
    trunk = network()
    before = deep_svdd.initial_centre(trunk, cloud(1)).numpy()
    outcome = deep_svdd.train(trunk, cloud(1), Settings(steps=200, learning_rate=1e-2, batch_size=50))
    np.testing.assert_array_equal(outcome.centre, before)
    assert len(outcome.losses) == 200
    assert np.mean(outcome.losses[-10:]) < 0.2 * np.mean(outcome.losses[:10])


def test_scores_are_minus_the_distance_and_higher_for_the_own_class() -> None:
    trunk = network()
    outcome = deep_svdd.train(trunk, cloud(1), Settings(steps=200, learning_rate=1e-2, batch_size=50))
    own, other = (deep_svdd.scores(trunk, cloud(seed, count=50), centre=outcome.centre) for seed in (1, 2))
    with torch.no_grad():
        first = trunk(cloud(1, count=50)[:1])[0].numpy()
    assert own[0] == pytest.approx(-float(np.linalg.norm(first - outcome.centre)), rel=1e-5)
    assert own.mean() > other.mean()


def test_the_same_seed_gives_the_same_model() -> None:
    models = []
    for _ in range(2):
        trunk = network()
        deep_svdd.train(trunk, cloud(3, count=7), Settings(steps=20, batch_size=200, learning_rate=1e-3))
        models.append(torch.nn.utils.parameters_to_vector(trunk.parameters()).detach())
    assert torch.equal(models[0], models[1])


def test_the_rate_falls_to_a_tenth_for_the_last_part() -> None:
    # One weight, one sample x = 1: z = w, and l = (w - c)^2 draws w towards c, always the same way.
    trunk = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        trunk.weight.fill_(0.05)  # z = 0.05, and c is lifted to 0.1
    seen: list[float] = []
    settings = Settings(steps=3, learning_rate=1e-3, cooldown=1 / 3, weight_decay=0.0)
    deep_svdd.train(trunk, torch.ones(1, 1), settings, on_step=lambda step, loss: seen.append(trunk.weight.item()))
    # Steps of Adam along one sign have nearly the length of the rate: 1e-3, 1e-3, 1e-4.
    np.testing.assert_allclose(np.diff([0.05, *seen]), [1e-3, 1e-3, 1e-4], rtol=0.05)


@pytest.mark.parametrize(
    "trunk", [nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 4, bias=False), nn.GroupNorm(2, 4)), nn.LSTM(6, 4)]
)
def test_a_network_that_could_learn_a_constant_is_refused(trunk: nn.Module) -> None:
    with pytest.raises(SettingsError, match="constant"):
        deep_svdd.train(trunk, cloud(1), Settings(steps=1))


def test_no_sample_and_a_loss_that_is_no_number() -> None:
    with pytest.raises(EnrolmentError, match="at least one sample"):
        deep_svdd.train(network(), torch.empty(0, 6), Settings(steps=1))
    with pytest.raises(UpdateRejectedError, match="lower the learning rate"):
        deep_svdd.train(network(), torch.full((3, 6), float("nan")), Settings(steps=1))


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"weight_decay": -1.0}, {"cooldown": 1.5}]
)
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        Settings(**wrong)  # type: ignore[arg-type]
