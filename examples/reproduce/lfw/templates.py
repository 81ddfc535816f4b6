"""Whether the mean over the mirror image, or a template that weighs its photographs by their quality, pays.

``python -m examples.reproduce.lfw.templates`` embeds the chips of folds 1 to 5 and ORL's photographs; it writes
templates.csv.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from examples.reproduce import data, record
from examples.reproduce.lfw import photographs, unpack
from uvsdk.arrays import Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.evaluation import lfw, metrics
from uvsdk.modality import Capture
from uvsdk.modality.face import alignment
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.modality.face.quality import measure
from uvsdk.training.graphs.sface import sface_bundle

HERE = Path(__file__).parent
SEED = 0
WAYS = ("plain", "with mirror image")
# Photographs of a template, of which the first is made worse in one of the settings.
ENROLLED = 3
CHIP = 112
# Width of the face on a chip, in its pixels: LFW's faces of 94 pixels on average, scaled as their chips are.
CHIP_FACE = 74.0


@dataclass(frozen=True, slots=True, eq=False)
class Chip:
    """One face: float32 (2, d) of unit rows (plain, with the mirror image), and what its weight may be read from."""

    rows: np.ndarray
    norm: float
    sharpness: float


WEIGHTS: Mapping[str, Callable[[Chip], float]] = {
    "mean": lambda chip: 1.0,
    "weighted by sharpness": lambda chip: chip.sharpness,
    "weighted by the embedding's length": lambda chip: chip.norm,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "templates.csv")
    output = parser.parse_args(arguments).output
    bundle, packed = sface_bundle(download=True), unpack.load()
    pictures = [np.asarray(Image.open(io.BytesIO(packed.chip(index)))) for index in range(len(packed.names))]
    chips = [see(picture, bundle) for picture in pictures]
    record.append(output, mirrored_pairs(chips, packed))
    people = {
        person: [(pictures[index], chips[index]) for index in indices]
        for person, indices in photographs.chips_by_person(packed, folds=(0, 1, 2, 3, 4)).items()
    }
    record.append(output, weighted(people, bundle, "LFW, chips of folds 1-5"))
    record.append(output, weighted(_orl(bundle), bundle, "ORL"))
    record.append(output, _cost(pictures[0], bundle))


def see(picture: np.ndarray, bundle: Bundle) -> Chip:
    """Embed one aligned chip, uint8 (112, 112, 3)."""
    views = np.ascontiguousarray(picture.transpose(2, 0, 1), np.float32)[None]
    z = np.asarray(bundle.session().run(["z"], {"views": np.concatenate([views, views[..., ::-1]])})[0], np.float32)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    mean = unit.sum(axis=0)
    template = alignment.TEMPLATES["arcface"]
    seen = Detection(np.array([0, 0, CHIP_FACE, CHIP_FACE], np.float32), template.points.astype(np.float32), 1.0)
    sharpness = measure(seen, picture, template=template)["sharpness"]
    return Chip(np.stack([unit[0], mean / np.linalg.norm(mean)]), float(np.linalg.norm(z[0])), sharpness)


def mirrored_pairs(chips: list[Chip], packed: unpack.Packed) -> list[record.Row]:
    """View 2 from the chips, accuracy by the other folds' threshold and EER, either way."""
    rows = []
    own = packed.same == 1
    for way, name in enumerate(WAYS):
        vectors = np.stack([chip.rows[way] for chip in chips])
        scores = np.einsum("nd,nd->n", *(vectors[packed.pairs[:, side]] for side in (0, 1))).astype(np.float64)
        right = []
        for fold in np.unique(packed.fold):
            others, here = packed.fold != fold, packed.fold == fold
            threshold = lfw.best_threshold(scores[others & own], scores[others & ~own])
            right.append(float(np.mean((scores[here] >= threshold) == own[here])))
        figures = {"accuracy": 100 * float(np.mean(right)), "eer": 100 * _eer(scores[own], scores[~own])}
        rows += [
            record.Row(name, "LFW, pairs of folds 1-5, chips", SEED, metric, value, "percent")
            for metric, value in figures.items()
        ]
    return rows


