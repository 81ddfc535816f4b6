"""Who is who in the demonstration, and when what it sees of a release fails a run."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from uvsdk.federation.messages import TrainingConfig

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
NAMES = tuple(f"person {number}" for number in range(20))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO))
    return importlib.import_module("groups")


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO))
    return importlib.import_module("life")


@pytest.mark.parametrize(
    ("people", "trained", "evaluate", "outside"), [(20, 8, 9, 3), (17, 8, 9, 0), (10, 8, 2, 0), (8, 8, 0, 0)]
)
@pytest.mark.parametrize("algorithm", ["fedaws", "fixed"])
def test_everybody_is_in_one_group(
    groups: ModuleType, algorithm: str, people: int, trained: int, evaluate: int, outside: int
) -> None:
    names = NAMES[:people]
    joining, kept_out = groups.order(names, 20)
    share = groups.share(len(joining))
    config = TrainingConfig("demo", "voice", "ge2e", algorithm, evaluation_share=share, seed=20)
    found = groups.assign(joining, kept_out, {name: f"hash of {name}" for name in names}, config)
    assert [len(found.trained), len(found.evaluate), len(found.outside)] == [trained, evaluate, outside]
    assert sorted(found.joined + found.outside) == sorted(names)
    assert found.trained[:8] == joining[:8]
    assert set(found.strangers) == set(names) - set(found.trained)


def lived(life: ModuleType, *, impostors: int, genuine: int = 4, **changed: object) -> object:
    """Six pairs at a false match rate of 1 %, the same over both routes."""
    attempts = [
        life.Attempt(
            life.Pair(f"ada {number}", "eve", 0),
            own,
            route,
            accepted=number < (genuine if own else impostors),
            score=0.8,
            threshold=0.74,
            release=2,
            asked_fmr=0.01,
            fmr=0.01,
        )
        for number in range(6)
        for own in (True, False)
        for route in life.ROUTES
    ]
    attempts[0] = replace(attempts[0], **changed)  # a genuine one, over REST
    release = {"number": 2, "cause": "gate", "round_id": 20, "evaluation": [{"fnmr": 0.4, "people": 9}]}
    return life.Lived(release, tuple(attempts))


def test_impostors_fail_a_run_where_the_rate_does_not_allow_so_many(life: ModuleType) -> None:
    # One of six at 1 %: 1 - 0.99^6 = 5.9 %, so in one run of seventeen. Two: 15 * 0.01^2 * 0.99^4 + ... = 0.15 %.
    assert lived(life, impostors=1).objection == ""
    assert "2 of 6 impostors were accepted REST" in lived(life, impostors=2).objection


def test_a_genuine_person_who_is_rejected_is_counted(life: ModuleType) -> None:
    found = lived(life, impostors=0, genuine=1)
    assert (found.counts(genuine=True), found.counts(genuine=False)) == ("1·1/6", "0·0/6")
    assert found.objection == ""
    assert found.words == "release 2 (gate): accepted 1·1/6 genuine, 0·0/6 impostors (REST · offline)"


def test_server_and_device_say_the_same_of_one_release(life: ModuleType) -> None:
    assert "1 attempts were decided otherwise" in lived(life, impostors=0, score=0.81).objection
    stays = lived(life, impostors=0, score=0.81, threshold=0.9, release=1)
    assert stays.objection == ""  # the device has not switched
    assert (stays.stayed, stays.thresholds) == (1, (0.74, 0.74))


def test_what_is_not_decided_is_told(life: ModuleType) -> None:
    found = lived(life, impostors=0, accepted=None, refusal="404 unknown-user")
    assert found.objection == "1 attempts were not decided: 404 unknown-user"
    assert found.counts(genuine=True) == "3/5·4/6"


def test_half_of_those_who_are_claimed_did_not_train(groups: ModuleType, life: ModuleType) -> None:
    found = groups.Groups(NAMES[:8], NAMES[8:17], NAMES[17:])
    pairs = life.pairs(found, NAMES[::-1])
    claimed = list(dict.fromkeys(pair.claimed for pair in pairs))
    assert claimed == [*NAMES[7:4:-1], *NAMES[16:13:-1]]
    assert len(pairs) == len(claimed) * life.CLIPS == 18
    for clip in range(life.CLIPS):  # by strangers in turn
        assert {pair.impostor for pair in pairs if pair.clip == clip} == set(NAMES[17:])
    alone = life.pairs(groups.Groups(NAMES[:4], (), ()), NAMES)
    assert list(dict.fromkeys(pair.claimed for pair in alone)) == list(NAMES[:4])
    assert all(pair.claimed != pair.impostor for pair in alone)
