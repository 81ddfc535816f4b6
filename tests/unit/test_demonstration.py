"""Who is who in the demonstration, and when what it sees of a release fails a run."""

from __future__ import annotations

import importlib
import wave
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
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


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO))
    return importlib.import_module("sentences")


def recorded(path: Path, seconds: float, value: int, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        half = round(seconds * rate / 2)
        recording.writeframes(value.to_bytes(2, "little") * half + (65536 - value).to_bytes(2, "little") * half)
    return path


def test_no_clip_is_in_two_sentences(sentences: ModuleType, tmp_path: Path) -> None:
    # Clip k has a value of its own, above and as long below zero, so its offset is none. Eleven: two sentences.
    clips = [recorded(tmp_path / f"{k}.wav", 0.1, 1000 * (k + 1)) for k in range(11)]
    made = sentences.joined(clips, tmp_path / "joined", most=8)
    heard = []
    for path in made:
        with wave.open(str(path), "rb") as recording:
            assert (recording.getframerate(), recording.getnframes()) == (16_000, 5 * 1600)
            heard.append(np.frombuffer(recording.readframes(8000), "<i2").reshape(5, 1600)[:, 0].tolist())
    assert [[round(value / 1000) for value in sentence] for sentence in heard] == [[1, 3, 5, 7, 9], [2, 4, 6, 8, 10]]
    assert len(sentences.joined(clips, tmp_path / "fewer", most=1)) == 1
    assert sentences.joined(clips[:4], tmp_path / "none", most=8) == ()


def test_what_is_joined_already_stays(sentences: ModuleType, tmp_path: Path) -> None:
    clips = [recorded(tmp_path / f"{k}.wav", 0.1, 1000) for k in range(5)]
    (path,) = sentences.joined(clips, tmp_path / "joined", most=8)
    path.write_bytes(b"there")
    assert sentences.joined(clips, tmp_path / "joined", most=8) == (path,)
    assert path.read_bytes() == b"there"


@pytest.mark.parametrize(("letters", "syllables"), [(26, 30), (12, 12), (7, 36), (29, 0), (0, 34)])
def test_no_clip_enrols_and_verifies(sentences: ModuleType, letters: int, syllables: int) -> None:
    spoken = [Path(f"a{k}") for k in range(letters)], [Path(f"s{k}") for k in range(syllables)]
    enrol, verify = sentences.dealt(*spoken)
    assert not set(enrol) & set(verify)
    assert sorted(enrol + verify) == sorted(spoken[0] + spoken[1])
    assert min(len(enrol), len(verify)) >= 12


def test_a_person_with_two_speakers_says_syllables_only(sentences: ModuleType, tmp_path: Path) -> None:
    data = importlib.import_module("data")
    clips = {
        (name, kind): tuple(recorded(tmp_path / f"{name}-{kind}-{k:02}.wav", 0.01, 1000) for k in range(24))
        for name in ("ar", "de", "fr")
        for kind in ("letter", "syllable")
    }
    single = tuple(data.Person(name, clips[name, "letter"], clips[name, "syllable"]) for name in ("ar", "de", "fr"))
    made = sentences.spoken(data.People("voice", single, "", "as they are"), tmp_path / "sentences")
    german, french = made.people
    assert (german.name, french.name, made.caveat) == ("de", "fr", "as they are")
    assert french.single == clips["fr", "syllable"]
    assert german.single == clips["de", "syllable"][1::2]
    assert [len(part) for part in (french.enrol, french.verify, german.enrol, german.verify)] == [4, 4, 2, 2]


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
