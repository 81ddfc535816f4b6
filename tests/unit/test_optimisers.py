"""The server's optimisers against numbers done by hand (SPEC 1.3: b = b1 = 0.9, b2 = 0.99, tau = 1e-3)."""

import math
from dataclasses import replace

import numpy as np
import pytest

from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import optimisers
from uvsdk.federation.messages import OPTIMISERS, OptimiserState, TrainingConfig


def config(optimiser: str, *, rate: float = 1.0, warmup: int = 0) -> TrainingConfig:
    return TrainingConfig(
        "d", "voice", "ge2e", "fedaws", optimiser=optimiser, server_learning_rate=rate, warmup_rounds=warmup
    )


def after(optimiser: str, deltas: list[float], *, rate: float = 1.0, warmup: int = 0) -> tuple[float, OptimiserState]:
    settings = config(optimiser, rate=rate, warmup=warmup)
    theta, state = np.zeros(1, np.float32), optimisers.initial(1, settings)
    for delta in deltas:
        theta, state = optimisers.step(theta, np.array([delta], np.float32), state, settings)
    assert theta.dtype == np.float32
    return float(theta[0]), state


def test_sgd_adds_the_delta() -> None:
    theta, state = after("sgd", [2.0, -0.5], rate=0.5)
    assert theta == pytest.approx(0.5 * 2.0 - 0.5 * 0.5)
    assert (state.steps, state.first.shape, state.second.shape) == (2, (0,), (0,))


def test_momentum() -> None:
    # v: 1, 0.9 * 1 + 1 = 1.9; theta = 1 + 1.9
    theta, state = after("momentum", [1.0, 1.0])
    assert theta == pytest.approx(2.9)
    assert state.first[0] == pytest.approx(1.9)
    assert state.second.shape == (0,)


def test_adam() -> None:
    # m = 0.1 * 2 = 0.2, v = 0.01 * 4 = 0.04; then m = 0.9 * 0.2 - 0.1 = 0.08, v = 0.99 * 0.04 + 0.01 = 0.0496
    theta, state = after("adam", [2.0, -1.0], rate=0.1)
    expected = 0.1 * (0.2 / (0.2 + 1e-3) + 0.08 / (math.sqrt(0.0496) + 1e-3))
    assert theta == pytest.approx(expected, rel=1e-5)
    assert state.second[0] == pytest.approx(0.0496, rel=1e-5)


def test_yogi() -> None:
    # v = 0 - 0.01 * 4 * sign(0 - 4) = 0.04; D^2 = 0.01 < v, so v = 0.04 - 0.01 * 0.01 = 0.0399
    _, state = after("yogi", [2.0, 0.1])
    assert state.second[0] == pytest.approx(0.0399, rel=1e-5)


def test_adagrad() -> None:
    # v = 4, then 4 + 1 = 5; m = 0.2, then 0.28
    theta, state = after("adagrad", [2.0, 1.0])
    assert state.second[0] == pytest.approx(5.0)
    assert theta == pytest.approx(0.2 / 2.001 + 0.28 / (math.sqrt(5) + 1e-3), rel=1e-5)


def test_warm_up_rises_linearly() -> None:
    # rates 0.25, 0.5, 0.75, 1, 1
    theta, _ = after("sgd", [1.0] * 5, warmup=4)
    assert theta == pytest.approx(0.25 + 0.5 + 0.75 + 1 + 1)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_nothing_that_goes_in_is_changed_and_a_zero_delta_moves_nothing(optimiser: str) -> None:
    settings = config(optimiser)
    theta, delta, state = np.ones(3, np.float32), np.zeros(3, np.float32), optimisers.initial(3, settings)
    for array in (theta, delta, state.first, state.second):
        array.flags.writeable = False
    moved, after_one = optimisers.step(theta, delta, state, settings)
    np.testing.assert_array_equal(moved, theta)
    assert after_one.steps == 1


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_step_that_would_not_be_finite_is_refused(optimiser: str) -> None:
    settings = config(optimiser)
    state = optimisers.initial(2, settings)
    for bad in (np.inf, -np.inf, np.nan):
        with pytest.raises(UpdateRejectedError, match="not finite"):
            optimisers.step(np.zeros(2, np.float32), np.array([0, bad], np.float32), state, settings)
    huge = np.full(2, 3e38, np.float32)
    if optimiser in ("sgd", "momentum"):
        with pytest.raises(UpdateRejectedError, match="not finite"):
            optimisers.step(huge, huge, state, settings)


