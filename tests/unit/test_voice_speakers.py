"""Two speakers in one recording: both differences by hand, their properties, and who refuses from when on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.errors import BundleError, LowQualityError
from uvsdk.modality.voice.frames import Framing
from uvsdk.modality.voice.speakers import difference_of_parts, difference_of_spans, with_speakers
from uvsdk.scoring import Quality

ONE, OTHER = np.eye(2, dtype=np.float32)
QUALITY = Quality({"speech_s": 8.0}, ("kept",))


def rows(first: int, second: int) -> Float32:
    return np.stack([ONE] * first + [OTHER] * second)


def test_parts_that_differ() -> None:
    assert difference_of_parts(rows(6, 0)) == pytest.approx(0.0)
    assert difference_of_parts(rows(3, 2)) == pytest.approx(1.0)
    # One odd window among six: the best cut leaves two windows with it, mean (1, 1) against (1, 0): cosine 0.7071.
    assert difference_of_parts(rows(5, 1)) == pytest.approx(1 - 2**-0.5)


def test_spans_that_differ() -> None:
    assert difference_of_spans(rows(6, 0)) == pytest.approx(0.0)
    # Cut where they change: 1 / (1 + 0.4 (1/3 + 1/2)).
    assert difference_of_spans(rows(3, 2)) == pytest.approx(3 / 4)
    # One odd span of six, alone in its part: 1 / (1 + 0.4 (1/5 + 1)) = 0.676 exceeds that of two spans with it,
    # (1 - 0.7071) / (1 + 0.4 (1/4 + 1/2)) = 0.225.
    assert difference_of_spans(rows(5, 1)) == pytest.approx(1 / 1.48)


@given(st.integers(2, 12), st.integers(0, 2**32 - 1), st.floats(0.01, 100.0))
def test_the_difference_depends_on_directions_alone(count: int, seed: int, factor: float) -> None:
    spans = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    difference = difference_of_spans(spans)
    assert 0.0 <= difference <= 1.0
    assert difference_of_spans(spans[::-1]) == pytest.approx(difference, abs=1e-5)
    assert difference_of_spans(np.float32(factor) * spans) == pytest.approx(difference, abs=1e-4)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 5)))[0]
    assert difference_of_spans((spans @ rotation).astype(np.float32)) == pytest.approx(difference, abs=1e-4)


def test_two_speakers_are_refused_and_short_recordings_are_not_judged() -> None:
    """A model without spans is judged by its windows."""
    with pytest.raises(LowQualityError, match=r"more than one person seems to speak.*record one person alone"):
        with_speakers(QUALITY, rows(2, 2), None, policy="standard")
    assert with_speakers(QUALITY, rows(1, 2), None, policy="strict") == QUALITY
    same = with_speakers(QUALITY, rows(4, 0), None, policy="strict")
    assert same.measured == {"speech_s": 8.0, "second_speaker": pytest.approx(0.0)}
    assert same.advice == ("kept",)
    unrefused = with_speakers(QUALITY, rows(2, 2), None, policy="off")
    assert unrefused.measured["second_speaker"] == pytest.approx(1.0)


def test_spans_are_judged_by_the_limit_of_the_bundle() -> None:
    """Windows say nothing then, and half seconds are enough: of two windows, eight spans."""
    windows = rows(1, 1)
    with pytest.raises(LowQualityError, match=r"difference between its parts 0\.833, need at most 0\.55"):
        with_speakers(QUALITY, windows, rows(4, 4), policy="standard", limit=0.55)
    assert with_speakers(QUALITY, windows, rows(2, 2), policy="standard", limit=0.55) == QUALITY
    assert with_speakers(QUALITY, rows(2, 2), rows(8, 0), policy="standard", limit=0.55).advice == ("kept",)
    assert with_speakers(QUALITY, windows, rows(4, 4), policy="standard", limit=0.9).measured == {
        "speech_s": 8.0,
        "second_speaker": pytest.approx(1 / 1.2),
    }
    with pytest.raises(LowQualityError):  # strict: six sevenths of the limit
        with_speakers(QUALITY, windows, rows(4, 4), policy="strict", limit=0.9)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), "0.55"])
def test_a_limit_that_is_none_is_refused(limit: float | str) -> None:
    with pytest.raises(BundleError):
        Framing.read({"second_speaker": limit})
    assert Framing.read({}).second_speaker == 0.35
