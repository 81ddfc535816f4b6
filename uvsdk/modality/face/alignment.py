"""Faces to chips: a similarity transform that lays five landmarks on a template, and the picture seen through it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from uvsdk.arrays import Float, Float64, UInt8
from uvsdk.errors import NoFaceError

# dlib's mean face (interpolation.h, mean_face_shape_x and _y): the six points of each eye, the tip of the nose and the
# corners of the mouth. A detector of five points sees the middle of an eye.
_DLIB_RIGHT_EYE = (
    (0.121737, 0.216423),
    (0.187122, 0.178758),
    (0.265825, 0.179852),
    (0.334606, 0.231733),
    (0.260918, 0.245099),
    (0.182743, 0.244077),
)
_DLIB_LEFT_EYE = (
    (0.645647, 0.231733),
    (0.714428, 0.179852),
    (0.793132, 0.178758),
    (0.858516, 0.216423),
    (0.797510, 0.244077),
    (0.719335, 0.245099),
)
_DLIB_NOSE, _DLIB_MOUTH = (0.490127, 0.515625), ((0.254149, 0.780233), (0.726104, 0.780233))
# Margin on every side as a part of the face, in dlib's face_recognition and in the training of its network.
_DLIB_PADDING = 0.25


@dataclass(frozen=True, slots=True)
class LandmarkTemplate:
    """Where the five landmarks belong.

    Args:
        points: float64 (5, 2) of x and y in pixels of a chip of ``size``; the centre of the first pixel is (0, 0).
        size: the side of the chip the points are given for.
        stretch: how much wider than tall the network's training chips were drawn.
    """

    points: Float64
    size: int
    stretch: float = 1.0

    def fit(self, landmarks: Float, size: int) -> Float64:
        """The map from a picture with these landmarks to a chip of ``size``, (2, 3)."""
        corners = (self.points + 0.5) * (size / self.size)
        # Fit without the stretch, which no similarity can make, then stretch about the left edge.
        wide = np.array([self.stretch, 1.0])
        fitted: Float64 = similarity(np.asarray(landmarks, np.float64) + 0.5, corners / wide) * wide[:, None]
        fitted[:, 2] += fitted[:, :2] @ (0.5, 0.5) - 0.5
        return fitted


def _dlib() -> LandmarkTemplate:
    face = np.array([np.mean(_DLIB_RIGHT_EYE, axis=0), np.mean(_DLIB_LEFT_EYE, axis=0), _DLIB_NOSE, *_DLIB_MOUTH])
    return LandmarkTemplate((face + _DLIB_PADDING) / (1 + 2 * _DLIB_PADDING) * 150, 150)


TEMPLATES = {
    # InsightFace's arcface_src; OpenCV's FaceRecognizerSF::alignCrop uses the same five points.
    "arcface": LandmarkTemplate(
        np.array(
            [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]],
        ),
        112,
    ),
    "dlib": _dlib(),
    # facenet-pytorch crops MTCNN's box (margin 14 of 160), which is 0.75 as wide as tall, and resizes it to a square.
    # The points are where MTCNN sees the landmarks in such chips: the mean over 51 LFW photos and their mirror images.
    "facenet": LandmarkTemplate(
        np.array([[46.5, 62.9], [112.5, 62.9], [79.5, 93.1], [50.3, 116.8], [108.7, 116.8]]), 160, stretch=4 / 3
    ),
}


def similarity(source: Float, target: Float) -> Float64:
    """The rotation, scale and shift that bring ``source`` nearest to ``target`` in the least squares, (2, 3).

    Umeyama (1991) in the plane: as complex numbers the solution is one division. It cannot mirror.

    Args:
        source: (n, 2).
        target: (n, 2).

    Raises:
        NoFaceError: the source points coincide, so there is no scale.

    >>> turned = similarity(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[5.0, 5.0], [5.0, 7.0]]))
    >>> (turned + 0.0).round(6).tolist()
    [[0.0, -2.0, 5.0], [2.0, 0.0, 5.0]]
    """
    a, b = _complex(source), _complex(target)
    centred_a, centred_b = a - a.mean(), b - b.mean()
    spread = float(np.sum(np.abs(centred_a) ** 2))
    if not spread > 1e-9:
        raise NoFaceError("the five landmarks of the face coincide; photograph the face again, from nearer")
    turn = np.vdot(centred_a, centred_b) / spread
    shift = b.mean() - turn * a.mean()
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def warp(image: Image.Image, transform: Float64, size: int) -> UInt8:
    """The picture seen through ``transform`` (picture to chip), uint8 (size, size, 3); black where there is none.

    A face far larger than the chip is first averaged down by a whole factor: bilinear sampling alone would look at a
    few of its pixels and skip the rest.
    """
    scale = float(np.hypot(transform[0, 0], transform[1, 0]))
    factor = max(1, min(int(1.0 / scale), *image.size))
    seen = image.reduce(factor) if factor > 1 else image
    inverse = np.linalg.inv(np.vstack([transform, [0.0, 0.0, 1.0]]))
    # Pillow puts the centre of the first pixel at (0.5, 0.5), in the picture and in the chip.
    into_chip = np.array([[1.0, 0.0, -0.5], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])
    into_seen = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, float(factor)]]) / factor
    rows = (into_seen @ inverse @ into_chip)[:2]
    chip = seen.transform((size, size), Image.Transform.AFFINE, tuple(rows.ravel().tolist()), Image.Resampling.BILINEAR)
    return np.array(chip, np.uint8)


def _complex(points: Float) -> npt.NDArray[np.complex128]:
    pairs = np.asarray(points, np.float64)
    return pairs[:, 0] + 1j * pairs[:, 1]
