"""Keyed fingerprints of recordings and faces, by which the very same one is known again.

A person never says a sentence twice alike to the millisecond, and a camera never gives the same noise twice. A
fingerprint says which way a picture's or a spectrogram's neighbourhoods slope along random directions: one bit each.
The directions come from a secret key, so fingerprints made under two keys cannot be compared, and one without its key
says nothing. With its key it is personal data (a rough picture of what was said or who is seen), so it is kept sealed,
see :mod:`uvsdk.presentation.recollection`.

Sources: Haitsma and Kalker, "A Highly Robust Audio Fingerprinting System", 2002 (signs of energy differences over time
and frequency, compared by their bit error rate); Charikar, "Similarity estimation techniques from rounding algorithms",
2002 (signs of random projections); Teoh et al., "Random Multispace Quantization as an Analytic Mechanism for
BioHashing", 2006 (the projections as the key). Unlike Haitsma and Kalker's the differences are drawn from the key, and
what is compared is the best window, so that a part that was cut out and replayed is found too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image

from uvsdk.arrays import Float32, Float64, UInt8
from uvsdk.errors import SettingsError
from uvsdk.modality.voice import mel

KEY_BYTES = 32
"""Length of a fingerprint key."""

BITS = 32
"""Bits per frame of a recording."""

FRAMES_PER_S = 25
"""Frames per second of a recording's fingerprint."""

FACE_BITS = 256
"""Bits of a face."""

WINDOW_FRAMES = 25
"""Frames in a row that are compared: one second."""

HALF_WINDOW_FRAMES = 12
"""The same for a word that was cut out of a recording and put between others."""

_RATE = 16_000
_BANDS = 16
# Inside what a telephone passes, so that a copy at 8 kHz is known again.
_BAND_HZ = (300.0, 3400.0)
_FFT = 1024
# Spectrum every 10 ms; a fingerprint's frame every 40 ms; each looks at 16 spectra, 160 ms.
_HOP = 160
_STEP = 4
_PATCH = 16
# Spectra this far under the loudest hold no speech, and their bits no information.
_FLOOR_DB = 40.0
# A recording is compared with itself up to here: the matrix grows with the square.
_LONGEST_FRAMES = 750
_FACE_SIDE = 32


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrint:
    """The fingerprint of a recording.

    Args:
        bits: float32 (frames, 32) of -1 and +1; a row of zeros where there was no speech.
    """

    bits: Float32 = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class FacePrint:
    """The fingerprint of an aligned face.

    Args:
        bits: float32 (256,) of -1 and +1.
    """

    bits: Float32 = field(repr=False)


def voice_prints(pcm: Float32, key: bytes) -> tuple[VoicePrint, ...]:
    """The fingerprint of a recording as seen from 0, 10, 20 and 30 ms on; the first one is what is kept.

    Args:
        pcm: (n,) at 16 kHz.
        key: 32 secret bytes.
    """
    levels = _levels(pcm)
    if len(levels) < _PATCH:
        empty = VoicePrint(np.zeros((0, BITS), np.float32))
        return (empty,) * _STEP
    patches = np.lib.stride_tricks.sliding_window_view(levels, _PATCH, axis=0)  # (t, bands, patch)
    flat = patches.reshape(len(patches), -1)
    bits = np.where(flat @ _voice_directions(key).T >= 0, np.float32(1), np.float32(-1))
    loudest = levels.max(axis=1)
    heard = np.lib.stride_tricks.sliding_window_view(loudest, _PATCH).max(axis=1) >= loudest.max() - _FLOOR_DB
    bits[~heard] = 0.0
    return tuple(VoicePrint(np.ascontiguousarray(bits[phase::_STEP])) for phase in range(_STEP))


def face_print(chip: UInt8, key: bytes) -> FacePrint:
    """The fingerprint of an aligned face, uint8 (S, S, 3)."""
    side = _FACE_SIDE
    grey = np.asarray(Image.fromarray(chip).convert("L").resize((side, side), Image.Resampling.BOX), np.float32)
    # What is left when each neighbourhood's mean is taken away: light and exposure go, edges stay.
    padded = np.pad(grey, 2, mode="edge")
    sums = np.lib.stride_tricks.sliding_window_view(padded, (5, 5)).mean(axis=(2, 3))
    detail = (grey - sums).ravel()
    return FacePrint(np.where(_face_directions(key) @ detail >= 0, np.float32(1), np.float32(-1)))


def agreement(seen: tuple[VoicePrint, ...], known: VoicePrint) -> tuple[float, float]:
    """How much of the best second, and of the best half second, of two recordings agrees.

    Each from 0 to 1: 1 for the same sound; the best of so many places is 0.3 and 0.5 for unrelated speech.

    Args:
        seen: all four fingerprints of one recording.
        known: the kept one of the other.
    """
    return _best(phase.bits @ known.bits.T for phase in seen)


