"""Rooms of six flat walls: what a microphone hears of a voice some metres away.

Source: Allen and Berkley, "Image method for efficiently simulating small-room acoustics", Journal of the Acoustical
Society of America 65(4), 1979. Every reflection is the sound of an image of the speaker behind the walls. All walls
reflect alike, by the coefficient that Eyring's formula gives for the time in which sound falls by 60 dB. A reflection
lands on the nearest sample, as in the paper.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.signal import butter, fftconvolve, sosfilt

from uvsdk.arrays import Float32, Float64

SPEED_OF_SOUND = 343.0
"""Metres a second."""

_DROP_DB = 60.0
_HIGHPASS_HZ = 50.0
"""Images that all have the same sign add up at low frequencies where no room does; the paper filters likewise."""


@dataclass(frozen=True, slots=True)
class Room:
    """A room and who is where in it; metres, and seconds until sound has fallen by 60 dB."""

    size: tuple[float, float, float]
    reverberation_s: float
    mouth: tuple[float, float, float]
    microphone: tuple[float, float, float]


def reflection(room: Room) -> float:
    """The share of pressure that a wall gives back, by Eyring's formula T = 0.161 V / (-S ln(1 - a)), b = sqrt(1 - a).

    >>> box = Room((5.0, 5.0, 5.0), 0.161 * 125 / (150 * math.log(4)), (1, 1, 1), (2, 2, 2))
    >>> round(reflection(box), 3)  # a = 3/4
    0.5
    """
    x, y, z = room.size
    surface = 2 * (x * y + y * z + z * x)
    return math.exp(-0.161 * x * y * z / (2 * surface * room.reverberation_s))


@lru_cache(maxsize=16)
def response(room: Room, rate: int) -> Float64:
    """What the microphone hears of a click, float64 (n,), beginning with the direct sound, whose height is one."""
    longest = round(room.reverberation_s * rate)
    distances, bounces = _images(room, SPEED_OF_SOUND * longest / rate)
    heights = reflection(room) ** bounces / distances
    nearest = distances.min()
    places = np.rint((distances - nearest) / SPEED_OF_SOUND * rate).astype(np.int64)
    heard = places < longest
    pressure = np.bincount(places[heard], heights[heard] * nearest, minlength=longest)
    filtered: Float64 = sosfilt(butter(2, _HIGHPASS_HZ, "highpass", fs=rate, output="sos"), pressure)
    return filtered


def heard(pcm: Float32, rate: int, room: Room) -> Float32:
    """A recording from close by as the room's microphone has it, as loud as it was, float32 (n,)."""
    far = fftconvolve(pcm, response(room, rate))[: len(pcm)]
    power, was = float(np.mean(far**2)), float(np.mean(np.square(pcm, dtype=np.float64)))
    return np.asarray(far * math.sqrt(was / max(power, 1e-30)), np.float32)


def _images(room: Room, farthest: float) -> tuple[Float64, Float64]:
    """Of all images up to about ``farthest`` metres: the distance to the microphone, and how many walls are between."""
    axes = []
    for size, mouth, microphone in zip(room.size, room.mouth, room.microphone, strict=True):
        orders = np.arange(-math.ceil(farthest / (2 * size)) - 1, math.ceil(farthest / (2 * size)) + 2)
        # Even images lie at 2 n L + x after |2 n| walls, odd ones at 2 n L - x after |2 n - 1|.
        offsets = np.concatenate([2 * orders * size + mouth, 2 * orders * size - mouth]) - microphone
        axes.append((offsets, np.concatenate([np.abs(2 * orders), np.abs(2 * orders - 1)])))
    squares = _outer([offsets**2 for offsets, _ in axes])
    walls = _outer([count.astype(np.float64) for _, count in axes])
    near = squares <= farthest**2
    return np.sqrt(squares[near]), walls[near]


def _outer(parts: list[Float64]) -> Float64:
    """Sums of one entry of each, flattened."""
    total = parts[0]
    for part in itertools.islice(parts, 1, None):
        total = np.add.outer(total, part)
    flat: Float64 = total.ravel()
    return flat
