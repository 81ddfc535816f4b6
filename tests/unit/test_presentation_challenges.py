"""Challenges: drawn by the system, within a time, once; digits and head turns that answer them or do not."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import real_data
from tests.builders import Clock
from uvsdk.arrays import Bool, Float32
from uvsdk.errors import ChallengeError, EnrolmentError, SettingsError, TemplateFormatError
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.modality.voice.vad import FRAME, Speech
from uvsdk.presentation import Challenge, Challenges, HeadTurns, SpokenDigits, SpokenDigitTemplates, TurnFrame
from uvsdk.presentation.challenge import DIGITS, MAXIMUM_STEPS, draw
from uvsdk.presentation.head_turns import turn
from uvsdk.presentation.spoken_words import WIDTH, align, cepstra, split

RATE = 16_000
ANY = np.zeros(1, np.float32)
NAME = "0123456789abcdef" * 2


def test_a_challenge_is_answered_once() -> None:
    challenges = Challenges(clock=Clock())
    challenge = challenges.issue("digits")
    assert challenges.redeem(challenge.identifier) == challenge
    with pytest.raises(ChallengeError, match="answered before"):
        challenges.redeem(challenge.identifier)
    with pytest.raises(ChallengeError, match="no such challenge"):
        challenges.redeem("unknown")


def test_a_challenge_expires() -> None:
    clock = Clock()
    challenges = Challenges(clock=clock)
    first, second, third = (challenges.issue("digits", lifetime_s=30.0) for _ in range(3))
    clock.now_s += 30.0
    assert challenges.redeem(first.identifier) == first  # to the last moment
    clock.now_s += 0.5
    with pytest.raises(ChallengeError, match=r"expired 0\.5 s ago"):
        challenges.redeem(second.identifier)
    clock.now_s -= 60.0  # a clock that was set back: before it was issued
    with pytest.raises(ChallengeError, match="expired"):
        challenges.redeem(third.identifier)


def test_expired_and_too_many_challenges_take_no_memory() -> None:
    clock = Clock()
    challenges = Challenges(clock=clock, capacity=3)
    issued = [challenges.issue("head-turns", lifetime_s=10.0) for _ in range(5)]
    assert len(challenges) == 3
    with pytest.raises(ChallengeError):
        challenges.redeem(issued[0].identifier)
    assert challenges.redeem(issued[4].identifier)
    clock.now_s += 11.0
    challenges.issue("digits")
    assert len(challenges) == 1
    with pytest.raises(SettingsError, match="at least one"):
        Challenges(capacity=0)


def test_of_many_threads_one_redeems() -> None:
    challenges = Challenges(clock=Clock())
    challenge = challenges.issue("digits")

    def attempt(_: int) -> bool:
        try:
            challenges.redeem(challenge.identifier)
        except ChallengeError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(64))) == 1


@pytest.mark.parametrize("count", [1, 2, 6, 15])
def test_what_is_drawn(count: int) -> None:
    digits = [draw("digits", 5.0, count=count, lifetime_s=10.0) for _ in range(20)]
    for challenge in digits:
        assert len(challenge.steps) == count
        assert all(before != after for before, after in pairwise(challenge.steps))
        assert (challenge.issued_at_s, challenge.expires_at_s) == (5.0, 15.0)
    assert len({challenge.identifier for challenge in digits}) == 20
    turns = draw("head-turns", 5.0, count=count)
    assert turns.steps[::2] == ("straight",) * (count + 1)
    assert set(turns.steps[1::2]) <= {"left", "right"}
    assert len(turns.steps) <= MAXIMUM_STEPS


def test_every_digit_and_both_sides_are_drawn() -> None:
    assert {digit for _ in range(60) for digit in draw("digits", 0.0, count=15).steps} == set(DIGITS)
    assert {step for _ in range(10) for step in draw("head-turns", 0.0, count=15).steps} == {
        "left",
        "right",
        "straight",
    }


def test_a_challenge_travels() -> None:
    challenge = draw("head-turns", 12.5)
    assert Challenge.from_bytes(challenge.to_bytes()) == challenge
    assert challenge.prompt.startswith("look straight, then ")
    for broken in (b"", challenge.to_bytes()[:-1], challenge.to_bytes().replace(b"head-turns", b"heads-turn")):
        with pytest.raises(ChallengeError):
            Challenge.from_bytes(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "riddle"},
        {"identifier": "short"},
        {"identifier": "G" * 32},
        {"steps": ()},
        {"steps": ("left",)},
        {"steps": ("1",) * 33},
        {"expires_at_s": 0.0},
        {"issued_at_s": float("nan")},
        {"expires_at_s": float("inf")},
    ],
)
def test_what_is_no_challenge_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ChallengeError):
        replace(Challenge(NAME, "digits", ("1", "2"), 0.0, 30.0), **change)


@pytest.mark.parametrize(("count", "lifetime_s"), [(0, 30.0), (16, 30.0), (6, 0.0), (6, float("inf"))])
def test_impossible_draws_are_refused(count: int, lifetime_s: float) -> None:
    with pytest.raises(SettingsError):
        draw("digits", 0.0, count=count, lifetime_s=lifetime_s)


# ---- digits


@functools.cache
def word(digit: str, take: int = 0) -> Float32:
    """A word of three vowels of its own, said a little faster or slower at every take."""
    rng = np.random.default_rng(int(digit))
    formants = rng.uniform((300, 900, 2000), (800, 1900, 3000), (3, 3))
    length = round((0.35 + 0.02 * (take % 5)) * RATE)
    time = np.arange(length) / RATE
    tracks = [np.interp(time, np.linspace(0, time[-1], 3), formants[:, k]) for k in range(3)]
    phase = 2 * np.pi * np.cumsum(np.full(length, 120.0 + take)) / RATE
    sound = np.zeros(length)
    for harmonic in range(1, 26):
        near = sum(np.exp(-(((harmonic * 120.0 - track) / 150) ** 2)) for track in tracks)
        sound += near * np.sin(harmonic * phase)
    return np.asarray(0.2 * sound * np.hanning(length) ** 0.3, np.float32)


def said(digits: tuple[str, ...], take: int = 0, pause_s: float = 0.2, noise: float = 1e-3) -> CapturedVoice:
    pause = np.zeros(round(pause_s * RATE), np.float32)
    parts = [pause]
    for place, digit in enumerate(digits):
        parts += [word(digit, take + place % 2), pause]
    pcm = np.concatenate(parts)
    pcm = pcm + np.random.default_rng(take).normal(size=len(pcm)).astype(np.float32) * np.float32(noise)
    return voice(pcm)


def voice(pcm: Float32) -> CapturedVoice:
    speech: Bool = np.ones(1 + len(pcm) // FRAME, np.bool_)
    return CapturedVoice(pcm, RATE, pcm, Speech(speech, speech))


@functools.cache
def templates() -> SpokenDigitTemplates:
    orders = (DIGITS, DIGITS[::-1], DIGITS[5:] + DIGITS[:5])
    return SpokenDigitTemplates.enrol([(said(order, take), order) for take, order in enumerate(orders)])


def asked(*digits: str) -> Challenge:
    return Challenge(NAME, "digits", digits, 100.0, 130.0)


def test_the_right_digits() -> None:
    for pause_s in (0.0, 0.05, 0.3):
        answer = SpokenDigits(asked("4", "0", "7", "1", "9", "2"), templates(), 110.0).assess(
            said(("4", "0", "7", "1", "9", "2"), take=3, pause_s=pause_s), ANY
        )
        assert answer.bona_fide, (pause_s, answer)
        assert answer.reasons == ()


@pytest.mark.parametrize(
    "spoken",
    [
        ("4", "0", "7", "1", "9", "3"),
        ("4", "0", "7", "1", "9"),
        ("4", "0", "7", "1", "9", "2", "5"),
        ("0", "4", "7", "1", "9", "2"),
        ("8", "6", "5", "3", "8", "6"),
    ],
    ids=["one other", "one missing", "one too many", "swapped", "another phrase"],
)
def test_other_digits(spoken: tuple[str, ...]) -> None:
    detector = SpokenDigits(asked("4", "0", "7", "1", "9", "2"), templates(), 110.0)
    answer = detector.assess(said(spoken, take=3), ANY)
    assert not answer.bona_fide
    assert "other digits were heard" in answer.reasons[0]


def test_an_answer_that_comes_late() -> None:
    spoken = said(("4", "0"), take=3)
    for at_s, late_s in ((130.0, 0.0), (131.5, 1.5), (99.0, 1.0)):
        answer = SpokenDigits(asked("4", "0"), templates(), at_s).assess(spoken, ANY)
        assert answer.bona_fide is (late_s == 0)
        assert answer.measured["late_s"] == pytest.approx(late_s)
    assert "missed the challenge's time by 1.0 s" in answer.reasons[0]


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.02, 0.1, 1.0, 60.0])
@pytest.mark.parametrize("kind", ["silence", "noise", "hum"])
def test_what_is_no_speech(seconds: float, kind: str) -> None:
    length = round(seconds * RATE)
    pcm = {
        "silence": np.zeros(length),
        "noise": np.random.default_rng(0).normal(size=length) * 0.1,
        "hum": 0.1 * np.sin(2 * np.pi * 50 * np.arange(length) / RATE),
    }[kind].astype(np.float32)
    answer = SpokenDigits(asked("4", "0", "7"), templates(), 110.0).assess(voice(pcm), ANY)
    assert not answer.bona_fide
    assert answer.score < answer.threshold


def test_enrolment_wants_every_digit_parted() -> None:
    ten = said(DIGITS)
    with pytest.raises(EnrolmentError, match="1 readings of the digits, need 3 to 10"):
        SpokenDigitTemplates.enrol([(ten, DIGITS)])
    with pytest.raises(EnrolmentError, match="in reading 1 9 words"):
        SpokenDigitTemplates.enrol([(said(DIGITS[:9]), DIGITS)], least=1)
    with pytest.raises(EnrolmentError, match="every digit must have been said once, 8, 9"):
        SpokenDigitTemplates.enrol([(said(DIGITS[:8]), DIGITS[:8])], least=1)
    with pytest.raises(EnrolmentError, match="short pause after each"):
        SpokenDigitTemplates.enrol([(said(DIGITS, pause_s=0.0), DIGITS)], least=1)
    with pytest.raises(EnrolmentError, match="no digits"):
        SpokenDigitTemplates.enrol([(ten, ("zero",))], least=1)
    with pytest.raises(EnrolmentError, match="in reading 1 0 words"):
        SpokenDigitTemplates.enrol([(voice(np.zeros(RATE, np.float32)), DIGITS)], least=1)
    assert SpokenDigitTemplates.enrol([(ten, DIGITS)], least=1).digits["0"]


def test_spoken_digits_are_kept_encrypted() -> None:
    key = bytes(32)
    sealed = templates().to_bytes(key)
    assert sealed != templates().to_bytes(key)
    opened = SpokenDigitTemplates.from_bytes(sealed, key)
    for digit in DIGITS:
        for before, after in zip(templates().digits[digit], opened.digits[digit], strict=True):
            assert np.array_equal(before, after)
    for broken in (b"", sealed[:30], b"UVR1" + sealed[4:], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(TemplateFormatError):
            SpokenDigitTemplates.from_bytes(broken, key)
    with pytest.raises(TemplateFormatError, match="does not decrypt"):
        SpokenDigitTemplates.from_bytes(sealed, b"\x01" * 32)
    with pytest.raises(SettingsError, match="32 bytes"):
        SpokenDigitTemplates.from_bytes(sealed, b"")
    assert "array" not in repr(templates())


def test_what_spoken_digits_refuse() -> None:
    digits = dict(templates().digits)
    with pytest.raises(EnrolmentError, match="every digit"):
        SpokenDigitTemplates({digit: found for digit, found in digits.items() if digit != "3"})
    wrong: tuple[Any, ...] = (np.zeros((0, WIDTH), np.float32), np.zeros((5, 3), np.float32), np.zeros((5, WIDTH)))
    for recording in wrong:
        with pytest.raises(EnrolmentError):
            SpokenDigitTemplates({**digits, "3": (recording,)})
    with pytest.raises(EnrolmentError, match="not finite"):
        SpokenDigitTemplates({**digits, "3": (np.full((5, WIDTH), np.nan, np.float32),)})
    with pytest.raises(ChallengeError, match="of kind digits"):
        SpokenDigits(draw("head-turns", 0.0), templates(), 0.0)
    with pytest.raises(SettingsError):
        SpokenDigits(asked("1"), templates(), float("nan"))


def test_alignment_by_hand() -> None:
    # Frames are numbers (the rest of the row is zero): "a" is 1 2 3, "b" is 7 8.
    def rows(*values: float) -> Float32:
        frames = np.zeros((len(values), WIDTH), np.float32)
        frames[:, 0] = values
        return frames

    words = {"a": [rows(1, 2, 3)], "b": [rows(7, 8)]}
    assert align(rows(1, 2, 3, 7, 8), words, ["a", "b"]) == 0.0
    assert align(rows(1, 1, 2, 2, 3, 7, 8, 8), words, ["a", "b"]) == 0.0  # frames may stay
    assert align(rows(1, 3, 7, 8), words, ["a", "b"]) == 0.0  # and skip one
    assert align(rows(7, 8, 1, 2, 3, 7, 8), words, None) == 0.0
    # 1 2 3 as "b": 7 8 8 or 7 7 8 against it; the nearest is 6 + 5 + 5 = 16 over three frames.
    assert align(rows(1, 2, 3), words, ["b"]) == pytest.approx(16 / 3)
    assert align(rows(7), words, ["a", "b"]) == np.inf
    assert align(rows(), words, None) == np.inf


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from("012"), min_size=1, max_size=4), st.integers(0, 1000))
def test_freely_joined_words_fit_no_worse_than_given_ones(spoken: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = {digit: [rng.normal(size=(rng.integers(1, 6), WIDTH)).astype(np.float32)] for digit in "012"}
    phrase = np.concatenate([words[digit][0] for digit in spoken])
    assert align(phrase, words, spoken) == pytest.approx(0.0, abs=1e-2)
    other = rng.normal(size=(rng.integers(1, 20), WIDTH)).astype(np.float32)
    assert align(other, words, None) <= align(other, words, spoken) + 1e-6


def test_pauses_part_words() -> None:
    rows, loud = cepstra(said(("1", "2", "3")).pcm)
    assert len(split(loud, 3)) == 3
    assert len(split(loud, 2)) == 2
    assert len(split(loud, 9)) == 3
    assert split(np.zeros(50, np.bool_), 3) == []
    assert rows.shape == (len(loud), WIDTH)


def test_real_digits() -> None:
    """One FSDD speaker, the first readings enrolled, later ones probed: right phrases pass, others do not."""
    data = dict(np.load(real_data.file("fsdd_8k.npz")).items())
    rng = np.random.default_rng(0)

    def spoken(digits: tuple[str, ...], take: int) -> CapturedVoice:
        import soxr

        parts = [rng.normal(size=4000) * 1e-4]
        for digit in digits:
            (places,) = np.nonzero((data["speaker"] == 1) & (data["digit"] == int(digit)))
            start, end = data["off"][places[take]], data["off"][places[take] + 1]
            parts += [soxr.resample(data["pcm"][start:end] / 32768, 8000, RATE), rng.normal(size=4000) * 1e-4]
        return voice(np.concatenate(parts).astype(np.float32))

    found = SpokenDigitTemplates.enrol([(spoken(DIGITS, take), DIGITS) for take in range(3)])
    for take in range(3, 8):
        steps, other = draw("digits", 100.0).steps, draw("digits", 100.0).steps
        probe = spoken(steps, take)
        assert SpokenDigits(asked(*steps), found, 110.0).assess(probe, ANY).score > -1.0
        if other != steps:
            assert not SpokenDigits(asked(*other), found, 110.0).assess(probe, ANY).bona_fide


# ---- head turns

ME, ELSE = np.array([1, 0, 0], np.float32), np.array([0, 1, 0], np.float32)
FACE = CapturedFace(
    Image.new("RGB", (8, 8)),
    Detection(np.zeros(4, np.float32), np.zeros((5, 2), np.float32), 0.9),
    np.zeros((8, 8, 3), np.uint8),
)
TURNS = Challenge(NAME, "head-turns", ("straight", "left", "straight", "right", "straight"), 100.0, 130.0)


def film(*turns: float, step_s: float = 0.2, start_s: float = 101.0, who: Float32 = ME) -> list[TurnFrame]:
    return [TurnFrame(start_s + step_s * place, value, who) for place, value in enumerate(turns)]


MOVES = (0.0, 0.02, 0.2, 0.4, 0.42, 0.2, 0.0, 0.01, -0.2, -0.4, -0.41, -0.2, 0.0, 0.0)


def test_the_turns_of_the_challenge() -> None:
    answer = HeadTurns(TURNS, film(*MOVES)).assess(FACE, ME)
    assert (answer.bona_fide, answer.score, answer.reasons) == (True, 1.0, ())
    assert answer.measured["steps_seen"] == 5.0
    # The fastest step is from 0.42 to 0.2 in 0.2 s.
    assert answer.measured["highest_speed"] == pytest.approx(1.1)


def test_what_comes_before_and_behind_does_not_count() -> None:
    assert HeadTurns(TURNS, film(0.4, 0.4, 0.2, *MOVES, -0.2, -0.4, -0.4)).assess(FACE, ME).bona_fide


@pytest.mark.parametrize(
    ("turns", "seen"),
    [
        (tuple(-value for value in MOVES), 1),
        (MOVES[:8], 3),
        ((0.0,) * 14, 1),
        ((0.4,) * 14, 0),
        ((0.0, 0.02, 0.2, 0.4, 0.2, 0.0, 0.0), 1),
        ((0, 0, 0.2, 0.4, 0.4, 0.2, 0, 0, 0.2, 0.4, 0.4, 0.2, 0, 0, -0.2, -0.4, -0.4, -0.2, 0, 0), 3),
        ((), 0),
    ],
    ids=["mirrored", "stops", "a photograph", "a turned photograph", "too short a turn", "everywhere", "nothing"],
)
def test_other_turns(turns: tuple[float, ...], seen: int) -> None:
    answer = HeadTurns(TURNS, film(*turns)).assess(FACE, ME)
    assert not answer.bona_fide
    assert answer.measured["steps_seen"] == seen
    assert answer.reasons == (f"step {seen + 1} of 5 was not seen: look {TURNS.steps[seen]}",)
    assert answer.score == seen / 5


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (film(*MOVES, start_s=99.0), "missed the challenge's time by 1.0 s"),
        (film(*MOVES, start_s=128.0), "missed the challenge's time by 0.6 s"),
        (film(*MOVES, step_s=0.6), "gaps"),
        (film(*MOVES)[::-1], "out of order"),
        (film(*(round(value) for value in (0, 0, 0.6, 0.6, 0, 0, -0.6, -0.6, 0, 0))), "jumped"),
        (film(*MOVES, who=ELSE), "not the same face"),
        ([*film(*MOVES[:-1]), *film(0.0, start_s=103.6, who=ELSE)], "not the same face"),
    ],
    ids=["early", "late", "gaps", "reversed", "cuts", "someone else", "someone else at the end"],
)
def test_what_speaks_against_it(frames: list[TurnFrame], reason: str) -> None:
    answer = HeadTurns(TURNS, frames).assess(FACE, ME)
    assert not answer.bona_fide
    assert answer.score == -1.0
    assert reason in answer.reasons[0]


def landmarks(nose: float, *, roll: float = 0.0, squeeze: float = 1.0, size: float = 40.0) -> Float32:
    points = np.array([[0, 0], [1, 0], [0.5 + nose, 0.5], [0.15, 1], [0.85, 1]]) * size * [squeeze, 1.0]
    spin = np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    return np.asarray(points @ spin.T + 50, np.float32)


@settings(deadline=None)
@given(st.floats(0.3, 1.0), st.floats(20, 200))
def test_a_flat_picture_that_is_turned_looks_as_straight_as_before(squeeze: float, size: float) -> None:
    """Turning a sheet about its vertical axis squeezes it: eyes and nose move together."""
    assert turn(landmarks(0.1, squeeze=squeeze, size=size)) == pytest.approx(0.1, abs=1e-3)


def test_turn_by_hand() -> None:
    assert turn(landmarks(0.0)) == pytest.approx(0.0, abs=1e-6)
    assert turn(landmarks(0.25)) == pytest.approx(0.25, abs=1e-6)
    # A head that leans by r radians carries the nose half an eye distance down, along its own axis: no turn.
    assert turn(landmarks(0.25, roll=0.3)) == pytest.approx(0.25, abs=1e-6)
    assert np.isfinite(turn(np.zeros((5, 2), np.float32)))


def test_a_frame_comes_from_what_was_captured() -> None:
    face = CapturedFace(FACE.photo, Detection(np.zeros(4, np.float32), landmarks(0.3), 0.9), FACE.chip)
    frame = TurnFrame.of(3.0, face, ME)
    assert frame.at_s == 3.0
    assert frame.turn == pytest.approx(0.3)
    for broken in ((float("nan"), 0.0, ME), (0.0, float("inf"), ME), (0.0, 0.0, np.full(3, np.nan, np.float32))):
        with pytest.raises(SettingsError, match="finite"):
            TurnFrame(*broken)


def test_what_head_turns_refuse() -> None:
    with pytest.raises(ChallengeError, match="of kind head-turns"):
        HeadTurns(asked("1"), [])
    for change in (
        {"straight": 0.4},
        {"turned": 1.5},
        {"similarity": 2.0},
        {"held": 0},
        {"pause_s": 0.0},
        {"speed": float("nan")},
    ):
        with pytest.raises(SettingsError):
            replace(HeadTurns(TURNS, []), **change)
    with pytest.raises(SettingsError, match="looks at a captured face"):
        HeadTurns(TURNS, film(*MOVES)).assess(voice(np.zeros(10, np.float32)), ME)
    with pytest.raises(SettingsError, match="listens to a captured voice"):
        SpokenDigits(asked("1"), templates(), 110.0).assess(FACE, ANY)
