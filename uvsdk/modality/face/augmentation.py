"""Training views of face chips as another camera, light or messenger would have given them.

A device keeps the aligned chip, which is what the network sees: a change of its pixels is the whole change. It is made
with Pillow, so that the devices' frozen part (:mod:`uvsdk.bundle.frozen`) needs no torch, and one seed gives one view
with and without it. The same operations of torchvision's ``transforms.v2`` give the same pixels within rounding, which
a test looks at.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, fields

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from uvsdk.arrays import Array, Float32, UInt8
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Preprocessing
from uvsdk.modality.face import chips

_LEAST_SHRUNK = 0.25


@dataclass(frozen=True, slots=True)
class FaceAugmentation:
    """What happens to training views; each share is that of the views to which it happens.

    Args:
        crop: part of the side that is cut away at most, at a random place, before the rest is brought to size again.
        colour: how far brightness, contrast and saturation move at most, as a part of what they are.
        blur: share out of focus, with a standard deviation drawn up to ``blur_pixels``.
        blur_pixels: of the chip.
        small: share that is shrunk to between a quarter and all of its side first, as a face far away is.
        jpeg: share that is a JPEG of a quality drawn between ``jpeg_quality`` and 90 last.
        jpeg_quality: 5 to 90.

    Raises:
        SettingsError: out of range.
    """

    crop: float = 0.0
    colour: float = 0.0
    blur: float = 0.0
    blur_pixels: float = 2.0
    small: float = 0.0
    jpeg: float = 0.0
    jpeg_quality: int = 30

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise SettingsError(f"{item.name} of the augmentation is a finite number, got {value!r}")
        most = {"crop": 0.3, "colour": 0.9, "blur": 1.0, "small": 1.0, "jpeg": 1.0}
        for name, limit in most.items():
            if not 0.0 <= getattr(self, name) <= limit:
                raise SettingsError(f"{name} of the augmentation lies in [0, {limit:g}], got {getattr(self, name)}")
        if not 0.0 < self.blur_pixels <= 20.0:
            raise SettingsError(f"blur_pixels of the augmentation lies in (0, 20], got {self.blur_pixels}")
        if not isinstance(self.jpeg_quality, int) or not 5 <= self.jpeg_quality <= 90:
            raise SettingsError(f"jpeg_quality of the augmentation is 5 to 90, got {self.jpeg_quality}")


def augmented(features: Array, preprocessing: Preprocessing, settings: object, rng: np.random.Generator) -> Float32:
    """One training view (3, S, S): changed, then mirrored and lightened as without augmentation.

    Args:
        features: uint8 (S, S, 3).
        preprocessing: of the bundle.
        settings: :class:`FaceAugmentation`.
        rng: draws everything.

    Raises:
        BundleError: the features are of another model.
    """
    assert isinstance(settings, FaceAugmentation)
    return chips.crop(changed(chips.checked(features, preprocessing), settings, rng), preprocessing, rng)


def changed(chip: UInt8, settings: FaceAugmentation, rng: np.random.Generator) -> UInt8:
    """The chip, uint8 (S, S, 3), cropped, recoloured, shrunk, blurred and compressed: in this order."""
    blurred, shrunk, compressed = rng.random(3) < np.array([settings.blur, settings.small, settings.jpeg])
    face = Image.fromarray(chip)
    if settings.crop:
        face = cropped(face, *(float(value) for value in rng.uniform(0.0, settings.crop, 1)), rng=rng)
    if settings.colour:
        for kind, factor in zip(
            (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color),
            rng.uniform(1.0 - settings.colour, 1.0 + settings.colour, 3),
            strict=True,
        ):
            face = kind(face).enhance(float(factor))
    if shrunk:
        side = max(8, round(face.width * float(rng.uniform(_LEAST_SHRUNK, 1.0))))
        small = face.resize((side, side), Image.Resampling.BOX)
        face = small.resize(face.size, Image.Resampling.BILINEAR)
    if blurred:
        face = face.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0, settings.blur_pixels))))
    if compressed:
        face = as_jpeg(face, int(rng.integers(settings.jpeg_quality, 91)))
    return np.asarray(face, np.uint8)


def cropped(face: Image.Image, part: float, *, rng: np.random.Generator) -> Image.Image:
    """A square of ``1 - part`` of the side, from a place that ``rng`` draws, brought to the whole side again."""
    side = face.width * (1.0 - part)
    left, top = rng.uniform(0.0, face.width - side, 2)
    box = (float(left), float(top), float(left + side), float(top + side))
    return face.resize(face.size, Image.Resampling.BILINEAR, box=box)


def as_jpeg(face: Image.Image, quality: int) -> Image.Image:
    """As a JPEG of ``quality``, 1 to 95, gives it back."""
    file = io.BytesIO()
    face.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")
