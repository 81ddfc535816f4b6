"""Pictures of any mode to upright RGB or grey pixels."""

from __future__ import annotations

import io
import os

import numpy as np
from PIL import Image

from uvsdk.arrays import Array, Float32, UInt8
from uvsdk.errors import SampleTooLargeError, UndecodableSampleError
from uvsdk.modality.sample import Limits, Sample, read_bytes

# MPO, what phones write for a JPEG with a second picture in it, is read as JPEG: Pillow has no reader of that name.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# A JPEG is decoded at a fraction of its size as long as both sides stay above this (libjpeg scales in the DCT).
_DRAFT = (1280, 1280)
_ORIENTATION = 0x0112
# EXIF 2.3, tag 0x0112: how the stored picture must be turned to stand upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Premultiplied alpha is undone in a step of its own; Pillow knows no other way out of these modes.
_UNMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
# What Pillow's decoders raise for damaged input, beside OSError.
_DAMAGED = (OSError, SyntaxError, ValueError, IndexError, TypeError, KeyError, OverflowError, EOFError)


def decode(sample: Sample, limits: Limits) -> Image.Image:
    """The picture as an upright RGB image; what is transparent becomes white.

    Args:
        sample: a path, bytes or an open file of jpeg, png, webp, gif, bmp, tiff or ppm in any mode; a uint8 array of
            shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), RGB; or a Pillow image.
        limits: bytes and pixels; both are checked before the pixels are decoded.

    Raises:
        UndecodableSampleError: not a picture, cut short, or of a dtype, shape or mode that is not read.
        SampleTooLargeError: over a limit.
    """
    if isinstance(sample, np.ndarray):
        return _from_array(sample, limits)
    if isinstance(sample, tuple):
        raise UndecodableSampleError("got sound where a picture is needed: (pcm, rate) is a recording")
    if isinstance(sample, Image.Image):
        _check_pixels(sample.width, sample.height, limits)
        return _load(sample)
    if isinstance(sample, str | bytes | bytearray | memoryview | os.PathLike) or hasattr(sample, "read"):
        return _from_file(read_bytes(sample, limits), limits)
    raise UndecodableSampleError(
        f"a picture is a path, bytes, a file, a uint8 array or a Pillow image, got {type(sample).__name__}"
    )


def _from_file(data: bytes, limits: Limits) -> Image.Image:
    try:
        # Reads the header only; Pillow refuses by itself what is far above our limit.
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleTooLargeError(f"a picture may have {limits.max_pixels:,} pixels: {error}") from error
    except _DAMAGED as error:
        raise UndecodableSampleError(
            f"not a picture that can be read, {len(data):,} bytes; send jpeg, png, webp, tiff, gif or bmp"
        ) from error
    with image:
        _check_pixels(image.width, image.height, limits)
        image.draft(None, _DRAFT)
        return _load(image)


def _load(image: Image.Image) -> Image.Image:
    try:
        image.load()
        upright = _UPRIGHT.get(_orientation(image))
        flat = _to_rgb(image)
        return flat if upright is None else flat.transpose(upright)
    except _DAMAGED as error:
        raise UndecodableSampleError(f"the picture is damaged, cut short or of a mode not read: {error}") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 where there is none or the EXIF block is damaged, which is no reason to refuse."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except _DAMAGED:
        return 1
    return value if isinstance(value, int) else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        return Image.fromarray(_deep_to_grey(np.asarray(image))).convert("RGB")
    if mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        rgba = image.convert(_UNMULTIPLIED.get(mode, "RGBA")).convert("RGBA")
        paper = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, rgba).convert("RGB")
    return image if mode == "RGB" else image.convert("RGB")


def _deep_to_grey(values: Array) -> UInt8:
    """Modes I;16, I and F say nothing of their range; the values tell it: 0-1 (F only), 0-255 or 0-65535."""
    deep: Float32 = np.asarray(values, np.float32)
    low, high = float(deep.min()), float(deep.max())
    if not (low >= 0.0 and high <= 65535.0):  # also refuses NaN
        raise ValueError(f"values from {low:g} to {high:g}, expected 0 to 255 or 0 to 65535")
    if values.dtype.kind == "f" and high <= 1.0:
        deep = deep * np.float32(255)
    elif high > 255.0:
        deep = deep / np.float32(257)
    return deep.round().astype(np.uint8)


def _from_array(pixels: Array, limits: Limits) -> Image.Image:
    if pixels.dtype != np.uint8:
        raise UndecodableSampleError(f"a picture as an array is uint8, 0 to 255, got {pixels.dtype}; convert it first")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or not pixels.size:
        raise UndecodableSampleError(
            f"a picture as an array has shape (h, w), (h, w, 3) or (h, w, 4) and at least one pixel, got {pixels.shape}"
        )
    _check_pixels(pixels.shape[1], pixels.shape[0], limits)
    return _to_rgb(Image.fromarray(np.ascontiguousarray(pixels)))


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width < 1 or height < 1:
        raise UndecodableSampleError(f"the picture has no pixels: {width} x {height}")
    if width * height > limits.max_pixels:
        raise SampleTooLargeError(
            f"a picture may have {limits.max_pixels:,} pixels, got {width} x {height}; send a smaller one"
        )
