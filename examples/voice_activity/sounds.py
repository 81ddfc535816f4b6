"""Sounds that are not speech, and what rooms and lines do to sounds; made of random numbers alone.

All are float32 (n,) at 16 kHz with a root mean square of 0.1 unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import soxr

from uvsdk.arrays import Float32, Float64

RATE = 16_000
_RMS = 0.1


def noise(count: int, rng: np.random.Generator) -> Float32:
    """Gaussian noise whose power falls by 0 to 8 dB an octave (white, pink, brown), as fans and streets have it."""
    return _levelled(_coloured(count, rng, float(rng.uniform(0.0, 2.7))))


def surging_noise(count: int, rng: np.random.Generator) -> Float32:
    """Coloured noise that swells and fades 0.2 to 12 times a second: wind, surf, rubbing cloth."""
    beat = 1.0 + rng.uniform(0.3, 1.0) * np.sin(2 * np.pi * rng.uniform(0.2, 12.0) * _time(count) + rng.uniform(0, 6))
    return _levelled(_coloured(count, rng, float(rng.uniform(0.0, 2.0))) * beat)


def hum(count: int, rng: np.random.Generator) -> Float32:
    """Mains hum or a motor: 30 to 200 Hz with harmonics, some with a little noise."""
    base = rng.choice([50.0, 60.0, 100.0, 120.0, float(rng.uniform(30, 200))])
    tone = _harmonics(base * np.ones(count), rng, count=int(rng.integers(1, 20)), fall=float(rng.uniform(0.5, 2.0)))
    return _levelled(tone + rng.uniform(0, 0.1) * rng.normal(size=count))


def tones(count: int, rng: np.random.Generator) -> Float32:
    """One to three steady tones, keyed on and off or not: test tones, dialling tones, alarms."""
    sound = sum(np.sin(2 * np.pi * rng.uniform(60, 6000) * _time(count)) for _ in range(int(rng.integers(1, 4))))
    if rng.random() < 0.5:
        sound = sound * (
            np.sin(2 * np.pi * rng.uniform(0.3, 8) * _time(count) + rng.uniform(0, 6)) > rng.uniform(-0.8, 0.8)
        )
    return _levelled(sound)


def sweep(count: int, rng: np.random.Generator) -> Float32:
    """A tone with up to four harmonics whose pitch wanders: sirens, whistles, squeaks."""
    middle = np.exp(rng.uniform(np.log(150), np.log(3000)))
    depth, speed = rng.uniform(0.05, 0.6), rng.uniform(0.1, 6.0)
    pitch = middle * (1 + depth * np.sin(2 * np.pi * speed * _time(count) + rng.uniform(0, 6)))
    return _levelled(_harmonics(pitch, rng, count=int(rng.integers(1, 5)), fall=2.0))


def music(count: int, rng: np.random.Generator) -> Float32:
    """Notes and chords of plucked or sustained harmonics on the chromatic scale, 1 to 8 a second, some with a beat."""
    sound = np.zeros(count)
    length = int(RATE / rng.uniform(1.0, 8.0))
    decay = rng.uniform(0.0, 8.0)
    for start in range(0, count, length):
        size = min(length, count - start)
        note = np.zeros(size)
        for _ in range(int(rng.integers(1, 4))):
            pitch = 55.0 * 2.0 ** (rng.integers(0, 60) / 12.0)
            note += _harmonics(
                pitch * np.ones(size), rng, count=int(rng.integers(1, 12)), fall=float(rng.uniform(1, 2))
            )
        rise = np.minimum(1.0, np.arange(size) / (RATE * 0.01))
        sound[start : start + size] += note * rise * np.exp(-decay * np.arange(size) / RATE)
        if rng.random() < 0.3:
            sound[start : start + size] += rng.normal(size=size) * np.exp(-40.0 * np.arange(size) / RATE)
    return _levelled(sound)


def clicks(count: int, rng: np.random.Generator) -> Float32:
    """Impulses and short bursts of noise, as keyboards, taps and bad contacts make them."""
    sound = rng.normal(size=count) * 1e-4
    for _ in range(max(1, int(rng.uniform(0.5, 12.0) * count / RATE))):
        size = int(rng.integers(1, 1600))
        start = int(rng.integers(0, max(count - size, 1)))
        burst = _coloured(size, rng, float(rng.uniform(0.0, 2.0))) * np.exp(-np.arange(size) / (0.2 * size + 1))
        sound[start : start + size] += rng.uniform(0.2, 1.0) * burst[: count - start]
    return _levelled(sound)


NOT_SPEECH: tuple[Callable[[int, np.random.Generator], Float32], ...] = (
    noise,
    surging_noise,
    hum,
    tones,
    sweep,
    music,
    clicks,
)


def telephone(pcm: Float32) -> Float32:
    """What is left at 8 kHz, back at 16 kHz."""
    narrow = soxr.resample(pcm, RATE, RATE // 2, quality="HQ")
    return np.asarray(soxr.resample(narrow, RATE // 2, RATE, quality="HQ"), np.float32)[: len(pcm)]


def room(pcm: Float32, rng: np.random.Generator) -> Float32:
    """An echo that decays by 60 dB within 0.1 to 0.7 s, up to as strong as the direct sound."""
    decay_s = rng.uniform(0.1, 0.7)
    taps = rng.normal(size=int(decay_s * RATE)) * np.exp(-6.9 * np.arange(int(decay_s * RATE)) / (decay_s * RATE))
    taps *= rng.uniform(0.1, 1.0) / np.sqrt(np.sum(taps**2))
    size = len(pcm) + len(taps)
    tail = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(taps, size), size)[: len(pcm)]
    return (pcm + tail).astype(np.float32)


def coloured(pcm: Float32, rng: np.random.Generator) -> Float32:
    """A microphone's frequency response: up to 12 dB up or down, smooth over frequency."""
    size = len(pcm)
    points = rng.uniform(-12.0, 12.0, 6)
    response = np.interp(np.fft.rfftfreq(size, 1 / RATE), np.linspace(0, RATE / 2, 6), points)
    return np.fft.irfft(np.fft.rfft(pcm) * 10 ** (response / 20), size).astype(np.float32)


def _time(count: int) -> Float64:
    return np.arange(count) / RATE


def _levelled(sound: Float64) -> Float32:
    return (sound * (_RMS / max(float(np.sqrt(np.mean(np.square(sound)))), 1e-9))).astype(np.float32)


def _coloured(count: int, rng: np.random.Generator, slope: float) -> Float64:
    spectrum = np.fft.rfft(rng.normal(size=count))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** (slope / 2)
    return np.fft.irfft(spectrum, count)


def _harmonics(pitch: Float64, rng: np.random.Generator, *, count: int, fall: float) -> Float64:
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    sound = np.zeros(len(pitch))
    for order in range(1, count + 1):
        audible = pitch * order < RATE / 2
        sound += audible * np.sin(order * phase + rng.uniform(0, 6)) * order**-fall
    return sound
