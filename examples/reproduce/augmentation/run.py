"""Whether augmented training views pay, and how near views made of mel frames come to those made of recordings.

``views`` compares the two kinds of views by an encoder's embeddings; ``train`` trains a head on clean speech with and
without augmentation, and verifies over telephones, beside babble and noise, and in a room.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch

from examples.reproduce.augmentation import sound
from examples.reproduce.librispeech.run import load
from examples.reproduce.partial.figures import Enrolled, parts
from examples.reproduce.record import Row, append, has
from uvsdk import modality
from uvsdk.arrays import Array, Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart, sample_digest
from uvsdk.errors import SampleError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.modality import Capture
from uvsdk.modality.contract import Augmentation
from uvsdk.modality.voice.augmentation import (
    from_power,
    noisy,
    reverberant,
    telephoned,
    to_power,
)
from uvsdk.modality.voice.frames import Framing
from uvsdk.simulation import Frozen, Simulation
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.export import export_bundle

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
PEOPLE, TRAINED = 160, 60
"""Speakers of one recording that are used, and those of them with a device; all others are strangers."""
RESULTS = HERE / "results.csv"
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "head": {},
    "head, masks": {"time_mask": 0.2, "frequency_mask": 0.15},
    "head, augmented": {"noise": 0.5, "rooms": 0.3, "telephone": 0.3},
}
PROBES = {
    "clean": sound.clean,
    "telephone": sound.telephone,
    "white 5 dB": sound.white(5.0),
    "babble 5 dB": sound.babble(5.0),
    "room": sound.room,
}
_CAPTURE = Capture(quality="off")


@dataclass(frozen=True, slots=True)
class Person:
    """Features of the samples that enrol, clean, and of the probes in each condition."""

    enrol: tuple[Array, ...]
    probes: Mapping[str, tuple[Array, ...]]


class Model:
    """A pretrained encoder of which the head is trained."""

    def __init__(self, name: str) -> None:
        self.backbone = backbones.get(name, "head").load(download=True)
        assert isinstance(self.backbone, Partial)
        self.bundle: Bundle = export_bundle(self.backbone, download=True)
        self.module = self.backbone.rest
        self.start = self.bundle.theta
        self._part = FrozenPart(self.bundle)
        self._kept: dict[str, Float32] = {}

    def prepare(self, recording: sound.Recording) -> Array | None:
        """Features; ``None`` where no speech is found."""
        try:
            return modality.get("voice").prepare(recording, self.bundle, capture=_CAPTURE).features
        except SampleError:
            return None

    def embed(self, features: Sequence[Array]) -> Float64:
        """Unit embeddings by the head as it is now, float64 (n, d)."""
        names = [sample_digest(item) for item in features]
        for name, item in zip(names, features, strict=True):
            if name not in self._kept:
                self._kept[name] = self._part(item, crops=0).inference
        views = [self._kept[name] for name in names]
        with torch.no_grad():
            rows = [self.module.eval()(torch.from_numpy(each)).double().numpy() for each in views]
        means = np.stack([_unit(row).mean(axis=0) for row in rows])
        return _unit(means)

    def enrolled(self, people: Mapping[str, Person], condition: str) -> Enrolled:
        """Clean templates, and probes of ``condition``."""
        templates = _unit(np.stack([self.embed(person.enrol).mean(axis=0) for person in people.values()]))
        probes = tuple(self.embed(person.probes[condition]) for person in people.values())
        return Enrolled(tuple(people), templates, probes)


def _unit(rows: Float64) -> Float64:
    found: Float64 = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return found


def people_of(model: Model, clips: Mapping[str, Sequence[Float32]]) -> dict[str, Person]:
    """Two pieces of 1.6 s of a person's first recording enrol, what is left of it (1.8 s) is the probe; of who has
    several recordings, the first 3.2 s of the next three are."""
    others = [pieces[0] for pieces in clips.values()]
    found = {}
    for place, (name, pieces) in enumerate(clips.items()):
        first = pieces[0]
        cut = round(1.6 * sound.RATE)
        enrol = [model.prepare((first[:cut], sound.RATE)), model.prepare((first[cut : 2 * cut], sound.RATE))]
        tries = [piece[: 2 * cut] for piece in pieces[1:4]] or [first[2 * cut : 5 * sound.RATE]]
        if min(len(piece) for piece in tries) < sound.RATE:
            continue
        voices = [voice for other, voice in enumerate(others) if other != place]
        probes = {
            condition: [
                model.prepare(worse(piece, np.random.default_rng((place, number)), voices))
                for number, piece in enumerate(tries)
            ]
            for condition, worse in PROBES.items()
        }
        enrolled = tuple(item for item in enrol if item is not None)
        heard = {condition: tuple(x for x in items if x is not None) for condition, items in probes.items()}
        if len(enrolled) == 2 and all(heard.values()):
            found[name] = Person(enrolled, heard)
    return found


def recordings() -> dict[str, list[Float32]]:
    """Everybody's recordings at 16 kHz; who is in several parts of the set is taken from the one with more."""
    found: dict[str, list[Float32]] = {}
    for item in load()[0]:
        pcm, rate = soundfile.read(item.path, dtype="float32")
        assert rate == sound.RATE
        found.setdefault(item.speaker, []).append(pcm)
    alone = [name for name, pieces in sorted(found.items()) if len(pieces) == 1][PEOPLE:]
    return {name: sorted(pieces, key=len)[::-1] for name, pieces in sorted(found.items()) if name not in alone}


