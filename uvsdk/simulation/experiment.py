"""What ``uvsdk simulate`` trains on and measures: people from a folder, some of them kept aside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from uvsdk import modality
from uvsdk.arrays import Array, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart, FrozenViews, sample_digest
from uvsdk.errors import SampleError, SettingsError, TrainingUnavailableError
from uvsdk.evaluation import bootstrap, metrics, protocols
from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.trials import Trials
from uvsdk.federation.strategy import TEMPLATE
from uvsdk.modality import Sample
from uvsdk.modality.contract import UNCHANGED, Augmentation
from uvsdk.simulation.engine import Simulation
from uvsdk.simulation.population import Frozen, Prepared
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone, Partial
from uvsdk.training.export import export_bundle
from uvsdk.training.loop import FrozenSamples, PreparedSamples, Samples

DIGITS = "digits"
"""The handwritten digits that scikit-learn ships, ten classes that play the part of ten people."""

FEWEST_PEOPLE = 5
"""With fewer people there is an equal error rate, but no interval: resampling so few says nothing."""

_ENROL = 5
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class People:
    """Features of everybody, by role.

    Args:
        train: person -> features that the person's device trains on.
        held_out: person -> further features of the same people.
        unseen: person -> features of people without a device.
        unusable: samples that could not be prepared.
    """

    train: Mapping[str, tuple[Array, ...]]
    held_out: Mapping[str, tuple[Array, ...]]
    unseen: Mapping[str, tuple[Array, ...]]
    unusable: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The equal error rate of one set of people, with what stands behind it.

    ``people`` is ``seen``, ``strangers`` or ``unseen`` (:func:`evaluate`); ``subjects`` counts who is verified, or the
    impostors where they are others and fewer.
    """

    people: str
    eer: Interval
    subjects: int
    genuine: int
    impostor: int


def trunk_of(name: str, *, seed: int = 0, train: str = "all") -> tuple[nn.Module, Bundle]:
    """What is trained and a bundle of it, from a backbone's name or a bundle's path.

    Args:
        name: of a backbone, or the path of a bundle (``.uvb``).
        seed: of backbones, and of heads, that start from random values.
        train: what of it is trained; the module is that part alone. A bundle of which all was trained can go on so.

    Raises:
        UnknownNameError, WeightsNotFoundError, BundleError: there is no such backbone, weight file or bundle.
        SettingsError: of the bundle another part is trained.
    """
    if not name.endswith(".uvb"):
        backbone = backbones.get(name, train).load(seed=seed)
        return _trained(backbone), export_bundle(backbone)
    bundle = Bundle.open(Path(name))
    manifest = bundle.manifest
    if manifest.train not in ("all", train):
        raise SettingsError(f"of {name} {manifest.train!r} is trained, not {train!r}; say --train {manifest.train}")
    backbone = backbones.get(manifest.backbone, manifest.train).load(seed=seed)
    backbones.unflatten(backbone, bundle.theta)
    if manifest.train != train:
        backbone = backbones.get(manifest.backbone, train)(backbone)
        bundle = export_bundle(backbone, preprocessing=manifest.preprocessing)
    return _trained(backbone), bundle


def _trained(backbone: Backbone) -> nn.Module:
    return backbone.rest if isinstance(backbone, Partial) else backbone


def population_of(people: People, bundle: Bundle, augmentation: Augmentation = UNCHANGED) -> Prepared | Frozen:
    """The devices of those who train; of a model trained in part they hold what its frozen part made of the samples."""
    if bundle.manifest.train == "all":
        return Prepared(people.train, bundle.manifest, augmentation=augmentation)
    return Frozen.of(people.train, bundle, augmentation=augmentation)


def load(source: str, bundle: Bundle, *, held_out: float, unseen: float, seed: int) -> People:
    """Prepare everybody's samples and set some aside.

    Args:
        source: :data:`DIGITS`, or a folder with a folder of samples for each person; where those hold the folders
            ``enrol`` and ``verify``, the second is what is held out.
        held_out: share of each person's samples, the last by name, that nobody trains on.
        unseen: share of the people, drawn by ``seed``, who have no device.

    Raises:
        SettingsError: no such folder, too few people, or shares outside [0, 1).
    """
    for name, share in (("held_out", held_out), ("unseen", unseen)):
        if not 0 <= share < 1:
            raise SettingsError(f"{name} is {share}; it is a share, 0 or more and below 1")
    sources = _digits(bundle) if source == DIGITS else _folder(Path(source))
    prepared, unusable = _prepared(sources, bundle)
    names = sorted(prepared)
    count = math.ceil(unseen * len(names))
    strangers = {names[place] for place in np.random.default_rng(seed).permutation(len(names))[:count].tolist()}
    train, aside = {}, {}
    for person in set(names) - strangers:
        kept, further = prepared[person]
        keep = len(kept) if further else max(1, len(kept) - round(held_out * len(kept)))
        train[person], aside[person] = kept[:keep], (*kept[keep:], *further)
    if len(train) < 2:
        raise SettingsError(f"{len(train)} of {len(names)} people are left to train on; lower the share that is unseen")
    return People(train, aside, {name: (*prepared[name][0], *prepared[name][1]) for name in strangers}, unusable)


_Sources = Mapping[str, tuple[Sequence[Sample], Sequence[Sample]]]
"""Person -> samples, and those that were set aside by whoever made the folder."""


