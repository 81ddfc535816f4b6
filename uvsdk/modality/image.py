"""Pictures of any format and mode to upright RGB pixels."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from PIL import Image

from uvsdk.arrays import Array
from uvsdk.errors import SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import quiet
from uvsdk.modality.image_colour import to_bytes, to_srgb
from uvsdk.modality.sample import Limits, Sample, read_bytes
from uvsdk.system import forking

# Of animations and of what phones write with further pictures in it (MPO, read as JPEG), the first picture is read.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
# The package that reads photos of iPhones (HEIC), used where it is installed.
_HEIF_PLUGIN = "pillow_heif"
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
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
# What Pillow's decoders and its plugins raise for damaged input: RuntimeError from AVIF and HEIF; struct.error and
# zlib.error from Python's own readers; warnings where the application made them errors.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Warning,
)


_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded picture.

    Args:
        upright: RGB, perhaps reduced.
        size: width and height as it was handed in, upright.
        whole: decodes it once more, unreduced.
    """

    upright: Image.Image
    size: tuple[int, int]
    whole: Callable[[], Image.Image]

    @property
    def reduction(self) -> float:
        """How many pixels of what was handed in became one, along a side; 1 where it was not reduced."""
        return max(self.size) / max(self.upright.size)


def decode(sample: Sample, limits: Limits) -> Picture:
    """The picture as an upright RGB image; what is transparent becomes white.

    Args:
        sample: a path, bytes or an open file of jpeg, png, webp, gif, bmp, tiff, ppm, avif (where Pillow reads it) or
            heic (where pillow-heif is installed) in any mode; an array of shape (h, w), (h, w, 1), (h, w, 3) or
            (h, w, 4), RGB or RGBA: uint8, bool, uint16 up to 65535 (4095 where no value is above), floats from 0 to 1
            or to 255; or a Pillow image.
        limits: bytes and pixels; both are checked before the pixels are decoded.

    Raises:
        UndecodableSampleError: not a picture, cut short, or of a dtype, shape or mode that is not read.
        SampleTooLargeError: over a limit.
    """
    if isinstance(sample, np.ndarray):
        return _as_it_is(_from_array(sample, limits))
    if isinstance(sample, tuple):
        raise UndecodableSampleError("got sound where a picture is needed: (pcm, rate) is a recording")
    if isinstance(sample, Image.Image):
        _check_pixels(sample.width, sample.height, limits)
        return _as_it_is(_load(sample))
    if isinstance(sample, str | bytes | bytearray | memoryview | os.PathLike) or hasattr(sample, "read"):
        return _from_file(read_bytes(sample, limits), limits)
    raise UndecodableSampleError(
        f"a picture is a path, bytes, a file, a uint8 array or a Pillow image, got {type(sample).__name__}"
    )


def _as_it_is(image: Image.Image) -> Picture:
    return Picture(image, image.size, lambda: image)


def _from_file(data: bytes, limits: Limits) -> Picture:
    with _opened(data, limits) as image:
        width, height = image.size
        image.draft(None, _DRAFT)
        upright = _load(image)
    # Which way up is known once it is loaded.
    turned = (width > height) != (upright.width > upright.height) and width != height
    return Picture(upright, (height, width) if turned else (width, height), partial(_whole, data, limits, upright))


def _whole(data: bytes, limits: Limits, upright: Image.Image) -> Image.Image:
    with _opened(data, limits) as image:
        return upright if sorted(image.size) == sorted(upright.size) else _load(image)


def _opened(data: bytes, limits: Limits) -> Image.Image:
    """With its header read, and its size within the limits."""
    try:
        # Pillow refuses by itself what is far above our limit.
        image = Image.open(io.BytesIO(data), formats=_readable())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleTooLargeError(f"a picture may have {limits.max_pixels:,} pixels: {error}") from error
    except _DAMAGED as error:
        raise UndecodableSampleError(
            _missing_reader(data)
            or f"not a picture that can be read, {len(data):,} bytes; send jpeg, png, webp, tiff, gif or bmp"
        ) from error
    _check_pixels(image.width, image.height, limits)
    return image


def _load(image: Image.Image) -> Image.Image:
    try:
        # libtiff writes to C's standard error about what is damaged.
        with quiet.standard_error() if image.format == "TIFF" else contextlib.nullcontext():
            image.load()
        upright = _UPRIGHT.get(_orientation(image))
        flat = to_srgb(image)
        return flat if upright is None else flat.transpose(upright)
    except Image.DecompressionBombError as error:
        raise SampleTooLargeError(f"the picture holds more than its size says: {error}") from error
    except _DAMAGED as error:
        # What libraries say may hold the address of an object.
        words = _ADDRESS.sub("", str(error)) or type(error).__name__
        raise UndecodableSampleError(f"the picture is damaged, cut short or of a mode not read: {words}") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 where there is none or the EXIF block is damaged, which is no reason to refuse."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except _DAMAGED:
        return 1
    return value if isinstance(value, int) else 1


def _from_array(pixels: Array, limits: Limits) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or not pixels.size:
        raise UndecodableSampleError(
            f"a picture as an array has shape (h, w), (h, w, 3) or (h, w, 4), colours last, and at least one pixel, "
            f"got {pixels.shape}"
        )
    _check_pixels(pixels.shape[1], pixels.shape[0], limits)
    if pixels.dtype == np.bool_:
        pixels = np.asarray(pixels, np.uint8) * np.uint8(255)
    elif pixels.dtype != np.uint8:
        if pixels.dtype.kind not in "uif":
            raise UndecodableSampleError(
                f"a picture as an array is uint8, 0 to 255, got {pixels.dtype}; convert it first"
            )
        try:
            pixels = to_bytes(pixels)
        except ValueError as error:
            raise UndecodableSampleError(f"a picture as an array of {pixels.dtype} has {error}") from error
    return to_srgb(Image.fromarray(np.ascontiguousarray(pixels)))


@lru_cache(maxsize=1)
def _readable() -> tuple[str, ...]:
    """The formats that this Pillow, with what is installed beside it, can open."""
    with contextlib.suppress(ImportError), forking.steady():  # the error for a HEIC file says what to install
        importlib.import_module(_HEIF_PLUGIN).register_heif_opener()
    Image.init()
    # Without a handler of the application's, Pillow's remarks on damaged files would go to standard error.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _missing_reader(data: bytes) -> str:
    """What to install for a format that could be read; empty for any other."""
    brand = data[8:12] if data[4:8] == b"ftyp" else b""
    if brand in _HEIF_BRANDS and "HEIF" not in _readable():
        return "a HEIC photo (iPhone): pip install pillow-heif (the extra media), or send a jpeg"
    if brand in _AVIF_BRANDS and "AVIF" not in _readable():
        return "an AVIF picture, which this Pillow does not read: pip install 'pillow>=11.3', or send a jpeg"
    return ""


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width < 1 or height < 1:
        raise UndecodableSampleError(f"the picture has no pixels: {width} x {height}")
    if width * height > limits.max_pixels:
        raise SampleTooLargeError(
            f"a picture may have {limits.max_pixels:,} pixels, got {width} x {height}; send a smaller one"
        )