def train(name: str) -> None:
    """Rows of ``name`` for each setting, probe and seed that are not there."""
    model = Model(name)
    everybody = people_of(model, recordings())
    clips = {key: len(person.probes["clean"]) for key, person in everybody.items()}
    alone = sorted(key for key, count in clips.items() if count == 1)
    crops: dict[tuple[str, str], Frozen] = {}
    for seed in SEEDS:
        if has(RESULTS, name, list(SETTINGS)[-1], seed):
            continue
        chosen = set(np.random.default_rng(seed).permutation(alone)[:TRAINED].tolist())
        seen = {key: everybody[key] for key in sorted(chosen)}
        unseen = {key: person for key, person in everybody.items() if key not in chosen}
        for setting in ("frozen", *SETTINGS):
            backbones.unflatten(model.module, model.start)
            if setting != "frozen":
                _train(model, name, seen, SETTINGS[setting], seed, crops)
            rows = []
            for condition in PROBES:
                found = parts(model.enrolled(seen, condition), model.enrolled(unseen, condition))
                rows += [
                    Row(name, setting, seed, f"eer_{part}_{condition}", 100 * scores.eer(), "percent")
                    for part, scores in found.items()
                ]
            append(RESULTS, rows)
            print(name, seed, setting, " ".join(f"{row.metric} {row.value:.2f}" for row in rows), flush=True)


def recipe(kind: str, backbone: str, augmentation: Augmentation, seed: int) -> TrainingConfig:
    """How every head here is trained, as ``voice-head`` has it: 40 rounds of ten devices, one step of four views."""
    return TrainingConfig(
        "lab", kind, backbone, "fedaws", train="head", optimiser="adam", server_learning_rate=2e-3, trust_ratio=1e-2,
        server_adaptivity=1e-8, batch_size=4, cohort_size=10, rounds=40, warmup_rounds=4, cooldown_rounds=20, seed=seed,
        augmentation=dict(augmentation),
    )  # fmt: skip


def _train(
    model: Model,
    name: str,
    people: Mapping[str, Person],
    augmentation: Mapping[str, float],
    seed: int,
    crops: dict[tuple[str, str], Frozen],
) -> None:
    config = recipe("voice", name, augmentation, seed)
    features = {key: person.enrol for key, person in people.items()}
    views = {}
    for key, rows in features.items():
        of = (key, repr(sorted(augmentation.items())))
        if of not in crops:
            crops[of] = Frozen.of({key: rows}, model.bundle, augmentation=augmentation)
        views[key] = crops[of].views[key]
    Simulation(config, model.module, Frozen(views, augmentation=augmentation)).run()


def views(name: str) -> None:
    """How far a condition moves an embedding, and how much of that the same condition of mel frames moves it."""
    model = Model(name)
    framing = Framing.read(model.bundle.manifest.preprocessing)
    clips = dict(list(recordings().items())[:60])
    voices = [pieces[0] for pieces in clips.values()]

    def in_frames(condition: str, rows: Array, rng: np.random.Generator) -> Float32:
        power = to_power(np.asarray(rows, np.float32), framing)
        if condition == "telephone":
            power = telephoned(power, framing, rng, filtered=False)
        elif condition == "room":
            power = reverberant(power, framing, 0.5, 0.5, rng)
        else:
            power = noisy(power, framing, condition.split()[0].replace("babble", "murmur"), 5.0, rng)
        return from_power(power, framing)

    for condition, worse in PROBES.items():
        if condition == "clean":
            continue
        clean, heard, made = list[Array](), list[Array](), list[Array]()
        for place, voice in enumerate(voices):
            piece, rng = voice[: 3 * sound.RATE], np.random.default_rng(place)
            others = [other for number, other in enumerate(voices) if number != place]
            before, after = model.prepare((piece, sound.RATE)), model.prepare(worse(piece, rng, others))
            if before is not None and after is not None:
                clean.append(before)
                heard.append(after)
                made.append(in_frames(condition, before, rng))
        rows = [model.embed(items) for items in (clean, heard, made)]
        shifts = [_unit(other - rows[0]).mean(axis=0) for other in rows[1:]]
        figures = {
            "cosine_clean_recording": float((rows[0] * rows[1]).sum(axis=1).mean()),
            "cosine_clean_frames": float((rows[0] * rows[2]).sum(axis=1).mean()),
            "cosine_frames_recording": float((rows[1] * rows[2]).sum(axis=1).mean()),
            "cosine_of_mean_shifts": float(_unit(shifts[0]) @ _unit(shifts[1])),
        }
        append(HERE / "views.csv", [Row(name, condition, 0, *item, "cosine") for item in figures.items()])
        print(name, condition, figures, flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("views", "train"))
    parser.add_argument("--model", choices=("campplus", "ge2e"), nargs="*", help="(both)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.model or ("campplus", "ge2e"):
        {"views": views, "train": train}[arguments.action](name)


if __name__ == "__main__":
    main()