def _prepared(sources: _Sources, bundle: Bundle) -> tuple[dict[str, tuple[tuple[Array, ...], tuple[Array, ...]]], int]:
    """Features of both kinds of samples of everybody who has one to train on, and how many could not be used."""
    reader, unusable = modality.get(bundle.manifest.modality), 0
    found = {}
    for person, kinds in sources.items():
        features: list[list[Array]] = [[], []]
        for kept, samples in zip(features, kinds, strict=True):
            for sample in samples:
                try:
                    kept.append(reader.prepare(sample, bundle).features)
                except SampleError:
                    unusable += 1
        if features[0]:
            found[person] = (tuple(features[0]), tuple(features[1]))
    return found, unusable


Reader = Callable[[Sequence[Array]], Samples]
"""Prepared features -> what the trained part of a trunk is given."""


def reader_of(bundle: Bundle) -> Reader:
    """How features become the trained part's input; what the frozen part makes of a sample is kept in memory."""
    if bundle.manifest.train == "all":
        return partial(PreparedSamples, manifest=bundle.manifest)
    part, kept = FrozenPart(bundle), dict[str, FrozenViews]()

    def read(features: Sequence[Array]) -> Samples:
        names = [sample_digest(item) for item in features]
        for name, item in zip(names, features, strict=True):
            if name not in kept:
                kept[name] = part(item, crops=0)
        return FrozenSamples([kept[name] for name in names])

    return read


def evaluate(simulation: Simulation, people: People, *, reader: Reader, seed: int = 0) -> list[Measured]:
    """Equal error rates of the trunk as it is, with bootstrap intervals over people.

    *Seen*: held-out samples of those who trained, against the template that their device has: the mean embedding of
    what it trained on, or what its algorithm put in place of that; the impostors took part as well. *Strangers*: the
    same people and templates, and impostors without a device: an attacker is one of those. *Unseen*: people without a
    device among themselves, as those who join later, against the mean of their first samples, at most five.
    """
    found = []
    templates, probes = {}, {}
    for person, features in people.train.items():
        kept = simulation.memories.get(person, {}).get(TEMPLATE)
        templates[person] = _mean(simulation, features, reader) if kept is None else kept.astype(np.float64)
        probes[person] = _rows(simulation, people.held_out[person], reader)
    found.append(_measured("seen", templates, probes, seed))
    strangers = {person: _rows(simulation, features, reader) for person, features in people.unseen.items()}
    found.append(_measured("strangers", templates, probes, seed, impostors=strangers))
    templates, probes = {}, {}
    for person, features in people.unseen.items():
        enrol = min(_ENROL, len(features) // 2)
        if enrol:
            templates[person] = _mean(simulation, features[:enrol], reader)
            probes[person] = _rows(simulation, features[enrol:], reader)
    found.append(_measured("unseen", templates, probes, seed))
    return [item for item in found if item is not None]


def _measured(
    people: str,
    templates: Mapping[str, Float64],
    probes: Mapping[str, Float64],
    seed: int,
    *,
    impostors: Mapping[str, Float64] | None = None,
) -> Measured | None:
    """Of those with templates; ``impostors`` are other people, by default they themselves."""
    names, others = tuple(templates), impostors or {}
    if len(names) < 2 or (impostors is not None and not others) or not any(map(len, probes.values())):
        return None
    trials = _trials(templates, {**probes, **others}, apart=impostors is not None)
    fewest = min(len(names), len(others) or len(names))
    value = metrics.eer(trials.curve())
    interval = Interval(value, math.nan, math.nan)
    if fewest >= FEWEST_PEOPLE:
        interval = bootstrap.intervals(trials, {"eer": metrics.eer}, resamples=_RESAMPLES, seed=seed)["eer"]
    return Measured(people, interval, fewest, len(trials.genuine), len(trials.impostor))


def _trials(templates: Mapping[str, Float64], probes: Mapping[str, Float64], *, apart: bool) -> Trials:
    """All probes against all templates; with ``apart`` those who have a template are nobody's impostors."""
    names = (*templates, *(name for name in probes if name not in templates))
    owners = np.repeat(np.arange(len(names)), [len(probes[name]) for name in names])
    rows = np.concatenate([probes[name] for name in names if len(probes[name])])
    scores = (rows @ np.stack(list(templates.values())).T).ravel()
    template, probe = np.tile(np.arange(len(templates)), len(rows)), np.repeat(owners, len(templates))
    kept = (template == probe) | (probe >= len(templates) if apart else np.True_)
    return Trials(scores[kept], template[kept], probe[kept], names)


def _mean(simulation: Simulation, features: Sequence[Array], reader: Reader) -> Float64:
    mean = _rows(simulation, features, reader).mean(axis=0)
    direction: Float64 = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return direction


def _rows(simulation: Simulation, features: Sequence[Array], reader: Reader) -> Float64:
    """Unit embeddings, float64 (n, d); (0, d) of nothing."""
    if not features:
        return np.empty((0, simulation.dimension))
    rows: Float64 = reader(features).embed(simulation.trunk, None).numpy().astype(np.float64)
    return rows


def _digits(bundle: Bundle) -> _Sources:
    if bundle.manifest.modality != "handwriting":
        raise SettingsError(f"the digits are handwriting, the backbone {bundle.manifest.backbone} is not")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise TrainingUnavailableError("--data digits needs scikit-learn: pip install 'uvsdk[simulate]'") from error
    digits = load_digits()
    pages = digits.images.astype(np.float32)
    return {f"digit {label}": (list(pages[digits.target == label]), []) for label in range(10)}


def _folder(root: Path) -> _Sources:
    found: dict[str, tuple[Sequence[Sample], Sequence[Sample]]] = {}
    for person in protocols.read_folder(root, enrol=1):
        apart = (root / person.name / "enrol").is_dir() and (root / person.name / "verify").is_dir()
        found[person.name] = (person.enrol, person.verify) if apart else ((*person.enrol, *person.verify), ())
    return found
