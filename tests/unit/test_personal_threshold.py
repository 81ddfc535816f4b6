"""The threshold of one person, with numbers that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from uvsdk.scoring import Calibration, Threshold
from uvsdk.scoring.personal import genuine_scores, genuine_threshold, leave_one_out, personal_threshold

IMPOSTORS = np.linspace(-1, 1, 1000).astype(np.float32)


def test_the_threshold_is_tau_tpr_where_that_is_higher() -> None:
    # 19 samples at (1, 0) and one at (0, 1). Leave-one-out: the odd one scores 0 against the others, each of the rest
    # 18 / sqrt(18^2 + 1) = 0.99846. n = 20, q = 0.95: i = 1, so tau_TPR is just above the smallest score, 0.
    # tau_FMR = -0.8 is lower; above 0 the 500 positive impostors remain: measured again, one half.
    rows = np.array([[1, 0]] * 19 + [[0, 1]], np.float32)
    calibration = Calibration.from_scores(IMPOSTORS, model_version="m", source="made by hand")
    threshold = personal_threshold(calibration.threshold(0.9), calibration, embeddings=rows)
    assert 0 < threshold.score < 1e-9
    assert (threshold.fmr, threshold.trials) == (0.9, 1000)
    assert threshold.interval[0] == pytest.approx(0.4686, abs=1e-3)  # Clopper-Pearson of 500 in 1,000
    assert threshold.interval[1] == pytest.approx(0.5314, abs=1e-3)


def test_too_few_samples_for_a_quantile_leave_the_impostor_threshold() -> None:
    rows = np.array([[1, 0]] * 18 + [[0, 1]], np.float32)
    calibration = Calibration.from_scores(IMPOSTORS, model_version="m", source="made by hand")
    start = calibration.threshold(0.9)
    assert personal_threshold(start, calibration, embeddings=rows) is start


def test_leave_one_out_by_hand() -> None:
    # Two at (1, 0) and one at (0, 1). A (1, 0) against (1, 1)/sqrt 2: 1/sqrt 2. The (0, 1) against (1, 0): 0.
    rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert leave_one_out(rows) == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), 0])


def test_genuine_scores_by_hand() -> None:
    # The same three: of three pairs one has a cosine of 1, so a = 1/3. Against two: 1/3 + 1/3 = 2/3; against three:
    # 1/3 + 2/9 = 5/9; so every score times sqrt(6/5). Of samples that are all alike nothing changes, and of opposite
    # ones the factor is sqrt(2), where only the bounds of a cosine hold.
    rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert genuine_scores(rows) == pytest.approx([math.sqrt(0.6), math.sqrt(0.6), 0])
    assert genuine_scores(np.array([[1, 0]] * 3, np.float32)) == pytest.approx([1, 1, 1])
    assert genuine_scores(np.array([[1, 0], [-1, 0]], np.float32)) == pytest.approx([-1, -1])
    assert genuine_scores(rows[:1]).shape == (0,)


def test_others_that_cancel_out_score_zero() -> None:
    rows = np.array([[0, 1], [1, 0], [-1, 0]], np.float32)
    assert leave_one_out(rows)[0] == 0.0


def test_genuine_threshold_by_hand() -> None:
    # n = 20, q = 0.9: the 2nd smallest is not accepted (e > tau), the 3rd is: 18 of 20 are, nine in ten.
    scores = np.arange(20) / 20
    tau = genuine_threshold(scores, 0.9)
    assert 0.05 < tau < 0.05 + 1e-9
    assert (scores >= tau).sum() == 18
    # n = 10: i = floor(10 * 0.1) = 1 and not 0, although 10 * (1 - 0.9) is 0.99999... in binary.
    assert (np.arange(10) / 10 >= genuine_threshold(np.arange(10) / 10, 0.9)).sum() == 9
    # i = 0: a millionth below the lowest, so that all are accepted.
    assert genuine_threshold(np.array([0.5, 0.25])) == pytest.approx(0.25 - 1e-6, abs=1e-12)
    assert genuine_threshold(np.array([-1.0])) == -1.0
    assert genuine_threshold(np.ones(30)) == 1.0


def test_personal_threshold_never_falls_below_the_impostors() -> None:
    calibration = Calibration.from_scores(IMPOSTORS, model_version="m", source="made by hand")
    start = Threshold(0.9, 0.01, 1000, model_version="m")
    assert personal_threshold(start, calibration, embeddings=np.eye(25, dtype=np.float32)) is start
    assert personal_threshold(start, calibration, embeddings=np.eye(3, dtype=np.float32)[:1]) is start


def test_only_samples_that_the_model_was_made_without_raise_it() -> None:
    # The rows of the first test raise -0.8 to just above 0. Trained on, none of them does, nor do nineteen fresh ones.
    calibration = Calibration.from_scores(IMPOSTORS, model_version="m", source="made by hand")
    start = calibration.threshold(0.9)
    rows = np.array([[1, 0]] * 19 + [[0, 1]], np.float32)
    assert personal_threshold(start, calibration, embeddings=rows, fresh=np.zeros(20, np.bool_)) is start
    assert personal_threshold(start, calibration, embeddings=rows, fresh=np.arange(20) > 0) is start  # nineteen


def test_trained_samples_are_not_read_whatever_they_score() -> None:
    # A vector that training drew twenty samples to (score 1); the twenty that came later score 0.6 and decide: i = 2
    # of 40 would be 0.6 as well, but of the trained twenty alone it is 1, which refuses every one of the fresh.
    calibration = Calibration.from_scores(IMPOSTORS, model_version="m", source="made by hand")
    start, vector = calibration.threshold(0.9), np.array([1, 0], np.float32)
    rows = np.array([[1, 0]] * 20 + [[0.6, 0.8]] * 20, np.float32)
    late = np.arange(40) >= 20
    raised = personal_threshold(start, calibration, embeddings=rows, template=vector, fresh=late)
    assert raised.score == pytest.approx(0.6, abs=1e-6)
    before = personal_threshold(start, calibration, embeddings=rows, template=vector, fresh=~late)
    assert before.score == pytest.approx(1.0, abs=1e-6)
