"""The likelihood ratio and its fit: gradients, invariances, limits, and numbers done by hand."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float64
from uvsdk.modality.voice import BANDWIDTH_HZ, SNR_DB, SPEECH_S
from uvsdk.scoring import fitting
from uvsdk.scoring.compensation import Compensation, compensation
from uvsdk.scoring.conditions import conditions_of, together
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings, features

PLAIN = Compensation(np.zeros(4, np.float32), np.zeros((0, 4), np.float32))
NOWHERE = Surroundings.of([])
LENGTH = Surroundings((SPEECH_S,), np.log([1.0]), np.log([10.0]), np.zeros(1), np.ones(1))


def ratio(surroundings: Surroundings = NOWHERE, *, location: Float64 | None = None) -> LikelihoodRatio:
    size = 1 + 3 * len(surroundings.names)
    weights = np.zeros(size)
    return LikelihoodRatio(
        compensation=PLAIN,
        top=0,
        surroundings=surroundings,
        location=np.array([0.5, *weights[1:]]) if location is None else location,
        log_scale=np.array([math.log(0.1), *weights[1:]]),
        limits=np.array([[-9.0, 9.0], [-9.0, 9.0]]),
        slope=2.0,
        offset=-4.0,
        lowest=-5.0,
        highest=7.0,
        impostor=np.array([-5.0, 0.0], np.float32),
        trials=1000,
    )


def trials(seed: int, count: int = 400) -> tuple[Float64, Float64, Float64]:
    """Features, scores and weights of impostors whose location and scale really depend on one condition."""
    rng = np.random.default_rng(seed)
    rows = features(rng.normal(size=(count, 1)), rng.normal(size=(count, 1)))
    scores = rows @ [0.5, 0.05, 0.02, -0.01] + np.exp(rows @ [-2.5, 0.1, 0.0, 0.0]) * rng.normal(size=count)
    return rows, scores, np.full(count, 1.0 / count)


def slope_by_difference(function: object, at: Float64) -> Float64:
    found = []
    for index in range(len(at)):
        step = np.zeros(len(at))
        step[index] = 1e-6
        found.append((function(at + step)[0] - function(at - step)[0]) / 2e-6)  # type: ignore[operator]
    return np.array(found)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_gradients_are_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, scores, weights = trials(seed, 50)
    at = np.concatenate([[0.4, 0.1, 0.0, 0.0], [-2.0, 0.1, 0.1, 0.0]]) + rng.normal(0, 0.05, 8)
    loss = lambda x: fitting.impostor_loss(x, rows, scores, weights, 0.1)  # noqa: E731
    assert loss(at)[1] == pytest.approx(slope_by_difference(loss, at), rel=1e-4, abs=1e-5)
    genuine = (rng.random(50) < 0.5).astype(float)
    line_loss = lambda x: fitting.logistic_loss(x, scores, genuine, weights, 0.7)  # noqa: E731
    line = rng.normal(size=2)
    assert line_loss(line)[1] == pytest.approx(slope_by_difference(line_loss, line), rel=1e-4, abs=1e-7)


def test_the_fit_finds_what_made_the_scores() -> None:
    rows, scores, weights = trials(1, 20_000)
    location, log_scale = fitting.fit_impostors(rows, scores, weights=weights)
    assert location == pytest.approx([0.5, 0.05, 0.02, -0.01], abs=0.005)
    assert log_scale == pytest.approx([-2.5, 0.1, 0.0, 0.0], abs=0.03)
    assert np.abs(fitting.impostor_loss(np.r_[location, log_scale], rows, scores, weights)[1]).max() < 1e-4


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 5.0), st.floats(-3.0, 3.0))
@settings(max_examples=20, deadline=None)
def test_the_fit_follows_the_scale_of_scores_and_not_their_order(seed: int, factor: float, shift: float) -> None:
    rows, scores, weights = trials(seed)
    order = np.random.default_rng(seed).permutation(len(scores))
    location, log_scale = fitting.fit_impostors(rows, scores, weights=weights, ridge=0.0)
    z = (scores - rows @ location) / np.exp(rows @ log_scale)
    moved, widened = fitting.fit_impostors(rows[order], factor * scores[order] + shift, weights=weights, ridge=0.0)
    again = (factor * scores + shift - rows @ moved) / np.exp(rows @ widened)
    assert again == pytest.approx(z, abs=2e-2)


def test_the_line_by_hand() -> None:
    # Two values of z. At 1: 3 of 4 genuine, 1 of 4 impostors, ratio 3. At 0: 1 of 4 and 3 of 4, ratio 1/3.
    # A line through ln 3 at 1 and -ln 3 at 0 is exact; the ridge on the slope moves it by less than a hundredth.
    slope, offset = fitting.fit_line(np.array([1.0, 1, 1, 0]), np.array([0.0, 0, 0, 1]))
    assert slope == pytest.approx(2 * math.log(3), abs=0.01)
    assert offset == pytest.approx(-math.log(3), abs=0.01)
    # The prior says where the fit should be best, not what is fitted, where the line can be exact.
    assert fitting.fit_line(np.array([1.0, 1, 1, 0]), np.array([0.0, 0, 0, 1]), prior=0.1)[0] == pytest.approx(
        slope, abs=0.05
    )


def test_weights_are_repetitions() -> None:
    genuine, impostor = np.array([1.0, 2.0, 0.5]), np.array([-1.0, 0.0, 1.5])
    repeated = fitting.fit_line(np.array([1.0, 1.0, 2.0, 0.5]), impostor)
    weighted = fitting.fit_line(genuine, impostor, genuine_weights=np.array([2.0, 1.0, 1.0]))
    assert weighted == pytest.approx(repeated, abs=1e-4)


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="do not differ"):
        fitting.fit_impostors(np.ones((3, 1)), np.full(3, 0.5), weights=np.full(3, 1 / 3))
    with pytest.raises(ValueError, match="do not differ"):
        fitting.fit_impostors(np.ones((0, 1)), np.zeros(0), weights=np.zeros(0))
    with pytest.raises(ValueError, match="genuine and impostor trials"):
        fitting.fit_line(np.zeros(0), np.ones(2))
    with pytest.raises(ValueError, match="do not score higher"):
        fitting.fit_line(np.array([0.0, 1.0]), np.array([2.0, 3.0]))


def test_classes_that_do_not_overlap_give_a_finite_line() -> None:
    slope, offset = fitting.fit_line(np.array([5.0, 6.0]), np.array([0.0, 1.0]))
    assert 0 < slope < 100
    assert math.isfinite(offset)


def test_ratio_by_hand() -> None:
    # z = (0.8 - 0.5) / 0.1 = 3, ratio 2 * 3 - 4 = 2; at 0.4 z = -1, -6 is under the least; at 1.2 z = 7, 10 above.
    one = np.ones((3, 1))
    assert ratio().ratios(np.array([0.8, 0.4, 1.2]), one) == pytest.approx([2.0, -5.0, 7.0])


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_rises_with_the_score_whatever_the_conditions(
    low: float, high: float, template_s: float, probe_s: float
) -> None:
    fitted = ratio(LENGTH, location=np.array([0.5, 0.1, -0.05, 0.02]))
    rows = features(LENGTH.place([{"speech_s": template_s}]), LENGTH.place([{"speech_s": probe_s}]))
    first, second = fitted.ratios(np.array(sorted((low, high))), np.repeat(rows, 2, axis=0))
    assert first <= second


def test_conditions_are_held_to_the_range_seen() -> None:
    places = LENGTH.place([{"speech_s": value} for value in (0.001, 1.0, 3.0, 10.0, 500.0)])[:, 0]
    assert places == pytest.approx([0.0, 0.0, math.log(3), math.log(10), math.log(10)])


def test_what_was_not_measured_counts_as_the_mean() -> None:
    seen = Surroundings.of([{"speech_s": 1.0, "snr_db": 5.0}, {"speech_s": math.e, "snr_db": 5.0}], [SPEECH_S, SNR_DB])
    assert seen.names == ("speech_s",)  # the other one never differed
    assert seen.mean == pytest.approx([0.5])
    assert seen.spread == pytest.approx([0.5])
    assert seen.place([{}, {"speech_s": 1.0}, {"face_pixels": 3.0}]).tolist() == [[0.0], [-1.0], [0.0]]


def test_only_what_every_sample_has_is_used() -> None:
    assert Surroundings.of([{"speech_s": 1.0}, {"snr_db": 3.0}], [SPEECH_S, SNR_DB]).names == ()
    assert Surroundings.of([], [SPEECH_S]).names == ()


def test_location_is_held_to_what_was_fitted() -> None:
    fitted = ratio(LENGTH, location=np.array([0.5, 10.0, 0.0, 0.0]))
    held = LikelihoodRatio(
        **{
            **parts_of(fitted),
            "limits": np.array([[0.4, 0.6], [-9, 9]]),
        }
    )
    assert held.standardise(np.array([0.8]), np.array([[1.0, 5.0, 0.0, 0.0]])) == pytest.approx([2.0])  # 0.8 - 0.6


def parts_of(fitted: LikelihoodRatio) -> dict[str, Any]:
    return {part.name: getattr(fitted, part.name) for part in fields(LikelihoodRatio) if part.init}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slope", 0.0),
        ("slope", math.nan),
        ("lowest", 7.0),
        ("top", 1),
        ("trials", 0),
        ("location", np.zeros(2)),
        ("location", np.array([np.inf])),
        ("limits", np.array([[1.0, 0.0], [0.0, 1.0]])),
        ("impostor", np.array([1.0, 0.0], np.float32)),
        ("impostor", np.zeros(0, np.float32)),
    ],
)
def test_impossible_ratios_are_refused(name: str, value: object) -> None:
    parts = parts_of(ratio())
    with pytest.raises(ValueError, match=r"ratio|weights|cohort scores"):
        LikelihoodRatio(**{**parts, name: value})


def test_compensation_removes_what_copies_share() -> None:
    # Copies move along the last axis by an amount of their own; that is the first direction, and it is gone after.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 24)).astype(np.float32)
    axis = np.zeros(24, np.float32)
    axis[-1] = 1
    learnt = compensation(rows, rng.normal(3, 1, size=(40, 1)).astype(np.float32) * axis, directions=1)
    assert np.abs(learnt.directions[0]) == pytest.approx(axis, abs=1e-6)
    cleaned = learnt.apply(rows)
    assert cleaned[:, -1] == pytest.approx(0.0, abs=1e-6)
    assert np.linalg.norm(cleaned, axis=1) == pytest.approx(np.ones(40))
    assert learnt.apply(rows + 5 * axis) == pytest.approx(cleaned, abs=1e-5)


def test_compensation_of_few_dimensions_or_copies_only_centres() -> None:
    rows = np.eye(3, dtype=np.float32)
    assert compensation(rows, rows).directions.shape == (0, 3)
    wide = np.eye(24, dtype=np.float32)
    assert compensation(wide, np.zeros((0, 24), np.float32)).directions.shape == (0, 24)
    centre = compensation(rows, rows)
    assert centre.apply(centre.centre) == pytest.approx([0.0, 0.0, 0.0])  # nothing is left, and nothing is divided


def test_impossible_compensations_are_refused() -> None:
    for centre, rows in (
        (np.zeros(3), np.zeros((1, 4))),
        (np.array([np.nan, 0.0]), np.zeros((0, 2))),
        (np.zeros(2), np.ones((1, 2))),
    ):
        with pytest.raises(ValueError, match=r"directions|finite"):
            Compensation(centre.astype(np.float32), rows.astype(np.float32))


def test_conditions_of_samples_and_templates() -> None:
    measured = {"speech_s": 2.0, "snr_db": math.nan, "level_dbfs": -30.0, "bandwidth_hz": 8000.0}
    assert conditions_of(measured, [SPEECH_S, SNR_DB, BANDWIDTH_HZ]) == {"speech_s": 2.0, "bandwidth_hz": 8000.0}
    assert together([{"speech_s": 2.0, "snr_db": 10.0}, {"speech_s": 3.0, "snr_db": 20.0}]) == {
        "speech_s": 5.0,
        "snr_db": 15.0,
    }
    assert together([]) == {}
