"""From recordings to mel frames: the arithmetic by hand, and real speech through every path."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import modality_graphs, real_data
from tests.builders import sound_file
from uvsdk.errors import BundleError, LowQualityError, NoSpeechError, SampleTooLargeError
from uvsdk.modality import Capture, Limits, get
from uvsdk.modality.voice import fbank, mel, vad
from uvsdk.modality.voice.frames import Framing, louder, scale

VOICE = get("voice")
POWER = {"sample_rate": 16000, "mels": 40, "window_s": 0.025, "hop_s": 0.01, "scale": "power", "mean": "none"}
LOG = {**POWER, "scale": "log", "mean": "utterance"}
LETTERS = {**POWER, "minimum_speech_s": 0.3}


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """Four seconds of a LibriSpeech reader, 16 kHz."""
    files = sorted(real_data.file("speech_librispeech/eval_test-other").rglob("*.flac"))
    pcm, rate = soundfile.read(files[0], dtype="float32")
    assert rate == 16_000
    return np.asarray(pcm[: 4 * rate])


def bands(pcm: np.ndarray) -> np.ndarray:
    return mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40)


def resampled(pcm: np.ndarray, rate: int) -> np.ndarray:
    import soxr

    return np.asarray(soxr.resample(pcm, 16_000, rate, quality="VHQ"))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Relative difference of the power in two sets of frames, to which pauses that one of them kept add nothing."""
    first, second = a.sum(axis=0), b.sum(axis=0)
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


# The filter bank and the transform


def test_mel_scale_is_slaney() -> None:
    # 200/3 Hz per mel up to 1000 Hz (15 mels), then 27 mels for every factor of 6.4.
    assert mel.hz_to_mel(np.array([0.0, 500.0, 1000.0, 6400.0])) == pytest.approx([0, 7.5, 15, 42])
    hz = np.linspace(0, 8000, 50)
    assert mel.mel_to_hz(mel.hz_to_mel(hz)) == pytest.approx(hz)


def test_filters_have_unit_area_and_rise_in_frequency() -> None:
    bank = mel.filter_bank(16_000, 400, 40)
    assert bank.shape == (40, 201)
    assert bank.min() == 0
    # Bins lie 40 Hz apart. Wide triangles are sampled well; below 1 kHz one is 70 Hz half-wide, so a few per cent off.
    assert bank.sum(axis=1)[20:] * 40 == pytest.approx(np.ones(20), abs=0.02)
    assert np.all(np.diff(bank.argmax(axis=1)) > 0)
    # A fine transform shows the area itself.
    assert mel.filter_bank(16_000, 16_000, 40).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-3)


def test_first_filter_by_hand() -> None:
    # 42 corners from 0 to hz_to_mel(8000) = 15 + 27 ln(8) / ln(6.4) = 45.246 mels, 1.10355 mels apart; below 1 kHz that
    # is 73.570 Hz. Filter 0 peaks at 73.570 Hz with height 2 / 147.140; bin 1 is 40 Hz, bin 2 is 80 Hz.
    bank = mel.filter_bank(16_000, 400, 40)
    assert bank[0, 1] == pytest.approx(40 / 73.570 * 2 / 147.140, rel=1e-4)
    assert bank[0, 2] == pytest.approx((147.140 - 80) / 73.570 * 2 / 147.140, rel=1e-4)


def test_spectrogram_is_the_direct_transform() -> None:
    pcm = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    got = mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40)
    assert got.shape == (1 + 1000 // 160, 40)
    # Frame 3 is centred on sample 480: samples 280 to 680 under a periodic Hann window.
    n, k = np.arange(400), np.arange(201)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / 400)
    spectrum = np.exp(-2j * np.pi * np.outer(k, n) / 400) @ (pcm[280:680] * window)
    expected = mel.filter_bank(16_000, 400, 40) @ np.abs(spectrum) ** 2
    assert got[3] == pytest.approx(expected, rel=1e-4)