def repeats_within(seen: tuple[VoicePrint, ...]) -> tuple[float, float]:
    """As :func:`agreement`, of the first half minute of a recording with itself a second or more later.

    Args:
        seen: all four fingerprints of it.
    """
    first = seen[0].bits[:_LONGEST_FRAMES]
    return _best((first @ phase.bits[:_LONGEST_FRAMES].T for phase in seen), later=WINDOW_FRAMES)


def _best(products: Iterable[Float32], *, later: int = 0) -> tuple[float, float]:
    """The largest sum over each window, down the diagonals that lie ``later`` or more above the main one."""
    best = [0.0, 0.0]
    for product in products:
        for place, window in enumerate((WINDOW_FRAMES, HALF_WINDOW_FRAMES)):
            # Less than a window proves nothing.
            if min(product.shape) >= window:
                sums = _diagonal_sums(product, window)
                highest = np.triu(sums, later).max() if later else sums.max()
                best[place] = max(best[place], float(highest) / (BITS * window))
    return best[0], best[1]


def likeness(one: FacePrint, other: FacePrint) -> float:
    """How much two faces' fingerprints agree, from -1 to 1: 1 for the same picture."""
    return float(one.bits @ other.bits) / FACE_BITS


def _diagonal_sums(products: Float32, window: int) -> Float32:
    """The sum over ``window`` entries down every diagonal, by doubling.

    >>> _diagonal_sums(np.eye(4, dtype=np.float32), 3)
    array([[3., 0.],
           [0., 3.]], dtype=float32)
    """
    rows, columns = products.shape[0] - window + 1, products.shape[1] - window + 1
    total = np.zeros((rows, columns), np.float32)
    run, length, start = products, 1, 0
    while True:
        if window & length:
            total += run[start : start + rows, start : start + columns]
            start += length
        if 2 * length > window:
            return total
        run = run[: run.shape[0] - length, : run.shape[1] - length] + run[length:, length:]
        length *= 2


def _levels(pcm: Float32) -> Float32:
    """Level per band and 10 ms, decibels, (t, 16)."""
    if len(pcm) < _FFT:
        return np.zeros((0, _BANDS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(np.asarray(pcm, np.float32), _FFT)[::_HOP]
    power = np.square(np.abs(np.fft.rfft(frames * mel.hann(_FFT), axis=1))).astype(np.float32)
    bands = power @ _bank().T
    # 120 dB under full scale, so that digital silence has a level.
    return np.asarray(10.0 * np.log10(bands + np.float32(1e-12 * _FFT)), np.float32)


@lru_cache(maxsize=1)
def _bank() -> Float32:
    """Which bins a band sums, (16, bins): logarithmic from 300 to 3400 Hz."""
    edges = np.geomspace(*_BAND_HZ, _BANDS + 1)
    hz = np.linspace(0.0, _RATE / 2, _FFT // 2 + 1)
    bank = ((hz >= edges[:-1, None]) & (hz < edges[1:, None])).astype(np.float32)
    mean: Float32 = bank / np.maximum(bank.sum(axis=1, keepdims=True), np.float32(1))
    return mean


def _normal(key: bytes, purpose: bytes, count: int) -> Float64:
    """Numbers from the key alone, roughly normal: sums of four uniform bytes each, from SHAKE-256."""
    if len(key) != KEY_BYTES:
        raise SettingsError(f"a fingerprint key has {KEY_BYTES} bytes, got {len(key)}; take them from the system")
    stream = hashlib.shake_256(b"uvsdk fingerprint 1 " + purpose + b" " + key).digest(4 * count)
    drawn: Float64 = np.frombuffer(stream, np.uint8).reshape(count, 4).astype(np.float64).sum(axis=1) - 510.0
    return drawn


@lru_cache(maxsize=8)
def _voice_directions(key: bytes) -> Float32:
    """(32, 16 * 16): smooth over bands and time, without what is constant in either."""
    drawn = _normal(key, b"voice", BITS * _BANDS * _PATCH).reshape(BITS, _BANDS, _PATCH)
    smooth = _smooth(_smooth(drawn, 1, 3), 2, 5)
    smooth -= smooth.mean(axis=2, keepdims=True)
    smooth -= smooth.mean(axis=1, keepdims=True)
    directions: Float32 = smooth.reshape(BITS, -1).astype(np.float32)
    return directions


@lru_cache(maxsize=8)
def _face_directions(key: bytes) -> Float32:
    drawn = _normal(key, b"face", FACE_BITS * _FACE_SIDE**2).reshape(FACE_BITS, _FACE_SIDE, _FACE_SIDE)
    directions: Float32 = _smooth(_smooth(drawn, 1, 3), 2, 3).reshape(FACE_BITS, -1).astype(np.float32)
    return directions


def _smooth(values: Float64, axis: int, width: int) -> Float64:
    """The mean over ``width`` neighbours along an axis, around the edges."""
    half = width // 2
    shifted = [np.roll(values, shift, axis) for shift in range(-half, half + 1)]
    smooth: Float64 = np.mean(shifted, axis=0)
    return smooth
