"""Copies of a recording as worse conditions would have given it, so that a calibration sees those conditions too.

It is cut short, sent through a telephone's 8 kHz or a coder, or mixed with noise. What the copies really are is
measured afterwards, as it is for any sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import soxr

from uvsdk.arrays import Float32, Float64
from uvsdk.modality.contract import Captured
from uvsdk.modality.sample import Sample
from uvsdk.modality.voice.frames import CapturedVoice

Noise = Literal["white", "pink", "babble"]

_VOICES_IN_BABBLE = 5
_CODED_WINDOW_S = 0.032
_CODED_BAND = 9
"""Bins of that window, 280 Hz, over which a coder's noise follows the voice."""


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recording is made worse; what is ``None`` stays.

    Args:
        speech_s: seconds of speech to keep, from a random place.
        rate: sample rate of a telephone, in Hz.
        snr_db: speech and background against the noise that is added, in decibels.
        noise: ``white``, ``pink`` (3 dB less an octave, nearer to rooms and streets) or ``babble`` (other people).
        coding_db: the voice against the noise of a coder, which follows it in time and frequency, in decibels.
    """

    speech_s: float | None = None
    rate: int | None = None
    snr_db: float | None = None
    noise: Noise = "white"
    coding_db: float | None = None


RECORDINGS: Final[Mapping[str, Recording]] = {
    "3 s": Recording(speech_s=3.0),
    "1.5 s": Recording(speech_s=1.5),
    "8 kHz": Recording(rate=8_000),
    "20 dB": Recording(snr_db=20.0, noise="pink"),
    "10 dB": Recording(snr_db=10.0),
    "10 dB pink": Recording(snr_db=10.0, noise="pink"),
    "10 dB babble": Recording(snr_db=10.0, noise="babble"),
    "3 s, 8 kHz": Recording(speech_s=3.0, rate=8_000),
    "2 s, 12 dB": Recording(speech_s=2.0, snr_db=12.0),
    "1 s": Recording(speech_s=1.0),
    "8 kHz, coded": Recording(rate=8_000, coding_db=6.0),
}
"""What ``uvsdk calibrate`` makes of every recording."""


def worsen(
    captured: Captured | None,
    measured: Mapping[str, float],
    rng: np.random.Generator,
    others: Sequence[Captured | None],
) -> dict[str, Sample]:
    """See :data:`uvsdk.modality.contract.Worsen`; ``others`` are the babble."""
    assert isinstance(captured, CapturedVoice)
    voices = [item.recorded for item in others if isinstance(item, CapturedVoice) and item.rate == captured.rate]
    share = measured["speech_s"] / max(measured["duration_s"], 1e-9)
    found: dict[str, Sample] = {}
    for name, recording in RECORDINGS.items():
        pcm, rate = worse_recording(captured.recorded, captured.rate, recording, share=share, rng=rng, voices=voices)
        if pcm is not captured.recorded:
            found[name] = (pcm, rate)
    return found


def worse_recording(
    pcm: Float32,
    rate: int,
    recording: Recording,
    *,
    share: float = 1.0,
    rng: np.random.Generator,
    voices: Sequence[Float32] = (),
) -> tuple[Float32, int]:
    """Cut, noise, telephone, coder, in this order; ``pcm`` itself where nothing changes.

    Args:
        pcm: one channel, float32 (n,) in [-1, 1].
        rate: of ``pcm``, in Hz.
        recording: what to do.
        share: of the recording that is speech: 3 s of speech take ``3 / share`` seconds of it.
        rng: chooses the place and makes the noises.
        voices: of other people, at ``rate``; without any there is no babble.
    """
    if recording.noise == "babble" and not voices:
        return pcm, rate
    worse = pcm
    if recording.speech_s is not None:
        length = round(recording.speech_s / min(max(share, 0.2), 1.0) * rate)
        if length < len(pcm):
            start = int(rng.integers(0, len(pcm) - length + 1))
            worse = worse[start : start + length]
    if recording.snr_db is not None and len(worse):
        sound = (
            babble(voices, len(worse), rng) if recording.noise == "babble" else hiss(len(worse), recording.noise, rng)
        )
        worse = mix(worse, sound, recording.snr_db)
    if recording.rate is not None and recording.rate < rate:
        worse = np.ascontiguousarray(soxr.resample(worse, rate, recording.rate, quality="HQ"), np.float32)
        rate = recording.rate
    if recording.coding_db is not None and len(worse):
        worse = coded(worse, rate, recording.coding_db, rng)
    return worse, rate


def coded(pcm: Float32, rate: int, snr_db: float, rng: np.random.Generator) -> Float32:
    """``pcm``, float32 (n,), as a coder of few bits gives it back: with noise ``snr_db`` decibels under the voice in
    every window of 32 ms and band of 280 Hz, as quantisation that is shaped by the voice's own spectrum leaves it.

    No coder's own way: it stands for what GSM and Opus at 6 kbit/s do to embeddings, without their programs.
    """
    half = round(_CODED_WINDOW_S * rate / 2)
    window = np.sqrt(0.5 - 0.5 * np.cos(np.pi * np.arange(2 * half) / half))
    blocks = -(-len(pcm) // half)
    padded = np.zeros((blocks + 2) * half)
    padded[half : half + len(pcm)] = pcm
    parts = padded.reshape(-1, half)
    spectra = np.fft.rfft(np.concatenate([parts[:-1], parts[1:]], axis=1) * window, axis=1)
    power = np.pad(np.square(np.abs(spectra)), ((0, 0), (_CODED_BAND // 2, _CODED_BAND // 2)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(power, _CODED_BAND, axis=1).mean(axis=2)
    # The window halves the power of what it shows, and two of them overlap where their noise is added.
    height = np.sqrt(around * 10.0 ** (-snr_db / 10.0))
    noise = height * (rng.standard_normal(spectra.shape) + 1j * rng.standard_normal(spectra.shape))
    made = np.fft.irfft(spectra + noise, 2 * half, axis=1) * window
    joined = (made[:-1, half:] + made[1:, :half]).ravel()[: len(pcm)]
    return np.asarray(np.clip(joined, -1.0, 1.0), np.float32)


def hiss(count: int, noise: Noise, rng: np.random.Generator) -> Float64:
    """White or pink noise, float64 (count,)."""
    sound: Float64 = rng.standard_normal(count)
    if noise == "pink":
        spectrum = np.fft.rfft(sound)
        # Power falls as 1 / f; the constant has no frequency and is left where the lowest one is.
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
        sound = np.fft.irfft(spectrum, count)
    return sound


def babble(voices: Sequence[Float32], count: int, rng: np.random.Generator) -> Float64:
    """A few voices at once, each as loud as the others, from a random place on and from the start again at its end."""
    sound = np.zeros(count)
    for index in rng.permutation(len(voices))[:_VOICES_IN_BABBLE]:
        voice = voices[index].astype(np.float64)
        start = int(rng.integers(len(voice)))
        level = max(float(np.sqrt(np.mean(voice**2))), 1e-9)
        sound += np.take(voice, np.arange(start, start + count), mode="wrap") / level
    return sound


def mix(pcm: Float32, sound: Float64, snr_db: float) -> Float32:
    """``pcm`` with ``sound`` ``snr_db`` decibels under its own power; what overshoots full scale is clipped."""
    power = float(np.mean(np.square(pcm, dtype=np.float64)))
    scale = np.sqrt(power * 10.0 ** (-snr_db / 10.0) / max(float(np.mean(sound**2)), 1e-30))
    return np.asarray(np.clip(pcm + scale * sound, -1.0, 1.0), np.float32)
