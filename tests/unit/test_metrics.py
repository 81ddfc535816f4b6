"""Error rates and class metrics against numbers a reader can do by hand."""

from __future__ import annotations

import numpy as np
import pytest

from uvsdk.errors import ThresholdError
from uvsdk.evaluation import metrics, ranking

GENUINE = np.array([0.9, 0.8, 0.6, 0.3])
IMPOSTOR = np.array([0.7, 0.5, 0.3, 0.2, 0.1])


def test_curve_counts_equal_scores_together() -> None:
    points = metrics.curve(np.array([0.5, 0.5, 0.7]), np.array([0.5, 0.2]))
    assert points.thresholds.tolist() == [0.2, 0.5, 0.7, np.inf]
    assert points.false_matches.tolist() == [2, 1, 0, 0]
    assert points.false_non_matches.tolist() == [0, 0, 2, 3]


def test_rates_between_and_beyond_the_scores() -> None:
    points = metrics.curve(GENUINE, IMPOSTOR)
    assert metrics.at_threshold(points, 0.65) == metrics.OperatingPoint(0.65, 1 / 5, 2 / 4)
    assert metrics.at_threshold(points, -3.0) == metrics.OperatingPoint(-3.0, 1.0, 0.0)
    assert metrics.at_threshold(points, 3.0) == metrics.OperatingPoint(3.0, 0.0, 1.0)


def test_eer_takes_the_smallest_gap() -> None:
    # At 0.6: FMR 1/5 (0.7), FNMR 1/4 (0.3): gap 0.05. At 0.5: FMR 2/5, FNMR 1/4: gap 0.15.
    points = metrics.curve(GENUINE, IMPOSTOR)
    assert metrics.eer(points) == pytest.approx((1 / 5 + 1 / 4) / 2)
    assert metrics.equal_error_point(points).threshold == 0.6


def test_eer_averages_two_thresholds_with_the_same_gap() -> None:
    # At 0.4: FMR 1/2, FNMR 0; at 0.9: FMR 0, FNMR 1/2. Both gaps 1/2, both values 1/4.
    assert metrics.eer(metrics.curve(np.array([0.9, 0.4]), np.array([0.4, 0.1]))) == 0.25
    # Scores the wrong way round: at 2, FMR 1 and FNMR 1.
    assert metrics.eer(metrics.curve(np.ones(3), np.array([2.0]))) == 1.0


def test_a_collapsed_model_has_an_equal_error_rate_of_one_half() -> None:
    points = metrics.curve(np.full(7, 0.98), np.full(90, 0.98))
    assert metrics.eer(points) == 0.5
    assert metrics.eer_convex_hull(points) == 0.5
    assert metrics.auroc(points) == 0.5
    assert metrics.min_dcf(points, 0.01) == 1.0


def test_a_perfect_model_makes_no_error() -> None:
    points = metrics.curve(np.array([0.9, 0.8]), np.array([0.1, 0.2]))
    assert metrics.eer(points) == 0.0
    assert metrics.eer_convex_hull(points) == 0.0
    assert metrics.auroc(points) == 1.0
    assert metrics.min_dcf(points, 0.01) == 0.0


def test_convex_hull_eer() -> None:
    # Points (FMR, FNMR): tau .1 (1, 0) .2 (.8, 0) .3 (.6, 0) .5 (.4, .25) .6 (.2, .25) .7 (.2, .5) .8 (0, .5)
    # .9 (0, .75) inf (0, 1).
    # Lower hull: (1, 0), (.6, 0), (.2, .25), (0, .5), (0, 1). The diagonal is crossed between (.6, 0) and (.2, .25):
    # x = .6 - .4 t = .25 t, t = .6 / .65, x = .15 / .65.
    assert metrics.eer_convex_hull(metrics.curve(GENUINE, IMPOSTOR)) == pytest.approx(0.15 / 0.65)


def test_fnmr_at_fmr_takes_the_smallest_threshold_within_the_rate() -> None:
    # 300 impostors at 0, 1, .., 299. FMR <= 0.1 allows 30, so the threshold is 270: 270..299 are accepted.
    genuine = np.array([100.0, 269.0, 270.0, 400.0])
    found = metrics.fnmr_at_fmr(metrics.curve(genuine, np.arange(300.0)), 0.1)
    assert found == metrics.OperatingPoint(270.0, 0.1, 0.5)


