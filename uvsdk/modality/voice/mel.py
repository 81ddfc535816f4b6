"""Mel spectrograms in numpy, equal to ``librosa.feature.melspectrogram``, which Resemblyzer's GE2E was fed with."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from uvsdk.arrays import Float32, Float64

# Slaney (1998), Auditory Toolbox: linear below 1 kHz, 15 mels; then logarithmic, 27 steps per factor 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def spectrogram(pcm: Float32, *, sample_rate: int, window: int, hop: int, mels: int) -> Float32:
    """Power per mel band and frame, (1 + n // hop, mels).

    Frame ``t`` is centred on sample ``t * hop``; the ends are padded with silence. The window is a periodic Hann
    window, the filters are Slaney's with unit area. librosa: ``melspectrogram(y=pcm, sr=sample_rate, n_fft=window,
    hop_length=hop, n_mels=mels).T``.

    Args:
        pcm: (n,) in [-1, 1].
        sample_rate: in Hz.
        window: samples per window, which is also the length of the transform.
        hop: samples between windows.
        mels: number of bands.
    """
    return power_spectrum(pcm, window, hop) @ filter_bank(sample_rate, window, mels).T


def power_spectrum(pcm: Float32, window: int, hop: int) -> Float32:
    """Squared magnitude of every window's transform, (1 + n // hop, window // 2 + 1); see :func:`spectrogram`.

    A product of matrices in place of the fast transform: numpy's takes twice as long for windows this short.
    The real part of a transform sees only the even half of a window, the imaginary part only the odd half, so each
    needs half the window's samples.
    """
    padded = np.pad(np.asarray(pcm, np.float32), window // 2)
    return windows_power(padded, window, hop)[: 1 + len(pcm) // hop]


def windows_power(pcm: Float32, window: int, hop: int) -> Float32:
    """As :func:`power_spectrum`, of the whole windows that lie in ``pcm``: (1 + (n - window) // hop, bins)."""
    half = window // 2
    frames = np.lib.stride_tricks.sliding_window_view(pcm, window)[::hop]
    cosines, sines = _transform(window)
    # Sample k is mirrored by sample window - k; sample 0 has no mirror image, and the window is zero there.
    ahead, behind = frames[:, 1 : half + 1], frames[:, : window - half - 1 : -1]
    real = np.asarray((ahead + behind) @ cosines, np.float32)
    imaginary = np.asarray((ahead - behind) @ sines, np.float32)
    np.square(real, out=real)
    np.square(imaginary, out=imaginary)
    real += imaginary
    return real


@lru_cache(maxsize=8)
def _transform(window: int) -> tuple[Float32, Float32]:
    """Cosines and sines under the window, (half, bins) each, for the samples 1 to half of a window."""
    half = window // 2
    samples = np.arange(1, half + 1)
    angles = 2.0 * np.pi * np.outer(samples, np.arange(half + 1)) / window
    weights = np.array(hann(window), np.float64)[1 : half + 1, None]
    if window % 2 == 0:  # the middle sample is its own mirror image and is counted twice
        weights[-1] /= 2.0
    cosines, sines = (np.cos(angles) * weights).astype(np.float32), (np.sin(angles) * weights).astype(np.float32)
    cosines.setflags(write=False)
    sines.setflags(write=False)
    return cosines, sines


@lru_cache(maxsize=8)
def hann(length: int) -> Float32:
    """The periodic Hann window, (length,).

    >>> hann(4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    window = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / length)).astype(np.float32)
    window.setflags(write=False)
    return window


@lru_cache(maxsize=8)
def filter_bank(sample_rate: int, window: int, mels: int) -> Float32:
    """Triangles over the transform's bins, (mels, window // 2 + 1), each of unit area in Hz."""
    bins = np.linspace(0.0, sample_rate / 2, window // 2 + 1)
    corners = mel_to_hz(np.linspace(0.0, hz_to_mel(np.array([sample_rate / 2]))[0], mels + 2))
    low, centre, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    bank: Float32 = triangles.astype(np.float32)
    bank.setflags(write=False)
    return bank


def hz_to_mel(hz: Float64) -> Float64:
    """Slaney's mel scale.

    >>> hz_to_mel(np.array([200.0, 1000.0, 6400.0])).round(6).tolist()
    [3.0, 15.0, 42.0]
    """
    above = _BREAK_MEL + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    mel: Float64 = np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ_PER_MEL, above)
    return mel


def mel_to_hz(mel: Float64) -> Float64:
    """The inverse of :func:`hz_to_mel`."""
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    hz: Float64 = np.where(mel < _BREAK_MEL, mel * _LINEAR_HZ_PER_MEL, above)
    return hz
