"""Who made the samples of an enrolment: vectors in a plane, whose cosines are those of the angles between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.enrolment import consistency
from uvsdk.scoring import Calibration

SAME = math.cos(math.radians(40))


def at(*degrees: float) -> Float32:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def listed(rows: Float32, same: float | None) -> list[list[int]]:
    return [group.tolist() for group in consistency.groups(rows, same=same)]


def test_groups_by_hand() -> None:
    # 0, 10 and 20 degrees are one person's; 90 and 95 another's: means at 10 and 92.5, 82.5 degrees apart.
    assert listed(at(0, 90, 10, 95, 20), SAME) == [[0, 2, 4], [1, 3]]
    # A chain: 0 and 30 are nearest and join at 15, and 61 is 46 degrees from there.
    assert listed(at(0, 30, 61), SAME) == [[0, 1], [2]]
    # Everybody somebody else.
    assert listed(at(0, 90, 180), SAME) == [[0], [1], [2]]
    assert listed(at(0), SAME) == [[0]]


def test_the_majority_is_the_person() -> None:
    majority = consistency.majority(at(0, 90, 10, 95, 20), same=SAME)
    assert majority is not None
    assert majority.tolist() == [0, 2, 4]
    assert consistency.majority(at(0, 90, 10, 95), same=SAME) is None  # two and two
    assert consistency.majority(at(0, 90), same=SAME) is None  # one and one
    assert consistency.majority(at(0, 10, 90, 180), same=SAME) is None  # two of four, and two strangers
    assert consistency.majority(np.empty((0, 2), np.float32), same=SAME) is None


def test_without_calibration_samples_are_judged_by_each_other() -> None:
    # 0 and 10: 1 - cos 10 = 0.015. The third, 85 degrees from their mean, lies at 0.91, over 0.4 and 60 times as far.
    assert listed(at(0, 10, 90), None) == [[0, 1], [2]]
    # 50 degrees from the mean is 0.36: under 0.4, so never an outlier, however close the other two lie.
    assert listed(at(0, 1, 50.5), None) == [[0, 1, 2]]
    # 0 and 80: 0.83; the third lies 1 - cos 120 = 1.5 from their mean, less than twice as far.
    assert listed(at(0, 80, 160), None) == [[0, 1, 2]]
    # Two pairs contradict each other.
    assert listed(at(0, 5, 90, 95), None) == [[0, 1], [2, 3]]
    # Two samples have nothing to be judged by.
    assert listed(at(0, 180), None) == [[0, 1]]
    assert consistency.majority(at(0, 180), same=None) is not None


def test_copies_and_opposites_are_defined() -> None:
    for same in (SAME, None):
        assert listed(at(*[7] * 5), same) == [[0, 1, 2, 3, 4]]
    # Four in a cross have a mean of no length.
    assert listed(at(0, 90, 180, 270), SAME) == [[0], [1], [2], [3]]
    assert listed(at(0, 0, 180, 180), SAME) == [[0, 1], [2, 3]]
    assert listed(at(0, 0, 180, 180), None) == [[0, 1], [2, 3]]
    assert listed(at(0, 90, 180, 270), -math.inf) == [[0, 1, 2, 3]]


def test_what_is_like_those_enrolled_already() -> None:
    anchor = at(0, 10, 20)
    assert consistency.like(at(12, 49, 51), anchor, same=SAME).tolist() == [True, True, False]  # the mean is at 10
    # Without calibration: the anchor's farthest is 15 degrees from the others, 0.03; twice that is under FAR, 0.4,
    # which is 53 degrees.
    assert consistency.like(at(12, 62, 64), anchor, same=None).tolist() == [True, True, False]
    # A wide anchor: 0 against the mean of 60 and 120 at 90 degrees: distance 1, so up to 2 everything is alike.
    assert consistency.like(at(180, 300), at(0, 60, 120), same=None).tolist() == [True, True]
    assert consistency.like(at(50, 54), at(0), same=None).tolist() == [True, False]  # one sample: FAR alone


def test_similarity_by_hand() -> None:
    group = at(0, 0, 90)
    # Among the group, 0 degrees is compared with the mean of 0 and 90: cos 45.
    assert consistency.similarity(at(0)[0], group, among=True) == pytest.approx(math.sqrt(0.5))
    # From outside, with the mean of all: (2, 1) / sqrt 5.
    assert consistency.similarity(at(0)[0], group, among=False) == pytest.approx(2 / math.sqrt(5))
    assert consistency.similarity(at(0)[0], at(0), among=True) is None
    assert consistency.similarity(at(0)[0], at(0)[:0], among=False) is None
    # Others that cancel out have no direction.
    assert consistency.similarity(at(0)[0], at(0, 90, 270), among=True) == pytest.approx(0.0, abs=1e-3)


def test_the_limit_is_read_from_the_calibration() -> None:
    scores = np.linspace(0, 1, 1001)
    calibration = Calibration.from_scores(scores, model_version="m", source="by hand")
    # One in a hundred reaches it: of 1,001 ten may.
    assert consistency.limit(calibration) == pytest.approx(0.99, abs=1e-6)
    # It follows an application to a higher rate and not to a lower.
    assert consistency.limit(calibration, 0.2) == pytest.approx(0.8, abs=1e-3)
    assert consistency.limit(calibration, 0.003) == consistency.limit(calibration)
    # Few trials: 30 support one in ten.
    few = Calibration.from_scores(np.arange(30) / 30, model_version="m", source="by hand")
    assert consistency.limit(few) == pytest.approx(26 / 30, abs=1e-6)
    assert consistency.limit(None) is None
    three = Calibration.from_scores(np.zeros(3), model_version="m", source="by hand")
    assert consistency.limit(three) is None


@given(
    own=st.integers(3, 8),
    foreign=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    calibrated=st.booleans(),
)
def test_a_minority_far_away_is_always_found_and_order_does_not_matter(
    own: int, foreign: int, seed: int, calibrated: bool
) -> None:
    foreign = min(foreign, own - 1)
    rng = np.random.default_rng(seed)
    angles = np.concatenate([rng.uniform(-8, 8, own), rng.uniform(112, 128, foreign)])
    order = rng.permutation(own + foreign)
    found = consistency.majority(at(*angles[order]), same=SAME if calibrated else None)
    assert found is not None
    assert sorted(order[found].tolist()) == list(range(own))


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), calibrated=st.booleans())
def test_every_sample_is_in_one_group(seed: int, count: int, calibrated: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 4))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    found = listed(rows, SAME if calibrated else None)
    assert sorted(place for group in found for place in group) == list(range(count))
    assert [len(group) for group in found] == sorted((len(group) for group in found), reverse=True)
