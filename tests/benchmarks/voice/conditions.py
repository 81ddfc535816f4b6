"""What microphones, lines and rooms do to a recording; float32 (n,) at 16 kHz in and out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import soxr

from uvsdk.arrays import Float32

Condition = Callable[[Float32, np.random.Generator], Float32]


def noise(snr_db: float) -> Condition:
    """Noise whose power falls by 3 dB an octave, that many decibels under the recording's level."""

    def worse(pcm: Float32, rng: np.random.Generator) -> Float32:
        spectrum = np.fft.rfft(rng.normal(size=len(pcm)))
        pink = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1.0)), len(pcm))
        scale = np.sqrt(np.mean(np.square(pcm)) / np.mean(np.square(pink))) * 10 ** (-snr_db / 20)
        return (pcm + scale * pink).astype(np.float32)

    return worse


def line(rate: int) -> Condition:
    """What passes a line of that many samples a second."""

    def worse(pcm: Float32, rng: np.random.Generator) -> Float32:
        narrow = soxr.resample(pcm, 16_000, rate, quality="VHQ")
        return np.asarray(soxr.resample(narrow, rate, 16_000, quality="VHQ"), np.float32)

    return worse


def overdriven(decibels: float) -> Condition:
    """Amplified so far beyond -25 dB of full scale that the peaks are cut off."""

    def worse(pcm: Float32, rng: np.random.Generator) -> Float32:
        gain = 10 ** ((decibels - 25) / 20) / np.sqrt(np.mean(np.square(pcm)))
        return np.clip(pcm * np.float32(gain), -1, 1)

    return worse


CONDITIONS: dict[str, Condition] = {
    "clean": lambda pcm, rng: pcm,
    "noise 20 dB": noise(20),
    "noise 10 dB": noise(10),
    "noise 5 dB": noise(5),
    "noise 0 dB": noise(0),
    "noise -5 dB": noise(-5),
    "8 kHz line": line(8_000),
    "4 kHz line": line(4_000),
    "overdriven by 20 dB": overdriven(20),
    "overdriven by 30 dB": overdriven(30),
    "overdriven by 40 dB": overdriven(40),
}
