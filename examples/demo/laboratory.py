"""Measuring from outside: the demonstration's own evaluation, which sees every sample and is no part of the product.

Features do not depend on the model version, so each file is decoded once and only embedded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from data import People
from groups import Groups

from uvsdk import Bundle, modality
from uvsdk.arrays import Array, Float32, Float64
from uvsdk.errors import SampleError
from uvsdk.evaluation import protocols, ranking
from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.release import centring
from uvsdk.scoring import Calibration
from uvsdk.scoring.personal import leave_one_out

_THREADS = 2
"""Files decoded or embedded at once."""

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True)
class Sides(Generic[_T]):
    """Something of people who trained, and of people who never did; ``None`` where there are too few of them."""

    trained: _T | None
    strangers: _T | None

    def each(self, function: Callable[[_T], _U]) -> Sides[_U]:
        """``function`` of both."""
        return Sides(
            None if self.trained is None else function(self.trained),
            None if self.strangers is None else function(self.strangers),
        )


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is no bundle: its name, and what gives the embedding of every usable file."""

    version: str
    embeddings: Callable[[], dict[Path, Float32]]


class Laboratory:
    """The people's features, and every measurement the report shows."""

    def __init__(self, people: People, bundle: Bundle) -> None:
        self._modality = modality.get(bundle.manifest.modality)
        self._persons = [protocols.Person(person.name, person.enrol, person.verify) for person in people.people]
        self._single = [protocols.Person(person.name, person.enrol, person.single) for person in people.people]
        self._bundle = bundle
        self._features: dict[Path, Array | SampleError] = {}
        self._embedded: tuple[str, dict[Path, Float32]] = ("", {})

    def samples(self) -> list[Path]:
        """Every sample that people enrol with or are verified by."""
        return [path for person in self._persons for path in (*person.enrol, *person.verify)]

    def files(self) -> list[Path]:
        """The samples, and the single clips."""
        return [*self.samples(), *(path for person in self._single for path in person.verify)]

    def prepare(self) -> Iterable[Path]:
        """Decode every file, yielding each as it is done."""

        def one(path: Path) -> tuple[Path, Array | SampleError]:
            try:
                return path, self._modality.prepare(path, self._bundle).features
            except SampleError as error:
                return path, error

        with ThreadPoolExecutor(_THREADS) as pool:
            for path, found in pool.map(one, self.files()):
                self._features[path] = found
                yield path

    def usable(self, paths: Sequence[Path] | None = None) -> list[Path]:
        """Those of ``paths``, by default of every sample, that the modality takes."""
        chosen = self.samples() if paths is None else paths
        return [path for path in chosen if not isinstance(self._features[path], SampleError)]

    def features(self, path: Path) -> Array:
        """Of a usable file, as its modality prepared it. Raises :class:`SampleError` for another."""
        found = self._features[path]
        if isinstance(found, SampleError):
            raise found
        return found

    def enrolment(self, names: Iterable[str]) -> dict[str, list[Path]]:
        """Usable enrolment samples of the named."""
        wanted = set(names)
        return {person.name: self.usable(tuple(person.enrol)) for person in self._persons if person.name in wanted}

    def outcomes(self, bundle: Bundle | Model, groups: Groups) -> Sides[ProtocolOutcome]:
        """The probes of those who trained, and of those who never did, against everybody's mean template.

        So each person is genuine once and an impostor to all others; of a group of one nothing is told.
        """
        return self._outcomes(bundle, groups, self._persons)

    def of_single_clips(self, bundle: Bundle, groups: Groups) -> Sides[ProtocolOutcome]:
        """The same of single clips as probes, against the same templates; nothing where there are none."""
        if not all(person.verify for person in self._single):
            return Sides(None, None)
        return self._outcomes(bundle, groups, self._single)

    def _outcomes(
        self, bundle: Bundle | Model, groups: Groups, persons: Sequence[protocols.Person]
    ) -> Sides[ProtocolOutcome]:
        embed = self._embedder(bundle)

        def of(group: Sequence[str]) -> ProtocolOutcome | None:
            if len(group) < 2:
                return None
            people = [
                person if person.name in group else protocols.Person(person.name, person.enrol, ())
                for person in persons
            ]
            return protocols.enrol_and_verify(people, embed)

        return Sides(of(groups.trained), of(groups.strangers))

    def mean_offdiagonal_cosine(self, bundle: Bundle, names: Iterable[str]) -> float:
        """Of the normalised means of the enrolment embeddings of the named: the class matrix before training."""
        return ranking.collapse(self._templates(bundle, names)).mean_cosine

    def centred(self, bundle: Bundle, groups: Groups) -> Bundle | None:
        """The model as a server moves it after its first evaluation: with the mean of all who joined taken off; nothing
        where the head is not made for it, or too few have joined.
        """
        if not centring.centres(bundle.manifest) or len(groups.joined) < centring.LEAST_CENTRED:
            return None
        templates = self._templates(bundle, groups.joined).mean(axis=0)
        taken = centring.centre(templates, self._means(bundle, groups.evaluate).mean(axis=0))
        theta = bundle.theta.copy()
        theta[-len(taken) :] = -taken
        return bundle.with_theta(theta)

    def calibration(self, bundle: Bundle, names: Sequence[str], source: str) -> Calibration:
        """Impostor scores from enrolment samples alone; no verification sample takes part in a threshold.

        Every enrolment sample of the named against every other person's template, which cannot contain it.
        """
        embed = self._embedder(bundle)
        templates = self._templates(bundle, names)
        scores = []
        for index, paths in enumerate(self.enrolment(names).values()):
            others = np.delete(templates, index, axis=0)
            scores += [others @ embed(path) for path in paths]
        return Calibration.from_scores(np.concatenate(scores), model_version=bundle.version, source=source)

    def most_consistent(self, bundle: Bundle) -> list[str]:
        """Names, first whoever's enrolment samples score highest against the template of the others of theirs.

        Whom to show one by one is decided by enrolment samples alone, before any verification sample is looked at.
        """
        embed = self._embedder(bundle)
        scores = {
            name: float(leave_one_out(np.stack([embed(path) for path in paths])).mean())
            for name, paths in self.enrolment(person.name for person in self._persons).items()
        }
        return sorted(scores, key=lambda name: -scores[name])

    def _means(self, bundle: Bundle, names: Iterable[str]) -> Float64:
        """Of each of the named the mean of the enrolment embeddings, float64 (people, d)."""
        embed = self._embedder(bundle)
        rows = [np.mean([embed(path) for path in paths], axis=0) for paths in self.enrolment(names).values()]
        return np.asarray(rows, np.float64)

    def _templates(self, bundle: Bundle, names: Iterable[str]) -> Float64:
        matrix = self._means(bundle, names)
        return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))

    def _embedder(self, model: Bundle | Model) -> Callable[[Path], Float32]:
        """Looks up what was computed for the model, once for all measurements of it."""
        if self._embedded[0] != model.version:
            self._embedded = (
                model.version,
                model.embeddings() if isinstance(model, Model) else self._embeddings(model),
            )
        known = self._embedded[1]

        def embed(path: Path) -> Float32:
            self.features(path)
            return known[path]

        return embed

    def _embeddings(self, bundle: Bundle) -> dict[Path, Float32]:
        """Of every usable file, as many at once as :meth:`prepare` decodes."""
        usable = self.usable(self.files())
        views = [self._modality.views(self.features(path), bundle.manifest.preprocessing) for path in usable]
        with ThreadPoolExecutor(_THREADS) as pool:
            rows = pool.map(bundle.embeddings, [views[place::_THREADS] for place in range(_THREADS)])
        found: dict[Path, Float32] = {}
        for place, part in enumerate(rows):
            found |= dict(zip(usable[place::_THREADS], part, strict=True))
        return found
