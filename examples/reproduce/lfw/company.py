"""Which photographs with several faces are refused, and what an attacker gains by a second face.

``python -m examples.reproduce.lfw.company`` measures the rules for several faces on the photographs of fold 1 as they
are, on enrolments of three, and on pictures made of two of them, and writes company.csv.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import uvsdk
from examples.reproduce import record
from examples.reproduce.lfw import photographs, unpack
from examples.reproduce.lfw.photographs import Photograph
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import EnrolmentError, SampleError, SeveralFacesError
from uvsdk.modality import Capture
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.sample import FACES_RULES, FacesRule
from uvsdk.templates.storage import MemoryStore
from uvsdk.training.graphs.sface import sface_bundle

HERE = Path(__file__).parent
HALVES = ("tuning half", "measured half")
RATIOS = (1.0, 1.2, 1.5, 2.0, 3.0)
PLACES = ("side by side", "smaller in the middle", "larger in the middle")
PAIRS = 100
SEED = 0
WIDTH = 100.0
# Width and height of what is cut out about a face, in widths of the face; two such pieces touch each other.
CUT = (1.6, 2.0)
GREY = (110, 110, 110)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "company.csv")
    output = parser.parse_args(arguments).output
    bundle = sface_bundle(download=True)
    found = photographs.originals()
    half = photographs.halves({photograph.person for photograph in found})
    threshold = photographs.released(bundle, unpack.load())
    for number, name in enumerate(HALVES):
        own = [photograph for photograph in found if half[photograph.person] == number]
        for rule in FACES_RULES:
            record.append(output, as_they_are(own, rule, bundle, name))
            record.append(output, enrolments(own, rule, bundle, name))
        record.append(output, pictures(own, bundle, threshold, name))


def as_they_are(found: list[Photograph], rule: FacesRule, bundle: Bundle, half: str) -> list[record.Row]:
    """How many photographs a rule refuses because of several faces."""
    refused = np.array([_refuses(photograph.picture, rule, bundle) for photograph in found], float)
    value, low, high = photographs.share(refused, np.array([photograph.person for photograph in found]))
    figures = {"refused": value, "refused_low": low, "refused_high": high}
    rows = [record.Row(rule, f"photographs, {half}", SEED, name, figure, "percent") for name, figure in figures.items()]
    counts = {"refused_count": refused.sum(), "photographs": len(refused)}
    return rows + [
        record.Row(rule, f"photographs, {half}", SEED, name, float(figure), "count") for name, figure in counts.items()
    ]


def _refuses(picture: Image.Image, rule: FacesRule, bundle: Bundle) -> bool:
    try:
        embed(picture, bundle, capture=Capture(faces=rule))
    except SeveralFacesError:
        return True
    return False


def enrolments(found: list[Photograph], rule: FacesRule, bundle: Bundle, half: str) -> list[record.Row]:
    """Of the people with three photographs, how many cannot be enrolled with the first three."""
    people: dict[str, list[Image.Image]] = {}
    for photograph in found:
        people.setdefault(photograph.person, []).append(photograph.picture)
    three = {person: pictures[:3] for person, pictures in people.items() if len(pictures) >= 3}
    failed = 0
    for person, pictures in three.items():
        try:
            uvsdk.enroll(person, pictures, model=bundle, store=MemoryStore(), capture=Capture(faces=rule))
        except EnrolmentError:
            failed += 1
    setting = f"enrolments of three, {half}"
    return [
        record.Row(rule, setting, SEED, "refused_count", failed, "count"),
        record.Row(rule, setting, SEED, "people", len(three), "count"),
    ]


def pictures(found: list[Photograph], bundle: Bundle, threshold: float, half: str) -> list[record.Row]:
    """Two people in one picture: who is taken by the default rule, and whether the smaller one is let in."""
    # One photograph a person, so that the two in a picture are never one.
    firsts = {photograph.person: photograph for photograph in reversed(found)}.values()
    alone = [seen for photograph in firsts if (seen := _alone(photograph, bundle)) is not None]
    rng = np.random.default_rng(SEED)
    drawn = [rng.choice(len(alone), 2, replace=False) for _ in range(PAIRS)]
    rows = []
    for place in PLACES:
        for ratio in RATIOS:
            counts: Counter[str] = Counter()
            for first, second in drawn:
                (large, _), (small, template) = alone[first], alone[second]
                picture, centres = together(large, small, ratio, place)
                counts.update(_outcome(picture, centres, template, bundle, threshold))
            setting = f"{place}, ratio {ratio:g}, {half}"
            for name in ("refused", "larger_taken", "smaller_taken", "smaller_accepted"):
                rows.append(record.Row("single", setting, SEED, name, counts[name], "count"))
            rows.append(record.Row("single", setting, SEED, "pictures", PAIRS, "count"))
    return rows


def _alone(photograph: Photograph, bundle: Bundle) -> tuple[CapturedFace, np.ndarray] | None:
    """The face and its embedding, where nobody else is in the photograph."""
    try:
        seen = embed(photograph.picture, bundle, capture=Capture(faces="only"))
    except SampleError:
        return None
    assert isinstance(seen.captured, CapturedFace)
    return seen.captured, seen.embedding


def together(
    large: CapturedFace, small: CapturedFace, ratio: float, place: str
) -> tuple[Image.Image, tuple[np.ndarray, np.ndarray]]:
    """A picture of both, faces of 100 and 100 / ``ratio`` pixels, and the centres of the faces in it."""
    widths = (WIDTH, WIDTH / ratio)
    apart = CUT[0] * (widths[0] + widths[1]) / 2
    size = (round(5.5 * WIDTH), round(2.6 * WIDTH))
    middle = np.array(size) / 2
    # Of the larger one's centre from the middle, to the left.
    shift = {"side by side": apart / 2, "smaller in the middle": apart, "larger in the middle": 0.0}[place]
    centres = (middle - (shift, 0), middle - (shift - apart, 0))
    picture = Image.new("RGB", size, GREY)
    for captured, width, centre in zip((large, small), widths, centres, strict=True):
        across, down = (length * captured.face.pixels for length in CUT)
        x, y = captured.face.centre + 0.5
        box = (x - across / 2, y - down / 2, x + across / 2, y + down / 2)
        target = round(CUT[0] * width), round(CUT[1] * width)
        # What lies outside of a photograph stays grey.
        wide = Image.new("RGB", (3 * captured.photo.width, 3 * captured.photo.height), GREY)
        wide.paste(captured.photo, captured.photo.size)
        shifted = tuple(edge + captured.photo.size[index % 2] for index, edge in enumerate(box))
        piece = wide.resize(target, Image.Resampling.LANCZOS, box=shifted)
        picture.paste(piece, (round(centre[0] - target[0] / 2), round(centre[1] - target[1] / 2)))
    return picture, centres


def _outcome(
    picture: Image.Image,
    centres: tuple[np.ndarray, np.ndarray],
    template: np.ndarray,
    bundle: Bundle,
    threshold: float,
) -> list[str]:
    try:
        seen = embed(picture, bundle)
    except SampleError:
        return ["refused"]
    assert isinstance(seen.captured, CapturedFace)
    nearer = int(np.argmin([np.linalg.norm(seen.captured.face.centre - centre) for centre in centres]))
    outcome = [("larger_taken", "smaller_taken")[nearer]]
    if float(seen.embedding @ template) >= threshold:
        outcome.append("smaller_accepted")
    return outcome


if __name__ == "__main__":
    main()
