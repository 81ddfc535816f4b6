"""How complete an enrolment is and what to expect of it, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.conftest import Numbers
from uvsdk.arrays import Float32
from uvsdk.enrolment import completeness as module
from uvsdk.enrolment.completeness import Completeness, expected_fnmr
from uvsdk.scoring import Calibration
from uvsdk.templates.template import Template

# The median impostor has a cosine of 0.5, so two people are 0.5 apart.
IMPOSTORS = Calibration.from_scores(np.linspace(0, 1, 1001), model_version="m", source="by hand")


def at(*degrees: float) -> Float32:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def completeness(
    kind: str, embeddings: Float32, *, speech_s: float | None, calibration: Calibration | None
) -> Completeness:
    conditions = {} if speech_s is None else {"speech_s": speech_s}
    template = Template(embeddings[0], "m", kind, len(embeddings), conditions=conditions)
    return module.completeness(template, embeddings, calibration=calibration)


def test_nothing_is_missing() -> None:
    found = completeness("voice", at(0, 30, 60, 90, 10), speech_s=15.0, calibration=IMPOSTORS)
    assert found == Completeness(100, ())


def test_what_is_most_lacking_counts() -> None:
    # 3 of 5 samples are 60 %, 6 of 15 s are 40 %.
    found = completeness("voice", at(0, 30, 60), speech_s=6.0, calibration=IMPOSTORS)
    assert found == Completeness(40, ("2 more samples (3 of 5)", "9.0 s more speech (6.0 of 15 s)"))
    assert completeness("face", at(0, 30, 60), speech_s=None, calibration=IMPOSTORS).percent == 60
    # Rounded down, so that 100 is never said too early.
    assert completeness("voice", at(0, 30, 60, 90, 10), speech_s=14.999, calibration=IMPOSTORS).percent == 99


def test_a_burst_lacks_variety(numbers: Numbers) -> None:
    # All pairs 1 - cos 10 = 0.01519 apart at most; five at 0, 0, 0, 0, 10: 4 of 10 pairs, mean 0.006077; over 0.5 that
    # is 0.01215, of 0.1 wanted: 12 %.
    found = completeness("face", at(0, 0, 0, 0, 10), speech_s=None, calibration=IMPOSTORS)
    assert found.percent == 12
    (words,) = found.missing
    assert words == (
        "variety, the samples are nearly alike: turn the head a little between pictures, change the light, or add some "
        "another day"
    )
    assert "another day" in completeness("numbers", at(0, 0), speech_s=None, calibration=IMPOSTORS).missing[1]


def test_variety_is_judged_only_where_it_can_be() -> None:
    assert completeness("face", at(0, 0, 0, 0, 0), speech_s=None, calibration=None).percent == 100
    assert completeness("face", at(0), speech_s=None, calibration=IMPOSTORS) == Completeness(
        20, ("4 more samples (1 of 5)",)
    )
    everyone_alike = Calibration.from_scores(np.ones(10), model_version="m", source="by hand")
    assert completeness("face", at(0, 0, 0, 0, 0), speech_s=None, calibration=everyone_alike).percent == 100


def test_expected_fnmr_by_hand() -> None:
    found = expected_fnmr(np.array([0.4, 0.5, 0.9, 0.8]), 0.5)
    assert found is not None
    assert (found.rejected, found.trials, found.rate) == (1, 4, 0.25)
    assert found.interval == pytest.approx((0.0063, 0.8059), abs=1e-4)  # Clopper-Pearson of 1 in 4
    assert found.words == "1 of 4 samples rejected, so 0 to 81 % (95 % interval), and more on other days"


def test_three_samples_say_next_to_nothing_and_say_so() -> None:
    found = expected_fnmr(np.ones(3), 0.5)
    assert found is not None
    # 1 - 0.025^(1/3): none of three rejected is what a rate of 71 % gives one time in forty.
    assert found.interval == pytest.approx((0.0, 1 - 0.025 ** (1 / 3)), abs=1e-9)
    assert math.isclose(found.rate, 0.0)


def test_one_sample_has_no_others() -> None:
    assert expected_fnmr(np.ones(1), 0.5) is None
    assert expected_fnmr(np.empty(0), 0.5) is None
