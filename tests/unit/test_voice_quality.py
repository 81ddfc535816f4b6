"""What is measured in a recording, by hand, and which recordings each policy refuses."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from tests import modality_graphs, real_data, synthetic_voice
from uvsdk.errors import LowQualityError
from uvsdk.modality import Capture, get
from uvsdk.modality.voice.quality import clipped_fraction, measure
from uvsdk.modality.voice.vad import Speech
from uvsdk.scoring import QualityPolicy

VOICE = get("voice")
SPEECH = synthetic_voice.utterance(4.0, speaker=1)
PAUSED = np.concatenate([np.zeros(16_000, np.float32), SPEECH, np.zeros(16_000, np.float32)])


def measured(pcm: np.ndarray, rate: int = 16_000, policy: QualityPolicy = "off") -> dict[str, float]:
    graphs = modality_graphs.loaded("voice", {})
    return VOICE.prepare((pcm, rate), graphs, capture=Capture(quality=policy)).quality.measured


def noise(pcm: np.ndarray, snr_db: float) -> np.ndarray:
    """White noise at that many decibels under the speech."""
    level = float(np.sqrt(np.mean(np.square(pcm[pcm != 0]))))
    return np.random.default_rng(0).normal(scale=level * 10 ** (-snr_db / 20), size=len(pcm)).astype(np.float32)


# By hand


def test_signal_to_noise_ratio_by_hand() -> None:
    # 20 frames of pause with power 1 in each of two bins, 30 of speech with power 100 in the first and 1 in the second:
    # (101 - 2) / 2 = 49.5, 16.95 dB.
    power = np.ones((50, 2), np.float32)
    power[20:, 0] = 100.0
    spoken = np.arange(50) >= 20
    found = measure(np.zeros(8000, np.float32), 16_000, level_dbfs=-20.0, power=power, speech=Speech(spoken, spoken))
    assert found["snr_db"] == pytest.approx(10 * np.log10(49.5), abs=1e-3)
    assert found["speech_s"] == pytest.approx(0.3)
    assert found["duration_s"] == 0.5


def test_a_pause_that_software_wrote_does_not_count() -> None:
    # The silent frames say nothing of the noise; the softest twentieth of the others has power 4.
    power = np.zeros((60, 1), np.float32)
    power[30:] = 100.0
    power[30:33] = 4.0
    spoken = np.arange(60) >= 30
    found = measure(np.zeros(8000, np.float32), 16_000, level_dbfs=-20.0, power=power, speech=Speech(spoken, spoken))
    assert found["snr_db"] == pytest.approx(10 * np.log10((27 * 100 + 3 * 4) / 30 / 4 - 1), abs=1e-3)


def test_clipping_is_seen_whatever_the_level() -> None:
    # |sin| >= 0.5 for two thirds of the time.
    sine = np.sin(np.linspace(0, 200 * np.pi, 100_001)[:-1]).astype(np.float32)
    for level in (1.0, 0.3, 0.02):
        clipped = np.clip(sine, -0.5, 0.5) * np.float32(2 * level)
        assert clipped_fraction(clipped) == pytest.approx(2 / 3, abs=0.01)
    assert clipped_fraction(sine) < 0.04
    assert clipped_fraction(np.full(100, 1e-4, np.float32)) == 0.0
    assert clipped_fraction(np.zeros(0, np.float32)) == 0.0


# Sound


@pytest.mark.parametrize("snr_db", [5.0, 10.0, 20.0])
def test_the_ratio_is_found_in_sound(snr_db: float) -> None:
    pcm = PAUSED + noise(PAUSED, snr_db)
    assert measured(pcm)["snr_db"] == pytest.approx(snr_db, abs=2.5)


@pytest.mark.parametrize(("rate", "expected"), [(8_000, 4_000), (11_025, 5_512), (16_000, 8_000)])
def test_bandwidth_is_that_of_the_line_whatever_the_file_says(rate: int, expected: float) -> None:
    narrow = soxr.resample(PAUSED, 16_000, rate, quality="VHQ") if rate != 16_000 else PAUSED
    assert measured(narrow, rate)["bandwidth_hz"] == pytest.approx(expected, abs=350)
    again = soxr.resample(narrow, rate, 16_000, quality="VHQ") if rate != 16_000 else PAUSED
    assert measured(again)["bandwidth_hz"] == pytest.approx(expected, abs=350)
    # NeMo #5930: calls are recognised as such in a file of 48 kHz, and with noise on top, too.
    if rate == 8_000:
        wide = soxr.resample(narrow, rate, 48_000, quality="VHQ")
        assert measured(wide, 48_000)["bandwidth_hz"] == pytest.approx(4_000, abs=350)
        assert measured(again + noise(again, 20))["bandwidth_hz"] < 5_000


def test_measurements_do_not_depend_on_the_level_or_an_offset() -> None:
    pcm = PAUSED + noise(PAUSED, 15)
    first, softer = measured(pcm), measured(pcm * np.float32(0.1) + np.float32(0.2))
    assert softer["level_dbfs"] == pytest.approx(first["level_dbfs"] - 20, abs=0.1)
    for name in ("snr_db", "speech_s", "bandwidth_hz"):
        assert softer[name] == pytest.approx(first[name], rel=0.05), name


@pytest.mark.parametrize(
    ("pcm", "words"),
    [
        (PAUSED + noise(PAUSED, -2), "signal to noise ratio"),
        (np.clip(SPEECH * 200, -1, 1), "overdriven part"),
        (SPEECH * np.float32(3e-3), "level"),
        (soxr.resample(soxr.resample(PAUSED, 16_000, 4_000), 4_000, 16_000), "bandwidth"),
    ],
)
def test_what_standard_refuses_and_off_takes(pcm: np.ndarray, words: str) -> None:
    with pytest.raises(LowQualityError, match=words) as caught:
        measured(pcm, policy="standard")
    assert set(caught.value.measured) >= {"speech_s", "duration_s", "level_dbfs", "snr_db", "bandwidth_hz"}
    assert measured(pcm)["speech_s"] > 0.5


def test_strict_wants_two_seconds_of_wideband_speech() -> None:
    assert measured(PAUSED, policy="strict")["speech_s"] > 2
    with pytest.raises(LowQualityError, match="speak a sentence of three seconds or more"):
        measured(SPEECH[:24_000], policy="strict")
    telephone = soxr.resample(PAUSED, 16_000, 8_000)
    assert measured(telephone, 8_000, "standard")
    with pytest.raises(LowQualityError, match="not over a telephone line"):
        measured(telephone, 8_000, "strict")


@pytest.mark.data
def test_no_clean_recording_is_refused() -> None:
    files = sorted(real_data.file("speech_librispeech").rglob("*.flac"))[::8]
    graphs = modality_graphs.loaded("voice", {})
    for file in files:
        assert VOICE.prepare(file, graphs).quality.measured["bandwidth_hz"] > 5_000
