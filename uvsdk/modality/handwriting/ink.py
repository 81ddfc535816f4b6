"""Pictures of one handwritten sign to a small grid of ink."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from PIL import Image

from uvsdk.arrays import Array, Float32
from uvsdk.errors import BundleError, NoInkError, UndecodableSampleError
from uvsdk.modality import image
from uvsdk.modality.contract import Graphs, Prepared, Preprocessing, number
from uvsdk.modality.sample import Capture, Limits, Sample
from uvsdk.scoring import Quality

_DEFAULT_CAPTURE = Capture()
# Difference from the paper, of 255 levels, below which a mark is noise: JPEG and sensors stay under it, a pencil does
# not. Digits on a scale of 0 to 16 that were cast to bytes still reach it.
_MINIMUM_CONTRAST = 12.0
# Ink darker than this part of the darkest ink belongs to the sign when its edges are sought.
_EDGE = 0.2
# A page is averaged down to at most this many pixels a side before anything is measured, which removes its grain.
_PAGE_SIDE = 256


def prepare(sample: Sample, bundle: Graphs, *, capture: Capture = _DEFAULT_CAPTURE) -> Prepared:
    """Decode, tell ink from paper, and reduce to the bundle's grid.

    A picture that already has S x S pixels is taken as it is; any other is cropped to its ink, made square and averaged
    down.

    Beside what :func:`uvsdk.modality.image.decode` reads, a two-dimensional array of floats of any range is taken.

    Raises:
        UndecodableSampleError, SampleTooLargeError: as :func:`uvsdk.modality.image.decode`.
        NoInkError: nothing differs from the paper.
    """
    size = _size(bundle.manifest.preprocessing)
    started = perf_counter()
    page, reduction = _grey(sample, capture.limits)
    decoded = perf_counter()
    ink, contrast = separate(page)
    box = bounds(ink)
    cropped = ink if ink.shape == (size, size) else ink[box]
    detected = perf_counter()
    grid = reduce(cropped, size)
    finished = perf_counter()
    height, width = ink[box].shape
    return Prepared(
        features=grid,
        quality=Quality(
            {
                "contrast": contrast,
                "ink_fraction": float(grid.mean()),
                "ink_pixels": max(height, width) * reduction,
            }
        ),
        timings_s={"decode": decoded - started, "detect": detected - decoded, "features": finished - detected},
    )


def views(features: Array, preprocessing: Preprocessing) -> Float32:
    """The grid as the graph takes it, (1, 1, S, S)."""
    return _checked(features, preprocessing)[None, None]


def crop(features: Array, preprocessing: Preprocessing, rng: np.random.Generator) -> Float32:
    """The grid, moved by up to half a cell, (1, S, S)."""
    grid = _checked(features, preprocessing)
    for axis in (0, 1):
        shift = float(rng.uniform(-0.5, 0.5))
        moved = np.roll(np.pad(grid, 1), 1 if shift > 0 else -1, axis=axis)[1:-1, 1:-1]
        grid = grid * np.float32(1 - abs(shift)) + moved * np.float32(abs(shift))
    return grid[None]


def separate(page: Float32) -> tuple[Float32, float]:
    """Ink from 0 to 1 and the contrast it had, in levels of 255.

    The paper is the median of the picture's border; ink is what differs from it, darker or lighter.

    Raises:
        NoInkError: the difference stays below the noise.
    """
    border = np.concatenate([page[0], page[-1], page[:, 0], page[:, -1]])
    difference = page - np.median(border)
    # Light paper with dark ink or a dark board with chalk: whichever side departs further is the ink.
    ink = np.maximum(difference if difference.max() >= -difference.min() else -difference, 0.0)
    contrast = float(ink.max())
    if contrast < _MINIMUM_CONTRAST:
        raise NoInkError(
            f"the page is empty: its marks differ from the paper by {contrast:.0f} of 255 levels, need "
            f"{_MINIMUM_CONTRAST:.0f}; write with a darker pen, or scale the array to 0..255"
        )
    return np.asarray(ink / contrast, np.float32), contrast


def bounds(ink: Float32) -> tuple[slice, slice]:
    """The rows and columns that hold the sign.

    >>> ink = np.zeros((6, 8), np.float32)
    >>> ink[1:4, 2:5] = 1.0
    >>> bounds(ink)
    (slice(1, 4, None), slice(2, 5, None))
    """
    rows = np.flatnonzero((ink >= _EDGE).any(axis=1))
    columns = np.flatnonzero((ink >= _EDGE).any(axis=0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def reduce(ink: Float32, size: int) -> Float32:
    """Centre on a square of paper and average to (size, size), the strongest ink at 1."""
    if ink.shape == (size, size):
        return ink
    side = max(ink.shape)
    square = np.zeros((side, side), np.float32)
    top, left = (side - ink.shape[0]) // 2, (side - ink.shape[1]) // 2
    square[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    grid = np.asarray(Image.fromarray(square).resize((size, size), Image.Resampling.BOX), np.float32)
    return grid / max(float(grid.max()), 1e-6)


def _grey(sample: Sample, limits: Limits) -> tuple[Float32, float]:
    """One level per pixel, 0 to 255, (h, w), at most 256 a side; and how many pixels became one, along a side."""
    if isinstance(sample, np.ndarray) and sample.dtype.kind == "f" and sample.ndim == 2:
        page = Image.fromarray(_stretched(sample))
        longest = max(page.size)
    else:
        picture = image.decode(sample, limits)
        page, longest = picture.upright.convert("L").convert("F"), max(picture.size)
    if max(page.size) > _PAGE_SIDE:
        ratio = _PAGE_SIDE / max(page.size)
        page = page.resize(
            (max(1, round(page.width * ratio)), max(1, round(page.height * ratio))), Image.Resampling.BOX
        )
    return np.asarray(page, np.float32), longest / max(page.size)


def _stretched(levels: Array) -> Float32:
    """Floats carry no range, so theirs is stretched to 0..255; a constant array stays constant."""
    values: Float32 = np.asarray(levels, np.float32)
    if not values.size:
        raise UndecodableSampleError("the picture has no pixels")
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low):
        raise UndecodableSampleError("the picture holds values that are not finite numbers")
    return np.asarray((values - low) * (255.0 / (high - low) if high > low else 0.0), np.float32)


def _size(preprocessing: Preprocessing) -> int:
    size = int(number(preprocessing, "size", default=8))
    if not 2 <= size <= _PAGE_SIDE:
        raise BundleError(f"a grid of ink has 2 to {_PAGE_SIDE} cells a side, the bundle asks for {size}")
    return size


def _checked(features: Array, preprocessing: Preprocessing) -> Float32:
    size = _size(preprocessing)
    if features.shape != (size, size):
        raise BundleError(f"features of handwriting have shape ({size}, {size}), got {features.shape}")
    return np.asarray(features, np.float32)
