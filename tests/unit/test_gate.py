"""The gate's rules, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uvsdk.release.gate import LEAST_PEOPLE, judge
from uvsdk.release.measurement import Measured
from uvsdk.scoring import Calibration

_SCORES = np.linspace(-0.5, 0.5, 1000, dtype=np.float32)
RELEASED = Measured(
    model_version="m",
    fmr=0.01,
    threshold=0.5,
    fnmr=0.10,
    worst_fnmr=0.5,
    around=0.2,
    replicates=np.array([0.09, 0.10, 0.11]),
    worst_replicates=np.array([0.5, 0.5, 0.5]),
    around_replicates=np.array([0.19, 0.2, 0.21]),
    cells=np.zeros(0),
    cell_people=np.zeros(0, np.int64),
    people=20,
    trials=100,
    calibration=Calibration.from_scores(_SCORES, model_version="m", source="nobody"),
)
BETTER = replace(RELEASED, fnmr=0.08, around=0.19, replicates=np.array([0.07, 0.08, 0.09]))


def test_a_better_one_passes_with_its_change() -> None:
    verdict = judge(BETTER, RELEASED, collapse=float("nan"))
    assert verdict.passes
    assert verdict.change == pytest.approx(-0.02)
    assert verdict.interval == pytest.approx((-0.02, -0.02))  # every group says the same of the difference


def test_the_same_model_passes() -> None:
    assert judge(RELEASED, RELEASED, collapse=0.2).passes


@pytest.mark.parametrize(
    ("changed", "collapse", "words"),
    [
        (replace(BETTER, fnmr=0.101), 0.0, "rejects 10.1% of genuine trials, the released model 10.0%"),
        (replace(BETTER, around=0.21), 0.0, "on average over false match rates"),
        # Differences of -0.2, 0, 0.2: standard error sqrt(2/3 * 0.08), 1.96 times that less 2 points is 43 %.
        (replace(BETTER, replicates=np.array([-0.11, 0.10, 0.31])), 0.0, "may reject 43.3% more"),
        (replace(BETTER, replicates=np.zeros(0)), 0.0, "may reject inf% more"),
        (replace(BETTER, worst_fnmr=0.61), 0.0, "worst tenth of people it rejects 61%"),
        (replace(BETTER, worst_fnmr=0.8, worst_replicates=np.array([0.0, 0.5, 1.0])), 0.0, "worst tenth"),
        (replace(BETTER, people=LEAST_PEOPLE - 1), 0.0, "7 people told"),
        (BETTER, 0.96, "collapsed"),
        (replace(BETTER, fnmr=float("nan")), 0.0, "rejects nan%"),
        (replace(BETTER, around=float("nan")), 0.0, "on average"),
        (replace(BETTER, worst_fnmr=float("nan")), 0.0, "worst tenth"),
    ],
)
def test_each_rule_says_why(changed: Measured, collapse: float, words: str) -> None:
    verdict = judge(changed, RELEASED, collapse=collapse)
    assert not verdict.passes
    assert [words for reason in verdict.reasons if words in reason] == [words], verdict.reasons


def test_one_person_more_among_the_worst_few_is_chance() -> None:
    """Worst tenths of 0.3 to 0.7 with a group left out: a difference of 20 points is within their error."""
    changed = replace(BETTER, worst_fnmr=0.7, worst_replicates=np.array([0.3, 0.5, 0.7]))
    assert judge(changed, RELEASED, collapse=0.0).passes
