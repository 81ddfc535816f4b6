from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation import aggregation
from uvsdk.federation.aggregation import sample_weights, weighted_mean
from uvsdk.federation.guards import DeltaCheck, squared_norm
from uvsdk.federation.messages import WEIGHTINGS, TrainingConfig

seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Cut:
    """A delta in memory, cut into chunks."""

    delta: Float32
    chunk: int = 1000

    def chunks(self) -> Iterator[Float32]:
        for start in range(0, len(self.delta), self.chunk):
            yield self.delta[start : start + self.chunk]


def deltas(seed: int, *, count: int = 7, parameters: int = 2500) -> list[Float32]:
    rng = np.random.default_rng(seed)
    return list(rng.standard_normal((count, parameters)).astype(np.float32))


def config(weighting: str = "samples", cap: int = 1000) -> TrainingConfig:
    return TrainingConfig("d", "voice", "ge2e", "fedaws", weighting=weighting, samples_cap=cap)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200), st.sampled_from(WEIGHTINGS), st.integers(1, 5000))
def test_weights_sum_to_one(samples: list[int], weighting: str, cap: int) -> None:
    weights = sample_weights(samples, config(weighting, cap))
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (weights > 0).all()


def test_weights_by_hand() -> None:
    np.testing.assert_allclose(sample_weights([1, 3], config("samples")), [0.25, 0.75])
    np.testing.assert_allclose(sample_weights([1, 3], config("uniform")), [0.5, 0.5])
    np.testing.assert_allclose(sample_weights([1, 3], config("capped", cap=2)), [1 / 3, 2 / 3])


@pytest.mark.parametrize("samples", [[], [0], [3, -1]])
def test_weights_need_samples(samples: list[int]) -> None:
    with pytest.raises(UpdateRejectedError):
        sample_weights(samples, config())


@given(seed=seeds, block=st.integers(1, 700))
@settings(max_examples=30, deadline=None)
def test_the_mean_is_numpys_in_blocks_of_any_size(seed: int, block: int) -> None:
    rows = deltas(seed)
    weights = sample_weights(list(range(1, 8)), config())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "_BLOCK", block)
        mean = weighted_mean([Cut(row) for row in rows], weights, 2500)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, weights @ np.stack(rows).astype(np.float64), atol=1e-6)


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_the_order_of_updates_matters_only_to_rounding_and_a_rerun_not_at_all(seed: int) -> None:
    rows = deltas(seed)
    weights = sample_weights(list(range(1, 8)), config())
    order = np.random.default_rng(seed).permutation(7)
    mean = weighted_mean([Cut(row) for row in rows], weights, 2500)
    permuted = weighted_mean([Cut(rows[i]) for i in order], weights[order], 2500)
    np.testing.assert_allclose(permuted, mean, atol=2e-6)
    again = weighted_mean([Cut(row) for row in rows], weights, 2500)
    assert again.tobytes() == mean.tobytes()


@given(seed=seeds, together=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_how_many_chunks_are_held_changes_no_bit(seed: int, together: int) -> None:
    rows = deltas(seed)
    weights = sample_weights(list(range(1, 8)), config())
    mean = weighted_mean([Cut(row) for row in rows], weights, 2500)
    again = weighted_mean([Cut(row) for row in rows], weights, 2500, together=together)
    assert again.tobytes() == mean.tobytes()


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_mean_of_one_is_itself(seed: int) -> None:
    (row,) = deltas(seed, count=1)
    mean = weighted_mean([Cut(row)], sample_weights([5], config()), 2500)
    assert mean.tobytes() == row.tobytes()


def test_sources_are_left_alone() -> None:
    rows = deltas(0)
    for row in rows:
        row.flags.writeable = False
    weighted_mean([Cut(row) for row in rows], sample_weights([1] * 7, config()), 2500)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_never_reaches_the_mean(bad: float) -> None:
    rows = deltas(0)
    rows[3][1234] = bad
    with pytest.raises(UpdateRejectedError, match="not finite"):
        weighted_mean([Cut(row) for row in rows], sample_weights([1] * 7, config()), 2500)


def test_opposite_infinities_do_not_cancel() -> None:
    rows = [np.array([np.inf], np.float32), np.array([-np.inf], np.float32)]
    with pytest.raises(UpdateRejectedError):
        weighted_mean([Cut(row) for row in rows], sample_weights([1, 1], config()), 1)


def test_large_finite_values_pass() -> None:
    rows = [np.full(4, 3e38, np.float32)] * 2
    mean = weighted_mean([Cut(row) for row in rows], sample_weights([1, 1], config()), 4)
    np.testing.assert_allclose(mean, 3e38, rtol=1e-6)


def test_updates_cut_differently_or_of_another_size() -> None:
    long, short = np.ones(2500, np.float32), np.ones(2000, np.float32)
    weights = sample_weights([1, 1], config())
    for sources in ([Cut(long), Cut(long, 900)], [Cut(long), Cut(short)], [Cut(short), Cut(short)]):
        with pytest.raises(UpdateRejectedError):
            weighted_mean(sources, weights, 2500)
    with pytest.raises(UpdateRejectedError, match="more numbers"):
        weighted_mean([Cut(long), Cut(long)], weights, 2000)
    with pytest.raises(UpdateRejectedError):
        weighted_mean([Cut(long)], weights, 2500)
    with pytest.raises(UpdateRejectedError, match="float32"):
        weighted_mean([Cut(long.astype(np.float64))], weights[:1] * 2, 2500)  # type: ignore[arg-type]


def test_memory_is_one_model() -> None:
    import tracemalloc

    parameters = 1 << 20
    sources = [Cut(row, 1 << 16) for row in deltas(0, count=12, parameters=parameters)]
    tracemalloc.start()
    weighted_mean(sources, sample_weights([1] * 12, config()), parameters)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * 4 * parameters


def test_squared_norm_survives_a_square_that_overflows() -> None:
    assert squared_norm(np.array([3, 4], np.float32)) == 25
    assert squared_norm(np.full(2, 1e30, np.float32)) == pytest.approx(2e60)
    assert np.isinf(squared_norm(np.array([1, np.inf], np.float32)))
    assert np.isnan(squared_norm(np.array([1, np.nan], np.float32)))


def test_a_delta_is_checked_as_it_arrives() -> None:
    check = DeltaCheck(4)
    check.add(np.array([1, 2], np.float32))
    with pytest.raises(UpdateRejectedError, match="holds 2 numbers"):
        check.finish()
    check.add(np.array([2, 4], np.float32))
    assert check.finish() == 5.0
    for chunk in (np.ones(5, np.float32), np.array([np.nan], np.float32), np.ones((1, 2), np.float32), np.ones(2)):
        with pytest.raises(UpdateRejectedError):
            DeltaCheck(4).add(chunk)  # type: ignore[arg-type]
