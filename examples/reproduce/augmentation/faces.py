"""Whether augmented training views pay for faces: a head over SFace, taught on photographs, verified on worse ones.

``python -m examples.reproduce.augmentation.faces`` writes ``faces.csv``; a seed whose rows are there is not made again.

SFace is a fixed model, so the head is the affine map of :class:`uvsdk.training.backbones.Affine` behind it, which
begins as the identity. Of LFW's people with five photographs or more (at most eight are used) the first three enrol
and are trained on; the seed draws who has a device, and all others are strangers. Probes are made worse by
torchvision's ``transforms.v2``, each condition alone. ORL's forty people, grey and in a studio, train nothing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from examples.reproduce import data
from examples.reproduce.augmentation.run import SEEDS, recipe
from examples.reproduce.lfw import unpack
from examples.reproduce.partial.figures import Enrolled, parts
from examples.reproduce.record import Row, append, has
from uvsdk import modality
from uvsdk.arrays import Float32, Float64, UInt8
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import CROPS, FrozenViews
from uvsdk.modality.contract import Augmentation
from uvsdk.modality.face import alignment
from uvsdk.simulation import Frozen, Simulation
from uvsdk.training.backbones import Affine
from uvsdk.training.graphs.sface import DIMENSION, sface_bundle

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "faces.csv"
FEWEST, MOST, ENROLLED = 5, 8, 3
"""Photographs of a person."""
TRAINED = 65
"""People with a device."""
SETTINGS: Final[Mapping[str, Augmentation]] = {
    "head": {},
    "head, augmented": {"crop": 0.1, "colour": 0.4, "blur": 0.3, "small": 0.3, "jpeg": 0.3},
}


def _cropped(face: Tensor, rng: np.random.Generator) -> Tensor:
    """A square of 85 % of the side, from anywhere, brought to the whole side again."""
    side = round(0.85 * face.shape[-1])
    top, left = (int(value) for value in rng.integers(0, face.shape[-1] - side + 1, 2))
    return functional.resized_crop(face, top, left, side, side, list(face.shape[-2:]), antialias=True)


def _recoloured(face: Tensor, rng: np.random.Generator) -> Tensor:
    """Half or one and a half times as bright, half the contrast, hues turned by up to a tenth of the circle."""
    lit = functional.adjust_brightness(face, 0.5 if rng.random() < 0.5 else 1.5)
    return functional.adjust_hue(functional.adjust_contrast(lit, 0.5), float(rng.uniform(-0.1, 0.1)))


def _blurred(face: Tensor, rng: np.random.Generator) -> Tensor:
    """A Gaussian of 2.5 pixels."""
    return functional.gaussian_blur(face, [15, 15], [2.5, 2.5])


def _compressed(face: Tensor, rng: np.random.Generator) -> Tensor:
    """JPEG of quality 8."""
    return functional.jpeg(face, 8)


def _far(face: Tensor, rng: np.random.Generator) -> Tensor:
    """20 pixels a side."""
    small = functional.resize(face, [20, 20], antialias=True)
    return functional.resize(small, list(face.shape[-2:]), antialias=True)


PROBES: Final[Mapping[str, Callable[[Tensor, np.random.Generator], Tensor]]] = {
    "clean": lambda face, rng: face,
    "crop": _cropped,
    "colour": _recoloured,
    "blur": _blurred,
    "JPEG": _compressed,
    "20 pixels": _far,
}


@dataclass(frozen=True, slots=True)
class Person:
    """Chips, uint8 (112, 112, 3), that enrol, and SFace's unit embeddings of these and of probes by condition."""

    chips: tuple[UInt8, ...]
    enrol: Float32
    probes: Mapping[str, Float32]


class Eyes:
    """SFace, and the training views that it was asked for so far."""

    def __init__(self) -> None:
        self._bundle: Bundle = sface_bundle(download=True)
        self._reader = modality.get("face")
        self._drawn: dict[tuple[str, str], Float32] = {}

    def embed(self, chips: Sequence[UInt8]) -> Float32:
        """As in a verification, unit, float32 (n, d)."""
        settings = self._bundle.manifest.preprocessing
        return np.stack([self._bundle.embedding(self._reader.views(chip, settings)) for chip in chips])

    def training(self, name: str, person: Person, augmentation: Augmentation) -> tuple[FrozenViews, ...]:
        """What a device would train on: :data:`uvsdk.bundle.frozen.CROPS` views of each photograph that enrols."""
        key = name, repr(sorted(augmentation.items()))
        if key not in self._drawn:
            rng = np.random.default_rng([int(word, 36) % 2**32 for word in name.split()])
            settings = self._bundle.manifest.preprocessing
            views = [
                self._reader.training_view(chip, settings, rng, augmentation=augmentation)
                for chip in person.chips
                for _ in range(CROPS)
            ]
            rows = np.stack([self._bundle.embedding(view[None]) for view in views])
            self._drawn[key] = rows.reshape(len(person.chips), CROPS, DIMENSION)
        return tuple(FrozenViews(row[None], crops) for row, crops in zip(person.enrol, self._drawn[key], strict=True))


