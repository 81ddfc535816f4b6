"""Logarithmic mel energies as Kaldi's ``compute-fbank-feats`` makes them, which most newer speaker encoders hear.

They differ from :mod:`uvsdk.modality.voice.mel` in every step: each window loses its mean and is pre-emphasised, the
window is Povey's, the transform is padded to a power of two, and the triangles are straight lines in HTK's mels.
Equal to ``torchaudio.compliance.kaldi.fbank`` with no dither.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from uvsdk.arrays import Float32, Float64

PREEMPHASIS = 0.97
LOWEST_HZ = 20.0
FLOOR = float(np.finfo(np.float32).eps)
"""Energies below it count as it (Kaldi's ``FLT_EPSILON``)."""


def fbank(
    pcm: Float32, *, sample_rate: int, window: int, hop: int, mels: int, taper: str = "povey", amplitude: float = 1.0
) -> Float32:
    """Natural logarithm of the energy per mel band and frame, (1 + n // hop, mels).

    Frame ``t`` is centred on sample ``t * hop``, as in :func:`uvsdk.modality.voice.mel.spectrogram`, so that speech
    found in the one is found in the other; the ends are padded with silence. Kaldi: the same of ``pcm`` with half a
    window of zeros on either side, ``--snip-edges=true --dither=0``.

    Args:
        pcm: (n,) in [-1, 1].
        sample_rate: in Hz.
        window: samples per window, even.
        hop: samples between windows.
        mels: number of bands.
        taper: the window's shape, ``povey`` or ``hamming``.
        amplitude: what a sample of 1 counts as; 32,768 for an encoder that was taught on 16-bit values, whose quiet
            bands lie further above the floor.
    """
    padded = np.pad(np.asarray(pcm, np.float32), window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][: 1 + len(pcm) // hop]
    return energies(frames, sample_rate=sample_rate, mels=mels, taper=taper, amplitude=amplitude)


def energies(frames: Float32, *, sample_rate: int, mels: int, taper: str = "povey", amplitude: float = 1.0) -> Float32:
    """The logarithms of windows as they were cut, float32 (T, window) -> (T, mels); see :func:`fbank`."""
    window = frames.shape[1]
    centred = frames - frames.mean(axis=1, keepdims=True)
    emphasised = np.empty_like(centred)
    np.multiply(centred[:, :-1], np.float32(-PREEMPHASIS), out=emphasised[:, 1:])
    emphasised[:, 1:] += centred[:, 1:]
    emphasised[:, 0] = centred[:, 0] * np.float32(1.0 - PREEMPHASIS)
    # A magnitude does not depend on where time begins: counted from the middle of the window, the real part sees only
    # its even half and the imaginary part only its odd half.
    half = window // 2
    cosines, sines = _transform(window, taper)
    ahead, behind = emphasised[:, half:], emphasised[:, half - 1 :: -1]
    real, imaginary = (ahead + behind) @ cosines, (ahead - behind) @ sines
    np.square(real, out=real)
    np.square(imaginary, out=imaginary)
    real += imaginary
    banded = real @ filter_bank(sample_rate, window, mels).T
    if amplitude != 1.0:
        banded *= np.float32(amplitude * amplitude)
    found: Float32 = np.log(np.maximum(banded, np.float32(FLOOR)))
    return found


def transform_length(window: int) -> int:
    """The power of two that a window is padded to.

    >>> transform_length(400), transform_length(512)
    (512, 512)
    """
    return 1 << (window - 1).bit_length()


@lru_cache(maxsize=8)
def povey(length: int) -> Float32:
    """Povey's window, float32 (length,): a symmetric Hann window to the power of 0.85.

    >>> povey(3).tolist()
    [0.0, 1.0, 0.0]
    """
    window = ((0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / (length - 1))) ** 0.85).astype(np.float32)
    window.setflags(write=False)
    return window


@lru_cache(maxsize=8)
def hamming(length: int) -> Float32:
    """Kaldi's Hamming window, float32 (length,).

    >>> hamming(3).astype(float).round(3).tolist()
    [0.08, 1.0, 0.08]
    """
    window = (0.54 - 0.46 * np.cos(2.0 * np.pi * np.arange(length) / (length - 1))).astype(np.float32)
    window.setflags(write=False)
    return window


_TAPERS = {"povey": povey, "hamming": hamming}
TAPERS = tuple(_TAPERS)
"""The shapes of window there are."""


@lru_cache(maxsize=8)
def _transform(window: int, taper: str = "povey") -> tuple[Float32, Float32]:
    """Cosines and sines under the window, (half, bins) each, for the samples after its middle."""
    half, length = window // 2, transform_length(window)
    # The topmost bin takes part in no triangle.
    angles = 2.0 * np.pi * np.outer(np.arange(half) + 0.5, np.arange(length // 2)) / length
    weights = np.asarray(_TAPERS[taper](window), np.float64)[half:, None]
    cosines, sines = (np.cos(angles) * weights).astype(np.float32), (np.sin(angles) * weights).astype(np.float32)
    cosines.setflags(write=False)
    sines.setflags(write=False)
    return cosines, sines


@lru_cache(maxsize=8)
def filter_bank(sample_rate: int, window: int, mels: int) -> Float32:
    """Triangles of height one over the transform's bins but the topmost, (mels, length // 2)."""
    length = transform_length(window)
    low, high = hz_to_mel(np.array([LOWEST_HZ, sample_rate / 2]))
    corners = np.linspace(low, high, mels + 2)[:, None]
    bins = hz_to_mel(np.arange(length // 2, dtype=np.float64) * (sample_rate / length))[None]
    rising = (bins - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins) / (corners[2:] - corners[1:-1])
    bank: Float32 = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    bank.setflags(write=False)
    return bank


def hz_to_mel(hz: Float64) -> Float64:
    """HTK's mel scale.

    >>> hz_to_mel(np.array([0.0, 700.0])).round(3).tolist()
    [0.0, 781.177]
    """
    mel: Float64 = 1127.0 * np.log1p(hz / 700.0)
    return mel
