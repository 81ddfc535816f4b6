"""What is measured in a face before it is matched, and what it must reach.

The ranges were set on LFW (3,811 photos) and ORL (400 portraits), of which ``standard`` refuses none, and on LFW photos
made worse: blurred, darkened, overexposed, covered, shrunk. ``strict`` refuses nearly all of those and 18 of 807 LFW
photos as they are; tests/benchmarks/face/README.md has the table. A turned head is not refused under ``standard``: it
lowers the person's own score and lets nobody else in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from uvsdk.arrays import Float, Float32, UInt8
from uvsdk.modality.face.alignment import LandmarkTemplate
from uvsdk.modality.face.detector import Detection
from uvsdk.scoring import QualityPolicy, Requirement
from uvsdk.scoring.quality import Quality, assess

# ITU-R BT.601.
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32) / np.float32(255)
# The part of a chip that is face whatever the hair: rows, then columns, as parts of the side.
_FACE_ROWS, _FACE_COLUMNS = (0.16, 0.95), (0.125, 0.875)
# Length of the second blur as a part of the side; Crete et al. take 9 pixels, here of a chip of 112.
_BLUR = 9 / 112
_WHITE, _BLACK = 0.98, 0.03
# Half of the region about an eye and about the mouth, width and height as parts of the side.
_EYE, _MOUTH = (0.1, 0.07), (0.18, 0.08)
# Where the nose tip lies between eyes and mouth in a face that looks straight ahead: the median of LFW.
_LEVEL_NOSE = 0.558

_LIGHT = "turn towards a soft light, with no lamp or window behind you"
_OPEN = (-np.inf, np.inf)
REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("detector_score", "certainty of a face", "", (0.6, 1.0), (0.85, 1.0), "show the whole face, uncovered"),
    Requirement("face_pixels", "width of the face", "pixels", (0, np.inf), (56, np.inf), "go nearer to the camera"),
    Requirement(
        "sharpness", "sharpness", "", (0.15, 1.0), (0.33, 1.0), "hold still, wipe the lens and let the camera focus"
    ),
    Requirement("brightness", "brightness", "", (0.08, 0.93), (0.18, 0.8), _LIGHT),
    Requirement("contrast", "contrast", "", (0.02, np.inf), (0.07, np.inf), _LIGHT),
    Requirement("overexposed_fraction", "white part of the face", "", (0.0, 0.6), (0.0, 0.25), _LIGHT),
    Requirement("underexposed_fraction", "black part of the face", "", (0.0, 0.8), (0.0, 0.35), _LIGHT),
    Requirement("yaw", "turn to the side", "", _OPEN, (-0.35, 0.35), "look straight into the camera"),
    Requirement("pitch", "nod", "", _OPEN, (-0.15, 0.15), "hold the camera at the height of your eyes"),
    Requirement("roll_degrees", "lean", "degrees", (-180.0, 180.0), (-35.0, 35.0), "hold head and camera upright"),
    Requirement("occlusion", "covered part", "", (0.0, 0.8), (0.0, 0.6), "take away what covers the eyes or the mouth"),
)
"""Every measured value that has a range. The least width under ``standard`` is the bundle's, see
:func:`uvsdk.modality.face.chips.prepare`."""


def measure(face: Detection, chip: UInt8, *, template: LandmarkTemplate, reduction: float = 1.0) -> dict[str, float]:
    """The keys of :data:`REQUIREMENTS`.

    ``face_pixels`` is the width in the photo as it was handed in. All else but the pose is measured on the chip, so it
    does not depend on how large the face is in the photo:

    - ``sharpness``, 0 to 1, of the face's size and contrast independent: how much of the differences between
      neighbouring pixels a second blur takes away (Crete et al., "The blur effect", 2007). About 0.5 for a good photo,
      0.25 under a blur of 2 % of the chip's side.
    - ``brightness`` mean and ``contrast`` standard deviation of the luminance, 0 to 1; ``overexposed_fraction`` and
      ``underexposed_fraction`` of the face that are white or black.
    - ``yaw``: where the tip of the nose falls between the eyes, 0 in the middle, +-0.5 over an eye, positive to the
      right of the picture. ``pitch``: the same between eyes and mouth, positive towards the eyes (head back).
      ``roll_degrees``: the lean of the eyes, clockwise.
    - ``occlusion``, 0 to 1: how far the flattest of the eyes and the mouth lacks the edges it should have. It sees a
      bar, a plain mask, a hand over the mouth; it cannot see a cover that has edges of its own (hair, a patterned
      scarf, sunglasses that mirror), which the detector's score tells sometimes.

    Args:
        face: in the photo.
        chip: the aligned face, uint8 (S, S, 3).
        template: what it was aligned to.
        reduction: how many pixels of what was handed in became one of the photo, along a side.
    """
    grey = chip.astype(np.float32) @ _LUMINANCE
    side = len(grey)
    (top, bottom), (left, right) = (
        (round(low * side), round(high * side)) for low, high in (_FACE_ROWS, _FACE_COLUMNS)
    )
    inner = grey[top:bottom, left:right]
    return {
        "detector_score": face.score,
        "face_pixels": face.pixels * reduction,
        "sharpness": _sharpness(inner, max(3, round(_BLUR * side)) | 1),
        "brightness": float(inner.mean()),
        "contrast": float(inner.std()),
        "overexposed_fraction": float((inner > _WHITE).mean()),
        "underexposed_fraction": float((inner < _BLACK).mean()),
        **pose(face.landmarks),
        "roll_degrees": face.roll_degrees,
        "occlusion": _occlusion(grey, inner, template.points * (side / template.size)),
    }


def judge(measured: Mapping[str, float], policy: QualityPolicy) -> Quality:
    """The quality under ``policy``. Raises :class:`uvsdk.errors.LowQualityError` naming all that is missing."""
    return assess(measured, REQUIREMENTS, policy=policy)


def _sharpness(grey: Float32, length: int) -> float:
    return min(_kept(grey, length), _kept(grey.T, length))


def _kept(grey: Float32, length: int) -> float:
    """The share of the differences down the columns that a mean over ``length`` rows takes away."""
    steps = np.abs(np.diff(grey, axis=0))
    sums = np.cumsum(np.concatenate([np.zeros((1, grey.shape[1]), np.float32), grey]), axis=0, dtype=np.float64)
    blurred = np.abs(np.diff(sums[length:] - sums[:-length], axis=0)) / length
    middle = length // 2
    steps = steps[middle : middle + len(blurred)]
    total = float(steps.sum())
    return float(np.maximum(steps - blurred, 0.0).sum()) / total if total > 0 else 0.0


def pose(landmarks: Float) -> dict[str, float]:
    """``yaw`` and ``pitch`` of five landmarks (5, 2), as :func:`measure` gives them."""
    right, left, nose = (np.asarray(landmarks[index], np.float64) for index in range(3))
    mouth = np.asarray(landmarks[3:], np.float64).mean(axis=0)
    across, middle = left - right, (left + right) / 2
    down = mouth - middle
    return {
        "yaw": float((nose - right) @ across / max(float(across @ across), 1e-9)) - 0.5,
        "pitch": _LEVEL_NOSE - float((nose - middle) @ down / max(float(down @ down), 1e-9)),
    }


def _occlusion(grey: Float32, inner: Float32, points: Float) -> float:
    everywhere = _edges(inner)
    if everywhere <= 0:
        return 1.0
    regions = [(points[0], _EYE), (points[1], _EYE), ((points[3] + points[4]) / 2, _MOUTH)]
    return 1.0 - min(1.0, *(_edges(_region(grey, centre, half)) / everywhere for centre, half in regions))


def _region(grey: Float32, centre: Float, half: tuple[float, float]) -> Float32:
    side = len(grey)
    (x, y), (width, height) = centre, half
    rows = slice(max(0, int(y - height * side)), int(y + height * side))
    return grey[rows, max(0, int(x - width * side)) : int(x + width * side)]


def _edges(grey: Float32) -> float:
    return float(np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean())
