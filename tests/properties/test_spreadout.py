"""The spreadout against finite differences, the reference kernel of the specification, and numbers done by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import plane
from uvsdk.arrays import Float64
from uvsdk.errors import SettingsError
from uvsdk.federation.classes import neighbours, spreadout
from uvsdk.federation.classes.correlation import PairWeights
from uvsdk.federation.classes.spreadout import MODES, CollapseWarning, Pairs, Spreadout

seeds = st.integers(0, 2**32 - 1)
modes = st.sampled_from(MODES)


def rows(count: int, dimension: int, rng: np.random.Generator, *, spread: float = 1.0) -> Float64:
    """Unit rows; a small ``spread`` gathers them around one direction."""
    normal = spread * rng.standard_normal((count, dimension))
    normal[:, 0] += 1.0
    return spreadout.unit_rows(normal)


def reference_pull(
    vectors: Float64, mode: str, k: int, margin: float, weights: Float64 | None = None
) -> tuple[Float64, Float64, Float64]:
    """D, A and the margins of the reference kernel (SPEC Appendix C), by sorting, all pairs."""
    count = len(vectors)
    distances = 1.0 - vectors @ vectors.T
    np.fill_diagonal(distances, np.inf)
    if mode == "hinge":
        near = ~np.eye(count, dtype=bool)
        margins = np.full(count, margin)
    else:
        order = np.stack([np.lexsort((np.arange(count), row)) for row in distances])
        used = min(k, count - 1)
        near = np.zeros((count, count), bool)
        for c in range(count):
            near[c, order[c, :used]] = True
        margins = distances[np.arange(count), order[:, k]] if k < count - 1 else np.full(count, 2.0)
    plain = np.where(near, distances, 0.0)
    pull = plain if mode == "topk_neg_sq" else np.where(near, np.maximum(0.0, margins[:, None] - plain), 0.0)
    return distances, pull if weights is None else weights * pull, margins


def reference_step(vectors: Float64, mode: str, k: int, margin: float, step_size: float) -> Float64:
    _, pull, _ = reference_pull(vectors, mode, k, margin)
    slope = 2 * (pull + pull.T) @ vectors
    tangent = slope - (slope * vectors).sum(1, keepdims=True) * vectors
    move = step_size * tangent
    move *= np.minimum(1, 0.3 / np.maximum(np.linalg.norm(move, axis=1), 1e-12))[:, None]
    return spreadout.unit_rows(vectors - move)


def frozen_value(vectors: Float64, mode: str, near: np.ndarray, margins: Float64, weights: Float64) -> float:
    """The regulariser with neighbours and adaptive margins held constant, which is what its gradient means."""
    distances = 1.0 - vectors @ vectors.T
    if mode == "topk_neg_sq":
        return float(-(weights * distances**2)[near].sum())
    return float((weights * np.maximum(0.0, margins[:, None] - distances) ** 2)[near].sum())


@pytest.mark.parametrize("weighted", [False, True])
@given(mode=modes, seed=seeds)
@settings(max_examples=30, deadline=None)
def test_gradient_is_the_finite_difference(weighted: bool, mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, dimension = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    vectors = rows(count, dimension, rng)
    weights = rng.uniform(0, 2, (count, count)) if weighted else np.ones((count, count))
    options = Spreadout(mode=mode, margin=1.0, neighbours=int(rng.integers(1, count)))
    slope = spreadout.gradient(vectors, options, Pairs(weights=weights if weighted else None))
    distances, _, margins = reference_pull(vectors, mode, options.neighbours or 1, 1.0)
    searched = np.sort(distances, axis=1)
    if mode == "hinge":
        near = ~np.eye(count, dtype=bool)
    else:
        near = distances <= searched[:, (options.neighbours or 1) - 1 : options.neighbours]
    h = 1e-6
    numeric = np.empty_like(vectors)
    for index in np.ndindex(*vectors.shape):
        up, down = vectors.copy(), vectors.copy()
        up[index] += h
        down[index] -= h
        rise = frozen_value(up, mode, near, margins, weights) - frozen_value(down, mode, near, margins, weights)
        numeric[index] = rise / (2 * h)
    np.testing.assert_allclose(slope, numeric, atol=1e-6)


@given(mode=modes, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_a_step_is_the_reference_kernels(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    vectors = rows(count, 6, rng)
    k = int(rng.integers(1, count + 3))
    got = spreadout.step(vectors, Spreadout(mode=mode, margin=0.9, neighbours=k, step_size=0.05), rng).vectors
    np.testing.assert_allclose(got, reference_step(vectors, mode, k, 0.9, 0.05), atol=1e-12)


@given(mode=modes, seed=seeds, spread=st.sampled_from([1e-9, 1e-3, 0.1, 1.0]))
@settings(max_examples=40, deadline=None)
def test_rows_stay_unit_and_no_step_exceeds_the_clip(mode: str, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(int(rng.integers(2, 40)), int(rng.integers(2, 20)), rng, spread=spread)
    result = spreadout.step(vectors, Spreadout(mode=mode, step_size=10.0), rng)
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1.0, atol=1e-12)
    if result.jittered == 0:
        turned = np.arccos(np.clip((result.vectors * vectors).sum(axis=1), -1, 1))
        assert turned.max() <= 0.3 + 1e-7
        assert result.median_angle_radians == pytest.approx(float(np.median(turned)), abs=1e-6)


@given(mode=modes, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_permuting_classes_permutes_the_result(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(15, 5, rng)
    order = rng.permutation(15)
    options = Spreadout(mode=mode, neighbours=4)
    straight = spreadout.step(vectors, options, rng).vectors
    np.testing.assert_allclose(spreadout.step(vectors[order], options, rng).vectors, straight[order], atol=1e-12)


@given(mode=modes, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_rotating_the_sphere_rotates_the_result(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(15, 5, rng)
    rotation, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    options = Spreadout(mode=mode, neighbours=4)
    straight = spreadout.step(vectors, options, rng).vectors
    turned = spreadout.step(vectors @ rotation, options, rng).vectors
    np.testing.assert_allclose(turned, straight @ rotation, atol=1e-9)


@given(mode=modes, seed=seeds, height=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_blocks_of_any_height_give_the_same_gradient(mode: str, seed: int, height: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, options = rows(23, 7, rng), Spreadout(mode=mode, neighbours=5, reduction="mean")
    whole = spreadout.gradient(vectors, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spreadout, "_BLOCK_NUMBERS", 23 * height)
        patch.setattr(neighbours, "_DENSE_NUMBERS", 23 * height)
        patch.setattr(neighbours, "_DENSE_ROWS", 1)
        np.testing.assert_allclose(spreadout.gradient(vectors, options), whole, atol=1e-12)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_large_path_is_exact_when_it_sees_every_active_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(40, 8, rng, spread=3.0)
    exact = Spreadout(margin=0.4)
    active = int(((1 - vectors @ vectors.T) < 0.4).sum(axis=1).max()) - 1
    large = replace(exact, exact_limit=10, neighbours=max(1, active))
    np.testing.assert_allclose(spreadout.gradient(vectors, large), spreadout.gradient(vectors, exact), atol=1e-12)
    nothing_seen = replace(exact, exact_limit=10, neighbours=1)
    assert (
        np.abs(spreadout.gradient(vectors, nothing_seen)).sum()
        <= np.abs(spreadout.gradient(vectors, exact)).sum() + 1e-9
    )


def test_two_vectors_at_sixty_degrees_by_hand() -> None:
    # D = 1 - cos 60 = 0.5. nu = 1: a = 0.5 for both ordered pairs, reg = 2 * 0.5^2 = 0.5.
    # Tangential force on each: 2 (a + a) sin 60 = 4 * 0.5 * 0.8660 = 1.7320; step 0.1: tangent move 0.17320.
    # Each row turns by atan(0.17320) = 9.826 degrees, away from the other.
    vectors, options = plane(0, 60), Spreadout(margin=1.0, step_size=0.1)
    assert spreadout.regulariser(vectors, options) == pytest.approx(0.5)
    result = spreadout.step(vectors, options, np.random.default_rng(0))
    turn = math.degrees(math.atan(0.1 * 4 * 0.5 * math.sqrt(3) / 2))
    np.testing.assert_allclose(result.vectors, plane(-turn, 60 + turn), atol=1e-12)
    assert result.median_angle_radians == pytest.approx(math.radians(turn))


def test_a_mutual_pair_counts_twice_and_a_one_sided_neighbour_once() -> None:
    # 0 and 10 degrees are each other's nearest; 50 degrees has 10 degrees as its nearest, one-sidedly.
    vectors, options = plane(0, 10, 50), Spreadout(mode="topk_neg_sq", neighbours=1)
    near, far = 1 - math.cos(math.radians(10)), 1 - math.cos(math.radians(40))
    assert spreadout.regulariser(vectors, options) == pytest.approx(-(2 * near**2 + far**2))
    slope = spreadout.gradient(vectors, options)
    np.testing.assert_allclose(slope[0], 2 * (2 * near) * vectors[1], atol=1e-12)
    np.testing.assert_allclose(slope[2], 2 * far * vectors[1], atol=1e-12)


def test_the_force_of_each_mode_at_an_angle() -> None:
    # SPEC 2.3, per ordered pair: topk_neg_sq 2 (1 - cos t) sin t, hinge 2 (nu - 1 + cos t) sin t; both orders: twice.
    t = math.radians(50)
    vectors = plane(0, 50)
    for mode, pull in (
        ("topk_neg_sq", 1 - math.cos(t)),
        ("hinge", 0.9 - 1 + math.cos(t)),
        ("topk_hinge", 1 + math.cos(t)),
    ):
        slope = spreadout.gradient(vectors, Spreadout(mode=mode, margin=0.9, neighbours=1))
        tangent = slope[0] - (slope[0] @ vectors[0]) * vectors[0]
        assert np.linalg.norm(tangent) == pytest.approx(2 * 2 * pull * math.sin(t))
        assert tangent[1] > 0  # descent moves row 0 along -w_1


def test_of_equally_near_neighbours_the_smaller_index_counts() -> None:
    vectors = plane(0, 40, -40)
    slope = spreadout.gradient(vectors, Spreadout(mode="topk_neg_sq", neighbours=1))
    d = 1 - math.cos(math.radians(40))
    np.testing.assert_allclose(slope[0], 2 * (2 * d * vectors[1] + d * vectors[2]), atol=1e-12)


def test_mean_divides_by_the_neighbours() -> None:
    vectors = rows(12, 4, np.random.default_rng(3))
    for options, used in ((Spreadout(), 11), (Spreadout(mode="topk_hinge", neighbours=5), 5)):
        mean = spreadout.gradient(vectors, replace(options, reduction="mean"))
        np.testing.assert_allclose(mean * used, spreadout.gradient(vectors, options), atol=1e-12)


@given(mode=modes, seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_subset_sees_only_its_own_pairs(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(20, 5, rng)
    anchors, candidates = rng.choice(20, 6, replace=False), rng.choice(20, 9, replace=False)
    options = Spreadout(mode=mode, neighbours=3, margin=1.2)
    slope = spreadout.gradient(vectors, options, Pairs(anchors, candidates))
    expected = np.zeros_like(vectors)
    for c in anchors:
        others = np.sort(candidates[candidates != c])
        d = 1 - vectors[others] @ vectors[c]
        order = np.argsort(d, kind="stable")
        margin = 1.2 if mode == "hinge" else (d[order[3]] if len(d) > 3 else 2.0)
        for place in order if mode == "hinge" else order[:3]:
            a = d[place] if mode == "topk_neg_sq" else max(0.0, margin - d[place])
            expected[c] += 2 * a * vectors[others[place]]
            expected[others[place]] += 2 * a * vectors[c]
    np.testing.assert_allclose(slope, expected, atol=1e-12)
    everything = Pairs(np.arange(20), np.arange(20))
    np.testing.assert_allclose(
        spreadout.gradient(vectors, options, everything), spreadout.gradient(vectors, options), atol=1e-12
    )


def test_only_the_rows_named_move() -> None:
    vectors = rows(10, 4, np.random.default_rng(1), spread=0.2)
    result = spreadout.step(vectors, Spreadout(), np.random.default_rng(0), moved=np.array([2, 7])).vectors
    changed = np.flatnonzero((result != vectors).any(axis=1))
    np.testing.assert_array_equal(changed, [2, 7])


def test_tied_rows_are_separated_and_the_input_is_left_alone() -> None:
    vectors = np.tile(plane(30), (6, 1))
    before = vectors.copy()
    rng = np.random.default_rng(0)
    result = spreadout.step(vectors, Spreadout(), rng)
    np.testing.assert_array_equal(vectors, before)
    assert result.jittered == 6
    spread = rows(6, 16, rng, spread=0.0)
    for _ in range(60):
        spread = spreadout.step(spread, Spreadout(), rng).vectors
    assert np.max((spread @ spread.T)[~np.eye(6, dtype=bool)]) < 0.1


def test_jitter_repeats_with_its_seed() -> None:
    vectors = np.tile(plane(30), (4, 1))
    first, second = (spreadout.step(vectors, Spreadout(), np.random.default_rng(5)).vectors for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_one_class_warns_and_stays() -> None:
    with pytest.warns(CollapseWarning):
        result = spreadout.step(plane(20), Spreadout(), np.random.default_rng(0))
    np.testing.assert_array_equal(result.vectors, plane(20))
    assert spreadout.regulariser(plane(20), Spreadout()) == 0.0


def test_a_step_size_of_zero_moves_nothing() -> None:
    vectors = plane(0, 5, 9)
    result = spreadout.step(vectors, Spreadout(step_size=0.0), np.random.default_rng(0))
    np.testing.assert_array_equal(result.vectors, vectors)


def test_weights_scaled_to_mean_one() -> None:
    rows = PairWeights(np.array([3.0, 2.0, 4.0]), np.array([0, 1, 1, 2]), np.array([1, 0]), np.array([2.0, 4.0]))
    np.testing.assert_array_equal(rows.dense(), [[0, 1, 3], [2, 0, 2], [0, 4, 0]])
    scaled = rows.with_unit_mean().dense()
    assert scaled.sum() / 6 == pytest.approx(1.0)
    np.testing.assert_array_equal(np.diag(scaled), 0)
    assert PairWeights.constant(2, 0.0).with_unit_mean().dense().sum() == 0


def test_memory_stays_far_below_one_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(spreadout, "_BLOCK_NUMBERS", 1 << 15)
    monkeypatch.setattr(neighbours, "_DENSE_NUMBERS", 1 << 15)
    vectors = rows(3000, 4, np.random.default_rng(0))
    tracemalloc.start()
    spreadout.gradient(vectors, Spreadout(exact_limit=1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "eq8"},
        {"reduction": "max"},
        {"step_size": -0.1},
        {"step_size": math.nan},
        {"margin": 0.0},
        {"margin": 2.1},
        {"neighbours": 0},
        {"max_angle_radians": 0.0},
    ],
)
def test_settings_outside_their_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        Spreadout(**wrong)  # type: ignore[arg-type]
