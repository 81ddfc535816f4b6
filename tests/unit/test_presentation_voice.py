"""Repetition and cleanliness of recordings: copies are known again, new utterances are not, limits are limits."""

from __future__ import annotations

import functools
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import modality_graphs, real_data
from tests.builders import sound_file
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError, TemplateFormatError
from uvsdk.modality import Capture
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.modality.voice.vad import FRAME, Speech
from uvsdk.presentation import Cleanliness, Recollection, VoiceRepetition
from uvsdk.presentation.cleanliness import bandwidth, longest_run, measure
from uvsdk.presentation.fingerprint import WINDOW_FRAMES, _diagonal_sums, agreement, voice_prints
from uvsdk.presentation.recollection import REMEMBERED_S

RATE = 16_000
KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
ANY = np.zeros(1, np.float32)


@functools.cache
def utterance(seed: int, seconds: float = 4.0) -> Float32:
    """Speech-like: three wandering formants over a wandering pitch, with syllables; another seed is other words."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    knots = np.arange(0.0, seconds + 0.1, 0.1)
    pitch = np.interp(time, knots, rng.uniform(100, 160, len(knots)))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = [
        np.interp(time, knots, rng.uniform(*band, len(knots))) for band in ((300, 800), (900, 2000), (2200, 3200))
    ]
    sound = np.zeros(len(time))
    for harmonic in range(1, 22):
        hz = harmonic * pitch
        sound += sum(np.exp(-(((hz - formant) / 120) ** 2)) for formant in formants) * np.sin(harmonic * phase)
    loudness = np.interp(time, knots, rng.uniform(0.05, 1.0, len(knots)))
    noise = rng.normal(size=len(time)) * 1e-3
    spoken = np.asarray(0.2 * sound * loudness + noise, np.float32)
    spoken.flags.writeable = False
    return spoken


def captured(pcm: Float32, rate: int = RATE, voiced: tuple[float, float] | None = None) -> CapturedVoice:
    frames = 1 + len(pcm) // FRAME
    start, end = voiced or (0.0, len(pcm) / rate)
    times = np.arange(frames) * FRAME / RATE
    speech = (times >= start) & (times < end)
    return CapturedVoice(pcm, rate, pcm, Speech(speech, speech))


def known(*recordings: Float32, capacity: int = 64) -> Recollection:
    recollection = Recollection(KEY, capacity=capacity)
    for pcm in recordings:
        recollection = recollection.remember(captured(pcm))
    return recollection


def verdict(pcm: Float32, recollection: Recollection) -> bool:
    return VoiceRepetition(recollection).assess(captured(pcm), ANY).bona_fide


@pytest.mark.parametrize(
    "copy",
    [
        lambda pcm: pcm,
        lambda pcm: 0.1 * pcm,
        lambda pcm: np.clip(3.0 * pcm, -1, 1).astype(np.float32),
        lambda pcm: pcm[1234:],
        lambda pcm: np.concatenate([np.zeros(3456, np.float32), pcm]),
        lambda pcm: (pcm * 32767).astype(np.int16).astype(np.float32) / 32768,
        lambda pcm: pcm + np.float32(0.05),
        lambda pcm: np.concatenate([utterance(77, 1.0), pcm[RATE : 3 * RATE], utterance(78, 1.0)]),
    ],
    ids=["exact", "softer", "clipped", "cut", "delayed", "16 bit", "offset", "a part among others"],
)
def test_a_copy_is_known_again(copy: object) -> None:
    assert callable(copy)
    pcm = utterance(1)
    answer = VoiceRepetition(known(utterance(2), pcm)).assess(captured(copy(pcm)), ANY)
    assert not answer.bona_fide
    assert answer.reasons == ("this recording, or a part of it, was heard before: speak anew",)
    assert answer.measured["earlier_half_agreement"] > 0.82


def test_new_utterances_pass() -> None:
    recollection = known(*(utterance(seed) for seed in range(2, 8)))
    for seed in range(20, 26):
        answer = VoiceRepetition(recollection).assess(captured(utterance(seed)), ANY)
        assert answer.bona_fide
        assert answer.reasons == ()
        assert answer.score == pytest.approx(
            min(0.7 - answer.measured["earlier_agreement"], 0.82 - answer.measured["earlier_half_agreement"])
        )


def test_a_word_cut_out_of_an_earlier_recording() -> None:
    cut = utterance(1)[2 * RATE : 2 * RATE + 11_000]
    assert not verdict(np.concatenate([utterance(5, 1.0), cut, utterance(6, 1.0)]), known(utterance(1)))


def test_nothing_was_heard_before() -> None:
    assert verdict(utterance(1), Recollection.new())


def test_a_recording_that_repeats_itself() -> None:
    part = utterance(3, 1.5)
    answer = VoiceRepetition(Recollection.new()).assess(captured(np.concatenate([part, part])), ANY)
    assert not answer.bona_fide
    assert "repeated in it exactly" in answer.reasons[0]


@pytest.mark.parametrize("length", [0, 1, 100, 1023, 1024, 4000, 8000])
def test_recordings_too_short_to_tell_pass(length: int) -> None:
    # Less than half a second is no evidence, not even of itself; that much takes 0.48 + 0.16 s.
    pcm = utterance(4)[:length]
    assert verdict(pcm, known(pcm))


@pytest.mark.parametrize("value", [0.0, 0.5, -1.0])
def test_a_constant_is_no_copy_of_a_constant(value: float) -> None:
    pcm = np.full(3 * RATE, value, np.float32)
    answer = VoiceRepetition(known(pcm)).assess(captured(pcm), ANY)
    assert np.isfinite(answer.score)


def test_the_oldest_is_forgotten_first() -> None:
    recollection = known(utterance(1), utterance(2), utterance(3), capacity=2)
    assert len(recollection.voices) == 2
    assert verdict(utterance(1), recollection)
    assert not verdict(utterance(2), recollection)
    assert not verdict(utterance(3), recollection)


def test_remembering_leaves_the_old_one_as_it_is() -> None:
    before = known(utterance(1))
    after = before.remember(captured(utterance(2)))
    assert (len(before.voices), len(after.voices)) == (1, 2)


def test_a_long_recording_is_remembered_in_part() -> None:
    long = np.tile(utterance(1), 12)
    assert len(known(long).voices[0].bits) == REMEMBERED_S * 25


def test_fingerprints_of_two_keys_cannot_be_compared() -> None:
    pcm = utterance(1)
    assert agreement(voice_prints(pcm, KEY), voice_prints(pcm, KEY)[0]) == pytest.approx((1.0, 1.0))
    # Two keys give unrelated directions: of 800 bits as many agree as not, to a few standard deviations.
    assert agreement(voice_prints(pcm, KEY), voice_prints(pcm, OTHER_KEY)[0])[0] < 0.7


def test_a_recollection_is_kept_encrypted() -> None:
    recollection, key = known(utterance(1), utterance(2), capacity=7), bytes(32)
    sealed = recollection.to_bytes(key)
    assert sealed != recollection.to_bytes(key)
    assert KEY not in sealed
    opened = Recollection.from_bytes(sealed, key)
    assert (opened.key, opened.capacity) == (KEY, 7)
    for before, after in zip(recollection.voices, opened.voices, strict=True):
        assert np.array_equal(before.bits, after.bits)
    assert not verdict(utterance(1), opened)
    # Four seconds are a hundred frames of four bytes and a bit.
    assert len(sealed) < 2 * 100 * 5 + 600
    with pytest.raises(TemplateFormatError, match="does not decrypt"):
        Recollection.from_bytes(sealed, bytes(31) + b"\x01")
    for broken in (b"", b"UVR1", sealed[:40], b"UVT1" + sealed[4:], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(TemplateFormatError):
            Recollection.from_bytes(broken, key)
    with pytest.raises(SettingsError, match="32 bytes"):
        recollection.to_bytes(b"short")
    assert Recollection.from_bytes(Recollection.new(3).to_bytes(key), key).voices == ()
    assert KEY.hex() not in repr(recollection)
    assert "bits" not in repr(recollection.voices[0])


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="32 bytes"):
        Recollection(b"short")
    with pytest.raises(SettingsError, match="at least one"):
        Recollection.new(0)
    with pytest.raises(SettingsError, match="was given more"):
        Recollection(KEY, known(utterance(1), utterance(2)).voices, capacity=1)
    for value in (0.0, 1.0):
        with pytest.raises(SettingsError, match="between 0 and 1"):
            VoiceRepetition(known(), agreement=value)
    with pytest.raises(SettingsError, match="limits of cleanliness are positive"):
        Cleanliness(constant_s=0.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**16))
def test_diagonal_sums_are_sums(rows: int, window: int, seed: int) -> None:
    window = min(window, rows)
    values = np.random.default_rng(seed).normal(size=(rows, rows + 3)).astype(np.float32)
    plain = [
        [sum(values[i + k, j + k] for k in range(window)) for j in range(rows + 3 - window + 1)]
        for i in range(rows - window + 1)
    ]
    assert np.allclose(_diagonal_sums(values, window), np.array(plain), atol=1e-4)


def test_several_threads_get_the_same_answers() -> None:
    detector = VoiceRepetition(known(utterance(1), utterance(2)))
    probes = [captured(utterance(seed)) for seed in (1, 5, 2, 6)] * 3
    alone = [detector.assess(probe, ANY) for probe in probes]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda probe: detector.assess(probe, ANY), probes)) == alone


def test_a_room_is_not_too_clean() -> None:
    answer = Cleanliness().assess(captured(utterance(1)), ANY)
    assert answer.bona_fide
    assert answer.reasons == ()
    assert 0.0 < answer.score <= 1.0
    assert set(answer.measured) == {"constant_s", "range_db", "clipped_fraction", "bandwidth_hz"}


def test_zeros_between_words() -> None:
    pcm = utterance(1).copy()
    pcm[RATE : RATE + 1600] = 0.0  # 0.1 s against the limit of 0.05 s: the margin is 1 - 2
    answer = Cleanliness().assess(captured(pcm), ANY)
    assert answer.score == pytest.approx(-1.0, abs=2e-3)
    assert answer.reasons[0].startswith("the sound stands still for 0.100 s between words")


def test_zeros_before_and_after_the_words_are_a_recorder_that_starts() -> None:
    pcm = np.concatenate([np.zeros(RATE, np.float32), utterance(1), np.zeros(RATE, np.float32)])
    assert Cleanliness().assess(captured(pcm, voiced=(1.05, 4.9)), ANY).bona_fide


def test_pauses_without_a_room() -> None:
    pcm = utterance(1).copy()
    rng = np.random.default_rng(0)
    pcm[RATE : 2 * RATE] = rng.normal(size=RATE).astype(np.float32) * 1e-7  # -140 dB of full scale
    answer = Cleanliness().assess(captured(pcm), ANY)
    assert not answer.bona_fide
    assert "quieter than a room is" in answer.reasons[0]


def test_loud_playback_is_cut_off() -> None:
    answer = Cleanliness().assess(captured(np.clip(30 * utterance(1), -1, 1).astype(np.float32)), ANY)
    assert any("cut off at full scale" in reason for reason in answer.reasons)


def test_bandwidth_is_asked_for_only_where_it_is_set() -> None:
    spectrum = np.fft.rfft(utterance(1) + np.random.default_rng(1).normal(size=4 * RATE).astype(np.float32) * 0.01)
    spectrum[len(spectrum) // 2 :] = 0
    narrow = np.fft.irfft(spectrum).astype(np.float32)
    assert measure(captured(narrow))["bandwidth_hz"] == pytest.approx(4000, abs=100)
    assert Cleanliness().assess(captured(narrow), ANY).bona_fide
    answer = Cleanliness(bandwidth_hz=5000.0).assess(captured(narrow), ANY)
    assert not answer.bona_fide
    assert "nothing is heard above" in answer.reasons[0]


def test_measurements_by_hand() -> None:
    assert longest_run(np.zeros(0, np.float32)) == 0
    assert longest_run(np.array([1, 2, 3], np.float32)) == 1
    assert longest_run(np.full(5, 0.3, np.float32)) == 5
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    assert bandwidth(tone, RATE) == pytest.approx(1000, abs=100)
    assert bandwidth(np.zeros(RATE, np.float32), RATE) == 0.0


@pytest.mark.parametrize("length", [1, 10, 319, 320, 1000])
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_measurements_of_the_shortest_recordings(length: int, rate: int) -> None:
    pcm = np.random.default_rng(0).normal(size=length).astype(np.float32) * 0.1
    for value in measure(CapturedVoice(pcm, rate, pcm, Speech(np.ones(1, np.bool_), np.ones(1, np.bool_)))).values():
        assert np.isfinite(value)


def test_a_picture_is_no_voice() -> None:
    class Elsewhere:
        modality = "face"

    for detector in (Cleanliness(), VoiceRepetition(Recollection.new())):
        with pytest.raises(SettingsError, match="listens to a captured voice"):
            detector.assess(Elsewhere(), ANY)
    with pytest.raises(SettingsError, match="cannot be remembered"):
        Recollection.new().remember(Elsewhere())


def test_real_recordings() -> None:
    """Ten utterances of one LibriSpeech speaker: each is new among the others, and its MP3 copy is not."""
    folder = real_data.file("speech_librispeech")
    paths = sorted(folder.glob("eval_test-other/**/*.flac"))[:10]
    if not paths:
        pytest.skip("no recordings of test-other")
    graphs = modality_graphs.loaded("voice", {})

    def taken(pcm: Float32) -> CapturedVoice:
        found = modality.get("voice").prepare((pcm, RATE), graphs, capture=Capture(quality="off")).captured
        assert isinstance(found, CapturedVoice)
        return found

    recordings = [soundfile.read(path, dtype="float32")[0][: 4 * RATE] for path in paths]
    samples = [taken(pcm) for pcm in recordings]
    recollection = Recollection(KEY)
    for sample in samples:
        assert VoiceRepetition(recollection).assess(sample, ANY).bona_fide
        assert Cleanliness().assess(sample, ANY).bona_fide
        recollection = recollection.remember(sample)
    file = sound_file(0.5 * recordings[3], RATE, "MP3")
    copy = taken(soundfile.read(io.BytesIO(file), dtype="float32")[0])
    assert not VoiceRepetition(recollection).assess(copy, ANY).bona_fide


def test_the_window_is_a_second() -> None:
    assert WINDOW_FRAMES * 640 == RATE