def test_a_tone_falls_into_its_band() -> None:
    pcm = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)).astype(np.float32)
    frames = mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40)
    # 1000 Hz is 15 mels; centres lie 1.10355 mels apart, the first at one step: 15 / 1.10355 - 1 = 12.6.
    assert frames[50].argmax() in (12, 13)
    # A tone of amplitude 0.5 under a window of sum 200 has |X| = 50 in its own bin and half of it in the two beside.
    assert frames[50] @ (1 / np.maximum(mel.filter_bank(16_000, 400, 40).max(axis=1), 1e-9)) > 0.5 * 50**2


@pytest.mark.parametrize(
    ("taper", "amplitude", "shape"),
    [
        ("povey", 1.0, (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85),
        ("hamming", 32_768.0, np.hamming(400)),
    ],
)
def test_kaldi_energies_are_those_of_its_definition(taper: str, amplitude: float, shape: np.ndarray) -> None:
    """Frame by frame as ``compute-fbank-feats --dither=0`` describes it, with numpy's transform."""
    pcm = np.random.default_rng(0).normal(0.0, 0.1, 1000).astype(np.float32)
    sizes = {"sample_rate": 16_000, "window": 400, "hop": 160, "mels": 80}
    got = fbank.fbank(pcm, **sizes, taper=taper, amplitude=amplitude)
    assert (got.shape, got.dtype) == ((1 + 1000 // 160, 80), np.float32)
    # Frame 3 is centred on sample 480: samples 280 to 680.
    frame = amplitude * pcm[280:680].astype(np.float64)
    frame -= frame.mean()
    frame = np.append((1 - 0.97) * frame[0], frame[1:] - 0.97 * frame[:-1])
    frame *= shape
    power = np.abs(np.fft.rfft(frame, 512)) ** 2
    corners = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), 82)
    bins = 1127 * np.log(1 + np.arange(257) * 16_000 / 512 / 700)
    expected = [
        np.interp(bins, corners[band : band + 3], [0.0, 1.0, 0.0], left=0.0, right=0.0) @ power for band in range(80)
    ]
    assert got[3] == pytest.approx(np.log(expected), abs=2e-4)


def test_kaldi_energies_have_a_floor() -> None:
    rows = fbank.fbank(np.zeros(800, np.float32), sample_rate=16_000, window=400, hop=160, mels=80)
    assert np.unique(rows).tolist() == [pytest.approx(np.log(np.finfo(np.float32).eps), rel=1e-6)]


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_kaldi_energies_of_louder_sound_are_higher_by_a_constant(factor: float) -> None:
    """So that a mean over time takes the level away."""
    pcm = np.random.default_rng(1).normal(0.0, 0.05, 4000).astype(np.float32)
    sizes = {"sample_rate": 16_000, "window": 400, "hop": 160, "mels": 80}
    once, louder_ = fbank.fbank(pcm, **sizes), fbank.fbank(np.float32(factor) * pcm, **sizes)
    assert louder_ - once == pytest.approx(np.full(once.shape, 2 * np.log(factor)), abs=2e-4)


def test_kaldi_energies_lie_in_the_frames_in_which_speech_is_found(speech: np.ndarray) -> None:
    """As many as power has, loud where it is."""
    power = bands(speech).sum(axis=1)
    rows = fbank.fbank(speech, sample_rate=16_000, window=400, hop=160, mels=80).mean(axis=1)
    assert rows.shape == power.shape
    assert np.corrcoef(rows, np.log(power + 1e-6))[0, 1] > 0.8


# Level, speech and frames


@pytest.mark.parametrize(("level", "expected"), [(0.001, -30.0), (0.1, -20.0)])
def test_the_level_is_only_ever_raised(level: float, expected: float) -> None:
    from uvsdk.modality.voice import audio

    pcm = np.full(100, level, np.float32)
    assert audio.level_dbfs(louder(pcm, audio.level_dbfs(pcm))) == pytest.approx(expected, abs=1e-3)


def test_dilation_at_the_edges() -> None:
    mask = np.array([True, False, False, False, False, False, True])
    assert vad.dilate(mask, 2).tolist() == [True, True, True, False, True, True, True]
    assert vad.dilate(np.zeros(3, np.bool_), 2).tolist() == [False] * 3


def test_logarithm_and_mean() -> None:
    pcm = np.random.default_rng(0).normal(size=8000).astype(np.float32) * np.float32(0.1)
    power = mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40)
    assert np.array_equal(scale(power, Framing.read(POWER)), power)
    log = scale(power, Framing.read(LOG))
    expected = np.log(power + 1e-6)
    assert log == pytest.approx(expected - expected.mean(axis=0), abs=1e-4)
    assert np.abs(log.mean(axis=0)).max() < 1e-4


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample_rate": 8000},
        {"mels": "forty"},
        {"mels": True},
        {"scale": "decibel"},
        {"bank": "bark"},
        {"bank": "kaldi", "scale": "power"},
        {"view_frames": 0},
        {"mean": None},
        {"hop_s": 0.02},
        {"window_s": 0.03},
    ],
)
def test_a_manifest_that_makes_no_sense(wrong: dict[str, str | int | None]) -> None:
    with pytest.raises(BundleError):
        Framing.read({**POWER, **wrong})


