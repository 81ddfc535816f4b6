"""Scores of which the tail is kept whole: what thresholds and rates come of the counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.errors import BundleError, ThresholdError
from uvsdk.scoring import Calibration, clopper_pearson, record
from uvsdk.scoring.plausibility import check
from uvsdk.scoring.ranked import TAIL_SHARE, RankedScores, keep


def calibration(scores: np.ndarray, kept: int = 100_000) -> Calibration:
    return Calibration.from_scores(scores, model_version="m", source="numbers", kept=kept, people=40)


def test_by_hand() -> None:
    # Twelve scores, eight kept: the four highest, and of the eight others those with the counts 5, 6.7, 9 and 12.
    scores = keep(np.arange(12) / 12, 8)
    assert (scores.values * 12).round().tolist() == [0, 3, 5, 7, 8, 9, 10, 11]
    assert scores.above.tolist() == [12, 9, 7, 5, 4, 3, 2, 1]
    assert scores.trials == 12
    # One of two and one of three in twelve may pass: 11, then 10 and 11.
    assert scores.threshold(1) * 12 == pytest.approx(10, abs=1e-5)
    assert scores.threshold(2) * 12 == pytest.approx(9, abs=1e-5)
    # What lies between 3 and 5 is not kept; where 8 may pass, the seven from 5 on do.
    assert scores.threshold(8) * 12 == pytest.approx(5)
    assert scores.count(4 / 12) == (7, 8)
    assert scores.count(np.float32(5 / 12)) == (7, 7)
    assert scores.count(0.99) == (0, 0)
    assert scores.count(-1.0) == (12, 12)
    # 4 counts as 5, 1 and 2 as 3, 6 as 7.
    assert scores.weights.tolist() == [1, 3, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("decimals", [7, 3, 1])
@pytest.mark.parametrize("kept", [50, 1000])
def test_a_kept_tail_gives_the_thresholds_of_all_trials(decimals: int, kept: int) -> None:
    scores = np.random.default_rng(decimals).normal(0, 0.2, 20_000).clip(-1, 1).round(decimals)
    whole, part = calibration(scores), calibration(scores, kept)
    assert part.above is not None
    assert len(part.impostor) <= kept
    assert part.trials() == whole.trials() == 20_000
    tail = int((part.impostor > np.sort(scores.astype(np.float32))[-int(kept * TAIL_SHARE) - 1]).sum())
    for allowed in (*range(3, tail), 5000, 12_000):
        fmr = allowed / 20_000
        limit = part.threshold(fmr)
        if allowed < tail:
            assert limit.score == whole.threshold(fmr).score
            assert limit.interval == whole.threshold(fmr).interval
        # Elsewhere it is never laxer.
        assert limit.score >= whole.threshold(fmr).score
        assert (scores.astype(np.float32) >= np.float32(limit.score)).sum() <= allowed
        assert limit.trials == 20_000


@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=60),
    st.integers(4, 20),
    st.integers(4, 20),
    st.integers(0, 60),
)
def test_counts_are_those_of_all_scores(numbers: list[int], first: int, second: int, allowed: int) -> None:
    scores = np.array(numbers, np.float32) / 20
    once = keep(scores, first)
    for part in (once, keep(once.values, second, above=once.above)):  # thinned, and thinned again
        assert part.trials == len(scores)
        assert part.weights.sum() == len(scores)
        assert part.values[0] == scores.min()
        assert part.values[-1] == scores.max()
        for value, above in zip(part.values, part.above, strict=True):
            assert (scores >= value).sum() == above
        for value in np.arange(-21, 22) / 20:
            least, most = part.count(value)
            assert least <= (scores >= np.float32(value)).sum() <= most
        limit = part.threshold(min(allowed, len(scores) - 1))
        assert (scores >= np.float32(limit)).sum() <= allowed


def test_millions_of_trials() -> None:
    """What a card of 5,000 evenly spaced scores made of 0.01 %: 27 times too strict."""
    scores = np.random.default_rng(0).normal(0, 0.12, 3_000_000).astype(np.float32)
    found = calibration(scores, 5000)
    for fmr, least in ((1e-4, 1.0), (1e-3, 0.997), (1e-2, 0.997), (0.1, 0.997)):
        limit = found.threshold(fmr)
        rate = (scores >= limit.score).mean()
        assert least * fmr - 1e-12 <= rate <= fmr
        assert limit.interval[0] < rate < limit.interval[1]
    assert found.trials() == 3_000_000
    assert found.account == "3,000,000 impostor trials of 40 people"
    assert found.strictest() == 1e-4


def test_a_rate_between_two_kept_scores_has_the_wider_interval() -> None:
    found = calibration(np.arange(2000) / 2000, 100)
    value = float(found.impostor[10] + found.impostor[11]) / 2
    assert found.above is not None
    least, most = int(found.above[11]), int(found.above[10]) - 1
    low, high = found.interval(value)
    assert (low, high) == (clopper_pearson(least, 2000)[0], clopper_pearson(most, 2000)[1])


def test_bytes_keep_the_counts_and_forged_ones_are_refused() -> None:
    found = calibration(np.linspace(-0.5, 0.5, 10_000), 100)
    again = record.from_bytes(record.to_bytes(found), ())
    assert again.above is not None
    assert again.above.tolist() == found.above.tolist()  # type: ignore[union-attr]
    assert (again.people, again.trials(), again.account) == (40, 10_000, found.account)
    assert again.digest == found.digest
    counts = found.above
    assert counts is not None
    forgeries = [
        counts[:-1],  # not one for each
        counts[::-1].copy(),  # rising
        np.where(counts == 1, 0, counts),  # the highest of all is not among all
        np.minimum(counts, 20),  # fewer trials than scores
        np.where(counts == counts[0], 1 << 60, counts),
        np.concatenate([counts[:1], counts[:1], counts[2:]]),  # different scores, equal counts
    ]
    for forged in forgeries:
        with pytest.raises(ValueError, match="count"):
            replace(found, above=forged)
        body = record.to_bytes(found)
        if len(forged) == len(counts):
            body = body.replace(counts.tobytes(), forged.astype("<i8").tobytes())
            with pytest.raises(BundleError, match="does not read"):
                record.from_bytes(body, ())
    check(again)


def test_what_is_measured_of_all_trials() -> None:
    scores = np.random.default_rng(2).normal(0.1, 0.2, 30_000).clip(-1, 1)
    ranked = keep(scores, 2000)
    assert ranked.mean == pytest.approx(scores.mean(), abs=2e-3)
    assert ranked.median == pytest.approx(np.median(scores), abs=2e-3)
    whole = RankedScores.of(np.sort(scores.astype(np.float32)))
    assert whole.mean == pytest.approx(scores.mean(), abs=1e-6)
    assert whole.weights.tolist() == [1] * 30_000 or whole.weights.sum() == 30_000


def test_the_refusal_says_what_the_account_says() -> None:
    found = calibration(np.linspace(-1, 0.5, 3200), 200)
    with pytest.raises(ThresholdError, match=r"needs at least 30000 impostor trials, there are 3200 of 40 people"):
        found.threshold(1e-4)
    assert found.account == "3,200 impostor trials of 40 people"
    assert found.lowest_fmr() == pytest.approx(3 / 3200)
    assert math.isclose(found.default_fmr(), 0.00094)
