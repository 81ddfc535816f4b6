"""How many photos each quality policy refuses: LFW as it is, and made worse on purpose.

OMP_NUM_THREADS=1 python tests/benchmarks/face/refusals.py --data FOLDER
"""

from __future__ import annotations

import argparse
import csv
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.errors import LowQualityError, SampleError
from uvsdk.modality import Capture, Limits, image
from uvsdk.modality.face import quality
from uvsdk.modality.face.chips import MINIMUM_FACE_PIXELS, CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.scoring import QualityPolicy
from uvsdk.training.graphs.sface import sface_bundle

FACE = modality.get("face")
Worse = Callable[[Image.Image, Detection], Image.Image]


def main() -> None:
    """Measure and write refusals.csv beside this file, or to ``--output``."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--output", type=Path, default=here.with_name("refusals.csv"))
    arguments = parser.parse_args()
    bundle = sface_bundle()
    files = _files(arguments.data / "lfw_fold1_originals.tar")
    rows = _refused("as it is", files, bundle)
    some = [image.decode(file, Limits()).upright for file in files[::10]]
    meant = [_face(photo, bundle) for photo in some]
    for name, change in WORSE.items():
        worse = [change(photo, face) for photo, face in zip(some, meant, strict=True)]
        rows += _refused(name, worse, bundle)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("photos", "policy", "refused", "of"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<34} {row[1]:<9} {row[2]:>4} of {row[3]}")


def _files(archive: Path) -> list[bytes]:
    with tarfile.open(archive) as members:
        contents = [members.extractfile(member) for member in members if member.name.endswith(".jpg")]
        return [content.read() for content in contents if content is not None]


def _refused(
    name: str, samples: list[bytes] | list[Image.Image], bundle: Bundle
) -> list[tuple[str, QualityPolicy, int, int]]:
    """The samples are read once, under ``off``; what was measured is judged under the others."""
    refused: dict[QualityPolicy, int] = {"off": 0, "standard": 0, "strict": 0}
    for sample in samples:
        try:
            measured = FACE.prepare(sample, bundle, capture=Capture("off", faces="largest")).quality.measured
        except SampleError:
            refused = {policy: count + 1 for policy, count in refused.items()}
            continue
        for policy in ("standard", "strict"):
            refused[policy] += measured["face_pixels"] < MINIMUM_FACE_PIXELS or _poor(measured, policy)
    return [(name, policy, count, len(samples)) for policy, count in refused.items()]


def _poor(measured: dict[str, float], policy: QualityPolicy) -> bool:
    try:
        quality.judge(measured, policy)
    except LowQualityError:
        return True
    return False


def _face(photo: Image.Image, bundle: Bundle) -> Detection:
    captured = FACE.prepare(photo, bundle, capture=Capture("off", faces="largest")).captured
    assert isinstance(captured, CapturedFace)
    return captured.face


def _covered(first: int, last: int, colour: tuple[int, int, int]) -> Worse:
    """A bar across the face, from above one landmark to below another."""

    def cover(photo: Image.Image, face: Detection) -> Image.Image:
        covered = photo.copy()
        rows, reach = face.landmarks[[first, last], 1], 0.16 * face.pixels
        left, right = face.box[0], face.box[0] + face.box[2]
        box = [float(left), float(rows.min() - reach), float(right), float(rows.max() + reach)]
        ImageDraw.Draw(covered).rectangle(box, fill=colour)
        return covered

    return cover


def _scaled(factor: float, offset: float) -> Worse:
    return lambda photo, _: Image.fromarray(
        np.clip(np.asarray(photo, np.float32) * factor + offset, 0, 255).astype(np.uint8)
    )


WORSE: dict[str, Worse] = {
    "blurred, 3 % of the face's width": lambda photo, face: photo.filter(ImageFilter.GaussianBlur(0.03 * face.pixels)),
    "a fifth of the light": _scaled(0.2, 0.0),
    "overexposed fourfold": _scaled(4.0, 0.0),
    "black bar over the eyes": _covered(0, 1, (0, 0, 0)),
    "plain mask over nose and mouth": _covered(2, 4, (150, 180, 210)),
    "shrunk to a face of 40 pixels": lambda photo, face: photo.resize(
        (round(photo.width * 40 / face.pixels), round(photo.height * 40 / face.pixels)), Image.Resampling.LANCZOS
    ),
    "leaning by 50 degrees": lambda photo, _: photo.rotate(50, Image.Resampling.BICUBIC),
}


if __name__ == "__main__":
    main()