# Views and crops


@given(
    count=st.integers(1, 700),
    width=st.integers(1, 200),
    hop=st.integers(1, 120),
    scale=st.sampled_from(["power", "log"]),
)
@settings(max_examples=60, deadline=None)
def test_views_cover_every_frame(count: int, width: int, hop: int, scale: str) -> None:
    settings_ = {"mels": 2, "scale": scale, "view_frames": width, "view_hop_frames": min(hop, width)}
    rows = np.stack([np.arange(1, count + 1), np.arange(1, count + 1)], axis=1).astype(np.float32)
    views = VOICE.views(rows, settings_)
    assert views.shape[1:] == (width, 2)
    assert set(range(1, count + 1)) <= set(views[:, :, 0].ravel().tolist())
    for view in views:
        inside = view[: min(width, count), 0]
        assert np.all(np.diff(inside) == 1)
    crop = VOICE.crop(rows, settings_, np.random.default_rng(count))
    assert crop.shape == views.shape[1:]
    assert np.all(np.diff(crop[: min(width, count), 0]) == 1)


def test_short_speech() -> None:
    rows = np.arange(1, 4, dtype=np.float32)[:, None]
    base = {"mels": 1, "view_frames": 5}
    assert VOICE.views(rows, {**base, "scale": "power"}).ravel().tolist() == [1, 2, 3, 0, 0]
    assert VOICE.views(rows, {**base, "scale": "log"}).ravel().tolist() == [1, 2, 3, 1, 2]


def test_features_of_another_model() -> None:
    with pytest.raises(BundleError, match="of another model"):
        VOICE.views(np.zeros((9, 80), np.float32), POWER)
    with pytest.raises(BundleError):
        VOICE.views(np.zeros((0, 40), np.float32), POWER)


# Real speech


def test_every_container_gives_the_same_features(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", POWER)
    reference = VOICE.prepare((speech, 16_000), graphs)
    assert reference.features.dtype == np.float32
    assert reference.quality.measured["speech_s"] > 2
    assert set(reference.timings_s) == {"decode", "detect", "features"}
    for kind, tolerance in (("WAV", 1e-3), ("FLAC", 1e-3), ("OGG", 0.1), ("MP3", 0.1)):
        got = VOICE.prepare(sound_file(speech, 16_000, kind), graphs)
        assert got.features.shape[1] == 40
        assert distance(reference.features, got.features) < tolerance, kind


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000, 128_000])
def test_every_rate_gives_the_same_features(speech: np.ndarray, rate: int) -> None:
    graphs = modality_graphs.loaded("voice", POWER)
    reference = VOICE.prepare((speech, 16_000), graphs).features
    got = VOICE.prepare((resampled(speech, rate), rate), graphs).features
    # At 8 kHz there is nothing above 4 kHz: only the lower bands are compared. 4 kHz lies in band 30.
    bands = slice(0, 27) if rate == 8_000 else slice(0, 40)
    assert distance(reference[:, bands], got[:, bands]) < 0.05


