"""What is measured in a recording before it is matched, and what it must reach."""

from __future__ import annotations

import math

import numpy as np

from uvsdk.arrays import Bool, Float32
from uvsdk.modality.voice.vad import Speech
from uvsdk.scoring import Quality, QualityPolicy, Requirement, assess

_BIN_HZ = 40.0
_HIGHEST_SNR_DB = 60.0
# Fewer frames outside speech than this do not tell how loud the background is.
_LEAST_PAUSE_FRAMES = 10
# Power of a frame of rounding noise of 16 bits under the window; below it a pause was written by software.
_ROUNDING = 1e-7
_CLIPPED = 0.999
# Below this peak a recording has too few steps for its highest one to mean anything.
_LEAST_PEAK = 0.01
# A frequency carries speech where it is within 60 dB of the strongest and rises over the pauses by half.
_WITHIN = 1e-6
_RISES = 1.5

REQUIREMENTS = (
    # 5 dB: equal error rate 11 %, 0 dB: 18 %. The softest-spoken of 411 clean recordings without a pause shows 5 dB.
    Requirement(
        "snr_db",
        "signal to noise ratio",
        "dB",
        (3.0, math.inf),
        (8.0, math.inf),
        "go to a quieter place or closer to the microphone",
    ),
    # 16-bit steps are 1/50 of such a signal; its error rate is not yet higher.
    Requirement(
        "level_dbfs",
        "level",
        "dB of full scale",
        (-65.0, math.inf),
        (-50.0, math.inf),
        "speak closer to the microphone or raise its gain",
    ),
    # Amplified thirtyfold a quarter is clipped, equal error rate 7 %; a hundredfold a half, 26 %.
    Requirement(
        "clipped_fraction",
        "overdriven part",
        "",
        (0.0, 0.3),
        (0.0, 0.02),
        "move away from the microphone or lower its gain",
    ),
    # Telephones reach 3.4 kHz or more, equal error rate 2.6 %; of 4 kHz recordings it is 13 %.
    Requirement(
        "bandwidth_hz",
        "bandwidth",
        "Hz",
        (2_500.0, math.inf),
        (5_000.0, math.inf),
        "record with the application itself and not over a telephone line",
    ),
    Requirement(
        "speech_s",
        "speech",
        "s",
        (0.0, math.inf),
        (2.0, math.inf),
        "speak a sentence of three seconds or more",
    ),
)
"""For one recording. Rates are of GE2E, 60 degraded recordings of 3 LibriSpeech readers against clean ones of 251
(clean: 1.3 %); ``tests/benchmarks/voice`` says what each line refuses."""


def measure(recorded: Float32, rate: int, *, level_dbfs: float, power: Float32, speech: Speech) -> dict[str, float]:
    """The values by the names that :attr:`uvsdk.scoring.Quality.measured` documents.

    Args:
        recorded: one channel as it was recorded, (n,) in [-1, 1].
        rate: of ``recorded``, in Hz.
        level_dbfs: root mean square of the recording without its constant offset.
        power: power spectrum per frame, (frames, 201), at 16 kHz and at the final level.
        speech: which frames are speech.
    """
    spoken = speech.voiced.astype(np.float32) @ power / np.float32(max(int(speech.voiced.sum()), 1))
    loudness = power.sum(axis=1)
    background = _background(power, loudness, speech.kept)
    noise = float(background.sum())
    signal = max(float(spoken.sum()) - noise, 1e-20)
    return {
        "speech_s": speech.voiced_s,
        "duration_s": len(recorded) / rate,
        "level_dbfs": level_dbfs,
        "snr_db": float(np.clip(10.0 * math.log10(signal / max(noise, 1e-20)), -20.0, _HIGHEST_SNR_DB)),
        "clipped_fraction": clipped_fraction(recorded),
        "bandwidth_hz": min(_bandwidth_hz(spoken, background), rate / 2.0),
    }


def judge(measured: dict[str, float], policy: QualityPolicy) -> Quality:
    """The quality of a recording that meets ``policy``. Raises :class:`LowQualityError` otherwise."""
    return assess(measured, REQUIREMENTS, policy=policy)


def clipped_fraction(recorded: Float32) -> float:
    """The share of the samples that lie within a thousandth of the highest, or of full scale.

    Of undamaged speech that is a handful of samples; a recording that was overdriven and made softer afterwards
    shows as well as one that still touches full scale.

    >>> clipped_fraction(np.clip(np.sin(np.arange(1000, dtype=np.float32)), -0.5, 0.5)) > 0.5
    True
    """
    magnitude = np.abs(recorded)
    peak = float(magnitude.max(initial=0.0))
    limit = _CLIPPED * (min(peak, 1.0) if peak >= _LEAST_PEAK else 1.0)
    return float(np.mean(magnitude >= np.float32(limit))) if len(recorded) else 0.0


def _background(power: Float32, loudness: Float32, kept: Bool) -> Float32:
    """The spectrum of what is heard in pauses.

    Where a recording has no pause, or one that software wrote, it is that of the softest twentieth of all frames, which
    overstates what lies behind clean speech: such a recording is never found better than it is.
    """
    pause = ~kept & (loudness > _ROUNDING)
    if int(pause.sum()) < _LEAST_PAUSE_FRAMES:
        sounding = loudness > _ROUNDING
        limit = np.quantile(loudness[sounding], 0.05) if sounding.any() else 0.0
        pause = sounding & (loudness <= limit)
    count = max(int(pause.sum()), 1)
    return np.asarray(pause.astype(np.float32) @ power / np.float32(count), np.float32)


def _bandwidth_hz(spoken: Float32, background: Float32) -> float:
    """The highest frequency at which speech is heard; 200 Hz are averaged, since single bins fluctuate."""
    smooth = np.ones(5, np.float32) / np.float32(5)
    heard, noise = np.convolve(spoken, smooth, "same"), np.convolve(background, smooth, "same")
    bins = np.flatnonzero((heard > _WITHIN * heard.max()) & (heard > _RISES * noise))
    return float(bins[-1]) * _BIN_HZ if len(bins) else 0.0
