"""Photos to aligned face chips."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from PIL import Image

from uvsdk.arrays import Array, Float32, UInt8
from uvsdk.errors import BundleError, NoFaceError, SeveralFacesError
from uvsdk.modality import image
from uvsdk.modality.contract import Graphs, Prepared, Preprocessing, number, word
from uvsdk.modality.face import alignment, detector
from uvsdk.modality.face.quality import judge, measure
from uvsdk.modality.sample import Capture, FacesRule, Sample

_DEFAULT_CAPTURE = Capture()
# A second face counts when it is at least this much of the first one's width: a passer-by in the background does not.
_SECOND_FACE = 0.6
# Nor does one beside a person who fills the middle of the picture, up to this part of the width and from this distance
# on, see `_is_beside`. Chosen on one half of the people of LFW's first fold and measured on the other, and on pictures
# with an attacker's face beside a smaller one of the person (examples/reproduce/lfw/company.py).
_BYSTANDER, _BESIDE_WIDTHS = 0.86, 0.5
# A face narrower than this in a reduced picture is narrower than `strict` asks for, or close to it.
_LOOK_CLOSER = 56.0
MINIMUM_FACE_PIXELS = 32.0
"""Below this width the chip is mostly interpolation; a bundle may ask for another."""


@dataclass(frozen=True, slots=True, eq=False)
class CapturedFace:
    """A decoded photo and the face in it that is meant.

    Args:
        photo: RGB, turned so that the face stands upright.
        face: box and landmarks, in pixels of ``photo``.
        chip: the aligned face, uint8 (S, S, 3).
    """

    photo: Image.Image
    face: detector.Detection
    chip: UInt8
    modality: str = "face"


def prepare(sample: Sample, bundle: Graphs, *, capture: Capture = _DEFAULT_CAPTURE) -> Prepared:
    """Decode, find the one face, whichever way up, and lay it on the bundle's template.

    Raises:
        UndecodableSampleError, SampleTooLargeError: as :func:`uvsdk.modality.image.decode`.
        NoFaceError: none, or narrower than the bundle's ``minimum_face_pixels`` (32 unless it says otherwise; the
            policy ``off`` takes any width).
        SeveralFacesError: others that ``capture.faces`` does not allow.
        LowQualityError: too poor for ``capture.quality``; see :mod:`uvsdk.modality.face.quality`.
    """
    preprocessing = bundle.manifest.preprocessing
    template, size = _template(preprocessing)
    minimum = number(preprocessing, "minimum_face_pixels", default=MINIMUM_FACE_PIXELS)
    if capture.quality == "off":
        minimum = 0.0
    started = perf_counter()
    picture = image.decode(sample, capture.limits)
    decoded = perf_counter()
    session = bundle.session("detector")
    photo, faces = detector.find_turned(picture.upright, session)
    reduction = picture.reduction
    if reduction > 1.0 and faces and faces[0].pixels < _LOOK_CLOSER:
        # A file may be read reduced; a small face is then looked at again in all its pixels.
        photo, faces = detector.find_turned(picture.whole(), session)
        reduction = 1.0
    turned = (photo.width > photo.height) != (picture.upright.width > picture.upright.height)
    handed_in = picture.size[::-1] if turned else picture.size
    face = detector.level(photo, choose(faces, handed_in, minimum, capture.faces, reduction), session)
    detected = perf_counter()
    chip = alignment.warp(photo, template.fit(face.landmarks, size), size)
    quality = judge(measure(face, chip, template=template, reduction=reduction), capture.quality)
    finished = perf_counter()
    return Prepared(
        features=chip,
        quality=quality,
        timings_s={"decode": decoded - started, "detect": detected - decoded, "features": finished - detected},
        captured=CapturedFace(photo, face, chip),
    )


def views(features: Array, preprocessing: Preprocessing) -> Float32:
    """The chip as the graph takes it, (1, 3, S, S), 0 to 255; the graph normalises."""
    return _channels_first(checked(features, preprocessing))[None]


def crop(features: Array, preprocessing: Preprocessing, rng: np.random.Generator) -> Float32:
    """The chip or its mirror image, a little lighter or darker, (3, S, S)."""
    chip = _channels_first(checked(features, preprocessing))
    if rng.random() < 0.5:
        chip = chip[:, :, ::-1]
    gain = np.float32(rng.uniform(0.85, 1.15))
    return np.ascontiguousarray(np.clip(chip * gain, 0.0, 255.0))


def choose(
    faces: list[detector.Detection],
    size: tuple[int, int],
    minimum: float,
    rule: FacesRule = "single",
    reduction: float = 1.0,
) -> detector.Detection:
    """The one face that is meant. Raises :class:`NoFaceError` or :class:`SeveralFacesError`.

    Args:
        faces: the largest first.
        size: width and height of the picture that was handed in, which is what messages speak of.
        minimum: the least width in its pixels.
        rule: see :class:`uvsdk.modality.Capture`. Faces of at least 0.6 of the largest one's width count as its equals.
            ``single`` takes the largest or refuses, and never another: it refuses such an equal unless that is
            narrower than 0.86 of the largest, the picture's middle lies in the largest, and the equal's centre is
            farther from the middle by half of the largest one's width or more. ``largest`` takes of the equals the
            one nearest the middle of the picture.
        reduction: how many of its pixels became one of those that ``faces`` count.
    """
    if not faces:
        raise NoFaceError(
            f"no face in a picture of {size[0]} x {size[1]}, whichever way up; face the camera, in even "
            "light, the whole head in view"
        )
    face = faces[0]
    if face.pixels * reduction < minimum:
        raise NoFaceError(
            f"the face is {face.pixels * reduction:.0f} pixels wide, need {minimum:.0f}; go nearer to the camera"
        )
    middle = np.asarray((np.array(size) / reduction - 1) / 2, np.float32)
    rivals = [other for other in faces[1:] if rule == "only" or other.pixels >= _SECOND_FACE * face.pixels]
    if rule == "single":
        rivals = [other for other in rivals if not _is_beside(other, face, middle)]
    if not rivals:
        return face
    if rule == "largest":
        equals = [other for other in (face, *rivals) if other.pixels * reduction >= minimum]
        return min(equals, key=lambda other: float(np.linalg.norm(other.centre - middle)))
    of_size = "" if rule == "only" else " of similar size"
    widths = f"{face.pixels * reduction:.0f} and {rivals[0].pixels * reduction:.0f} pixels wide"
    raise SeveralFacesError(
        f"{1 + len(rivals)} faces{of_size} ({widths}), need one; only one person may be in the picture"
    )


def _is_beside(other: detector.Detection, face: detector.Detection, middle: Float32) -> bool:
    """Whether ``other`` stands beside the person whose ``face`` fills the middle of the picture."""
    fills = bool(np.all(np.abs(face.centre - middle) <= face.box[2:] / 2))
    away = float(np.linalg.norm(other.centre - middle) - np.linalg.norm(face.centre - middle))
    return fills and other.pixels < _BYSTANDER * face.pixels and away >= _BESIDE_WIDTHS * face.pixels


def _template(preprocessing: Preprocessing) -> tuple[alignment.LandmarkTemplate, int]:
    name = word(preprocessing, "template", default="arcface", allowed=tuple(alignment.TEMPLATES))
    template = alignment.TEMPLATES[name]
    size = int(number(preprocessing, "size", default=template.size))
    if not 8 <= size <= 1024:
        raise BundleError(f"a face chip has 8 to 1024 pixels a side, the bundle asks for {size}")
    return template, size


def checked(features: Array, preprocessing: Preprocessing) -> UInt8:
    """Features of the model's kind, uint8 (S, S, 3). Raises :class:`BundleError`."""
    _, size = _template(preprocessing)
    if features.shape != (size, size, 3) or features.dtype != np.uint8:
        raise BundleError(
            f"face features are uint8 of shape ({size}, {size}, 3), got {features.dtype} {features.shape}; they were "
            "made for another model"
        )
    return np.asarray(features, np.uint8)


def _channels_first(chip: UInt8) -> Float32:
    return np.ascontiguousarray(chip.transpose(2, 0, 1), np.float32)