def test_stereo_and_an_offset_change_nothing(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", POWER)
    reference = VOICE.prepare((speech, 16_000), graphs).features
    stereo = VOICE.prepare((np.stack([speech, speech], axis=1), 16_000), graphs).features
    shifted = VOICE.prepare((speech + np.float32(0.1), 16_000), graphs).features
    assert np.array_equal(stereo, reference)
    assert distance(reference, shifted) < 1e-3


def test_the_same_sample_gives_the_same_bits(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", LOG)
    first, second = (VOICE.prepare((speech, 16_000), graphs).features for _ in range(2))
    assert np.array_equal(first, second)


def test_silence_is_left_out(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", POWER)
    pauses = np.zeros(3 * 16_000, np.float32)
    framed = np.concatenate([pauses, speech, pauses])
    reference, got = (VOICE.prepare((pcm, 16_000), graphs) for pcm in (speech, framed))
    assert len(got.features) == pytest.approx(len(reference.features), rel=0.15)
    assert got.quality.measured["duration_s"] == pytest.approx(10.0)


def test_silence_noise_and_too_little_speech(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", LETTERS)
    with pytest.raises(NoSpeechError, match="silent: -inf dB"):
        VOICE.prepare((np.zeros(16_000, np.float32), 16_000), graphs)
    noise = np.random.default_rng(0).normal(size=32_000).astype(np.float32) * np.float32(0.05)
    hum = (0.3 * np.sin(2 * np.pi * 50 * np.arange(32_000) / 16_000)).astype(np.float32)
    for pcm in (noise, hum, noise[:100]):
        with pytest.raises(NoSpeechError, match=r"0\.00 s of speech in .* need 0\.30 s"):
            VOICE.prepare((pcm, 16_000), graphs)
    lengthy = modality_graphs.loaded("voice", {**POWER, "minimum_speech_s": 30.0})
    with pytest.raises(NoSpeechError, match=r"of speech in 4\.00 s of sound, need 30\.00 s"):
        VOICE.prepare((speech, 16_000), lengthy)
    with pytest.raises(SampleTooLargeError):
        VOICE.prepare((speech, 16_000), graphs, capture=Capture(limits=Limits(max_seconds=1.0)))


def test_a_syllable_is_usable_where_the_bundle_allows_it(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", LETTERS)
    found = vad.detect(bands(speech), graphs.session("vad"))
    start = int(np.flatnonzero(found.voiced)[16]) * vad.FRAME
    prepared = VOICE.prepare((speech[start : start + 6400], 16_000), graphs)
    assert prepared.quality.measured["speech_s"] <= 0.42
    assert any("three seconds or more" in advice for advice in prepared.quality.advice)
    assert VOICE.views(prepared.features, LETTERS).shape == (1, 160, 40)


def test_clipping_and_level_are_reported(speech: np.ndarray) -> None:
    graphs = modality_graphs.loaded("voice", POWER)
    loud = np.clip(speech * np.float32(50), -1, 1)
    quality = VOICE.prepare((loud, 16_000), graphs, capture=Capture(quality="off")).quality
    assert quality.measured["clipped_fraction"] == pytest.approx(float(np.mean(np.abs(loud) >= 0.999)))
    assert any("overdriven" in advice for advice in quality.advice)
    with pytest.raises(LowQualityError, match=r"overdriven part .*: move away from the microphone"):
        VOICE.prepare((loud, 16_000), graphs)
    soft = VOICE.prepare((speech * np.float32(0.01), 16_000), graphs).quality
    assert any("speak closer" in advice for advice in soft.advice)


def test_a_frame_depends_on_what_is_near_and_on_nothing_else(speech: np.ndarray) -> None:
    session = modality_graphs.loaded("voice", POWER).session("vad")
    rows = bands(speech)
    whole, part = vad.probabilities(rows, session), vad.probabilities(rows[:200], session)
    assert whole.shape == (401,)
    settled = 200 - vad.REACH
    assert part[:settled] == pytest.approx(whole[:settled], abs=1e-5)
    assert len(vad.probabilities(rows[:1], session)) == 1


@given(st.lists(st.floats(0, 1, width=32), max_size=40))
@settings(max_examples=100, deadline=None)
def test_hysteresis_is_the_loop_that_it_stands_for(values: list[float]) -> None:
    speaking, expected = False, []
    for value in values:
        speaking = value >= (0.25 if speaking else 0.5)
        expected.append(speaking)
    assert vad.hysteresis(np.array(values, np.float32), 0.5, 0.25).tolist() == expected
