"""Bootstrap over people: weights, intervals, determinism, speed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from uvsdk.evaluation import bootstrap, metrics
from uvsdk.evaluation.trials import Trials


def make_trials(people: int, probes_each: int, seed: int = 0, spread: float = 0.0) -> Trials:
    """Every probe against every template; ``spread`` is how much people differ in how well they are recognised."""
    rng = np.random.default_rng(seed)
    probe = np.repeat(np.arange(people), probes_each * people)
    template = np.tile(np.arange(people), people * probes_each)
    ease = spread * rng.normal(size=people)
    scores = rng.normal(size=len(probe)) + np.where(probe == template, 2.0 + ease[probe], 0.0)
    return Trials(scores, template, probe, tuple(f"person {i}" for i in range(people)))


def test_a_resample_is_the_curve_of_repeated_trials() -> None:
    trials = make_trials(4, 3)
    counts = np.array([2, 0, 1, 1])
    found = bootstrap._Weighted(trials).curve(counts)
    assert found is not None
    # Written out: a genuine trial counts as often as its person, an impostor trial as often as the product.
    own = trials.is_genuine
    weights = np.where(
        own, counts[trials.probe_subject], counts[trials.template_subject] * counts[trials.probe_subject]
    )
    repeated, own = np.repeat(trials.scores, weights), np.repeat(own, weights)
    expected = metrics.curve(repeated[own], repeated[~own])
    assert (found.genuine, found.impostor) == (expected.genuine, expected.impostor)
    for statistic in (metrics.eer, metrics.auroc, lambda c: metrics.min_dcf(c, 0.05)):
        assert statistic(found) == pytest.approx(statistic(expected), abs=1e-12)
    for threshold in (-1.0, 0.5, 2.0):
        assert metrics.at_threshold(found, threshold) == metrics.at_threshold(expected, threshold)


def test_a_resample_of_everyone_once_is_the_measurement() -> None:
    trials = make_trials(5, 2)
    found = bootstrap._Weighted(trials).curve(np.ones(5, np.int64))
    assert found is not None
    np.testing.assert_array_equal(found.false_matches, trials.curve().false_matches)
    np.testing.assert_array_equal(found.false_non_matches, trials.curve().false_non_matches)


def test_value_lies_on_all_trials_and_the_seed_decides_the_interval() -> None:
    trials = make_trials(10, 4)
    first, again, other = (
        bootstrap.intervals(trials, {"eer": metrics.eer}, resamples=200, seed=seed)["eer"] for seed in (1, 1, 2)
    )
    assert first.value == metrics.eer(trials.curve())
    assert first == again
    assert first != other
    assert first.low <= first.value <= first.high


def test_people_who_differ_widen_the_interval() -> None:
    widths = []
    for spread in (0.0, 1.5):
        found = bootstrap.intervals(make_trials(20, 10, spread=spread), {"eer": metrics.eer}, resamples=300)["eer"]
        widths.append(found.high - found.low)
    assert widths[1] > 2 * widths[0]


def test_coverage_is_near_nominal() -> None:
    # EER of N(2, 1) against N(0, 1) is Phi(-1) = 0.1587. With 60 intervals of 95 %, fewer than 50 hits would be
    # eight standard deviations of a binomial away.
    hits = 0
    for seed in range(60):
        found = bootstrap.intervals(make_trials(15, 6, seed=seed), {"eer": metrics.eer}, resamples=100)["eer"]
        hits += found.low <= 0.1587 <= found.high
    assert hits >= 50


def test_two_people_are_enough() -> None:
    found = bootstrap.intervals(make_trials(2, 5), {"eer": metrics.eer}, resamples=50)["eer"]
    assert 0 <= found.low <= found.high <= 1


def test_impossible_requests_are_refused() -> None:
    trials = make_trials(3, 2)
    with pytest.raises(ValueError, match="at least one resample"):
        bootstrap.intervals(trials, {"eer": metrics.eer}, resamples=0)
    only_genuine = Trials(np.ones(2), np.array([0, 1]), np.array([0, 1]), ("a", "b"))
    with pytest.raises(ValueError, match="2 genuine and 0 impostor"):
        bootstrap.intervals(only_genuine, {"eer": metrics.eer}, resamples=10)


def test_forty_people_take_seconds() -> None:
    trials = make_trials(40, 20)
    assert len(trials.scores) == 32_000
    started = time.perf_counter()
    bootstrap.intervals(trials, {"eer": metrics.eer, "auroc": metrics.auroc}, resamples=100)
    assert time.perf_counter() - started < 5


def test_trials_refuse_what_is_not_a_trial() -> None:
    with pytest.raises(ValueError, match="one score"):
        Trials(np.ones(2), np.array([0]), np.array([0, 1]), ("a", "b"))
    with pytest.raises(ValueError, match=r"\[0, 2\)"):
        Trials(np.ones(1), np.array([2]), np.array([0]), ("a", "b"))
    with pytest.raises(ValueError, match="finite"):
        Trials(np.array([np.nan]), np.array([1]), np.array([0]), ("a", "b"))
