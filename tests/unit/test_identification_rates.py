"""FPIR and FNIR of open-set identification, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.identification import rates
from tests.benchmarks.identification.rates import Searches
from uvsdk.errors import ThresholdError
from uvsdk.evaluation import metrics

# Three people in the gallery (1, 2, 3). Probes: 1 found first with 0.9; 2 found second with 0.6 behind 0.7; 3 last with
# 0.1; two strangers, 8 and 9, whose best scores are 0.65 and 0.2.
SCORES = np.array([[0.9, 0.3, 0.1], [0.7, 0.6, 0.2], [0.5, 0.4, 0.1], [0.65, 0.1, 0.0], [0.1, 0.2, 0.0]])
PROBES, PEOPLE = np.array([1, 2, 3, 8, 9]), np.array([1, 2, 3])


@pytest.fixture
def found() -> Searches:
    return rates.searches(SCORES, probe_subject=PROBES, gallery_subject=PEOPLE)


def test_searches_by_hand(found: Searches) -> None:
    assert found.mate_score.tolist() == [0.9, 0.6, 0.1]
    assert found.mate_rank.tolist() == [1, 2, 3]
    assert found.mated_subject.tolist() == [1, 2, 3]
    assert found.best_score.tolist() == [0.65, 0.2]
    assert found.non_mated_subject.tolist() == [8, 9]
    assert found.people == 3


def test_rates_by_hand(found: Searches) -> None:
    first = rates.curve(found)
    # At 0.6: of the strangers 0.65 is named (1 of 2); of the mated only the first is at rank 1 (2 of 3 missed).
    at = rates.at_threshold(first, 0.6)
    assert (at.fpir, at.fnir) == (1 / 2, 2 / 3)
    # Rank 2 finds the second too, at 0.6 and not at 0.61.
    second = rates.curve(found, rank=2)
    assert rates.at_threshold(second, 0.6).fnir == pytest.approx(1 / 3)
    assert rates.at_threshold(second, 0.61).fnir == pytest.approx(2 / 3)
    # Above every score nobody is named and everybody is missed.
    end = rates.at_threshold(first, np.inf)
    assert (end.fpir, end.fnir) == (0.0, 1.0)
    assert first.fpir.tolist() == [1.0, 0.5, 0.0, 0.0]  # at 0.2, 0.65, 0.9, inf
    assert first.fnir.tolist() == [2 / 3, 2 / 3, 2 / 3, 1.0]


def test_identification_rate_by_rank(found: Searches) -> None:
    assert [rates.identification_rate(found, rank=rank) for rank in (1, 2, 3)] == [1 / 3, 2 / 3, 1.0]


def test_ties_count_against_the_system() -> None:
    # A collapsed model: everybody scores 0.5. The mate stands behind all equals.
    found = rates.searches(np.full((4, 3), 0.5), probe_subject=np.array([1, 2, 3, 9]), gallery_subject=PEOPLE)
    assert found.mate_rank.tolist() == [3, 3, 3]
    assert rates.identification_rate(found) == 0.0
    assert rates.at_threshold(rates.curve(found), 0.5).fnir == 1.0


def test_one_person_is_verification() -> None:
    # With one person in the gallery FPIR is FMR and FNIR is FNMR, at every threshold.
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(0.7, 0.1, 50), rng.normal(0.3, 0.1, 80)
    scores = np.concatenate([genuine, impostor])[:, None]
    probes = np.concatenate([np.zeros(50, np.int64), np.arange(1, 81)])
    points = rates.curve(rates.searches(scores, probe_subject=probes, gallery_subject=np.array([0])))
    pairs = metrics.curve(genuine, impostor)
    assert points.thresholds.tolist() == pairs.thresholds.tolist()
    assert points.fpir.tolist() == pairs.fmr.tolist()
    assert points.fnir.tolist() == pairs.fnmr.tolist()


def test_fnir_at_a_rate_needs_searches(found: Searches) -> None:
    with pytest.raises(ThresholdError, match="needs 300 searches by people outside the gallery, there are 2"):
        rates.fnir_at_fpir(rates.curve(found), 0.1)
    for rate in (0.0, 1.0):
        with pytest.raises(ThresholdError):
            rates.fnir_at_fpir(rates.curve(found), rate)
    # 300 strangers at 0/300, 1/300, ...: 30 of them reach 0.9.
    scores = np.concatenate([[0.5, 0.95], np.arange(300) / 300])[:, None]
    probes = np.concatenate([[0, 0], np.arange(1, 301)])
    point = rates.fnir_at_fpir(
        rates.curve(rates.searches(scores, probe_subject=probes, gallery_subject=np.array([0]))), 0.1
    )
    assert (point.threshold, point.fpir, point.fnir) == (0.9, 0.1, 0.5)


def test_what_does_not_fit_is_refused(found: Searches) -> None:
    with pytest.raises(ValueError, match="everybody once"):
        rates.searches(SCORES, probe_subject=PROBES, gallery_subject=np.array([1, 1, 2]))
    with pytest.raises(ValueError, match="holds somebody"):
        rates.searches(np.empty((5, 0)), probe_subject=PROBES, gallery_subject=np.array([], np.int64))
    with pytest.raises(ValueError, match="shape"):
        rates.searches(SCORES, probe_subject=PROBES[:2], gallery_subject=PEOPLE)
    with pytest.raises(ValueError, match="finite"):
        rates.searches(np.full((5, 3), np.nan), probe_subject=PROBES, gallery_subject=PEOPLE)
    with pytest.raises(ValueError, match="inside and outside"):
        rates.curve(rates.searches(SCORES[:3], probe_subject=PROBES[:3], gallery_subject=PEOPLE))
    with pytest.raises(ValueError, match="ranks start at 1"):
        rates.curve(found, rank=0)
    with pytest.raises(ValueError, match="resample"):
        rates.intervals(found, threshold=0.5, fpir=0.1, resamples=0)
    with pytest.raises(ValueError, match="mated"):
        rates.identification_rate(rates.searches(SCORES[3:], probe_subject=PROBES[3:], gallery_subject=PEOPLE))


@given(seed=st.integers(0, 2**32 - 1), people=st.integers(1, 8), probes=st.integers(1, 12))
def test_curves_are_monotone_and_more_people_find_more_strangers(seed: int, people: int, probes: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (probes + 2, people)) / 5  # many ties
    subjects = np.concatenate([[0, people], rng.integers(0, 2 * people, probes)])  # one mated and one stranger at least
    found = rates.searches(scores, probe_subject=subjects, gallery_subject=np.arange(people))
    for rank in (1, 2, people):
        points = rates.curve(found, rank=rank)
        assert (np.diff(points.fpir) <= 0).all()
        assert (np.diff(points.fnir) >= 0).all()
        assert points.fnir[-1] == 1.0
        assert points.fpir[-1] == 0.0
    strangers = subjects >= people
    for threshold in (0.2, 0.6, 1.0):
        named = [(scores[strangers][:, :size] >= threshold).any(axis=1).mean() for size in range(1, people + 1)]
        assert named == sorted(named)
        assert rates.at_threshold(rates.curve(found), threshold).fpir == named[-1]


def test_intervals_follow_people_and_not_probes() -> None:
    # Ten strangers with 100 probes each, five of whom are always named: the interval must be that of ten people, from
    # about 0.2 to 0.8, and not that of 1,000 searches, 0.47 to 0.53.
    best = np.repeat([0.9] * 5 + [0.1] * 5, 100)
    found = Searches(np.ones(4), np.ones(4, np.int64), np.arange(4), best, np.repeat(np.arange(10), 100), people=4)
    bounds = rates.intervals(found, threshold=0.5, fpir=0.1, resamples=500)
    assert bounds["fpir"].value == 0.5
    assert bounds["fpir"].low <= 0.3
    assert bounds["fpir"].high >= 0.7
    assert (bounds["fnir"].value, bounds["fnir"].low, bounds["fnir"].high) == (0.0, 0.0, 0.0)
    again = rates.intervals(found, threshold=0.5, fpir=0.1, resamples=500)
    assert again == bounds
