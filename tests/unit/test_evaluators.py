"""What an operator of few people is told: how many there are, how many it takes, and what can be done without."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from uvsdk.federation.messages import TrainingConfig
from uvsdk_server.evaluators import Evaluators
from uvsdk_server.store.rows import Respondent

CONFIG = TrainingConfig("clinic", "voice", "ge2e", "fedaws")


def devices(trains: int, evaluates: int) -> list[Respondent]:
    """One of each person, and a second one of the first."""
    roles = [False] * trains + [True] * evaluates
    found = [Respondent(f"device {place}", f"user {place}", role) for place, role in enumerate(roles)]
    return [replace(found[0], device_id="another"), *found]


@pytest.mark.parametrize(
    ("config", "trains", "evaluates", "said"),
    [
        # 8 who train, and 8 of those after them at a share of 0.2: 8 + 40
        (CONFIG, 6, 0, "0 of 6 people here only evaluate; it takes 8 .* a share of 0.2 .*: about 48 people in all"),
        (replace(CONFIG, evaluation_share=0.9), 8, 3, "3 of 11 people .* a share of 0.9 .* about 17 people"),
        (replace(CONFIG, min_clients=12), 6, 0, "The first 12 who join train.* about 52 people"),
        (replace(CONFIG, evaluation_share=0.0), 6, 0, "evaluation_share is 0, so nobody ever will"),
        (replace(CONFIG, rounds=0), 0, 6, "6 of 6 people .*Everybody here does, so 2 more must join"),
        (replace(CONFIG, evaluation="cohort"), 2, 0, "^2 people are here, 3 are the least"),
    ],
)
def test_how_many_are_missing(config: TrainingConfig, trains: int, evaluates: int, said: str) -> None:
    found = Evaluators.of(config, devices(trains, evaluates))
    assert not found.suffice
    assert re.search(said, found.words(candidate=False))


def test_what_can_be_done_without_is_what_works() -> None:
    few = Evaluators.of(CONFIG, devices(6, 0))
    assert "what verifies keeps its calibration" in few.words(candidate=False)
    assert "uvsdk calibrate" in few.words(candidate=False)
    assert "uvsdk releases promote" in few.words(candidate=True)
    assert "uvsdk releases promote" not in few.words(candidate=False)


def test_people_and_not_devices_are_counted() -> None:
    assert Evaluators.of(replace(CONFIG, rounds=0), devices(0, 8)).suffice
    assert not Evaluators.of(replace(CONFIG, rounds=0), devices(0, 7)).suffice
    assert Evaluators.of(replace(CONFIG, evaluation="cohort"), devices(3, 0)).suffice


def test_nothing_is_scored_without_a_cohort_where_one_is_needed() -> None:
    with_one = Evaluators.of(replace(CONFIG, evaluation="cohort"), devices(3, 0))
    assert (with_one.scored(True), with_one.scored(False)) == (True, False)
    assert Evaluators.of(CONFIG, devices(3, 0)).scored(False)
    assert not Evaluators.of(replace(CONFIG, evaluation="off"), devices(3, 0)).scored(True)
