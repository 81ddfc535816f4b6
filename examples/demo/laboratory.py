"""Measuring from outside: the demonstration's own evaluation, which sees every sample and is no part of the product.

Features do not depend on the model version, so each file is decoded once and only embedded anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from data import People

from uvsdk import Bundle, modality
from uvsdk.arrays import Array, Float32, Float64
from uvsdk.errors import SampleError
from uvsdk.evaluation import protocols, ranking
from uvsdk.scoring import Calibration
from uvsdk.scoring.personal import leave_one_out


class Laboratory:
    """The people's features, and every measurement the report shows."""

    def __init__(self, people: People, bundle: Bundle) -> None:
        self._modality = modality.get(bundle.manifest.modality)
        self._persons = [protocols.Person(person.name, person.enrol, person.verify) for person in people.people]
        self._bundle = bundle
        self._features: dict[Path, Array | SampleError] = {}
        self._embedded: tuple[str, dict[Path, Float32]] = ("", {})

    def samples(self) -> list[Path]:
        """Every file."""
        return [path for person in self._persons for path in (*person.enrol, *person.verify)]

    def prepare(self, threads: int = 2) -> Iterable[Path]:
        """Decode every file, yielding each as it is done."""

        def one(path: Path) -> tuple[Path, Array | SampleError]:
            try:
                return path, self._modality.prepare(path, self._bundle).features
            except SampleError as error:
                return path, error

        with ThreadPoolExecutor(threads) as pool:
            for path, found in pool.map(one, self.samples()):
                self._features[path] = found
                yield path

    def enrolment_features(self) -> dict[str, tuple[Array, ...]]:
        """Everybody's usable enrolment samples, as their modality prepared them."""
        found: dict[str, tuple[Array, ...]] = {}
        for person in self._persons:
            features = (self._features[path] for path in self._usable(tuple(person.enrol)))
            found[person.name] = tuple(item for item in features if not isinstance(item, SampleError))
        return found

    def outcome(self, bundle: Bundle) -> protocols.ProtocolOutcome:
        """Every probe against everyone's mean template, under ``bundle``."""
        return protocols.enrol_and_verify(self._persons, self._embedder(bundle))

    def enrolment_means(self, bundle: Bundle) -> Float64:
        """Normalised means of the enrolment embeddings, float64 (C, d): the class matrix before training."""
        embed = self._embedder(bundle)
        rows = [np.mean([embed(path) for path in self._usable(person.enrol)], axis=0) for person in self._persons]
        matrix = np.asarray(rows, np.float64)
        return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))

    def mean_offdiagonal_cosine(self, bundle: Bundle) -> float:
        """Of the matrix of :meth:`enrolment_means`."""
        return ranking.collapse(self.enrolment_means(bundle)).mean_cosine

    def calibration(self, bundle: Bundle, source: str) -> Calibration:
        """Impostor scores from enrolment samples alone; no verification sample takes part in a threshold.

        Every enrolment sample against every other person's template, which cannot contain it.
        """
        embed = self._embedder(bundle)
        templates = self.enrolment_means(bundle)
        scores = []
        for index, person in enumerate(self._persons):
            others = np.delete(templates, index, axis=0)
            scores += [others @ embed(path) for path in self._usable(person.enrol)]
        return Calibration.from_scores(np.concatenate(scores), model_version=bundle.version, source=source)

    def most_consistent(self, bundle: Bundle) -> list[str]:
        """Names, first whoever's enrolment samples score highest against the template of the others of theirs.

        Whom to show one by one is decided by enrolment samples alone, before any verification sample is looked at.
        """
        embed = self._embedder(bundle)
        scores = {
            person.name: float(leave_one_out(np.stack([embed(path) for path in self._usable(person.enrol)])).mean())
            for person in self._persons
        }
        return sorted(scores, key=lambda name: -scores[name])

    def _usable(self, paths: tuple[Path, ...]) -> list[Path]:
        return [path for path in paths if not isinstance(self._features[path], SampleError)]

    def _embedder(self, bundle: Bundle) -> protocols.Embedder:
        """Looks up what :meth:`_embeddings` computed for the model, once for all measurements of it."""
        if self._embedded[0] != bundle.version:
            self._embedded = (bundle.version, self._embeddings(bundle))
        known = self._embedded[1]

        def embed(path: Path) -> Float32:
            features = self._features[path]
            if isinstance(features, SampleError):
                raise features
            return known[path]

        return embed

    def _embeddings(self, bundle: Bundle) -> dict[Path, Float32]:
        usable = self._usable(tuple(self.samples()))
        found = [self._features[path] for path in usable]
        views = [
            self._modality.views(features, bundle.manifest.preprocessing)
            for features in found
            if not isinstance(features, SampleError)
        ]
        return dict(zip(usable, bundle.embeddings(views), strict=True))