def people(eyes: Eyes) -> dict[str, Person]:
    """LFW's by ``face NUMBER``, ORL's by ``studio NUMBER``."""
    packed, photographs = unpack.load(), dict[str, list[int]]()
    for place, name in enumerate(packed.names):
        photographs.setdefault(name.split("/")[0], []).append(place)
    found = {}
    for number, (_, places) in enumerate(sorted(photographs.items())):
        if len(places) >= FEWEST:
            faces = [
                np.asarray(Image.open(io.BytesIO(packed.chip(place))).convert("RGB"), np.uint8)
                for place in places[:MOST]
            ]
            found[f"face {number:04d}"] = _person(eyes, faces, number)
    with np.load(data.folder() / "orl_faces.npz") as archive:
        pictures, subjects, landmarks = (archive[key] for key in ("images", "subject", "landmarks5"))
    template = alignment.TEMPLATES["arcface"]
    for subject in np.unique(subjects).tolist():
        places = np.flatnonzero(subjects == subject)[:MOST].tolist()
        faces = [
            alignment.warp(
                Image.fromarray(pictures[place]).convert("RGB"),
                template.fit(landmarks[place], 112),
                112,
            )
            for place in places
        ]
        found[f"studio {subject:02d}"] = _person(eyes, faces, 10_000 + subject)
    return found


def _person(eyes: Eyes, faces: Sequence[UInt8], number: int) -> Person:
    def worse(condition: str) -> list[UInt8]:
        made = []
        for place, face in enumerate(faces[ENROLLED:]):
            tensor = torch.from_numpy(face.copy()).permute(2, 0, 1)
            heard = PROBES[condition](tensor, np.random.default_rng((number, place)))
            made.append(heard.permute(1, 2, 0).contiguous().numpy())
        return made

    probes = {condition: eyes.embed(worse(condition)) for condition in PROBES}
    return Person(tuple(faces[:ENROLLED]), eyes.embed(faces[:ENROLLED]), probes)


@torch.no_grad()
def _headed(head: Affine, rows: Float32) -> Float64:
    made = head(torch.from_numpy(rows)).double().numpy()
    found: Float64 = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found


def enrolled(head: Affine, people: Mapping[str, Person], condition: str) -> Enrolled:
    """Clean templates, and probes of ``condition``."""
    means = np.stack([_headed(head, person.enrol).mean(axis=0) for person in people.values()])
    templates = means / np.linalg.norm(means, axis=1, keepdims=True)
    return Enrolled(tuple(people), templates, tuple(_headed(head, each.probes[condition]) for each in people.values()))


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    eyes = Eyes()
    everybody = people(eyes)
    lfw = sorted(name for name in everybody if name.startswith("face"))
    studio = {name: person for name, person in everybody.items() if name.startswith("studio")}
    for seed in SEEDS:
        if has(RESULTS, "sface", list(SETTINGS)[-1], seed):
            continue
        order = [lfw[place] for place in np.random.default_rng(seed).permutation(len(lfw)).tolist()]
        seen, others = ({name: everybody[name] for name in part} for part in (order[:TRAINED], order[TRAINED:]))
        rows = list[Row]()
        for setting in ("frozen", *SETTINGS):
            head = Affine(DIMENSION)
            if setting != "frozen":
                devices = {name: eyes.training(name, each, SETTINGS[setting]) for name, each in seen.items()}
                config = recipe("face", "campplus+centred", SETTINGS[setting], seed)
                Simulation(config, head, Frozen(devices, augmentation=SETTINGS[setting])).run()
            for condition in PROBES:
                found = parts(enrolled(head, seen, condition), enrolled(head, others, condition))
                found["studio"] = enrolled(head, studio, condition).scores()
                for part, each in found.items():
                    rows.append(Row("sface", setting, seed, f"eer_{part}_{condition}", 100 * each.eer(), "percent"))
        append(RESULTS, rows)
        print(seed, {f"{row.setting} {row.metric}": round(row.value, 2) for row in rows}, flush=True)


if __name__ == "__main__":
    main()