def test_fnmr_at_fmr_never_splits_a_tie() -> None:
    # 40 of 300 impostors share the top score: the rate 0.1 allows 30, so all must stay out, at +inf.
    impostor = np.concatenate([np.zeros(260), np.ones(40)])
    found = metrics.fnmr_at_fmr(metrics.curve(np.ones(3), impostor), 0.1)
    assert found == metrics.OperatingPoint(np.inf, 0.0, 1.0)


def test_fnmr_at_fmr_refuses_what_the_trials_cannot_support() -> None:
    points = metrics.curve(np.ones(3), np.zeros(299))
    with pytest.raises(ThresholdError, match="needs 300 impostor trials, there are 299"):
        metrics.fnmr_at_fmr(points, 0.1)
    assert metrics.fnmr_at_fmr(metrics.curve(np.ones(3), np.zeros(3000)), 0.01).fnmr == 0.0
    with pytest.raises(ThresholdError):
        metrics.fnmr_at_fmr(points, 0.0)


def test_min_dcf() -> None:
    # Prior 0.05: cost (0.05 FNMR + 0.95 FMR) / 0.05. At 0.8: FNMR 2/4, FMR 0: 0.5. At 0.6: 0.25 + 19 * 0.2 = 4.05.
    assert metrics.min_dcf(metrics.curve(GENUINE, IMPOSTOR), 0.05) == pytest.approx(0.5)


def test_auroc_counts_a_tie_as_one_half() -> None:
    # 0.9 and 0.8 beat all five, 0.6 beats four, 0.3 beats two and ties once: 5 + 5 + 4 + 2.5 of 20.
    assert metrics.auroc(metrics.curve(GENUINE, IMPOSTOR)) == pytest.approx(16.5 / 20)


def test_det_points_are_the_corners() -> None:
    fmr, fnmr = metrics.det_points(metrics.curve(np.array([0.9, 0.8]), np.array([0.1, 0.2, 0.3])))
    assert fmr.tolist() == [1.0, 0.0, 0.0]
    assert fnmr.tolist() == [0.0, 0.0, 1.0]


def test_empty_or_unreadable_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="0 genuine and 2 impostor"):
        metrics.curve(np.array([]), np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="1 of 2 scores are not finite"):
        metrics.curve(np.array([0.3]), np.array([0.1, np.nan]))


def test_per_subject_rates_and_the_worst_tenth() -> None:
    rates = metrics.fnmr_by_subject(np.array([0.9, 0.1, 0.2, 0.8]), np.array([3, 3, 5, 5]), threshold=0.15)
    assert rates == {3: 0.5, 5: 0.0}
    # 11 people: the worst tenth, rounded up, is two of them.
    assert metrics.worst_decile([0.0] * 9 + [1.0, 0.5]) == 0.75
    with pytest.raises(ValueError, match="nobody"):
        metrics.worst_decile([])


def test_precision_at_k_ties_go_to_the_lower_class() -> None:
    relevant = np.array([[True, False, False], [False, True, False], [True, False, False], [False, False, True]])
    collapsed = np.ones((4, 3))
    # P@1 of a collapsed model is the frequency of class 0.
    assert ranking.precision_at_k(collapsed, relevant, k=1) == 0.5


def test_precision_at_k_divides_by_k_even_where_fewer_are_relevant() -> None:
    scores, relevant = np.array([[0.9, 0.5, 0.1]]), np.array([[True, False, False]])
    assert ranking.precision_at_k(scores, relevant, k=2) == 0.5
    assert ranking.precision_at_k(scores, relevant, k=5) == 0.2


def test_map_at_r_fixed_and_by_class() -> None:
    similarity = np.array([[0.9, 0.8, 0.7, 0.6]])
    query, reference = np.array([1]), np.array([1, 0, 1, 1])
    # Ranked relevance 1 0 1 1, precisions 1, -, 2/3, 3/4.
    assert ranking.map_at_r(similarity, query, reference_labels=reference, r=10) == pytest.approx(
        (1 + 2 / 3 + 3 / 4) / 10
    )
    assert ranking.map_at_r(similarity, query, reference_labels=reference, r="class") == pytest.approx((1 + 2 / 3) / 3)


def test_map_at_r_leaves_the_query_out_of_its_own_list() -> None:
    labels = np.array([0, 0, 1])
    similarity = np.array([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]])
    # Query 0 ranks 2 before 1, query 1 ranks 2 before 0, query 2 has no other of its class: R = 1, both miss.
    assert ranking.map_at_r(similarity, labels, reference_labels=labels, r="class", same_set=True) == 0.0
    assert ranking.map_at_r(similarity, labels, reference_labels=labels, r=2, same_set=True) == pytest.approx(
        (1 / 2) / 2
    )