def test_shapes_that_do_not_agree() -> None:
    settings = config("adam")
    state = optimisers.initial(3, settings)
    with pytest.raises(UpdateRejectedError, match="theta has shape"):
        optimisers.step(np.zeros(3, np.float32), np.zeros(2, np.float32), state, settings)
    with pytest.raises(UpdateRejectedError, match="moment"):
        optimisers.step(np.zeros(2, np.float32), np.zeros(2, np.float32), state, settings)


def test_a_small_tau_makes_the_step_independent_of_the_scale_of_the_deltas() -> None:
    # m = 0.1 D, v = 0.01 D^2, so m / (sqrt(v) + tau) = 1 for D far above 10 tau;
    # at D = 1e-4 and tau = 1e-3 it is 1e-5 / (1e-5 + 1e-3).
    for tau, moved in ((1e-12, 1.0), (1e-3, 1 / 101)):
        settings = replace(config("adam"), server_adaptivity=tau)
        theta, _ = optimisers.step(
            np.zeros(1, np.float32), np.array([1e-4], np.float32), optimisers.initial(1, settings), settings
        )
        assert theta[0] == pytest.approx(moved, rel=1e-3)
    with pytest.raises(SettingsError):
        replace(config("adam"), server_adaptivity=0.0)


def trusted(ratio: float, *, optimiser: str = "sgd", rate: float = 1.0) -> TrainingConfig:
    return replace(config(optimiser, rate=rate), trust_ratio=ratio)


def test_a_step_longer_than_the_trust_ratio_allows_is_shortened_tensor_by_tensor() -> None:
    # |w| = 5 and 2, ratio 0.1: the first tensor's step (0, 5) becomes (0, 0.5), the second's of 0.1 is below 0.2.
    theta, delta = np.array([3, 4, 2], np.float32), np.array([0, 5, 0.1], np.float32)
    settings = trusted(0.1)
    moved, _ = optimisers.step(theta, delta, optimisers.initial(3, settings), settings, tensors=(2, 1))
    np.testing.assert_allclose(moved, [3, 4.5, 2.1], rtol=1e-6)


def test_a_tensor_of_zeros_may_start() -> None:
    # The trunk's mean square is 8 / 2 = 4: two tensors of one number each, the zero counts as 0.1 x 2 = 0.2.
    theta, delta = np.array([math.sqrt(8), 0], np.float32), np.array([0, 1], np.float32)
    settings = trusted(0.5)
    moved, _ = optimisers.step(theta, delta, optimisers.initial(2, settings), settings, tensors=(1, 1))
    np.testing.assert_allclose(moved, [math.sqrt(8), 0.1], rtol=1e-6)


def test_a_trunk_of_zeros_is_not_held() -> None:
    settings = trusted(0.5)
    moved, _ = optimisers.step(
        np.zeros(2, np.float32), np.ones(2, np.float32), optimisers.initial(2, settings), settings, tensors=(2,)
    )
    assert moved.tolist() == [1.0, 1.0]


def test_tensors_that_are_not_the_trunks_are_refused() -> None:
    settings = trusted(0.1)
    with pytest.raises(UpdateRejectedError, match="3 parameters together, theta 2"):
        optimisers.step(
            np.ones(2, np.float32), np.ones(2, np.float32), optimisers.initial(2, settings), settings, tensors=(3,)
        )


@pytest.mark.parametrize("ratio", [-0.1, float("inf"), float("nan")])
def test_a_trust_ratio_is_finite_and_not_negative(ratio: float) -> None:
    with pytest.raises(SettingsError, match="trust_ratio"):
        trusted(ratio)


def test_a_configuration_without_a_trust_ratio_says_what_it_said_before() -> None:
    assert "trust_ratio" not in config("adam").to_json()
    assert '"trust_ratio":0.1' in trusted(0.1).to_json()
