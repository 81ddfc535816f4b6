"""Recordings under other conditions, by torchaudio: what training views are compared with, and what probes are.

Nothing here is what the library augments by: noise is other people's speech or white, rooms are impulse responses that
are convolved, the telephone is a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torchaudio import functional

from uvsdk.arrays import Float32

RATE = 16_000
Recording = tuple[Float32, int]
"""Sound and its rate in Hz."""
_VOICES = 5


def clean(pcm: Float32, rng: np.random.Generator, others: Sequence[Float32]) -> Recording:
    """As it is."""
    return pcm, RATE


def telephone(pcm: Float32, rng: np.random.Generator, others: Sequence[Float32]) -> Recording:
    """8 kHz and mu-law (ITU-T G.711)."""
    narrow = functional.resample(torch.from_numpy(pcm), RATE, 8_000, lowpass_filter_width=64, rolloff=0.95)
    coded = functional.mu_law_decoding(functional.mu_law_encoding(narrow.clamp(-1, 1), 256), 256)
    return coded.numpy(), 8_000


def white(snr_db: float) -> Callable[[Float32, np.random.Generator, Sequence[Float32]], Recording]:
    """White noise ``snr_db`` decibels under the recording."""

    def heard(pcm: Float32, rng: np.random.Generator, others: Sequence[Float32]) -> Recording:
        return _mixed(pcm, rng.standard_normal(len(pcm)).astype(np.float32), snr_db)

    return heard


def babble(snr_db: float) -> Callable[[Float32, np.random.Generator, Sequence[Float32]], Recording]:
    """Five other people at once."""

    def heard(pcm: Float32, rng: np.random.Generator, others: Sequence[Float32]) -> Recording:
        sound = np.zeros(len(pcm), np.float32)
        for place in rng.choice(len(others), _VOICES, replace=False):
            voice = others[int(place)]
            start = int(rng.integers(len(voice)))
            sound += np.take(voice, np.arange(start, start + len(pcm)), mode="wrap") / (np.std(voice) + 1e-9)
        return _mixed(pcm, sound, snr_db)

    return heard


def room(pcm: Float32, rng: np.random.Generator, others: Sequence[Float32]) -> Recording:
    """White noise that decays by 60 dB in 0.5 s behind the direct sound, with half of its power."""
    times = np.arange(RATE // 2) / RATE
    tail = rng.standard_normal(len(times)) * np.exp(-3.0 * np.log(10.0) * times / 0.5)
    tail *= np.sqrt(0.5 / np.sum(tail**2))
    response = torch.from_numpy(np.append(1.0, tail).astype(np.float32))
    return _sound(functional.fftconvolve(torch.from_numpy(pcm), response)[: len(pcm)])


def _mixed(pcm: Float32, sound: Float32, snr_db: float) -> Recording:
    return _sound(functional.add_noise(torch.from_numpy(pcm), torch.from_numpy(sound), torch.tensor(snr_db)))


def _sound(wave: Tensor) -> Recording:
    return wave.clamp(-1, 1).numpy().astype(np.float32), RATE