def test_collapse_monitor() -> None:
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    found = ranking.collapse(rows)
    # Six ordered pairs: cosine 1 twice, 0 four times. Two rows coincide, so the least distance is 0.
    assert found.mean_cosine == pytest.approx(1 / 3)
    assert found.minimum_distance == 0.0
    assert found.fmr_at_0_7 == pytest.approx(1 / 3)
    # Left out: the pair of the same subject.
    apart = ranking.collapse(rows, np.array([0, 1, 0]))
    assert apart.mean_cosine == 0.0
    assert apart.minimum_distance == pytest.approx(np.sqrt(2))
    with pytest.raises(ValueError, match="two subjects"):
        ranking.collapse(rows, np.zeros(3, np.int64))


def test_collapse_monitor_in_blocks_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    whole = ranking.collapse(rows)
    monkeypatch.setattr(ranking, "BLOCK_ROWS", 7)
    parts = ranking.collapse(rows)
    assert parts.mean_cosine == pytest.approx(whole.mean_cosine)
    assert parts.minimum_distance == pytest.approx(whole.minimum_distance)
    assert parts.fmr_at_0_7 == whole.fmr_at_0_7


def test_actual_cost_is_that_of_the_given_threshold() -> None:
    # At 0.55: FMR 1/5 (0.7), FNMR 1/4 (0.3). P = 0.5: 0.5 / 4 + 0.5 / 5 over 0.5; P = 0.1, miss 2: 0.2 / 4 + 0.9 / 5.
    points = metrics.curve(GENUINE, IMPOSTOR)
    assert metrics.act_dcf(points, 0.55, prior=0.5) == pytest.approx(1 / 4 + 1 / 5)
    assert metrics.act_dcf(points, 0.55, prior=0.1, miss_cost=2) == pytest.approx((0.2 / 4 + 0.9 / 5) / 0.2)
    # A threshold that is wrong may cost more than refusing everybody, which costs 1.
    assert metrics.act_dcf(points, -1.0, prior=0.01) == pytest.approx(99.0)


def test_bayes_threshold_weighs_prior_and_costs() -> None:
    assert metrics.bayes_threshold(0.01, false_match_cost=10) == pytest.approx(np.log(990))
    assert metrics.bayes_threshold(0.2, miss_cost=4) == pytest.approx(0.0)
    for prior, miss in ((0.0, 1.0), (1.0, 1.0), (0.5, 0.0)):
        with pytest.raises(ValueError, match=r"prior|costs"):
            metrics.bayes_threshold(prior, miss_cost=miss)


def test_cllr_by_hand() -> None:
    # Certain and right: 0. Certain and wrong: without bound. Nothing said: 1.
    assert metrics.cllr(np.array([np.inf]), np.array([-np.inf])) == 0.0
    assert metrics.cllr(np.array([-np.inf]), np.array([-np.inf])) == np.inf
    # Genuine at ratio 3: log2(4/3); impostor at ratio 3: log2(4).
    assert metrics.cllr(np.log([3.0]), np.log([3.0])) == pytest.approx((np.log2(4 / 3) + 2) / 2)
    for bad in (np.array([]), np.array([np.nan])):
        with pytest.raises(ValueError, match="cllr needs"):
            metrics.cllr(bad, np.zeros(2))


def test_min_cllr_pools_what_is_out_of_order() -> None:
    # Ascending: impostor .1 .2, both at .3, impostor .5, genuine .6, impostor .7, genuine .8 .9.
    # Pools: {.1 .2} no genuine; {.3 .5} 1 of 4 genuine and 2 of 5 impostors, ratio 5/8; {.6 .7} 1/4 and 1/5, ratio 5/4;
    # {.8 .9} no impostor. Bits: [1/4 log2(1 + 8/5) + 2/5 log2(1 + 5/8) + 1/4 log2(1 + 4/5) + 1/5 log2(1 + 5/4)] / 2.
    expected = (np.log2(13 / 5) / 4 + 2 * np.log2(13 / 8) / 5 + np.log2(9 / 5) / 4 + np.log2(9 / 4) / 5) / 2
    assert metrics.min_cllr(metrics.curve(GENUINE, IMPOSTOR)) == pytest.approx(expected)
    assert metrics.min_cllr(metrics.curve(np.array([1.0]), np.array([0.0]))) == 0.0
