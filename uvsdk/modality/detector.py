"""Where faces are: YuNet (OpenCV Zoo, 2023; Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from uvsdk.arrays import Array, Float32, Int64
from uvsdk.modality.contract import Session

_STRIDES = (8, 16, 32)
_HEADS = tuple(f"{head}_{stride}" for head in ("cls", "obj", "bbox", "kps") for stride in _STRIDES)
# Longest side of the picture the net sees, tried in turn until a face is found. A portrait needs no more than 256: of
# 200 ORL portraits none is missed there, and SFace's equal error rate is 0.04 %, as at 320 (0.06 %) and 640 (0.03 %).
# 640 finds faces of a tenth of the picture's width, in six times the time.
_SIDES = (256, 640)
# A picture of this size or up to the first side is seen as it is: to resample it takes as long as half the net.
_LEAST_SIDE = 160
# Enlarging further than this invents nothing that the net could use.
_MAX_ENLARGEMENT = 3.0
# An upright face scores at least this; all but a few of 807 LFW photos do, and of the same photos on their side or
# upside down fewer than one in twenty. Those still pass as faces often enough, with landmarks as if they stood upright.
_UPRIGHT_SCORE = 0.88
# What another orientation must score more than the one the picture came in.
_ADVANTAGE = 0.02
# A head that leans: tried where the best quarter turn leaves a score that an upright face would surpass.
_TILTS = (-30.0, 30.0)
_QUARTERS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}
# Threshold of overlap in OpenCV's FaceDetectorYN.
_OVERLAP = 0.3
# Boxes that overlap this much are views of one face.
_SAME_FACE = 0.5


@dataclass(frozen=True, slots=True)
class Detection:
    """One face, in pixels of the picture; the centre of its first pixel is (0, 0).

    Args:
        box: left, top, width, height, float32 (4,); it may reach over the picture's edge.
        landmarks: right eye, left eye, tip of the nose, right and left corner of the mouth (the person's right, so
            the picture's left), float32 (5, 2) of x and y.
        score: confidence, 0 to 1.
    """

    box: Float32
    landmarks: Float32
    score: float

    @property
    def pixels(self) -> float:
        """The face's width."""
        return float(self.box[2])


def find(image: Image.Image, session: Session, *, score: float = 0.6) -> list[Detection]:
    """Every face that stands upright, the largest first.

    Args:
        image: RGB, of any size.
        session: the bundle's ``detector`` graph.
        score: confidence from which something is a face; OpenCV's samples use 0.6 to 0.9.
    """
    for side in _SIDES:
        faces = _find_at(image, side, session, score)
        if faces:
            return faces
    return []


def find_turned(image: Image.Image, session: Session, *, score: float = 0.6) -> tuple[Image.Image, list[Detection]]:
    """The picture turned by a multiple of 90 degrees so that its faces stand upright, and the faces in it.

    Phones write which way is up into the file, and messengers strip it. The orientation that came is kept where it
    shows a face beyond doubt; otherwise all four are looked at and the best face of all decides. Heads that lean by up
    to about 45 degrees are found too: their landmarks lean, which alignment undoes.

    Args, like those of :func:`find`: the picture, RGB; the detector; the confidence of a face.
    """
    faces = find(image, session, score=score)
    if _best(faces) >= _UPRIGHT_SCORE:
        return image, faces
    turned = image
    for side in _SIDES:
        for quarter in _QUARTERS.values():
            candidate = image.transpose(quarter)
            others = _find_at(candidate, side, session, score)
            if _best(others) > _best(faces) + (_ADVANTAGE if turned is image else 0.0):
                turned, faces = candidate, others
        if faces:
            break
    if _best(faces) < _UPRIGHT_SCORE:
        for tilt in _TILTS:
            others = _find_at(turned, _SIDES[0], session, score, tilt=tilt)
            if _best(others) > _best(faces) + _ADVANTAGE:
                faces = others
    return turned, faces


def _best(faces: list[Detection]) -> float:
    return max((face.score for face in faces), default=0.0)


def _find_at(image: Image.Image, side: int, session: Session, score: float, *, tilt: float = 0.0) -> list[Detection]:
    """The faces, the largest first, in the picture reduced to ``side`` and turned anticlockwise by ``tilt`` degrees."""
    longest = max(image.size)
    scale = 1.0 if _LEAST_SIDE <= longest <= side else min(side / longest, _MAX_ENLARGEMENT)
    width, height = (max(1, round(length * scale)) for length in image.size)
    seen = image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BILINEAR)
    if tilt:
        seen = seen.rotate(tilt, Image.Resampling.BILINEAR, expand=True)
    blob = _blob(seen, session)
    outputs = dict(zip(_HEADS, session.run(list(_HEADS), {"input": blob}), strict=True))
    found = _decode(outputs, blob.shape[3], blob.shape[2], score)
    if tilt:
        found = [_tilted(face, tilt, seen.size, (width, height)) for face in found]
    # Pixel centres, not corners, are whole numbers: hence the halves.
    ratio = np.array([image.width / width, image.height / height], np.float32)
    faces = [
        Detection(
            box=np.concatenate([(face.box[:2] + 0.5) * ratio - 0.5, face.box[2:] * ratio]),
            landmarks=(face.landmarks + 0.5) * ratio - 0.5,
            score=face.score,
        )
        for face in found
    ]
    return sorted(faces, key=lambda face: float(face.box[2] * face.box[3]), reverse=True)


