"""Where faces are: YuNet (OpenCV Zoo, 2023; Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from uvsdk.arrays import Array, Float32, Float64, Int64
from uvsdk.modality.contract import Session, run
from uvsdk.modality.face import alignment

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
# An upright face scores at least this: 99 % of 807 LFW photos do, and none of 50 of them on their side or
# upside down, which still pass as faces often enough, with landmarks as if they stood upright.
_UPRIGHT_SCORE = 0.905
# What another orientation must score more than the one the picture came in.
_ADVANTAGE = 0.02
# A head that leans: tried where the best quarter turn leaves a score that an upright face would surpass.
_TILTS = (-40.0, 40.0)
# The net's landmarks lean by about a third of what the face leans (LFW photos turned by 8 to 35 degrees), so the face
# is looked at once more, turned back by three times its lean, until that is below what alignment bears.
_LEAN_SEEN = 3.0
_LEVEL_DEGREES = 3.0
_LEVEL_LOOKS = 2
_MAX_TILT = 75.0
# A single face seen through a window of this size fills this part of its width.
_WINDOW, _WINDOW_FACE = 160, 0.4
_QUARTERS = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
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

    @property
    def centre(self) -> Float32:
        """The middle of the box, (2,)."""
        return np.asarray(self.box[:2] + self.box[2:] / 2, np.float32)

    @property
    def roll_degrees(self) -> float:
        """How far the eyes lean from level, clockwise as the picture is seen."""
        across = self.landmarks[1] - self.landmarks[0]
        return float(np.degrees(np.arctan2(across[1], across[0])))


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
    best: Image.Transpose | None = None
    for side in _SIDES:
        for quarter in _QUARTERS:
            others = _find_at(image, side, session, score, quarter)
            if _best(others) > _best(faces) + (_ADVANTAGE if best is None else 0.0):
                best, faces = quarter, others
        if faces:
            break
    turned = image if best is None else image.transpose(best)
    if _best(faces) < _UPRIGHT_SCORE:
        centre = (turned.width / 2 - 0.5, turned.height / 2 - 0.5)
        for tilt in _TILTS:
            seen = _turn(centre, _SIDES[0] / np.hypot(*turned.size), tilt, _SIDES[0])
            others = _find_through(turned, seen, _SIDES[0], session, score)
            if _best(others) > _best(faces) + _ADVANTAGE:
                faces = others
    return turned, faces


def level(image: Image.Image, face: Detection, session: Session, *, score: float = 0.6) -> Detection:
    """The same face with landmarks that were found with the head upright; the face itself where it already is.

    A face turned by 25 degrees within the picture keeps a cosine of 0.70 with its upright self without this, and of
    0.93 with it (24 LFW photos, SFace).

    Args, like those of :func:`find_turned`: the upright picture, one of its faces, the detector, the confidence.
    """
    tilt = 0.0
    for _ in range(_LEVEL_LOOKS):
        lean = face.roll_degrees - tilt
        if abs(lean) < _LEVEL_DEGREES:
            break
        tilt = float(np.clip(tilt + _LEAN_SEEN * lean, -_MAX_TILT, _MAX_TILT))
        seen = _turn(tuple(face.centre.tolist()), _WINDOW * _WINDOW_FACE / face.pixels, tilt, _WINDOW)
        views = _find_through(image, seen, _WINDOW, session, score)
        same = [view for view in views if np.abs(view.centre - face.centre).max() < face.pixels / 3]
        if not same or max(view.score for view in same) < face.score - _ADVANTAGE:
            break
        face = max(same, key=lambda view: view.score)
    return face


def _turn(centre: tuple[float, ...], scale: float, tilt: float, size: int) -> Float64:
    """Picture to window: the centre to the middle, scaled, turned anticlockwise by ``tilt`` degrees; (2, 3)."""
    cos, sin = scale * np.cos(np.radians(tilt)), scale * np.sin(np.radians(tilt))
    # y points down, so anticlockwise is (x cos + y sin, -x sin + y cos).
    turn = np.array([[cos, sin], [-sin, cos]])
    return np.column_stack([turn, (size - 1) / 2 - turn @ np.asarray(centre)])


def _find_through(image: Image.Image, transform: Float64, size: int, session: Session, score: float) -> list[Detection]:
    """The faces in a square window on the picture, where they lie in the picture, the largest first."""
    blob = _blob(Image.fromarray(alignment.warp(image, transform, size)), session)
    outputs = dict(zip(_HEADS, run(session, list(_HEADS), {"input": blob}), strict=True))
    scale = float(np.hypot(transform[0, 0], transform[1, 0]))
    back = np.linalg.inv(transform[:, :2])
    faces = []
    for face in _decode(outputs, blob.shape[3], blob.shape[2], score):
        width = face.box[2:] / scale
        centre = back @ (face.centre - transform[:, 2])
        faces.append(
            Detection(
                box=np.concatenate([centre - width / 2, width]).astype(np.float32),
                landmarks=((face.landmarks - transform[:, 2]) @ back.T).astype(np.float32),
                score=face.score,
            )
        )
    return _largest_first(faces)


def _largest_first(faces: list[Detection]) -> list[Detection]:
    return sorted(faces, key=lambda face: float(face.box[2] * face.box[3]), reverse=True)


def _best(faces: list[Detection]) -> float:
    return max((face.score for face in faces), default=0.0)


def _find_at(
    image: Image.Image, side: int, session: Session, score: float, quarter: Image.Transpose | None = None
) -> list[Detection]:
    """The faces in the picture reduced to ``side``, the largest first; where they lie in the picture once turned."""
    longest = max(image.size)
    scale = 1.0 if _LEAST_SIDE <= longest <= side else min(side / longest, _MAX_ENLARGEMENT)
    width, height = (max(1, round(length * scale)) for length in image.size)
    # Pixel centres, not corners, are whole numbers: hence the halves below.
    ratio = np.array([image.width / width, image.height / height], np.float32)
    seen = image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BILINEAR)
    if quarter is not None:
        seen = seen.transpose(quarter)
        ratio = ratio if quarter == Image.Transpose.ROTATE_180 else ratio[::-1]
    blob = _blob(seen, session)
    outputs = dict(zip(_HEADS, session.run(list(_HEADS), {"input": blob}), strict=True))
    faces = [
        Detection(
            box=np.concatenate([(face.box[:2] + 0.5) * ratio - 0.5, face.box[2:] * ratio]),
            landmarks=(face.landmarks + 0.5) * ratio - 0.5,
            score=face.score,
        )
        for face in _decode(outputs, blob.shape[3], blob.shape[2], score)
    ]
    return _largest_first(faces)


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


def suppress(boxes: Float32, scores: Float32) -> Int64:
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
        order = rest[_overlaps(boxes[best], boxes[rest]) <= _OVERLAP]
    return np.array(kept, np.int64)


def _overlaps(box: Float32, others: Float32) -> Float32:
    """Intersection over union of one box (4,) with others (n, 4)."""
    sides = np.minimum(box[:2] + box[2:], others[:, :2] + others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0.0), axis=1)
    union = box[2] * box[3] + others[:, 2] * others[:, 3] - shared
    return np.asarray(shared / np.maximum(union, 1e-6), np.float32)
