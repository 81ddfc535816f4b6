"""Which of a person's own words were spoken, one after another: connected words by dynamic time warping.

A phrase is aligned, frame by frame, with recordings of the person's own digits joined in the best possible way, and
joined as the challenge says. No model of a language is needed, and only the person's own voice fits well.

Source: Ney, "The Use of a One-Stage Dynamic Programming Algorithm for Connected Word Recognition", 1984, with the
asymmetric steps of Sakoe and Chiba (1978), by which each frame of the phrase counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from uvsdk.arrays import Bool, Float32, Int64
from uvsdk.modality.voice import mel

SAMPLE_RATE = 16_000
FRAMES_PER_S = 100
COEFFICIENTS = 12
WIDTH = 2 * COEFFICIENTS
"""Numbers per frame: twelve cepstral coefficients and their slopes."""

_WINDOW, _HOP, _MELS = 400, 160, 40
# What a telephone passes; the bands above would tell an 8 kHz enrolment from a 16 kHz probe and nothing else.
_HIGHEST_HZ = 3800.0
# Power under the loudest at which a frame is silence: 35 dB.
_SILENCE = 10.0**-3.5
# Frames this far over the quietest tenth are speech in noise: 8 dB.
_ABOVE_NOISE = 10.0**0.8
_SLOPE_FRAMES = 2
_SHORTEST_FRAMES = 4


def cepstra(pcm: Float32) -> tuple[Float32, Bool]:
    """What is compared, float32 (t, 24) per 10 ms, and which frames are loud enough to be speech, (t,).

    The mean over the loud frames is taken away, and with it the microphone.

    Args:
        pcm: (n,) at 16 kHz.
    """
    power = mel.spectrogram(pcm, sample_rate=SAMPLE_RATE, window=_WINDOW, hop=_HOP, mels=_MELS)[:, : _bands()]
    loudness = power.sum(axis=1)
    peak = float(np.percentile(loudness, 98)) if len(loudness) else 0.0
    loud = loudness > max(peak * _SILENCE, 1e-12)
    noise = float(np.percentile(loudness, 10)) * _ABOVE_NOISE if len(loudness) else 0.0
    if noise < peak / 10.0:  # else there is no pause to hear the noise in
        loud &= loudness > noise
    loud = _without_clicks(loud)
    levels = np.log(power + np.float32(max(float(power.max(initial=0.0)) * 1e-6, 1e-12)))
    rows = levels @ _cosines().T
    if loud.any():
        rows = rows - rows[loud].mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([rows, _slopes(rows)], axis=1), np.float32), loud


def _without_clicks(loud: Bool) -> Bool:
    """Without runs of less than 40 ms, which no sound of speech that stands alone is as short as."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(np.int8)))
    kept = np.zeros(len(loud), np.bool_)
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        kept[start:end] = end - start >= _SHORTEST_FRAMES
    return kept


