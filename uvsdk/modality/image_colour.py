"""Pixels of any Pillow mode and colour profile to 8-bit sRGB."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms

from uvsdk.arrays import Array, Float64, UInt8

# Premultiplied alpha is undone in a step of its own; Pillow knows no other way out of these modes.
_UNMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
_WITH_ALPHA = ("LA", "PA", "La", "RGBA", "RGBa")
# What deep pixels may count up to: fractions (floats only), bytes, 12-bit sensors, 16 bits.
_FULL_SCALES = (1.0, 255.0, 4095.0, 65535.0)
# A camera's profile has some kilobytes, a press's one or two megabytes.
_MAX_PROFILE_BYTES = 4 << 20
# The modes whose colours a profile may describe, and the mode Pillow's colour management takes them in.
_PROFILED = ("RGB", "L", "CMYK", "LAB")


def to_srgb(image: Image.Image) -> Image.Image:
    """The picture as RGB; what is transparent becomes white, and a broken colour profile is passed over.

    Raises:
        ValueError: of a mode that cannot become RGB, or with values outside every range.
    """
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        # A PNG of 16 bits counts up to 65535, however dark it is; other files do not say.
        full_scale = 65535.0 if image.format == "PNG" and mode != "F" else None
        return Image.fromarray(to_bytes(np.asarray(image), full_scale)).convert("RGB")
    if mode in _WITH_ALPHA or "transparency" in image.info:
        rgba = image.convert(_UNMULTIPLIED.get(mode, "RGBA")).convert("RGBA")
        opaque = _managed(rgba.convert("RGB"), image)
        opaque.putalpha(rgba.getchannel("A"))
        paper = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, opaque).convert("RGB")
    if mode in _PROFILED:
        return _managed(image, image)
    return _managed(image.convert("RGB"), image)


def to_bytes(values: Array, full_scale: float | None = None) -> UInt8:
    """Deep pixels to 0-255; what counts as white is told by the largest value where ``full_scale`` is ``None``.

    >>> to_bytes(np.array([[0, 257, 65535]], np.uint16)).tolist()
    [[0, 1, 255]]
    >>> to_bytes(np.array([[0.0, 0.5, 1.0]])).tolist()
    [[0, 128, 255]]

    Raises:
        ValueError: negative, not finite, or above 65535.
    """
    deep: Float64 = np.asarray(values, np.float64)
    low, high = float(deep.min()), float(deep.max())
    if not (low >= 0.0 and high <= _FULL_SCALES[-1]):  # also refuses NaN
        raise ValueError(f"values from {low:g} to {high:g}, expected 0 to 255 or 0 to 65535")
    scales = _FULL_SCALES if values.dtype.kind == "f" else _FULL_SCALES[1:]
    white = full_scale or next(scale for scale in scales if high <= scale)
    return np.asarray((deep * (255.0 / white)).round(), np.uint8)


def _managed(pixels: Image.Image, described: Image.Image) -> Image.Image:
    """``pixels`` as sRGB by the profile that ``described`` carries, where it fits them; plainly converted otherwise."""
    profile = described.info.get("icc_profile")
    try:
        if isinstance(profile, bytes) and 0 < len(profile) <= _MAX_PROFILE_BYTES:
            transform = _transform(profile, pixels.mode)
        else:
            transform = _transform(b"", "LAB") if pixels.mode == "LAB" else None
        converted = pixels if transform is None else ImageCms.applyTransform(pixels, transform)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return _managed(pixels, Image.new("LAB", (1, 1))) if pixels.mode == "LAB" and profile else _plain(pixels)
    return _plain(converted or pixels)


def _plain(pixels: Image.Image) -> Image.Image:
    return pixels if pixels.mode == "RGB" else pixels.convert("RGB")


@lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """From a profile (CIE Lab where it is empty) to sRGB; ``None`` where it is sRGB already.

    Kept, because to build one takes longer than to use it and one camera writes one profile.
    """
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile)) if profile else ImageCms.createProfile("LAB")
    if profile and mode == "RGB" and "srgb" in ImageCms.getProfileDescription(source).lower():
        return None
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
