"""Third moments of embeddings as a sketch: d^3 numbers in about d^2 / 2 (TensorSketch).

Pham and Pagh 2013, Fast and scalable polynomial kernels via explicit feature maps. Each of the three factors of
x (x) y (x) z is hashed into m bins with random signs; the sketch of the product is the circular convolution of the
three, so that a device needs three Fourier transforms a sample. It is linear, and keeps scalar products on average:
<sketch(T), sketch(u (x) u (x) u)> = T(u, u, u) with a standard error of about |T| |u|^3 / sqrt(m). Bins and signs are
public and the same everywhere, so sketches of many people add up.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from uvsdk.arrays import Float, Float64, Int64

Spectrum: TypeAlias = NDArray[np.complex128]
"""Of a sketch, by :func:`numpy.fft.rfft`."""


def size(dimension: int) -> int:
    """Numbers in a sketch, even: as many as in half a matrix."""
    return 2 * max(dimension**2 // 4, 1)


def excess(rows: Float) -> Float64:
    """Of one person's samples, float (k, d), the sketch of what single samples add to third moments, float64 (m,):

        (mean x (x) x (x) x - m (x) m (x) m) / (1 - 1/k),   m the mean of the rows

    so that a direction along which people scatter the more the lower they lie, or in which single samples lie far below
    the others, shows a negative one. Zeros of a single sample.
    """
    samples = np.asarray(rows, np.float64)
    count, dimension = samples.shape
    if count < 2:
        return np.zeros(size(dimension))
    single, mean = np.prod(spectra(samples), axis=0).mean(axis=0), np.prod(spectra(samples.mean(axis=0)), axis=0)
    return np.asarray(np.fft.irfft((single - mean) / (1.0 - 1.0 / count), size(dimension)), np.float64)


def spectra(vectors: Float) -> Spectrum:
    """complex128 (3, ..., m / 2 + 1): vectors, float (..., d), as the first, second and third factor of a product."""
    values = np.asarray(vectors, np.float64)
    dimension = values.shape[-1]
    bins, signs = _hashes(dimension)
    flat = values.reshape(-1, dimension)
    counts = np.zeros((3, len(flat), size(dimension)))
    for factor in range(3):
        np.add.at(counts[factor].T, bins[factor], (flat * signs[factor]).T)
    return np.fft.rfft(counts).reshape(3, *values.shape[:-1], -1)


def pair_spectra(matrix: Float) -> Spectrum:
    """complex128 (3, m / 2 + 1): a matrix, float (d, d), in place of the other two factors than each."""
    dimension = len(matrix)
    bins, signs = _hashes(dimension)
    found = []
    for left, right in ((1, 2), (0, 2), (0, 1)):
        places = (bins[left][:, None] + bins[right][None]) % size(dimension)
        weights = np.asarray(matrix, np.float64) * np.outer(signs[left], signs[right])
        found.append(np.fft.rfft(np.bincount(places.ravel(), weights.ravel(), size(dimension))))
    return np.stack(found)


def inner(first: Spectrum, second: Spectrum) -> float:
    """The scalar product of two sketches from their spectra."""
    products = (first * second.conj()).real
    return float(2.0 * products.sum() - products[0] - products[-1]) / (2 * (len(products) - 1))


@lru_cache(maxsize=4)
def _hashes(dimension: int) -> tuple[Int64, Float64]:
    """Bins and signs, (3, d) each: out of SHAKE-256, so that they are the same on every device."""
    data = hashlib.shake_256(f"uvsdk third moments {dimension}".encode()).digest(3 * dimension * 5)
    words = np.frombuffer(data[: 3 * dimension * 4], "<u4").reshape(3, dimension)
    signs = np.frombuffer(data[3 * dimension * 4 :], np.uint8).reshape(3, dimension)
    return (words % size(dimension)).astype(np.int64), np.where(signs & 1, 1.0, -1.0)
