"""Weights as 8-bit integers, for processors with and without instructions made for them."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Float64

BLOCK = 4
"""Pixels of a row that a first convolution, whose inputs have few channels, takes at a time."""


def rounded(weight: Float64, *, pairs: bool) -> tuple[Float64, Float64]:
    """Integers from -127 to 127 and a scale per output channel.

    Args:
        weight: (out, in, k, k).
        pairs: neighbours among the inputs that share a sign add up to at most 128: processors without VNNI add the
            products of two neighbours in 16 bits, and 255 * 128 fits.

    >>> weight = np.array([1.0, 1.0, -1.0, 1.0]).reshape(1, 4, 1, 1)
    >>> [part.ravel().tolist() for part in rounded(weight, pairs=False)]
    [[127.0, 127.0, -127.0, 127.0], [0.007874015748031496]]
    >>> rounded(weight, pairs=True)[0].ravel().tolist()
    [64.0, 64.0, -64.0, 64.0]
    """
    scale = np.abs(weight).max(axis=(1, 2, 3)) / 127
    if pairs:
        first, second = weight[:, 0:-1:2], weight[:, 1::2]
        together = np.where(first * second > 0, np.abs(first + second), 0.0).max(axis=(1, 2, 3), initial=0.0)
        scale = np.maximum(scale, together / 127)
    scale = np.maximum(scale, 1e-30)
    return np.clip(np.round(weight / scale[:, None, None, None]), -127, 127), scale


def in_blocks(weight: Float64) -> Float64:
    """A 3x3 convolution of rows of pixels as one of blocks of pixels, (out, in, 3, 3) -> (4 out, 4 in, 3, 3).

    onnxruntime gathers the patches of a convolution tap by tap; a tap of 12 bytes takes as long as one of 3.
    """
    out, colours, height, width = weight.shape
    blocks = np.zeros((BLOCK, out, BLOCK, colours, height, 3))
    for given in range(BLOCK):
        for made in range(BLOCK):
            for block in range(3):
                column = BLOCK * (block - 1) + given - made + width // 2
                if 0 <= column < width:
                    blocks[made, :, given, :, :, block] = weight[:, :, :, column]
    return blocks.reshape(BLOCK * out, BLOCK * colours, height, 3)
