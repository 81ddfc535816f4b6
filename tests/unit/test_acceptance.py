"""What a device tries before it switches to a release, with numbers that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from uvsdk.release.acceptance import NOBODY_VERIFIED, Shares, nobodys, objection, shares
from uvsdk.scoring import Calibration
from uvsdk.scoring.domain import Domain

# 1,000 impostor scores from -0.5 to 0.5: at 1 % the threshold is just above the 990th, 0.4894.
CALIBRATION = Calibration.from_scores(np.linspace(-0.5, 0.5, 1000), model_version="m", source="made by hand")
EAST, NORTH = [1.0, 0.0], [0.0, 1.0]
OWN = np.array([EAST] * 4, np.float32)
NOBODY = np.empty((0, 2), np.float32)


def at(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


def rows(*given: list[float]) -> np.ndarray:
    return np.array(given, np.float32)


def test_an_owner_who_is_recognised_among_strangers_who_are_not() -> None:
    assert objection(OWN, rows(NORTH, at(120)), CALIBRATION, fmr=0.01) == ""
    assert objection(OWN[:1], NOBODY, CALIBRATION) == ""  # one sample says nothing about itself


def test_half_of_the_owners_samples_at_least() -> None:
    # Four samples, 0, 0, 90 and 90 degrees. The others of one at 0 are 0, 90, 90: they point at atan(2) = 63.4 degrees,
    # cos 63.4 = 0.447 < 0.489. None is accepted.
    apart = rows(EAST, EAST, NORTH, NORTH)
    limit = CALIBRATION.threshold(0.01)
    assert shares(apart, NOBODY, CALIBRATION, limit).own == 0.0
    assert objection(apart, NOBODY, CALIBRATION, fmr=0.01).startswith("0% of the owner's own samples are accepted")
    # Where none was accepted before either, that is no reason.
    assert objection(apart, NOBODY, CALIBRATION, fmr=0.01, former=Shares(own=0.0)) == ""
    assert objection(apart, NOBODY, CALIBRATION, fmr=0.01, former=Shares(own=0.25)) != ""
    assert objection(apart, NOBODY, CALIBRATION, fmr=0.01, former=NOBODY_VERIFIED) == ""


def test_one_stranger_in_ten_at_most() -> None:
    # At 60 degrees a stranger scores 0.5 and is let in, at 61 degrees 0.485 and is not.
    ten = [at(60), *[at(61)] * 9]
    assert objection(OWN, rows(*ten), CALIBRATION, fmr=0.01) == ""
    assert objection(OWN, rows(at(60), *ten), CALIBRATION, fmr=0.01) == "18% of other people are accepted as the owner"
    # Somebody who is enrolled here twice was let in before as well.
    same = Shares(strangers=1.0)
    assert objection(OWN, rows(at(60), *ten), CALIBRATION, fmr=0.01, former=same) == ""
    assert objection(OWN, rows(at(60), *ten), CALIBRATION, fmr=0.01, former=NOBODY_VERIFIED) != ""


def test_noise_is_nobody() -> None:
    assert objection(OWN, NOBODY, CALIBRATION, noise=rows(EAST, NORTH)) == ""
    alike = rows(EAST, EAST, NORTH)
    assert objection(OWN, NOBODY, CALIBRATION, noise=alike) == "67% of noise is accepted as the owner"
    assert objection(OWN, NOBODY, CALIBRATION, noise=alike, former=Shares(noise=1.0)) == ""
    made = nobodys(np.arange(100, dtype=np.int16).reshape(10, 10), np.random.default_rng(0))
    assert [item.shape for item in made] == [(10, 10)] * 4
    assert all(sorted(item.ravel()) == list(range(100)) for item in made)
    assert len({item.tobytes() for item in made}) == 4
    assert nobodys(np.zeros(63), np.random.default_rng(0)) == []


def test_the_people_of_the_calibration_are_strangers_too() -> None:
    # Their means lie around (0.4, 0), with variance 0.04 along (1, 0) and 0.01 elsewhere. The owner at (1, 0) sees
    # scores of mean 0.4 and deviation 0.2: above 0.4894 lies what is 0.447 deviations up, 32.7 %. Seen from (0, 1) the
    # mean is 0 and the deviation 0.1: 4.9 deviations, nobody.
    east = np.array([EAST], np.float32)
    domain = Domain(np.array([0.4, 0.0], np.float32), east, np.array([0.04]), 0.01, 30, np.array([1.0, 2.0, 3.0]))
    calibration = replace(CALIBRATION, domain=domain)
    limit = calibration.threshold(0.01)
    assert shares(OWN, NOBODY, calibration, limit).expected == pytest.approx(0.327, abs=1e-3)
    found = objection(OWN, NOBODY, calibration, fmr=0.01)
    assert found == "33% of the people it was calibrated on would be accepted as the owner"
    assert objection(OWN, NOBODY, calibration, fmr=0.01, former=Shares(expected=0.4)) == ""
    assert objection(rows(NORTH, NORTH), NOBODY, calibration, fmr=0.01) == ""


def test_calibrations_that_nobody_could_be_verified_by() -> None:
    assert "no calibration" in objection(OWN, NOBODY, None)
    assert "not finite" in objection(rows([math.nan, 0.0]), NOBODY, CALIBRATION)
    low = Calibration.from_scores(np.linspace(-1, -0.9, 1000), model_version="m", source="forged")
    assert "its calibration is refused" in objection(OWN, NOBODY, low)
    few = Calibration.from_scores(np.linspace(-0.5, 0.5, 100), model_version="m", source="few")
    assert "its calibration is refused" in objection(OWN, NOBODY, few)
    # A rate that is not supported: the default's threshold is tried, and it is for the template to say so.
    assert objection(OWN, NOBODY, CALIBRATION, fmr=1e-5) == ""
    one = Calibration.from_scores(np.linspace(-0.5, 1.0, 1000), model_version="m", source="made by hand")
    assert objection(OWN, NOBODY, one, fmr=0.003) == ""