def split(loud: Bool, count: int) -> list[tuple[int, int]]:
    """``count`` stretches of speech, parted at the longest pauses, as (first frame, frame behind the last).

    Fewer come back where there are not that many pauses of 100 ms or more.

    >>> split(np.array([0, 1, 1] + [0] * 12 + [1, 1, 1, 0], np.bool_), 2)
    [(1, 3), (15, 18)]
    """
    spoken = np.flatnonzero(loud)
    if not len(spoken):
        return []
    gaps = np.diff(spoken) - 1
    # Shorter pauses lie inside words: the closure of a plosive takes up to 100 ms.
    parting = np.flatnonzero(gaps >= FRAMES_PER_S // 10)
    longest = np.sort(parting[np.argsort(-gaps[parting], kind="stable")][: count - 1])
    starts = np.concatenate([[spoken[0]], spoken[longest + 1]])
    ends = np.concatenate([spoken[longest], [spoken[-1]]]) + 1
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def align(phrase: Float32, words: Mapping[str, Sequence[Float32]], spoken: Sequence[str] | None) -> float:
    """The mean distance per frame between a phrase and the person's words, joined as well as can be.

    Args:
        phrase: (t, 24), the loud frames only.
        words: per word its recordings, each (n, 24).
        spoken: the words in order; ``None`` for any words in any number.

    Returns:
        infinity where the phrase is too short for these words.
    """
    positions = [[word] for word in spoken] if spoken is not None else [list(words)]
    blocks = [
        (place, recording) for place, group in enumerate(positions) for word in group for recording in words[word]
    ]
    lengths = np.array([len(recording) for _, recording in blocks], np.int64)
    places = np.array([place for place, _ in blocks], np.int64)
    distances = _distances(phrase, np.concatenate([recording for _, recording in blocks]))
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return _one_stage(distances, starts, starts + lengths - 1, places, loop=spoken is None) / max(len(phrase), 1)


def _one_stage(distances: Float32, starts: Int64, ends: Int64, places: Int64, *, loop: bool) -> float:
    """The least total distance over all ways through the blocks.

    Within a block each frame of the phrase stays, goes one frame on, or skips one. From a block's end the next frame
    enters a block of the next place, or of any where the words ``loop``.
    """
    states, last = distances.shape[1], int(places.max())
    total = np.full(states, np.inf, np.float32)
    first_two = np.zeros(states, np.bool_)
    first_two[starts] = True
    second = np.zeros(states, np.bool_)
    second[np.minimum(starts + 1, ends)] = True
    best_end = np.full(last + 1, np.inf, np.float32)
    for frame in range(len(distances)):
        one = np.concatenate([[np.float32(np.inf)], total[:-1]])
        two = np.concatenate([np.full(2, np.inf, np.float32), total[:-2]])[:states]
        one[first_two] = np.inf
        two[first_two | second] = np.inf
        entry = np.concatenate([[np.float32(0.0 if frame == 0 else np.inf)], best_end[:-1]])
        if loop and frame > 0:
            entry = best_end
        reached = np.minimum(np.minimum(total, one), two)
        reached[starts] = np.minimum(reached[starts], entry[places])
        total = (reached + distances[frame]).astype(np.float32)
        best_end = np.full(last + 1, np.inf, np.float32)
        np.minimum.at(best_end, places, total[ends])
    return float(best_end[last])


def _distances(phrase: Float32, recordings: Float32) -> Float32:
    """Euclidean, (t, states)."""
    squared = np.square(phrase).sum(axis=1)[:, None] + np.square(recordings).sum(axis=1) - 2.0 * (phrase @ recordings.T)
    return np.asarray(np.sqrt(np.maximum(squared, np.float32(0.0))), np.float32)


def _slopes(rows: Float32) -> Float32:
    """The least-squares slope over five frames, scaled to the size of the coefficients."""
    padded = np.pad(rows, ((_SLOPE_FRAMES, _SLOPE_FRAMES), (0, 0)), mode="edge")
    count = len(rows)
    slopes = sum(step * padded[_SLOPE_FRAMES + step : _SLOPE_FRAMES + step + count] for step in (-2, -1, 1, 2))
    return np.asarray(slopes, np.float32) / np.float32(3.0)


@lru_cache(maxsize=1)
def _bands() -> int:
    """How many of the 40 bands end below 3800 Hz."""
    corners = mel.mel_to_hz(np.linspace(0.0, mel.hz_to_mel(np.array([SAMPLE_RATE / 2]))[0], _MELS + 2))
    return int(np.sum(corners[2:] <= _HIGHEST_HZ))


@lru_cache(maxsize=1)
def _cosines() -> Float32:
    """DCT-II without the mean, liftered so that all coefficients weigh alike (Juang et al., 1987), (12, bands)."""
    order, band = np.arange(1, COEFFICIENTS + 1)[:, None], np.arange(_bands()) + 0.5
    lifter = 1.0 + COEFFICIENTS / 2 * np.sin(np.pi * order / COEFFICIENTS)
    cosines = lifter * np.cos(np.pi * order * band / _bands()) * np.sqrt(2.0 / _bands())
    return np.asarray(cosines / 4.0, np.float32)