def _tilted(face: Detection, tilt: float, seen: tuple[int, int], upright: tuple[int, int]) -> Detection:
    """A face of a picture that was turned anticlockwise by ``tilt`` degrees, where it lies in the picture before."""
    cos, sin = np.cos(np.radians(tilt)), np.sin(np.radians(tilt))
    # In pixels downward, anticlockwise by t is (x, y) -> (x cos t + y sin t, -x sin t + y cos t); this is the inverse.
    back = np.array([[cos, -sin], [sin, cos]], np.float32)
    old, new = np.array(seen, np.float32) / 2 - 0.5, np.array(upright, np.float32) / 2 - 0.5
    centre = (face.box[:2] + face.box[2:] / 2 - old) @ back.T + new
    return Detection(
        box=np.concatenate([centre - face.box[2:] / 2, face.box[2:]]),
        landmarks=(face.landmarks - old) @ back.T + new,
        score=face.score,
    )


def _blob(image: Image.Image, session: Session) -> Float32:
    """BGR, 0-255, (1, 3, H, W), padded on the right and below to what the graph declares or a multiple of 32."""
    declared = session.get_inputs()[0].shape
    sizes = []
    for axis, length in ((2, image.height), (3, image.width)):
        fixed = declared[axis]
        sizes.append(fixed if isinstance(fixed, int) else -(-length // _STRIDES[-1]) * _STRIDES[-1])
    blob = np.zeros((1, 3, sizes[0], sizes[1]), np.float32)
    # Pillow takes the channels apart twice as fast as numpy reorders them.
    for plane, channel in zip(blob[0], reversed(image.split()), strict=True):
        plane[: image.height, : image.width] = channel
    return blob


def _decode(outputs: dict[str, Array], width: int, height: int, score: float) -> list[Detection]:
    """The net's three grids to faces (OpenCV's FaceDetectorYNImpl::postProcess)."""
    boxes, landmarks, scores = [], [], []
    for stride in _STRIDES:
        columns = width // stride
        certainty = np.maximum(outputs[f"cls_{stride}"], 0.0) * np.maximum(outputs[f"obj_{stride}"], 0.0)
        certainty = np.minimum(certainty.reshape(-1), 1.0)
        (chosen,) = np.nonzero(certainty >= score * score)
        if not len(chosen):
            continue
        grid = np.stack([chosen % columns, chosen // columns], axis=1).astype(np.float32)
        box = np.asarray(outputs[f"bbox_{stride}"], np.float32).reshape(-1, 4)[chosen]
        size = np.exp(box[:, 2:]) * stride
        centre = (grid + box[:, :2]) * stride
        points = np.asarray(outputs[f"kps_{stride}"], np.float32).reshape(-1, 5, 2)[chosen]
        boxes.append(np.concatenate([centre - size / 2, size], axis=1))
        landmarks.append((points + grid[:, None]) * stride)
        scores.append(np.sqrt(certainty[chosen]))
    if not boxes:
        return []
    box, point, confidence = np.concatenate(boxes), np.concatenate(landmarks), np.concatenate(scores)
    return [_vote(index, box, point, confidence) for index in suppress(box, confidence).tolist()]


def _vote(index: int, boxes: Float32, landmarks: Float32, scores: Float32) -> Detection:
    """The mean of all that see the same face as the best one, weighted by confidence (Gidaris & Komodakis, 2015).

    OpenCV keeps the best alone. Its landmarks move by 3.6 pixels on faces of 94 when an LFW photo is resized from 240
    to 256 pixels; their mean moves by 2.0.
    """
    same = _overlaps(boxes[index], boxes) >= _SAME_FACE
    weights = scores[same] / scores[same].sum()
    return Detection(
        box=np.tensordot(weights, boxes[same], 1),
        landmarks=np.tensordot(weights, landmarks[same], 1),
        score=float(scores[index]),
    )


def suppress(boxes: Float32, scores: Float32, overlap: float = _OVERLAP) -> Int64:
    """Indices of the boxes that remain when each best box removes those that overlap it (intersection over union).

    >>> boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 10, 10]], np.float32)
    >>> suppress(boxes, np.array([0.8, 0.9, 0.7], np.float32)).tolist()
    [1, 2]
    """
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order):
        best, rest = int(order[0]), order[1:]
        kept.append(best)
        order = rest[_overlaps(boxes[best], boxes[rest]) <= overlap]
    return np.array(kept, np.int64)


def _overlaps(box: Float32, others: Float32) -> Float32:
    """Intersection over union of one box (4,) with others (n, 4)."""
    sides = np.minimum(box[:2] + box[2:], others[:, :2] + others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0.0), axis=1)
    union = box[2] * box[3] + others[:, 2] * others[:, 3] - shared
    return np.asarray(shared / np.maximum(union, 1e-6), np.float32)
