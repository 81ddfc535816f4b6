"""Photographs of one face as worse conditions would have given them, drawn by the face's five landmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from uvsdk.arrays import Float64
from uvsdk.modality.face.degradation import Photo, worse_photo
from uvsdk.modality.face.detector import Detection

Worse: TypeAlias = Callable[[Image.Image, Detection, np.random.Generator], Image.Image]

Points: TypeAlias = tuple[tuple[float, float], ...]

# In distances between the eyes, from the middle between them: to the left of the picture and down.
_MASK: Final[Points] = ((0.0, 0.28), (-0.6, 0.42), (-1.1, 0.5), (-0.95, 1.2), (-0.45, 1.75), (0.0, 1.85))
_PLEATS = (0.75, 1.0, 1.25)
_LENS = (0.4, 0.3)
_SURGICAL, _PLEAT, _DARK = (165, 195, 215), (120, 150, 175), (18, 18, 20)


def mask(*, pleated: bool) -> Worse:
    """A surgical mask from the bridge of the nose to the chin, plain or with pleats."""

    def draw(photo: Image.Image, face: Detection, rng: np.random.Generator) -> Image.Image:
        del rng
        half = np.array(_MASK)
        drawn, canvas, place = _on(photo, face)
        canvas.polygon(place(np.concatenate([half, half[::-1] * (-1, 1)])), fill=_SURGICAL)
        for depth in _PLEATS if pleated else ():
            ends = np.array([(-0.85, depth), (0.85, depth)])
            canvas.line(place(ends), fill=_PLEAT, width=max(1, round(0.03 * face.pixels)))
        return drawn

    return draw


def glasses(*, dark: bool) -> Worse:
    """Spectacles, as thin dark frames or as dark lenses."""

    def draw(photo: Image.Image, face: Detection, rng: np.random.Generator) -> Image.Image:
        del rng
        drawn, canvas, place = _on(photo, face)
        width = max(1, round(0.025 * face.pixels))
        turn = np.linspace(0.0, 2.0 * np.pi, 40)
        for side in (-0.5, 0.5):
            rim = place(np.column_stack([side + _LENS[0] * np.cos(turn), 0.04 + _LENS[1] * np.sin(turn)]))
            if dark:
                canvas.polygon(rim, fill=_DARK)
            else:
                canvas.line(rim, fill=_DARK, width=width)
            outer = np.sign(side) * 0.9
            canvas.line(place(np.array([(outer, 0.0), (outer * 1.35, -0.05)])), fill=_DARK, width=width)
        canvas.line(place(np.array([(-0.12, 0.0), (0.12, 0.0)])), fill=_DARK, width=width)
        return drawn

    return draw


def dim(gamma: float, noise_levels: float) -> Worse:
    """Low light: each value v of 255 becomes 255 (v / 255)^gamma, then normal noise is added."""

    def darken(photo: Image.Image, face: Detection, rng: np.random.Generator) -> Image.Image:
        del face
        levels = 255.0 * (np.asarray(photo, np.float64) / 255.0) ** gamma
        noisy = levels + rng.normal(0.0, noise_levels, levels.shape)
        return Image.fromarray(np.clip(noisy, 0, 255).round().astype(np.uint8))

    return darken


def small(face_pixels: float) -> Worse:
    """Taken from further away: the photograph is shrunk until the face has that width."""
    return lambda photo, face, _: worse_photo(photo, face.pixels, Photo(face_pixels=face_pixels))


def _on(
    photo: Image.Image, face: Detection
) -> tuple[Image.Image, ImageDraw.ImageDraw, Callable[[Float64], list[tuple[float, float]]]]:
    """A copy, a pen for it, and the map from distances between the eyes to pixels."""
    drawn = photo.copy()
    right, left = np.asarray(face.landmarks[:2], np.float64)
    across, origin = left - right, (right + left) / 2
    axes = np.array([across, (-across[1], across[0])])
    return drawn, ImageDraw.Draw(drawn), lambda points: [tuple(point) for point in (origin + points @ axes).tolist()]


WORSE: Final[Mapping[str, Worse]] = MappingProxyType(
    {
        "as they are": lambda photo, face, rng: photo,
        "surgical mask, plain": mask(pleated=False),
        "surgical mask, pleated": mask(pleated=True),
        "spectacles": glasses(dark=False),
        "sunglasses": glasses(dark=True),
        "low light (gamma 2, noise of 6 levels)": dim(2.0, 6.0),
        "very low light (gamma 3.5, noise of 10 levels)": dim(3.5, 10.0),
        "face of 48 pixels": small(48.0),
        "face of 32 pixels": small(32.0),
        "face of 24 pixels": small(24.0),
    }
)
