"""Where people lie: distances and rises that a reader can do by hand, and strangers of a foreign domain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uvsdk.arrays import Float64
from uvsdk.scoring.domain import QUANTILES, Domain, Placement
from uvsdk.scoring.moments import Moments, unit

# Two dimensions, variances 3 and 1: r is their mean, 2.
FLAT = Domain(
    np.zeros(2, np.float32), np.eye(2, dtype=np.float32), np.array([3.0, 1.0]), 0.0, 40, np.array([0.5, 1.0, 2.0])
)


def test_the_distance_by_hand() -> None:
    assert FLAT.ridge == 2.0
    assert FLAT.distance(np.array([2.0, 0.0])) == pytest.approx(4 / (3 + 2))
    assert FLAT.distance(np.array([0.0, 3.0])) == pytest.approx(9 / (1 + 2))
    # One direction kept of three: the others share the variance 4, so 2 each, and r = (2 + 4) / 3 = 2.
    partly = Domain(
        np.array([1.0, 0.0, 0.0], np.float32),
        np.array([[0.0, 1.0, 0.0]], np.float32),
        np.array([2.0]),
        4.0,
        9,
        np.array([0.0, 1.0, 3.0]),
    )
    assert partly.ridge == 2.0
    assert partly.distance(np.array([2.0, 2.0, 1.0])) == pytest.approx(2**2 / (2 + 2) + (1**2 + 1**2) / (2 + 2))


def test_the_rise_by_hand() -> None:
    # f = 3 / 5 + 1 / 3 of d = 2; T = 4; the middle, 1, leaves more than a quarter of d - f = 16 / 15 no longer.
    assert FLAT.gain == pytest.approx(16 / 15 / 4 / 4)
    # Both lie 3 out where the middle is 1: sqrt(2 * 2) beyond it.
    same = np.array([0.0, 3.0])
    assert FLAT.rise(same, same) == pytest.approx(2 * 15)
    assert FLAT.rise(same, same, upper=True) == pytest.approx(2.5 * 15)  # from the low end, 0.5
    assert FLAT.rise(same, np.zeros(2)) == 0.0  # an offset counts that both share
    # With a lower middle, 0.5, what is left of d - f counts whole: 16 / 15 - 1 / 2 over T.
    assert replace(FLAT, distances=np.array([0.1, 0.5, 2.0])).gain == pytest.approx((16 / 15 - 1 / 2) / 4)
    # Around a mean the score's own linear part is read off: (t - mu) . mu = 0.5 * 1, (x - mu) . mu = 0.
    around = Domain(
        np.array([1.0, 0.0], np.float32), np.eye(2, dtype=np.float32), FLAT.variances, 0.0, 40, FLAT.distances
    )
    assert around.rise(np.array([1.5, 0.0]), np.array([1.0, 0.0])) == pytest.approx(0.5)


def test_the_verdict_and_what_lies_outside() -> None:
    near, far = np.array([1.0, 0.0]), np.array([0.0, 3.0])
    inside = FLAT.place(near, near)
    assert (inside.verdict, inside.reasons, inside.rise, inside.limit) == ("inside", (), 0.0, 2.0)
    outside = FLAT.place(near, far)
    assert (outside.verdict, outside.reasons, outside.rise) == ("outside", ("probe",), 0.0)
    both = FLAT.place(far, far)
    assert (both.verdict, both.reasons) == ("outside", ("template", "probe"))
    assert both.rise == both.cosine_rise == pytest.approx(30.0)
    lacking = FLAT.place(far, far, lacking=("probe speech_s",))
    assert lacking.reasons[-1] == "probe speech_s"
    assert lacking.rise == pytest.approx(37.5)
    assert Placement().verdict == "unknown"


@pytest.mark.parametrize(
    "changed",
    [
        {"distances": np.array([2.0, 1.0, 3.0])},
        {"distances": np.zeros(2)},
        {"variances": np.array([1.0, -1.0])},
        {"variances": np.zeros(2)},
        {"directions": np.ones((2, 2), np.float32)},
        {"mean": np.array([np.nan, 0.0], np.float32)},
        {"rest": -1.0},
        {"people": 0},
    ],
    ids=str,
)
def test_what_is_no_domain(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"domain|variances"):
        replace(FLAT, **changed)  # type: ignore[arg-type]


def test_everybody_in_one_place_is_no_domain() -> None:
    one = Moments.of(np.array([[0.6, 0.8]]))
    assert Domain.of(one + one) is None
    assert Domain.of_people(np.array([[0.6, 0.8]] * 3), np.arange(3)) is None


def sphere(rng: np.random.Generator, people: int, offset: Float64) -> Float64:
    """One unit row for each: more variance in the first dimensions, as embeddings have."""
    scales = 1.0 / np.sqrt(1.0 + np.arange(len(offset)))
    return unit(rng.normal(size=(people, len(offset))) * scales / np.linalg.norm(scales) + offset)


def test_one_in_a_hundred_of_their_own_kind_lie_beyond() -> None:
    rng = np.random.default_rng(5)
    nowhere = np.zeros(96)
    domain = Domain.of_people(sphere(rng, 400, nowhere), np.arange(400))
    assert domain is not None
    others = np.array([domain.distance(row) for row in sphere(rng, 4000, nowhere)])
    # 1 % of 4,000 is 40 ± 6, of a quantile that is itself read from 400 people (± 0.5 %).
    assert 0.002 < np.mean(others > domain.limit) < 0.025
    for share, distance in zip(QUANTILES[:2], domain.distances[:2], strict=True):
        assert np.mean(others <= distance) == pytest.approx(share, abs=0.08)


def test_sums_alone_know_how_far_others_lie() -> None:
    """Without the unit norm embeddings are normal, as the formula takes them; eighty people in 96 dimensions."""
    rng = np.random.default_rng(6)
    scales = 1.0 / np.sqrt(1.0 + np.arange(96))
    sums = Moments.none(96)
    for row in rng.normal(size=(80, 96)) * scales:
        sums += Moments.of(row[None])
    domain = Domain.of(sums)
    assert domain is not None
    others = np.array([domain.distance(row) for row in rng.normal(size=(4000, 96)) * scales])
    assert np.mean(others > domain.limit) < 0.02
    assert domain.distances[1] == pytest.approx(np.median(others), rel=0.15)


def test_strangers_of_a_foreign_domain_are_asked_what_they_have_in_common() -> None:
    rng = np.random.default_rng(7)
    nowhere = np.zeros(96)
    domain = Domain.of_people(sphere(rng, 400, nowhere), np.arange(400))
    assert domain is not None
    own = sphere(rng, 1000, nowhere)
    threshold = np.quantile((own[:500] * own[500:]).sum(axis=1), 0.99)
    common, rises, as_it_was, as_it_is = [], [], [], []
    for _ in range(20):  # offsets as long as people are apart, in any direction
        foreign = sphere(rng, 100, unit(rng.normal(size=96)))
        common.append(float(np.sum(foreign.mean(axis=0) ** 2)))
        for template, probe in zip(foreign[:50], foreign[50:], strict=True):
            rises.append(domain.rise(template, probe))
            placed = domain.place(template, probe)
            if placed.verdict == "outside":
                as_it_was.append(template @ probe >= threshold)
                as_it_is.append(template @ probe - placed.rise >= threshold)
    # What strangers have in common is read from single pairs without bias: 1,000 of them, ± 0.2 each.
    assert np.mean(rises) == pytest.approx(np.mean(common), rel=0.15)
    assert len(as_it_was) > 300  # of 1,000; the others lie as the people of the calibration do
    assert np.mean(as_it_was) > 0.5  # of what should be 1 %
    assert np.mean(as_it_is) < 0.03
