"""Whose voices and faces are trained on and measured, and which of them choose settings.

Voices: the languages of Debian's ``klettres-data``, one speaker each; sixteen letters enrol and are trained on,
syllables are the probes (a language without syllables gives every second letter). Faces: the people of LFW's folds 0 to
4 who have five photos or more, at most eight of each; the first three enrol and are trained on, the others are the
probes.

Some people choose settings and appear in no table. The others are dealt into three groups: under seed s group s is
never trained on, so that over three seeds each of them is a stranger once.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from examples.demo import data as demo
from examples.reproduce import data
from uvsdk import modality
from uvsdk.arrays import Array
from uvsdk.bundle import Bundle
from uvsdk.errors import SampleError
from uvsdk.modality import alignment

GROUPS = 3
VALIDATION = {"voice": 5, "face": 21}
"""People who choose settings."""

LETTERS = 16
FACES_EACH, FACES_ENROLLED, FEWEST_FACES = 8, 3, 5
PREPROCESSING: Mapping[str, Mapping[str, float]] = {"voice": {"minimum_speech_s": 0.2}, "face": {}}
"""A spoken letter is 0.4 s of speech, less than the half second that the encoder asks for by default."""

_SPLIT_SEED = 2026


@dataclass(frozen=True, slots=True)
class Person:
    """Features to enrol with and to train on, and those of probes."""

    enrol: tuple[Array, ...]
    probes: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Who plays which part under one seed."""

    train: Mapping[str, Person]
    unseen: Mapping[str, Person]
    validation: Mapping[str, Person]


def load(kind: str, bundle: Bundle) -> dict[str, Person]:
    """Everybody's features, ``kind`` is ``voice`` or ``face``; made once and kept in the cache of the reproductions."""
    path = data.cache() / f"partial-{kind}-{bundle.manifest.backbone.partition('+')[0]}.npz"
    if not path.exists():
        people = _voices(bundle) if kind == "voice" else _faces(bundle)
        arrays = {
            f"{name}/{part}/{place:03d}": item
            for name, person in people.items()
            for part, items in (("enrol", person.enrol), ("probes", person.probes))
            for place, item in enumerate(items)
        }
        np.savez(path, **arrays)
    found: dict[str, dict[str, list[Array]]] = {}
    with np.load(path) as archive:
        for key in archive.files:
            name, part, _ = key.split("/")
            found.setdefault(name, {"enrol": [], "probes": []})[part].append(archive[key])
    return {name: Person(tuple(parts["enrol"]), tuple(parts["probes"])) for name, parts in found.items()}


def split(people: Mapping[str, Person], kind: str, seed: int) -> Split:
    """The parts under ``seed``. Of faces one group trains, so that training everything stays affordable."""
    names = sorted(people)
    order = [names[place] for place in np.random.default_rng(_SPLIT_SEED).permutation(len(names)).tolist()]
    count = VALIDATION[kind]
    groups = [order[count + start :: GROUPS] for start in range(GROUPS)]
    unseen = groups[seed % GROUPS]
    others = [groups[(seed + step) % GROUPS] for step in range(1, GROUPS)]
    train = others[0] if kind == "face" else [*others[0], *others[1]]

    def of(chosen: list[str]) -> dict[str, Person]:
        return {name: people[name] for name in sorted(chosen)}

    return Split(of(train), of(unseen), of(order[:count]))


def _voices(bundle: Bundle) -> dict[str, Person]:
    spoken = demo.people(None, data.cache() / "klettres")
    if spoken.modality != "voice":
        raise data.MissingDataError("the voices of klettres-data could not be fetched")
    found = {}
    for person in spoken.people:
        enrol, probes = (_prepared(paths, bundle) for paths in (person.enrol[:LETTERS], person.verify))
        if len(enrol) >= 4 and len(probes) >= 4:
            found[person.name] = Person(enrol, probes)
    return found


def _prepared(paths: tuple[Path, ...], bundle: Bundle) -> tuple[Array, ...]:
    reader, found = modality.get(bundle.manifest.modality), []
    for path in paths:
        try:
            found.append(reader.prepare(path, bundle).features)
        except SampleError:
            continue
    return tuple(found)


def _faces(bundle: Bundle) -> dict[str, Person]:
    """Chips for the backbone from faces that were aligned for another one, 112 x 112: moved, not detected again."""
    with np.load(data.folder() / "lfw_folds1-5_aligned112.npz") as archive:
        jpeg, offsets, owners = archive["jpeg"], archive["off"], archive["person"]
    preprocessing = bundle.manifest.preprocessing
    size, template = int(str(preprocessing["size"])), alignment.TEMPLATES[str(preprocessing["template"])]
    move = template.fit(alignment.TEMPLATES["arcface"].points, size)
    found = {}
    for owner in np.unique(owners).tolist():
        photos = np.flatnonzero(owners == owner)[:FACES_EACH]
        if len(photos) < FEWEST_FACES:
            continue
        chips = [
            alignment.warp(
                Image.open(io.BytesIO(jpeg[offsets[photo] : offsets[photo + 1]].tobytes())).convert("RGB"), move, size
            )
            for photo in photos.tolist()
        ]
        found[f"face {owner:04d}"] = Person(tuple(chips[:FACES_ENROLLED]), tuple(chips[FACES_ENROLLED:]))
    return found
