"""Whose voices and faces are trained on and measured, and which of them choose settings.

``letters``: the languages of Debian's ``klettres-data``, each taken as a person; sixteen letters enrol and are trained
on, syllables are the probes (a language without syllables gives every second letter). Five people choose settings, the
other fifteen are dealt into three groups: under seed s group s is never trained on.

``telephone``: LibriSpeech at 8 kHz with white noise 10 dB below the speech, in pieces of 1.6 s. Of the 248 speakers of
train-clean-100 with one utterance, 48 choose settings and 200 train, on two pieces each; a third is the probe of those
who were seen. The speakers with several utterances, thirteen, are never trained on: three utterances enrol.

``small faces``: the people of LFW's folds 0 to 4 who have five photos or more, at most eight of each, as a camera
across the room would see them: 20 pixels a side. The first three enrol and are trained on. Twenty-one people choose
settings, the others are dealt into three groups as letters' are.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import soundfile
from PIL import Image
from scipy.signal import resample_poly

from examples.demo import data as demo
from examples.reproduce import data
from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import SampleError
from uvsdk.modality import Capture, Sample
from uvsdk.modality.face import alignment

GROUPS = 3
PREPROCESSING: Mapping[str, Mapping[str, float]] = {
    # A spoken letter is 0.4 s of speech, less than the half second that the encoder asks for by default.
    "letters": {"minimum_speech_s": 0.2},
    "telephone": {},
    "small faces": {},
}

_SPLIT_SEED = 2026
_VALIDATION = {"letters": 5, "telephone": 48, "small faces": 21}
_LETTERS = 16
_PIECE_S, _RATE, _NOISE_DB = 1.6, 8000, -10.0
_ENROLLED, _PROBES = 3, 10
_FACES_EACH, _FEWEST_FACES, _SMALL = 8, 5, 20


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
    """Everybody's features, ``kind`` is a key of ``PREPROCESSING``; kept in the cache of the reproductions."""
    path = data.cache() / f"partial {kind}.npz"
    if not path.exists():
        people = _MAKERS[kind](bundle)
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
    """The parts under ``seed``."""
    strangers = sorted(name for name in people if name.startswith(_STRANGER))
    names = sorted(set(people) - set(strangers))
    order = [names[place] for place in np.random.default_rng(_SPLIT_SEED).permutation(len(names)).tolist()]
    validation, others = order[: _VALIDATION[kind]], order[_VALIDATION[kind] :]
    unseen = strangers or others[seed % GROUPS :: GROUPS]

    def of(chosen: Sequence[str]) -> dict[str, Person]:
        return {name: people[name] for name in sorted(chosen)}

    return Split(of(sorted(set(others) - set(unseen))), of(unseen), of(validation))


_STRANGER = "stranger"
"""How the names begin of those who are never trained on."""


def _letters(bundle: Bundle) -> dict[str, Person]:
    spoken = demo.people(None, data.cache() / "klettres")
    if spoken.modality != "voice":
        raise data.MissingDataError("the voices of klettres-data could not be fetched")
    people = ((person.name, person.enrol[:_LETTERS], person.verify) for person in spoken.people)
    return _prepared(people, bundle, Capture(), fewest=4)


def _telephone(bundle: Bundle) -> dict[str, Person]:
    folder = data.folder() / "speech_librispeech"
    paths = data.readers()
    several = {speaker for alone, speaker in paths if not alone}
    people: list[tuple[str, list[Sample], list[Sample]]] = []
    for (alone, speaker), found in sorted(paths.items()):
        if not alone:
            first = [_called(folder / path, 0) for path in found[: _ENROLLED + _PROBES]]
            people.append((f"{_STRANGER} {speaker}", first[:_ENROLLED], first[_ENROLLED:]))
        elif speaker not in several:
            pieces = [_called(folder / found[0], place) for place in range(3)]
            people.append((speaker, pieces[:2], pieces[2:]))
    return _prepared(people, bundle, Capture(quality="off"), fewest=1)


_Samples = Iterable[tuple[str, Sequence[Sample], Sequence[Sample]]]
"""Names with samples to enrol with and probes."""


def _called(path: object, place: int) -> tuple[Float32, int]:
    """Piece ``place`` of a recording, as a telephone in a noisy room would give it."""
    pcm, rate = soundfile.read(path, dtype="float32")
    length = int(_PIECE_S * rate)
    piece = resample_poly(pcm[place * length : (place + 1) * length], _RATE, rate)
    noise = np.random.default_rng(zlib.crc32(f"{path} {place}".encode())).standard_normal(len(piece))
    level = np.sqrt(np.square(piece).sum() / max(len(piece), 1)) * 10 ** (_NOISE_DB / 20)
    return np.asarray(np.clip(piece + level * noise, -1, 1), np.float32), _RATE


def _prepared(people: _Samples, bundle: Bundle, capture: Capture, *, fewest: int) -> dict[str, Person]:
    """Those of whom ``fewest`` samples of each kind can be used."""
    reader, found = modality.get(bundle.manifest.modality), dict[str, Person]()

    def features(samples: Sequence[Sample]) -> tuple[Array, ...]:
        kept = []
        for sample in samples:
            try:
                kept.append(reader.prepare(sample, bundle, capture=capture).features)
            except SampleError:
                continue
        return tuple(kept)

    for name, enrol, probes in people:
        person = Person(features(enrol), features(probes))
        if min(len(person.enrol), len(person.probes)) >= fewest:
            found[name] = person
    return found


def _small_faces(bundle: Bundle) -> dict[str, Person]:
    """Chips for the backbone from faces that were aligned for another one: made small, then moved and made large."""
    with np.load(data.folder() / "lfw_folds1-5_aligned112.npz") as archive:
        jpeg, offsets, owners = archive["jpeg"], archive["off"], archive["person"]
    preprocessing = bundle.manifest.preprocessing
    size, template = int(str(preprocessing["size"])), alignment.TEMPLATES[str(preprocessing["template"])]
    move = template.fit(alignment.TEMPLATES["arcface"].points, size)

    def chip(photo: int) -> Array:
        face = Image.open(io.BytesIO(jpeg[offsets[photo] : offsets[photo + 1]].tobytes())).convert("RGB")
        far = face.resize((_SMALL, _SMALL), Image.Resampling.BOX).resize(face.size, Image.Resampling.BICUBIC)
        return alignment.warp(far, move, size)

    found = {}
    for owner in np.unique(owners).tolist():
        photos = np.flatnonzero(owners == owner)[:_FACES_EACH].tolist()
        if len(photos) >= _FEWEST_FACES:
            chips = [chip(photo) for photo in photos]
            found[f"face {owner:04d}"] = Person(tuple(chips[:_ENROLLED]), tuple(chips[_ENROLLED:]))
    return found


_MAKERS: Mapping[str, Callable[[Bundle], dict[str, Person]]] = {
    "letters": _letters,
    "telephone": _telephone,
    "small faces": _small_faces,
}