def weighted(people: dict[str, list[tuple[np.ndarray, Chip]]], bundle: Bundle, data_set: str) -> list[record.Row]:
    """Templates of three photographs, all as they are or one made worse, by what each is weighed with."""
    used = {person: pictures for person, pictures in sorted(people.items()) if len(pictures) > ENROLLED}
    probes = np.concatenate([[chip.rows[0] for _, chip in pictures[ENROLLED:]] for pictures in used.values()])
    whose = np.concatenate([[at] * (len(pictures) - ENROLLED) for at, pictures in enumerate(used.values())])
    rows = []
    for setting, worsen in SPOILT.items():
        rng = np.random.default_rng(SEED)
        enrolled = [
            [see(worsen(pictures[0][0], rng), bundle), *(chip for _, chip in pictures[1:ENROLLED])]
            for pictures in used.values()
        ]
        for name, weigh in WEIGHTS.items():
            templates = np.stack([_template(chips, weigh) for chips in enrolled])
            scores = (templates @ probes.T).astype(np.float64)
            genuine = np.arange(len(templates))[:, None] == whose[None]
            threshold = float(np.quantile(scores[~genuine], 1 - photographs.FMR))
            missed = (scores[genuine] < threshold).astype(float)
            owners = np.broadcast_to(np.arange(len(templates))[:, None], genuine.shape)[genuine]
            value, low, high = photographs.share(missed, owners)
            figures = {"fnmr": value, "fnmr_low": low, "fnmr_high": high}
            figures["eer"] = 100 * _eer(scores[genuine], scores[~genuine])
            where = f"{data_set}, {setting}"
            rows += [record.Row(name, where, SEED, metric, figure, "percent") for metric, figure in figures.items()]
            counts = {"people": len(templates), "genuine_trials": int(genuine.sum())}
            rows += [record.Row(name, where, SEED, metric, count, "count") for metric, count in counts.items()]
    return rows


def _template(chips: list[Chip], weigh: Callable[[Chip], float]) -> np.ndarray:
    mean = np.sum([weigh(chip) * chip.rows[0] for chip in chips], axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def _eer(genuine: Float64, impostor: Float64) -> float:
    return float(metrics.eer(metrics.curve(genuine, impostor)))


def _shrunk(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del rng
    side = round(CHIP * 24 / CHIP_FACE)
    small = Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small.resize((CHIP, CHIP), Image.Resampling.BICUBIC))


def _dark(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    levels = 255.0 * (picture / 255.0) ** 3.5 + rng.normal(0.0, 10.0, picture.shape)
    return np.clip(levels, 0, 255).round().astype(np.uint8)


SPOILT: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "three as they are": lambda picture, rng: picture,
    "one of three with a face of 24 pixels": _shrunk,
    "one of three in very low light": _dark,
}


def _orl(bundle: Bundle) -> dict[str, list[tuple[np.ndarray, Chip]]]:
    path = data.folder() / "orl_faces.npz"
    if not path.exists():
        raise data.MissingDataError(f"{path} is absent (examples/reproduce/lfw/README.md says what it is)")
    with np.load(path) as archive:
        images, subjects = archive["images"], archive["subject"]
    people: dict[str, list[tuple[np.ndarray, Chip]]] = {}
    for image, subject in zip(images, subjects.tolist(), strict=True):
        captured = embed(image, bundle, capture=Capture(faces="largest")).captured
        assert isinstance(captured, CapturedFace)
        people.setdefault(f"{subject:02}", []).append((captured.chip, see(captured.chip, bundle)))
    return people


def _cost(picture: np.ndarray, bundle: Bundle) -> list[record.Row]:
    """Processor time of the embedding with the mirror image as a multiple of that without, interleaved."""
    views = np.ascontiguousarray(picture.transpose(2, 0, 1), np.float32)[None]
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(60):
        for way, batch in enumerate((views, np.concatenate([views, views[..., ::-1]]))):
            started = time.process_time()
            bundle.embed(batch)
            spent[way].append(time.process_time() - started)
    ratio = float(np.median(spent[1]) / np.median(spent[0]))
    return [record.Row(WAYS[1], "time of the embedding", SEED, "times_as_long", ratio, "ratio")]


if __name__ == "__main__":
    main()
