"""Several channels to one: a dead channel is left out, and one with its wires swapped is turned round."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Float32, Float64

# A channel 50 dB under the strongest holds crosstalk and the converter's own noise, no speech of use.
_DEAD = 1e-5
# Two microphones in one room are hardly ever more opposed than this; a swapped wire gives -1.
_OPPOSED = -0.5


class Moments:
    """Sums over a recording's channels, gathered block by block, from which :meth:`mix` is decided.

    Args:
        channels: how many there are.
    """

    def __init__(self, channels: int) -> None:
        self._frames = 0
        self._sum: Float64 = np.zeros(channels)
        self._products: Float64 = np.zeros((channels, channels))

    def add(self, block: Float32) -> None:
        """Count a piece in, (n, channels)."""
        self._frames += len(block)
        # Values that are not finite are found, and refused, once the channels are one.
        with np.errstate(invalid="ignore", over="ignore"):
            self._sum += block.sum(axis=0, dtype=np.float64)
            wide = block.astype(np.float64)
            self._products += wide.T @ wide

    def mix(self) -> Float32:
        """What each channel is multiplied by, (channels,); the absolute values sum to 1.

        The mean of the channels that carry sound; their constant offset does not count as sound. A channel whose
        correlation with the strongest is below -0.5 counts with the other sign: two halves of a balanced line would
        cancel to silence.
        """
        frames = max(self._frames, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            covariance = self._products / frames - np.outer(self._sum, self._sum) / frames**2
            power = np.nan_to_num(np.diag(covariance))
            strongest = int(power.argmax())
            alive = power > _DEAD * power[strongest]
            opposed = covariance[strongest] < _OPPOSED * np.sqrt(np.maximum(power[strongest] * power, 0.0))
        if not alive.any():
            alive[:] = True
        signs = np.where(alive, np.where(opposed & alive, -1.0, 1.0), 0.0)
        weights: Float32 = (signs / alive.sum()).astype(np.float32)
        return weights


def mix(pcm: Float32) -> Float32:
    """One channel, (n,), of (n,) or (n, channels).

    >>> speech = np.sin(np.arange(100, dtype=np.float32))
    >>> bool(np.array_equal(mix(np.stack([speech, np.zeros(100, np.float32)], axis=1)), speech))
    True
    """
    if pcm.ndim == 1:
        return pcm
    moments = Moments(pcm.shape[1])
    moments.add(pcm)
    return weigh(pcm, moments.mix())


def weigh(pcm: Float32, mix: Float32) -> Float32:
    """The channels' sum with these weights, (n, channels) and (channels,) -> (n,)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(pcm @ mix, np.float32)
