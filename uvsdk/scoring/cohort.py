"""Other people's embeddings, against which a score is judged."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.records.transfer import reduce_to_fields
from uvsdk.scoring.compensation import Compensation
from uvsdk.system.forking import in_child

CACHED_TEMPLATES: Final = 1024
"""Templates whose side of the normalisation is kept, least recently used first to go."""

_NORM_TOLERANCE = 1e-3  # SPEC 1.7
# A cohort whose nearest members all score alike would divide by nothing.
_LEAST_DEVIATION = 1e-4
# Cohort scores of so many pairs are held in memory together.
_PAIRS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """Embeddings of people who are nobody's claim: no recordings, no names. ``repr`` leaves the embeddings out.

    Args:
        embeddings: float32 (n, d), unit rows, of one model version.
        person: int64 (n,), index of the person each belongs to; one person may give several.
        conditions: float32 (n, k), a column for each condition of the modality, NaN where it was not measured.
    """

    embeddings: Float32 = field(repr=False)
    person: Int64 = field(repr=False)
    conditions: Float32 = field(repr=False)

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or len(self.embeddings) < 2:
            raise ValueError(f"a cohort has at least two embeddings, got shape {self.embeddings.shape}")
        if self.person.shape != (len(self.embeddings),) or (self.person < 0).any():
            raise ValueError("a cohort names a person, from 0 on, for each embedding")
        if self.conditions.ndim != 2 or len(self.conditions) != len(self.embeddings) or np.isinf(self.conditions).any():
            raise ValueError("a cohort has conditions for each embedding")
        norms = np.linalg.norm(self.embeddings.astype(np.float64), axis=1)
        if not (np.abs(norms - 1.0) <= _NORM_TOLERANCE).all():  # written so that NaN fails
            raise ValueError("the embeddings of a cohort have norm 1")

    @property
    def people(self) -> int:
        """How many people there are."""
        return len(np.unique(self.person))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Normalisation:
    """Adaptive symmetric score normalisation, AS-norm (Matějka et al., "Analysis of score normalization in
    multilingual speaker recognition", 2017, variant AS-Norm1).

    A score is measured from the mean of the ``top`` highest scores that each side has with the cohort, in their
    standard deviations, and the two sides are averaged. A template's side is computed once and kept.

    Args:
        rows: the cohort after compensation, float64 (n, d).
        top: how many of its scores count, at least 2; all where it has fewer.
    """

    rows: Float64 = field(repr=False)
    top: int
    _known: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def of(cls, cohort: Cohort, compensation: Compensation, *, top: int) -> Normalisation:
        """Over a cohort whose embeddings are compensated as those that are compared."""
        return cls(compensation.apply(cohort.embeddings), top)

    __reduce__ = reduce_to_fields

    def __post_init__(self) -> None:
        in_child(self, Normalisation._renew)
        if self.top < 2:
            raise ValueError(f"a normalisation looks at 2 cohort scores or more, got {self.top}")

    def side(self, vectors: Float64, others: Bool | None = None) -> tuple[Float64, Float64]:
        """Mean and standard deviation of the highest cohort scores, float64 (m,) each.

        Args:
            vectors: compensated, float64 (m, d).
            others: bool (m, n), which members of the cohort are other people; ``None`` for all.
        """
        scores = vectors @ self.rows.T
        if others is not None:
            scores = np.where(others, scores, -np.inf)
        top = min(self.top, scores.shape[1] if others is None else int(others.sum(axis=1).min()))
        if top < 2:
            raise ValueError("a normalisation needs two cohort members who are other people")
        nearest = np.partition(scores, scores.shape[1] - top, axis=1)[:, -top:]
        return nearest.mean(axis=1), np.maximum(nearest.std(axis=1), _LEAST_DEVIATION)

    def score(self, template: Float64, probe: Float64, *, rise: float = 0.0) -> float:
        """The normalised score of two compensated vectors, float64 (d,), whose cosine is lowered by ``rise``."""
        raw = float(template @ probe) - rise
        mean, deviation = self._template_side(template)
        probe_mean, probe_deviation = (float(part[0]) for part in self.side(probe[None]))
        return ((raw - mean) / deviation + (raw - probe_mean) / probe_deviation) / 2

    def scores(self, templates: Float64, probes: Float64) -> Float64:
        """:meth:`score` of each pair of rows, float64 (n, d) each, with no side kept."""
        found = []
        for start in range(0, len(templates), _PAIRS_AT_ONCE):
            first, second = templates[start : start + _PAIRS_AT_ONCE], probes[start : start + _PAIRS_AT_ONCE]
            raw = np.einsum("nd,nd->n", first, second)
            sides = [(raw - mean) / deviation for mean, deviation in (self.side(first), self.side(second))]
            found.append((sides[0] + sides[1]) / 2)
        return np.concatenate(found) if found else np.zeros(0)

    def _renew(self) -> None:
        object.__setattr__(self, "_lock", threading.Lock())

    def _template_side(self, template: Float64) -> tuple[float, float]:
        name = hashlib.sha256(template.tobytes()).digest()
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
                return self._known[name]
        mean, deviation = self.side(template[None])
        with self._lock:
            found = self._known[name] = (float(mean[0]), float(deviation[0]))
            while len(self._known) > CACHED_TEMPLATES:
                self._known.popitem(last=False)
        return found
