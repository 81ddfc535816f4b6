"""The measurement over real devices: shares and their intervals over people, and what its processes tell each other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from examples.reproduce.selfcalibration.deployment import Outcome, share, written
from examples.reproduce.selfcalibration.devices import Job, Owner


def test_a_share_counts_trials_that_were_made_and_its_interval_people() -> None:
    hits = np.array([[True, True, True, False], [False, False, False, False]])
    tried = np.array([[True, True, True, True], [True, True, True, False]])
    # 3 of 7; of two devices drawn with replacement both are the first (3 of 4), or the second (none), in a quarter each
    assert share(hits, tried, None) == pytest.approx((100 * 3 / 7, 0.0, 75.0))
    everything = np.ones((3, 4), np.bool_)
    assert share(everything, everything, np.array([5, 5, 8, 9])) == (100.0, 100.0, 100.0)
    assert np.isnan(share(hits, np.zeros_like(tried), None)).all()


def test_strangers_are_resampled_by_person_and_not_by_sample() -> None:
    hits = np.array([[True, True, True, True, False, False, False, False]])
    tried = np.ones_like(hits)
    # All samples of one person match and none of the other's: a draw of two people gives 0, 50 or 100 %
    assert share(hits, tried, np.array([1, 1, 1, 1, 2, 2, 2, 2])) == (50.0, 0.0, 100.0)
    value, low, high = share(hits, tried, np.arange(8))
    assert value == 50.0
    assert 0.0 < low < 25.0 < 75.0 < high < 100.0


def test_owners_and_strangers_are_told_apart() -> None:
    outcome = Outcome.empty(1, 4)
    outcome.tried[:] = True
    outcome.accepted[0.01][0] = [True, False, True, True]
    person, stranger = np.array([7, 7, 0, 0]), np.array([True, True, False, False])
    assert outcome.rates(0.01, stranger, person) == (50.0, 50.0, 50.0, 0.0, 0.0, 0.0)


def test_a_job_arrives_as_it_was_sent() -> None:
    job = Job(
        "enrol", "http://127.0.0.1:1", "pepper", "model.uvb", "stores", (Owner("a", "token", ("1.wav", "2.wav")),)
    )
    assert Job.of(json.dumps(asdict(job))) == job


def test_samples_become_the_files_that_an_application_hands_in(tmp_path: Path) -> None:
    pcm = np.linspace(-0.5, 0.5, 800, dtype=np.float32)
    heard, rate = soundfile.read(written((pcm, 8_000), tmp_path / "a"), dtype="float32")
    assert (heard == pcm).all()
    assert rate == 8_000
    picture = Image.open(written(Image.new("RGB", (92, 112), (9, 8, 7)), tmp_path / "b"))
    assert picture.size == (152, 172)  # thirty pixels of room on every side
    assert picture.getpixel((0, 0)) == (9, 8, 7)
