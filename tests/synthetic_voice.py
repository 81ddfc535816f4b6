"""Speech-like sound made of random numbers: a larynx through the resonances of five vowels, with hisses between.

The speech detector takes it for speech, and two seeds are two voices, so tests need no recording of anybody.
Formants: Peterson and Barney, "Control Methods Used in a Study of the Vowels", 1952.
"""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Float32, Float64

RATE = 16_000
_VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))


def utterance(seconds: float, speaker: int, text: int = 0) -> Float32:
    """One channel, (16000 seconds,), peak 0.5; ``speaker`` sets pitch and tract, ``text`` the sequence of sounds."""
    voice, words = np.random.default_rng(speaker), np.random.default_rng([speaker, text])
    pitch, tract = voice.uniform(90, 220), voice.uniform(0.85, 1.2)
    sound = np.zeros(int(seconds * RATE))
    position = RATE // 20
    while position < len(sound):
        size = min(int(words.uniform(0.12, 0.28) * RATE), len(sound) - position)
        sound[position : position + size] += _vowel(size, pitch, tract, words)
        position += size
        hiss = min(int(0.08 * RATE), len(sound) - position)
        if words.random() < 0.5 and hiss > 0:
            sound[position : position + hiss] += 0.25 * np.diff(words.normal(size=hiss + 1)) * np.hanning(hiss)
        position += int(words.uniform(0.02, 0.12) * RATE)
    return (sound * (0.5 / np.abs(sound).max())).astype(np.float32)


def _vowel(size: int, pitch: float, tract: float, rng: np.random.Generator) -> Float64:
    seconds = np.arange(size) / RATE
    melody = pitch * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(1, 3) * seconds + rng.uniform(0, 6)) - 0.1 * seconds)
    phase = 2 * np.pi * np.cumsum(melody) / RATE
    formants = tract * np.array(_VOWELS_HZ[rng.integers(len(_VOWELS_HZ))])
    sound = 0.02 * rng.normal(size=size)
    for order in range(1, 40):
        hertz = melody * order
        gain = np.zeros(size)
        for peak, formant in zip((1, 0.5, 0.25), formants, strict=True):
            gain += peak / (1 + ((hertz - formant) / (60 + 0.06 * formant)) ** 2)
        sound += gain * (hertz < 7500) * np.sin(order * phase)
    return np.asarray(sound * np.sqrt(np.hanning(size)), np.float64)
