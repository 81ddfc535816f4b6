"""The bound on the server's step: it holds for every optimiser, scales with the trunk, and lets shorter steps be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.federation import optimisers
from uvsdk.federation.messages import OPTIMISERS, TrainingConfig

CONFIG = TrainingConfig("d", "voice", "ge2e", "fedaws", server_adaptivity=1e-8, server_learning_rate=0.01)


@st.composite
def trunks(draw: st.DrawFn) -> tuple[tuple[int, ...], Float32, list[Float32]]:
    """Sizes of tensors, a trunk whose tensors differ in scale, and the mean deltas of three rounds."""
    tensors = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales = np.repeat(10.0 ** rng.uniform(-2, 2, len(tensors)), tensors)
    theta = (scales * rng.normal(size=sum(tensors))).astype(np.float32)
    deltas = [(10.0 ** rng.uniform(-4, 2) * rng.normal(size=sum(tensors))).astype(np.float32) for _ in range(3)]
    return tensors, theta, deltas


def norms(theta: Float32, tensors: tuple[int, ...]) -> list[float]:
    parts = np.split(theta.astype(np.float64), np.cumsum(tensors)[:-1])
    return [float(np.linalg.norm(part)) for part in parts]


def counted(theta: Float32, tensors: tuple[int, ...]) -> list[float]:
    whole = float(np.sqrt((theta.astype(np.float64) ** 2).mean()))
    return [
        max(norm, optimisers.SMALLEST * whole * float(np.sqrt(size)))
        for norm, size in zip(norms(theta, tensors), tensors, strict=True)
    ]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@given(trunk=trunks(), ratio=st.floats(1e-3, 2.0))
def test_no_tensor_moves_further_than_the_ratio_allows(
    optimiser: str, trunk: tuple[tuple[int, ...], Float32, list[Float32]], ratio: float
) -> None:
    tensors, theta, deltas = trunk
    config = replace(CONFIG, optimiser=optimiser, trust_ratio=ratio)
    state = optimisers.initial(len(theta), config)
    for delta in deltas:
        moved, state = optimisers.step(theta, delta, state, config, tensors=tensors)
        rounding = 1e-6 * float(np.abs(theta).max() + np.abs(moved).max()) * len(theta)
        for length, norm in zip(norms(moved - theta, tensors), counted(theta, tensors), strict=True):
            assert length <= ratio * norm * (1 + 1e-5) + rounding
        assert optimisers.largest_ratio(theta, moved, tensors) <= ratio * (1 + 1e-5) + rounding / min(
            counted(theta, tensors)
        )
        theta = moved


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@given(trunk=trunks())
def test_a_ratio_that_nothing_reaches_gives_the_very_steps_of_none(
    optimiser: str, trunk: tuple[tuple[int, ...], Float32, list[Float32]]
) -> None:
    tensors, theta, deltas = trunk
    plain, bound = replace(CONFIG, optimiser=optimiser), replace(CONFIG, optimiser=optimiser, trust_ratio=1e9)
    free, free_state = theta, optimisers.initial(len(theta), plain)
    held, held_state = theta, optimisers.initial(len(theta), bound)
    for delta in deltas:
        free, free_state = optimisers.step(free, delta, free_state, plain)
        held, held_state = optimisers.step(held, delta, held_state, bound, tensors=tensors)
        np.testing.assert_array_equal(held, free)


@given(trunk=trunks(), power=st.integers(-6, 6), ratio=st.floats(1e-3, 0.1))
def test_a_trunk_of_another_scale_moves_by_the_same_part_of_itself(
    trunk: tuple[tuple[int, ...], Float32, list[Float32]], power: int, ratio: float
) -> None:
    # Powers of two scale floats exactly; sgd's step grows with the delta.
    tensors, theta, deltas = trunk
    config = replace(CONFIG, optimiser="sgd", trust_ratio=ratio)
    scale = np.float32(2.0**power)

    def moved(factor: np.float32, *, rate: float) -> Float32:
        of = replace(config, server_learning_rate=rate)
        result: Float32 = optimisers.step(
            theta * factor, deltas[0], optimisers.initial(len(theta), of), of, tensors=tensors
        )[0]
        return result

    np.testing.assert_allclose(
        moved(scale, rate=0.5 * float(scale)), moved(np.float32(1), rate=0.5) * scale, rtol=1e-4, atol=1e-6 * scale
    )


@given(trunk=trunks(), ratio=st.floats(1e-3, 0.1))
def test_what_is_shortened_keeps_its_direction_and_others_do_not_notice(
    trunk: tuple[tuple[int, ...], Float32, list[Float32]], ratio: float
) -> None:
    tensors, _, deltas = trunk
    theta = np.ones(sum(tensors), np.float32)
    config: Any = replace(CONFIG, optimiser="sgd", server_learning_rate=1.0)
    free, _ = optimisers.step(theta, deltas[0], optimisers.initial(len(theta), config), config)
    bound = replace(config, trust_ratio=ratio)
    held, _ = optimisers.step(theta, deltas[0], optimisers.initial(len(theta), config), bound, tensors=tensors)
    edges = np.cumsum(tensors)[:-1]
    for size, whole, short in zip(tensors, np.split(free - theta, edges), np.split(held - theta, edges), strict=True):
        factor = min(1.0, ratio * np.sqrt(size) / max(float(np.linalg.norm(whole)), 1e-12))
        np.testing.assert_allclose(short, whole * factor, rtol=1e-3, atol=1e-6)
