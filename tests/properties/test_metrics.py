"""Properties of the error rates, and agreement with definitions written out the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.evaluation import metrics, ranking

# Few distinct values, exactly represented, so that ties are common and monotone maps stay exact.
SCORES = st.lists(st.integers(-12, 12).map(lambda k: k / 4), min_size=1, max_size=30).map(np.array)
MATRICES = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).integers(0, 4, (7, 5)) / 4)


def points_by_definition(genuine: np.ndarray, impostor: np.ndarray) -> list[tuple[float, float, float]]:
    thresholds = [*sorted({*genuine.tolist(), *impostor.tolist()}), np.inf]
    return [(t, float(np.mean(impostor >= t)), float(np.mean(genuine < t))) for t in thresholds]


@given(SCORES, SCORES)
def test_curve_is_the_definition(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = metrics.curve(genuine, impostor)
    found = list(zip(points.thresholds.tolist(), points.fmr.tolist(), points.fnmr.tolist(), strict=True))
    assert found == points_by_definition(genuine, impostor)


@given(SCORES, SCORES)
def test_eer_is_the_definition(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = points_by_definition(genuine, impostor)
    gap = min(abs(fmr - fnmr) for _, fmr, fnmr in points)
    tied = [(fmr + fnmr) / 2 for _, fmr, fnmr in points if abs(fmr - fnmr) <= gap + 1e-12]
    assert metrics.eer(metrics.curve(genuine, impostor)) == pytest.approx(np.mean(tied), abs=1e-12)


@given(SCORES, SCORES)
def test_swapped_signs_swap_the_error_rate(genuine: np.ndarray, impostor: np.ndarray) -> None:
    straight = metrics.eer(metrics.curve(genuine, impostor))
    assert metrics.eer(metrics.curve(-genuine, -impostor)) == pytest.approx(1 - straight, abs=1e-12)
    # Seen from the other side: what is genuine becomes impostor and every score changes sign.
    assert metrics.eer(metrics.curve(-impostor, -genuine)) == pytest.approx(straight, abs=1e-12)


@given(SCORES, SCORES, st.integers(0, 2**32 - 1))
def test_monotone_maps_and_order_change_nothing(genuine: np.ndarray, impostor: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed)
    mapped = metrics.curve(order.permutation(np.exp(genuine)), order.permutation(np.exp(impostor)))
    straight = metrics.curve(genuine, impostor)
    for statistic in (metrics.eer, metrics.eer_convex_hull, metrics.auroc, lambda c: metrics.min_dcf(c, 0.05)):
        assert statistic(mapped) == statistic(straight)


@given(SCORES, SCORES)
def test_auroc_is_the_pairwise_count(genuine: np.ndarray, impostor: np.ndarray) -> None:
    wins = (genuine[:, None] > impostor) + 0.5 * (genuine[:, None] == impostor)
    assert metrics.auroc(metrics.curve(genuine, impostor)) == pytest.approx(wins.mean(), abs=1e-12)


@given(SCORES, SCORES)
def test_convex_hull_eer_is_the_best_of_all_segments(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = [(fmr, fnmr) for _, fmr, fnmr in points_by_definition(genuine, impostor)]
    # The hull crosses the diagonal at the lowest crossing of any segment between two operating points.
    crossings = []
    for x1, y1 in points:
        for x2, y2 in points:
            before, after = x1 - y1, x2 - y2
            if before >= 0 >= after:
                share = before / (before - after) if before > after else 0.0
                crossings.append(x1 + share * (x2 - x1))
    hull = metrics.eer_convex_hull(metrics.curve(genuine, impostor))
    assert hull == pytest.approx(min(crossings), abs=1e-9)
    assert hull <= 0.5


@given(SCORES, SCORES)
def test_convex_hull_eer_is_at_most_the_larger_rate_at_the_crossing(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = metrics.curve(genuine, impostor)
    assert metrics.eer_convex_hull(points) <= np.maximum(points.fmr, points.fnmr).min() + 1e-12


@given(SCORES, SCORES, st.sampled_from([0.01, 0.05, 0.5]))
def test_detection_cost_is_the_definition_and_at_most_one(
    genuine: np.ndarray, impostor: np.ndarray, prior: float
) -> None:
    costs = [prior * fnmr + (1 - prior) * fmr for _, fmr, fnmr in points_by_definition(genuine, impostor)]
    found = metrics.min_dcf(metrics.curve(genuine, impostor), prior)
    assert found == pytest.approx(min(costs) / min(prior, 1 - prior), abs=1e-12)
    assert found <= 1.0 + 1e-12


@given(SCORES, SCORES, st.floats(0.01, 0.99))
def test_fnmr_within_a_rate_is_the_definition(genuine: np.ndarray, impostor: np.ndarray, rate: float) -> None:
    found = metrics.lowest_within(metrics.curve(genuine, impostor), rate)
    expected = next(p for p in points_by_definition(genuine, impostor) if p[1] <= rate + 1e-12)
    assert (found.threshold, found.fmr, found.fnmr) == expected


@given(SCORES, SCORES, st.floats(-4, 4))
def test_rates_at_any_threshold(genuine: np.ndarray, impostor: np.ndarray, threshold: float) -> None:
    found = metrics.at_threshold(metrics.curve(genuine, impostor), threshold)
    assert found.fmr == np.mean(impostor >= threshold)
    assert found.fnmr == np.mean(genuine < threshold)


@given(SCORES, SCORES)
def test_plot_corners_hold_the_whole_step_curve(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = metrics.curve(genuine, impostor)
    fmr, fnmr = metrics.det_points(points)
    assert (fmr[0], fnmr[0]) == (1.0, 0.0)
    assert (fmr[-1], fnmr[-1]) == (0.0, 1.0)
    # Every left-out point lies on a straight vertical or horizontal piece between two kept ones.
    for x, y in zip(points.fmr, points.fnmr, strict=True):
        assert any(
            (a == x == c and b <= y <= d) or (b == y == d and c <= x <= a)
            for a, b, c, d in zip(fmr, fnmr, fmr[1:], fnmr[1:], strict=False)
        ) or (x, y) in set(zip(fmr, fnmr, strict=True))


@given(st.integers(0, 2**32 - 1))
def test_map_at_r_is_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    similarity, queries, references = rng.normal(size=(4, 9)), rng.integers(0, 3, 4), np.arange(9) % 3
    expected = []
    for row, label in zip(similarity, queries, strict=True):
        ranked = (references == label)[np.argsort(-row)]
        expected.append(sum(ranked[: i + 1].mean() * ranked[i] for i in range(3)) / 3)
    assert ranking.map_at_r(similarity, queries, reference_labels=references, r=3) == pytest.approx(np.mean(expected))
    # Three references of each class, so both definitions agree here.
    assert ranking.map_at_r(similarity, queries, reference_labels=references, r="class") == pytest.approx(
        np.mean(expected)
    )


@given(st.integers(0, 2**32 - 1))
def test_collapse_is_the_definition_and_ignores_rotation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(6, 3))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(6, dtype=bool)]
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    for found in (ranking.collapse(rows), ranking.collapse(3 * rows @ rotation)):
        assert found.mean_cosine == pytest.approx(cosines.mean())
        assert found.minimum_distance == pytest.approx(np.sqrt(2 - 2 * cosines.max()), abs=1e-6)
        assert 1 <= found.effective_rank <= 3 + 1e-9


def pooled(genuine: np.ndarray, impostor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood ratios by pool adjacent violators, written out: merge neighbours while shares of genuine fall."""
    scores = np.unique(np.concatenate([genuine, impostor]))
    pools = [[[s], float((genuine == s).sum()), float((impostor == s).sum())] for s in scores]
    merged: list[list] = []
    for pool in pools:
        merged.append(pool)
        while len(merged) > 1 and merged[-2][1] * merged[-1][2] >= merged[-1][1] * merged[-2][2]:
            last = merged.pop()
            merged[-1] = [merged[-1][0] + last[0], merged[-1][1] + last[1], merged[-1][2] + last[2]]
    with np.errstate(divide="ignore"):
        ratio = {s: np.log(g / len(genuine)) - np.log(i / len(impostor)) for pool, g, i in merged for s in pool}
    return np.array([ratio[s] for s in genuine]), np.array([ratio[s] for s in impostor])


@given(SCORES, SCORES)
def test_min_cllr_is_pool_adjacent_violators(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = metrics.curve(genuine, impostor)
    assert metrics.min_cllr(points) == pytest.approx(metrics.cllr(*pooled(genuine, impostor)), abs=1e-12)


@given(SCORES, SCORES)
def test_no_calibration_beats_the_best_one(genuine: np.ndarray, impostor: np.ndarray) -> None:
    points = metrics.curve(genuine, impostor)
    assert metrics.cllr(genuine, impostor) >= metrics.min_cllr(points) - 1e-12
    assert metrics.min_cllr(points) <= 1.0 + 1e-12
    assert metrics.min_cllr(metrics.curve(np.exp(genuine), np.exp(impostor))) == metrics.min_cllr(points)


@given(SCORES, SCORES, st.floats(0.01, 0.99), st.floats(-4, 4))
def test_the_actual_cost_is_never_under_the_smallest(
    genuine: np.ndarray, impostor: np.ndarray, prior: float, threshold: float
) -> None:
    points = metrics.curve(genuine, impostor)
    assert metrics.act_dcf(points, threshold, prior=prior) >= metrics.min_dcf(points, prior) - 1e-12
