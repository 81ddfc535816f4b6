"""APCER, BPCER and their kin by hand, their intervals, and what they keep whatever the scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.errors import ThresholdError
from uvsdk.evaluation.presentation import (
    Presentations,
    Rate,
    apcer_at_bpcer,
    bpcer_at_apcer,
    rates,
)

SCORES = st.lists(st.integers(0, 8).map(lambda tenth: tenth / 8), min_size=1, max_size=12)
GROUPS = st.dictionaries(st.sampled_from(["print", "screen", "mask"]), SCORES, min_size=1)


def presentations(**attacks: list[float]) -> Presentations:
    bona_fide = np.array([0.9, 0.8, 0.7, 0.3])
    return Presentations(bona_fide, {name: np.array(scores) for name, scores in attacks.items()})


def test_rates_by_hand() -> None:
    # At 0.5: one of four bona fide is refused; of the prints 0.6 passes (1 of 4), of the screens 0.5 and 0.7 (2 of 2).
    found = rates(presentations(print=[0.1, 0.2, 0.4, 0.6], screen=[0.5, 0.7]), 0.5)
    assert (found.bpcer.events, found.bpcer.trials, found.bpcer.value) == (1, 4, 0.25)
    assert {name: rate.value for name, rate in found.apcer.items()} == {"print": 0.25, "screen": 1.0}
    assert found.worst_species == "screen"
    assert found.apcer_max is not None
    assert found.apcer_max.value == 1.0
    # Clopper-Pearson of 2 of 2: the lowest p with p^2 >= 2.5 % is sqrt(0.025).
    assert found.apcer_max.interval == pytest.approx((0.025**0.5, 1.0))
    assert found.bpnrr.value == 0.0


def test_what_got_no_answer_is_counted_apart() -> None:
    seen = Presentations(
        np.array([0.9]),
        {"print": np.array([0.1, 0.9])},
        bona_fide_unanswered=3,
        attacks_unanswered={"print": 2, "mask": 5},
    )
    found = rates(seen, 0.5)
    assert found.bpcer.value == 0.0  # of the one that got an answer
    assert found.bpnrr.value == 0.75
    assert found.apcer["print"].value == 0.5
    assert {name: rate.value for name, rate in found.apnrr.items()} == {"mask": 1.0, "print": 0.5}
    assert "mask" not in found.apcer  # nothing is known of it, so neither 0 nor 1 is claimed
    assert seen.species == ("mask", "print")


def test_without_attacks_nothing_is_claimed() -> None:
    found = rates(Presentations(np.array([0.9, 0.1])), 0.5)
    assert (found.apcer, found.apcer_max, found.worst_species) == ({}, None, None)
    assert found.bpcer.value == 0.5
    with pytest.raises(ThresholdError, match="no attack got an answer"):
        bpcer_at_apcer(Presentations(np.array([0.9])), 0.1)


def test_operating_points_by_hand() -> None:
    # Ten prints 0.00 to 0.45 and ten screens 0.0 to 0.9; one of ten may pass. Above 0.8 only the screen 0.9 does, and
    # none of the prints; the lowest threshold that can change a decision there is 0.85, a bona fide score.
    attacks = {"print": np.arange(10) / 20, "screen": np.arange(10) / 10}
    seen = Presentations(np.array([0.85, 0.95, 0.99, 0.5]), attacks)
    found = bpcer_at_apcer(seen, 0.1)
    assert found.threshold == 0.85
    assert found.apcer["screen"].value == 0.1
    assert found.bpcer.value == 0.25
    with pytest.raises(ThresholdError, match=r"10 attacks of print cannot show an APCER of 0\.01, need 100"):
        bpcer_at_apcer(seen, 0.01)
    # The other way round: one of four bona fide may be refused, so up to 0.85, whose refusal would be the second.
    assert apcer_at_bpcer(seen, 0.25).threshold == 0.85
    with pytest.raises(ThresholdError, match=r"4 bona fide presentations cannot show a BPCER of 0\.1, need 10"):
        apcer_at_bpcer(seen, 0.1)


def test_everyone_the_same_score() -> None:
    # A detector that always says the same: at that score all pass, above it none does.
    seen = Presentations(np.full(20, 0.5), {"print": np.full(20, 0.5)})
    found = rates(seen, 0.5)
    assert (found.apcer["print"].value, found.bpcer.value) == (1.0, 0.0)
    found = bpcer_at_apcer(seen, 0.05)
    assert (found.threshold, found.bpcer.value) == (np.inf, 1.0)
    assert apcer_at_bpcer(seen, 0.05).apcer["print"].value == 1.0


@pytest.mark.parametrize("scores", [[np.nan], [np.inf], []])
def test_scores_that_mean_nothing_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match=r"finite|no bona fide"):
        Presentations(np.array(scores))
    if scores:
        with pytest.raises(ValueError, match="count it as unanswered"):
            Presentations(np.ones(1), {"print": np.array(scores)})


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        Presentations(np.ones(1), {"print": np.empty(0)})
    with pytest.raises(ValueError, match="counted from 0"):
        Presentations(np.ones(1), bona_fide_unanswered=-1)
    with pytest.raises(ValueError, match="no proportion"):
        Rate.of(2, 1)
    with pytest.raises(ValueError, match="decides nothing"):
        rates(Presentations(np.ones(1)), float("nan"))
    for limit in (0.0, 1.0):
        with pytest.raises(ThresholdError):
            bpcer_at_apcer(presentations(print=[0.1]), limit)
        with pytest.raises(ThresholdError):
            apcer_at_bpcer(presentations(print=[0.1]), limit)


@settings(deadline=None, max_examples=25)  # each rate's interval is found by bisection
@given(SCORES, GROUPS)
def test_rates_move_in_opposite_directions(bona_fide: list[float], groups: dict[str, list[float]]) -> None:
    seen = Presentations(np.array(bona_fide), {name: np.array(scores) for name, scores in groups.items()})
    found = [rates(seen, threshold) for threshold in (-1.0, 0.25, 0.5, 0.75, 2.0)]
    bpcer = [item.bpcer.value for item in found]
    apcer = [item.apcer_max.value for item in found if item.apcer_max is not None]
    assert bpcer == sorted(bpcer)
    assert apcer == sorted(apcer, reverse=True)
    assert (bpcer[0], bpcer[-1], apcer[0], apcer[-1]) == (0.0, 1.0, 1.0, 0.0)
    for item in found:
        for rate in (item.bpcer, *item.apcer.values()):
            assert rate.interval[0] <= rate.value <= rate.interval[1]


@settings(deadline=None, max_examples=25)
@given(SCORES, GROUPS, st.sampled_from([0.1, 0.3, 0.5]))
def test_an_operating_point_keeps_its_limit_and_is_the_best_that_does(
    bona_fide: list[float], groups: dict[str, list[float]], limit: float
) -> None:
    seen = Presentations(np.array(bona_fide), {name: np.array(scores) for name, scores in groups.items()})
    try:
        found = bpcer_at_apcer(seen, limit)
    except ThresholdError:
        assert min(len(scores) for scores in groups.values()) * limit < 1
        return
    assert found.apcer_max is not None
    assert found.apcer_max.value <= limit + 1e-9
    for score in {*bona_fide, *(score for scores in groups.values() for score in scores)}:
        if score < found.threshold:
            lower = rates(seen, score).apcer_max
            assert lower is not None
            assert lower.value > limit
