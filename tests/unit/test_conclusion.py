"""What an evaluation says in the end, and when one is due: numbers a reader can do by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from uvsdk.release.conclusion import Conclusion, Finding, conclude, renews, unusable
from uvsdk.release.measurement import MOST_REJECTED, bounded_score, calibrate, measure
from uvsdk.release.record import Evaluation
from uvsdk.release.report import report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration
from uvsdk.scoring.moments import ScoreLaw
from uvsdk_server.evaluating import Surroundings, due, summary_of
from uvsdk_server.store.rows import EvaluationRow

DIMENSION = 32
OUTCOME = Evaluation(1, "moments", 20, 100, 0.01, 0.005, 0.02, 0.5, 0.1, 0.05, 0.15, 0.3, 1000.0)
NOW = Surroundings(finished=False, committed=0, candidate="c", released="c", evaluators=8, least=8, every=4)
ROW = EvaluationRow(
    1, "closed", "start", "c", "c", "moments", "d", "k", 0, 0, 0.0, 1.0, 1.0, 40, 40, "calibrated", 2, None
)


def sums(version: str, *, scatter: float, people: int = 20, trainers: int = 10, kind: str = "moments") -> ModelSums:
    """Of people whose samples scatter so about them."""
    reports = []
    strangers = np.random.default_rng(9).standard_normal((200, DIMENSION))
    strangers = (strangers / np.linalg.norm(strangers, axis=1, keepdims=True)).astype(np.float32)
    for person in range(people + trainers):
        rng = np.random.default_rng(person)
        rows = rng.standard_normal(DIMENSION) / DIMENSION**0.5 + scatter * rng.standard_normal((6, DIMENSION))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        report = report_on(
            rows,
            model_version=version,
            impostors=kind,
            evaluates=person < people,
            strangers=strangers,  # type: ignore[arg-type]
        )
        reports.append((person % 10, report))
    return ModelSums.of(reports, model_version=version, impostors=kind)


def test_a_better_model_passes_and_its_record_says_by_what() -> None:
    found = conclude(
        sums("b", scatter=0.02), sums("a", scatter=0.04), evaluation_id=5, collapse=0.1, source="a test", now=1000.0
    )
    assert (found.passes, found.reasons) == (True, ())
    assert found.candidate is not None
    assert (found.candidate.evaluation.evaluation_id, found.candidate.evaluation.people) == (5, 20)
    assert found.candidate.evaluation.fmr == 0.001  # what twenty people support
    assert found.candidate.calibration.model_version == "b"
    assert (
        found.candidate.evaluation.fnmr_low <= found.candidate.evaluation.fnmr <= found.candidate.evaluation.fnmr_high
    )


def test_training_goes_by_rates_around_and_only_where_eight_people_tell() -> None:
    def found(people: int, *, candidate: str = "b") -> Conclusion:
        new, old = sums(candidate, scatter=0.4, people=people), sums("a", scatter=0.2, people=people)
        return conclude(new, old, evaluation_id=5, collapse=float("nan"), source="a test", now=1000.0)

    compared = found(20).compared
    assert compared is not None
    assert (compared.candidate, compared.released) == ("b", "a")
    assert compared.candidate_around > compared.released_around
    assert 0.0 < compared.error < 0.2
    told = summary_of(found(20))["around"]
    assert told == {
        "candidate": compared.candidate_around,
        "released": compared.released_around,
        "error": compared.error,
    }
    assert found(7).compared is None
    assert found(20, candidate="a").compared is None  # the released model alone


def test_thresholds_of_comparisons_stay_below_one_and_keep_their_order() -> None:
    """artanh(0.9) = 1.472 and 0.025 / (1 - 0.81) = 0.1316: at 1 % tanh(1.472 + 2.326 * 0.1316) = tanh(1.778)."""
    assert bounded_score(ScoreLaw(0.9, 0.025), 0.01) == pytest.approx(math.tanh(1.4722 + 2.3263 * 0.13158), abs=1e-4)
    for mean, deviation in ((0.9, 0.025), (0.0, 0.1), (-0.5, 0.3), (1.0, 0.0), (0.9999999, 1e-7)):
        scores = [bounded_score(ScoreLaw(mean, deviation), rate) for rate in (0.5, 1e-1, 1e-3, 1e-6)]
        assert scores == sorted(scores)
        assert scores[0] == pytest.approx(mean, abs=1e-6)
        assert scores[-1] <= 1.0


def test_both_models_are_measured_at_the_laxer_of_their_rates() -> None:
    few = conclude(
        sums("b", scatter=0.02, people=10),
        sums("a", scatter=0.02, people=10),
        evaluation_id=5,
        collapse=float("nan"),
        source="a test",
        now=1000.0,
    )
    assert few.candidate is not None
    assert few.released is not None
    assert few.candidate.evaluation.fmr == few.released.evaluation.fmr == 0.01


@pytest.mark.parametrize(
    ("scatter", "changes", "reason"),
    [
        (0.4, {}, "of genuine trials"),
        (0.02, {"collapse": 0.99}, "collapsed"),
        (0.02, {"refusals": 9, "tried": 30}, "9 of 30 devices would not switch"),
    ],
)
def test_a_worse_one_a_collapsed_one_and_one_that_devices_refuse_do_not_pass(
    scatter: float, changes: dict[str, float], reason: str
) -> None:
    values = {"evaluation_id": 5, "collapse": 0.1, "source": "a test", "now": 1000.0, **changes}
    found = conclude(sums("b", scatter=scatter), sums("a", scatter=0.04), **values)  # type: ignore[arg-type]
    assert not found.passes
    assert any(reason in said for said in found.reasons)
    assert summary_of(found)["reasons"] == list(found.reasons)


def test_the_released_model_alone_is_calibrated_and_passes_no_gate() -> None:
    only = sums("a", scatter=0.04)
    found = conclude(only, only, evaluation_id=5, collapse=0.1, source="a test", now=1000.0)
    assert not found.passes
    assert found.released is not None
    assert found.released.calibration.tail is not None


def test_a_cohort_calibrates_where_nobody_evaluates_and_the_gate_says_who_is_missing() -> None:
    found = conclude(
        sums("b", scatter=0.02, people=0, trainers=3, kind="cohort"),
        sums("a", scatter=0.02, people=0, trainers=3, kind="cohort"),
        evaluation_id=5,
        collapse=float("nan"),
        source="a test",
        now=1000.0,
    )
    assert found.released is not None
    assert not unusable(found.released)
    assert (found.released.evaluation.people, found.released.evaluation.fnmr_high) == (0, 1.0)
    assert not found.passes
    assert any("0 people told of genuine trials" in reason for reason in found.reasons)


def test_a_calibration_that_refuses_everybody_is_given_to_no_model() -> None:
    scores = Calibration.from_scores(np.zeros(1000), model_version="a", source="a test")
    assert unusable(Finding(scores, OUTCOME)) == ""
    assert "rejects 60% of genuine trials" in unusable(Finding(scores, replace(OUTCOME, fnmr=0.6)))
    assert "its threshold is 1.00" in unusable(Finding(scores, replace(OUTCOME, threshold=1.0)))


def test_a_calibration_of_other_people_or_of_long_ago_is_renewed() -> None:
    old = Calibration.from_scores(np.zeros(1000), model_version="a", source="a", people=20, measured_unix_s=1000.0)
    assert renews(None, old, own=False, now=2000.0)
    assert renews(old, old, own=False, now=2000.0)
    assert not renews(old, old, own=True, now=2000.0)
    assert renews(old, old, own=True, now=1000.0 + 91 * 86_400)
    assert renews(old, replace(old, people=30), own=True, now=2000.0)


@pytest.mark.parametrize(
    ("changes", "history", "cause"),
    [
        ({}, [], "start"),
        ({"early": True}, [], ""),
        ({"evaluators": 7}, [], ""),
        ({"evaluators": 7, "finished": True}, [], ""),  # nothing was trained
        ({"evaluators": 7, "finished": True, "candidate": "n"}, [], "few"),
        ({"evaluators": 7, "finished": True, "candidate": "n"}, [replace(ROW, candidate="n", asked=0)], ""),
        ({}, [ROW], ""),
        ({"candidate": "n", "committed": 3}, [ROW], ""),
        ({"candidate": "n", "committed": 4}, [ROW], "rounds"),
        ({"candidate": "n", "committed": 4, "every": 0}, [ROW], ""),
        ({"candidate": "n", "committed": 3, "finished": True}, [ROW], "rest"),
        ({"candidate": "n", "committed": 3, "finished": True}, [ROW, replace(ROW, candidate="n")], ""),
        ({"devices": 60, "finished": True}, [ROW], "people"),  # 40 were asked then
        ({"devices": 59, "finished": True}, [ROW], ""),
        ({"devices": 60}, [ROW], ""),
        ({"finished": True, "since_s": 86_400.0}, [replace(ROW, state="failed")], "start"),
        ({"finished": True, "since_s": 86_399.0}, [replace(ROW, state="failed")], ""),
        ({"finished": True, "since_s": 86_400.0}, [ROW], ""),
        ({"since_s": 86_400.0}, [replace(ROW, state="failed")], ""),  # rounds go on, and bring another
    ],
)
def test_when_an_evaluation_is_due(changes: dict[str, object], history: list[EvaluationRow], cause: str) -> None:
    assert due(replace(NOW, **changes), history) == cause  # type: ignore[arg-type]


@pytest.mark.parametrize(("people", "directions"), [(49, None), (50, 1), (100, 2)])
def test_where_few_people_lie_is_not_told(people: int, directions: int | None) -> None:
    """Mean and directions of few give away who they are (tests/benchmarks/evaluation/membership.py)."""
    rng, nobody = np.random.default_rng(people), np.empty((0, 8), np.float32)
    reports = []
    for place in range(people):
        rows = rng.normal(size=8) + 0.3 * rng.normal(size=(3, 8))
        own = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        told = report_on(own, model_version="m", impostors="moments", evaluates=True, strangers=nobody)
        reports.append((place, told))
    found = calibrate(ModelSums.of(reports, model_version="m", impostors="moments"), source="a test", now=1.0)
    if directions is None:
        assert found.domain is None
    else:
        assert found.domain is not None
        assert found.domain.directions.shape == (directions, 8)


@pytest.mark.parametrize(("scatter", "fmr"), [(0.15, 1e-4), (0.2, 1e-3), (0.25, 1e-2), (0.4, 1e-2)])
def test_more_people_make_no_model_useless(scatter: float, fmr: float) -> None:
    """Sixty people support one in ten thousand; it is offered where at most half of the genuine trials are rejected."""
    measured = measure(sums("a", scatter=scatter, people=60), fmr=None, source="a test", now=1.0)
    assert (measured.fmr, measured.calibration.default_fmr()) == (fmr, fmr)
    assert (measured.fnmr <= MOST_REJECTED) == (scatter < 0.4)


def test_both_are_compared_at_the_rate_of_the_worse_and_keep_their_own() -> None:
    better, worse = sums("b", scatter=0.15, people=60), sums("a", scatter=0.25, people=60)
    found = conclude(better, worse, evaluation_id=1, collapse=0.1, source="a test", now=1.0)
    assert found.passes
    assert found.candidate is not None
    assert (found.candidate.evaluation.fmr, found.candidate.calibration.default_fmr()) == (1e-2, 1e-4)
