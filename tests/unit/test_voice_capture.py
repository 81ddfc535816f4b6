"""Recordings as people really send them: channels, containers, rates, tails, and what is wrong with them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import modality_graphs, synthetic_voice
from tests.builders import sound_file
from uvsdk.errors import LowQualityError, NoSpeechError, SampleError, SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import Capture, Limits, get
from uvsdk.modality.voice import audio, channels, containers

VOICE = get("voice")
SPEECH = synthetic_voice.utterance(3.0, speaker=1)
LIMITS = Limits()


def graphs() -> modality_graphs.ModalityGraphs:
    return modality_graphs.loaded("voice", {"minimum_speech_s": 0.5})


def features(pcm: np.ndarray, rate: int = 16_000) -> np.ndarray:
    return np.asarray(VOICE.prepare((pcm, rate), graphs()).features)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    first, second = a.mean(axis=0), b.mean(axis=0)
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


# Channels


@pytest.mark.parametrize("constant", [0.0, 0.25, -1.0])
@pytest.mark.parametrize("place", [0, 1])
def test_a_dead_channel_is_not_averaged_in(constant: float, place: int) -> None:
    pair = [SPEECH, np.full_like(SPEECH, constant)]
    stereo = np.stack(pair if place else pair[::-1], axis=1)
    assert np.array_equal(audio.decode((stereo, 16_000), LIMITS)[0], SPEECH)


def test_a_channel_of_the_converters_own_noise_is_dead() -> None:
    # 16-bit rounding noise has a power of 1 / (12 * 32768^2), 105 dB under full scale.
    hiss = (np.random.default_rng(0).uniform(-0.5, 0.5, len(SPEECH)) / 32768).astype(np.float32)
    stereo = np.stack([hiss, SPEECH], axis=1)
    assert np.array_equal(audio.decode((stereo, 16_000), LIMITS)[0], SPEECH)


def test_opposed_channels_do_not_cancel() -> None:
    stereo = np.stack([SPEECH, -SPEECH], axis=1)
    got = audio.decode((stereo, 16_000), LIMITS)[0]
    assert np.array_equal(np.abs(got), np.abs(SPEECH))
    assert np.array_equal(features(stereo), features(SPEECH))


def test_unlike_channels_are_averaged_by_hand() -> None:
    # Correlation 0.25 / 0.5, above -0.5: a plain mean.
    stereo = np.array([[0.0, 0.5], [1.0, 1.0], [0.5, 0.0]], np.float32)
    assert channels.mix(stereo).tolist() == [0.25, 1.0, 0.25]


def test_eight_channels_of_which_seven_are_dead() -> None:
    wide = np.zeros((len(SPEECH), 8), np.float32)
    wide[:, 5] = SPEECH
    assert np.array_equal(audio.decode((wide, 16_000), LIMITS)[0], SPEECH)
    assert np.array_equal(audio.decode(sound_file(wide, 16_000, "WAV", "FLOAT"), LIMITS)[0], SPEECH)
    with pytest.raises(UndecodableSampleError, match="at most 8 channels"):
        audio.decode(sound_file(np.zeros((100, 9), np.float32), 16_000, "WAV"), LIMITS)


def test_silence_in_every_channel_is_silence() -> None:
    with pytest.raises(NoSpeechError, match="silent"):
        VOICE.prepare((np.zeros((16_000, 2), np.float32), 16_000), graphs())


@given(count=st.integers(1, 4), block=st.integers(1, 50), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_moments_do_not_depend_on_the_blocks(count: int, block: int, seed: int) -> None:
    pcm = np.random.default_rng(seed).normal(size=(100, count)).astype(np.float32)
    whole, pieces = channels.Moments(count), channels.Moments(count)
    whole.add(pcm)
    for start in range(0, 100, block):
        pieces.add(pcm[start : start + block])
    assert pieces.mix() == pytest.approx(whole.mix())
    assert np.abs(whole.mix()).sum() == pytest.approx(1.0)


# Containers, numbers and rates


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "PCM_24"),
        ("WAV", "PCM_32"),
        ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"),
        ("WAVEX", "PCM_24"),
        ("RF64", "PCM_16"),
        ("W64", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("AIFF", "PCM_16"),
        ("AIFF", "FLOAT"),
        ("AU", "PCM_16"),
        ("CAF", "PCM_16"),
        ("NIST", "PCM_16"),
        ("VOC", "PCM_16"),
        ("WAV", "PCM_U8"),
        ("WAV", "ULAW"),
        ("AU", "ALAW"),
        ("WAV", "IMA_ADPCM"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_every_container_and_every_kind_of_number(kind: str, subtype: str) -> None:
    got = VOICE.prepare(sound_file(SPEECH, 16_000, kind, subtype), graphs()).features
    lossy = subtype in ("ULAW", "ALAW", "IMA_ADPCM", "VORBIS", "OPUS", "MPEG_LAYER_III", "PCM_U8")
    assert distance(features(SPEECH), got) < (0.15 if lossy else 1e-3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.float16, np.float64])
def test_arrays_of_every_kind(dtype: type) -> None:
    if np.issubdtype(dtype, np.floating):
        pcm = SPEECH.astype(dtype)
    else:
        steps = 2.0 ** (8 * np.dtype(dtype).itemsize - 1)
        pcm = np.round(SPEECH * (steps - 1) + (128 if dtype is np.uint8 else 0)).astype(dtype)
    eight_bits = np.dtype(dtype).itemsize == 1
    assert distance(features(SPEECH), features(pcm)) < (0.05 if eight_bits else 2e-3)


class Tensor:
    """What numpy reads as an array, as it does a tensor of torch, which is not imported here."""

    def __init__(self, values: object) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        if isinstance(self.values, Exception):
            raise self.values
        return np.asarray(self.values)


def test_a_tensor_and_its_rate_are_a_recording() -> None:
    expected = audio.decode((SPEECH, 16_000), LIMITS)[0]
    for values in (SPEECH, SPEECH[None], np.stack([SPEECH, SPEECH]), np.stack([SPEECH, SPEECH], axis=1)):
        assert np.array_equal(audio.decode((Tensor(values), 16_000), LIMITS)[0], expected)
    assert np.array_equal(audio.as_rows(Tensor(SPEECH[:100])), SPEECH[:100])


@pytest.mark.parametrize(
    ("values", "rate", "error", "says"),
    [
        (np.full(16_000, np.nan, np.float32), 16_000, UndecodableSampleError, "not finite"),
        (np.zeros((1, 0), np.float32), 16_000, NoSpeechError, "no samples"),
        (SPEECH[None], 16_000.0, UndecodableSampleError, "whole number of Hz"),
        (SPEECH[None], 1, UndecodableSampleError, "rates from"),
        (np.zeros((9, 16_000), np.float32), 16_000, UndecodableSampleError, "at most 8 channels"),
        (np.zeros((1, 1, 16_000), np.float32), 16_000, UndecodableSampleError, "has shape"),
        (np.zeros((1, 121 * 16_000), np.float32), 16_000, SampleTooLargeError, "may last"),
        (TypeError("can't convert cuda:0 device type tensor"), 16_000, UndecodableSampleError, "cpu"),
        (RuntimeError("Can't call numpy() on Tensor that requires grad"), 16_000, UndecodableSampleError, "detach"),
    ],
)
def test_tensors_that_are_no_recording(values: object, rate: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        audio.decode((Tensor(values), rate), LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("sound", [[0.1, 0.2], "a.wav", None, Tensor, 3])
def test_a_pair_without_an_array(sound: object) -> None:
    with pytest.raises(UndecodableSampleError, match="a numpy array, or a tensor"):
        audio.decode((sound, 16_000), LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_every_rate(rate: int) -> None:
    pcm = soxr.resample(SPEECH, 16_000, rate, quality="VHQ")
    prepared = VOICE.prepare((pcm, rate), graphs(), capture=Capture(quality="off"))
    assert prepared.quality.measured["speech_s"] > 1.5
    assert prepared.quality.measured["bandwidth_hz"] <= rate / 2


@pytest.mark.parametrize("rate", [0, 1, 3_999, 192_001, 2**31])
def test_rates_that_are_not_read(rate: int) -> None:
    with pytest.raises(UndecodableSampleError, match="sample rates from 4,000 to 192,000 Hz"):
        audio.decode((SPEECH, rate), LIMITS)


def test_an_offset_changes_nothing() -> None:
    assert distance(features(SPEECH * np.float32(0.5)), features(SPEECH * np.float32(0.5) + np.float32(0.4))) < 1e-3


def test_floats_that_overshoot_are_clipped_and_those_of_another_scale_are_refused() -> None:
    over = np.array([0.5, 1.5, -3.0], np.float32)
    assert audio.decode((over, 16_000), LIMITS)[0].tolist() == [0.5, 1.0, -1.0]
    with pytest.raises(UndecodableSampleError, match="divide by the integer range"):
        audio.decode((SPEECH * np.float32(32767), 16_000), LIMITS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wide", [False, True])
def test_values_that_are_no_numbers(value: float, wide: bool) -> None:
    pcm = SPEECH.copy()
    pcm[1000] = value
    with pytest.raises(UndecodableSampleError, match="not finite"):
        audio.decode((np.stack([pcm, SPEECH], axis=1) if wide else pcm, 16_000), LIMITS)
    with pytest.raises(UndecodableSampleError, match="not finite"):
        audio.decode(sound_file(np.stack([pcm, SPEECH], axis=1) if wide else pcm, 16_000, "WAV", "FLOAT"), LIMITS)


# Lengths


@pytest.mark.parametrize("samples", [1, 2, 32, 159, 160, 161, 320, 399, 400, 401, 1600, 3999])
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_the_shortest_recordings_say_so(samples: int, rate: int) -> None:
    # pyannote-audio #1260: a tail of 2 ms; NeMo PR #14055: under half a second.
    with pytest.raises(NoSpeechError, match=r"of speech in|silent|no samples"):
        VOICE.prepare((SPEECH[8000 : 8000 + samples], rate), graphs())


@pytest.mark.parametrize("seconds", [0.6, 0.9, 1.6, 2.0, 5.0, 12.0])
@pytest.mark.parametrize("tail", [1, 32, 33])
def test_every_length_gives_finite_frames_and_views(seconds: float, tail: int) -> None:
    # pyannote-audio #1961, #824: two seconds gave no embedding, five gave NaN.
    pcm = np.concatenate([synthetic_voice.utterance(seconds, 2), np.full(tail, 0.01, np.float32)])
    rows = features(pcm)
    views = VOICE.views(rows, {})
    assert np.isfinite(rows).all()
    assert np.isfinite(views).all()
    assert views.shape[1:] == (160, 40)
    assert len(views) >= 1


@pytest.mark.parametrize("speech_s", [0.0, 0.2])
def test_mostly_silence_is_not_enough(speech_s: float) -> None:
    # Picovoice eagle PR #80: silence or mostly silence enrolled.
    pcm = np.random.default_rng(0).normal(scale=1e-3, size=10 * 16_000).astype(np.float32)
    count = int(speech_s * 16_000)
    pcm[80_000 : 80_000 + count] += SPEECH[8000 : 8000 + count]
    with pytest.raises(NoSpeechError, match=r"need 0\.50 s; speak longer"):
        VOICE.prepare((pcm, 16_000), graphs())


@pytest.mark.parametrize("kind", ["white", "hum", "tone", "clicks", "sweep", "square", "offset", "alternating"])
@pytest.mark.parametrize("level", [0.003, 0.05, 0.9])
def test_what_is_no_speech_is_not_taken_for_it(kind: str, level: float) -> None:
    rng, time = np.random.default_rng(3), np.arange(3 * 16_000) / 16_000
    sound = {
        "white": rng.normal(scale=0.3, size=len(time)),
        "hum": sum(np.sin(2 * np.pi * 50 * order * time) / order for order in range(1, 8)),
        "tone": np.sin(2 * np.pi * 440 * time),
        "clicks": np.where(rng.random(len(time)) < 5e-4, 1.0, 0.0),
        "sweep": np.sin(2 * np.pi * (200 + 300 * time) * time),
        "square": np.sign(np.sin(2 * np.pi * 3 * time)),
        "offset": np.ones(len(time)) + rng.normal(scale=1e-3, size=len(time)),
        "alternating": np.where(np.arange(len(time)) % 2, 1.0, -1.0),
    }[kind]
    pcm = (level * sound / np.abs(sound).max()).astype(np.float32)
    with pytest.raises((NoSpeechError, LowQualityError)):
        VOICE.prepare((pcm, 16_000), graphs())


# Files that are damaged or lie


@pytest.mark.parametrize("kind", ["WAV", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG"])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_file_that_was_cut_is_refused(kind: str, part: float) -> None:
    whole = sound_file(SPEECH, 16_000, kind)
    with pytest.raises(UndecodableSampleError):
        audio.decode(whole[: int(part * len(whole))], LIMITS)


def test_a_wav_whose_writer_did_not_know_the_length_is_read() -> None:
    whole = bytearray(sound_file(SPEECH, 16_000, "WAV", "PCM_16"))
    place = bytes(whole).index(b"data") + 4
    whole[place : place + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert len(audio.decode(bytes(whole), LIMITS)[0]) == len(SPEECH)


def test_headers_that_claim_more_than_the_limit() -> None:
    short = Capture(limits=Limits(max_seconds=2.0))
    for kind in ("WAV", "FLAC", "OGG", "MP3", "AIFF"):
        with pytest.raises(SampleTooLargeError, match="may last 2 s"):
            audio.decode(sound_file(SPEECH, 16_000, kind), short.limits)
    lying = bytearray(sound_file(SPEECH, 16_000, "WAV", "PCM_16"))
    lying[24:28] = struct.pack("<I", 4_000)  # a quarter of the rate: four times as long
    with pytest.raises(SampleTooLargeError):
        audio.decode(bytes(lying), Limits(max_seconds=10.0))


@given(
    kind=st.sampled_from(["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64", "NIST", "VOC"]),
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=12),
    byte=st.integers(0, 255),
    keep=st.floats(0.02, 1),
)
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_errors_and_never_crashes(kind: str, places: list[float], byte: int, keep: float) -> None:
    data = bytearray(_SHORT[kind])
    data = data[: max(4, int(keep * len(data)))]
    for place in places:
        data[int(place * min(len(data), 400))] = byte
    try:
        pcm, rate = audio.decode(bytes(data), Limits(max_seconds=60.0))
    except SampleError:
        return
    assert pcm.dtype == np.float32
    assert np.isfinite(pcm).all()
    assert 4_000 <= rate <= 192_000
    assert len(pcm) <= 60 * rate


_SHORT = {
    kind: sound_file(SPEECH[:4000], 16_000, kind)
    for kind in ("WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64", "NIST", "VOC")
}


def test_what_is_no_sound_file() -> None:
    for data in (
        b"RIFF",
        b"RIFF\x00\x00\x00\x00WAVE",
        b"OggS",
        b"fLaC",
        b"caff",
        b".snd",
        b"FORM1234AIFF",
        b"\x00" * 64,
    ):
        with pytest.raises(UndecodableSampleError):
            audio.decode(data, LIMITS)
    assert containers.takes(b"ID3", 120.0) is None


# The same again


def test_the_same_recording_a_thousand_times_and_another_one() -> None:
    # speechbrain #1026: the same pair drifted; #2294: the same result whatever the input.
    first = features(SPEECH)
    data = sound_file(SPEECH[:16_000], 16_000, "FLAC")
    short = VOICE.prepare(data, graphs()).features
    assert all(np.array_equal(VOICE.prepare(data, graphs()).features, short) for _ in range(200))
    assert not np.array_equal(first, features(synthetic_voice.utterance(3.0, speaker=2)))
