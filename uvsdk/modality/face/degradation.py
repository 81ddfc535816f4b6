"""Copies of a photo as worse conditions would have given it, so that a calibration sees those conditions too.

It is taken from further away, or out of focus. What the copies really are is measured afterwards, as it is for any
sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image, ImageFilter

from uvsdk.modality.contract import Captured
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.sample import Sample


@dataclass(frozen=True, slots=True)
class Photo:
    """How a photo is made worse; what is ``None`` stays.

    Args:
        face_pixels: width to which the face is brought by shrinking the photo; a smaller face stays as it is.
        blur: standard deviation of a Gaussian blur, as a share of the face's width.
    """

    face_pixels: float | None = None
    blur: float | None = None


PHOTOS: Final[Mapping[str, Photo]] = {
    "64 pixels": Photo(face_pixels=64.0),
    "40 pixels": Photo(face_pixels=40.0),
    "blurred": Photo(blur=0.02),
    "64 pixels, blurred": Photo(face_pixels=64.0, blur=0.015),
}
"""What ``uvsdk calibrate`` makes of every photo."""


def worsen(
    captured: Captured | None,
    measured: Mapping[str, float],
    rng: np.random.Generator,
    others: Sequence[Captured | None],
) -> dict[str, Sample]:
    """See :data:`uvsdk.modality.contract.Worsen`; nothing in it is random."""
    assert isinstance(captured, CapturedFace)
    made = {name: worse_photo(captured.photo, captured.face.pixels, photo) for name, photo in PHOTOS.items()}
    return {name: worse for name, worse in made.items() if worse is not captured.photo}


def worse_photo(photo: Image.Image, face_pixels: float, worse: Photo) -> Image.Image:
    """Blurred, then shrunk; ``photo`` itself where nothing changes.

    Args:
        photo: upright RGB.
        face_pixels: width of the face in it.
        worse: what to do.
    """
    made = photo
    if worse.blur is not None:
        made = made.filter(ImageFilter.GaussianBlur(worse.blur * face_pixels))
    if worse.face_pixels is not None and worse.face_pixels < 0.95 * face_pixels:
        factor = worse.face_pixels / face_pixels
        size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
        made = made.resize(size, Image.Resampling.LANCZOS)
    elif worse.face_pixels is not None:
        return photo
    return made
