"""Everybody who can be found by one search: their templates as the rows of one matrix.

A search is exact. A float32 product finds the few rows that can be among the best (its rounding error is bounded, so
none is missed), and only those are scored again in float64. Above :data:`FAISS_FROM` people the product is faiss' where
the ``scale`` extra is installed; it works on the same matrix, so people come and go at the price of one row, and the
answer is the same.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.errors import ModelMismatchError, SampleError, SettingsError, UnknownUserError
from uvsdk.privacy.identifiers import canonical_user_id
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import Conditions
from uvsdk.system.forking import in_child, steady
from uvsdk.templates.template import Template

if TYPE_CHECKING:
    from uvsdk.templates.storage import Store

FAISS_FROM: Final = 100_000
"""People from which faiss multiplies, where it is installed; below, numpy is as fast."""

_FIRST_ROWS = 16
_BLOCK_ROWS = 4096
# faiss is asked for this many more rows than wanted, so that the rounding of the last rarely asks for a second search.
_SPARE = 16
_NORM_TOLERANCE = 1e-3  # SPEC 1.7


@dataclass(frozen=True, slots=True)
class Candidate:
    """One person a search found. ``repr`` leaves the id out.

    Args:
        user_id: as the person was added.
        score: cosine similarity of the probe and this person's template, in float64.
    """

    user_id: str = field(repr=False)
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What one search found.

    Args:
        candidates: the best first; equal scores by user id.
        people: how many were searched.
        tied: how many of them share the highest score, 0 where nobody was searched.
        best_row: float32 (d,), unit: the first candidate's template; ``None`` where nobody was searched.
        best_conditions: of that template.
    """

    candidates: tuple[Candidate, ...]
    people: int
    tied: int
    best_row: Float32 | None = field(default=None, repr=False, compare=False)
    best_conditions: Conditions = field(default_factory=dict, repr=False, compare=False)


class Gallery:
    """Templates of one model version, by user id. Safe to share between threads: searches run side by side.

    Ids that differ in case or Unicode composition only are one person, as in a store.

    Args:
        templates: user id -> template, all of one model version.

    Raises:
        ModelMismatchError: the templates are of several model versions.
        SettingsError: an id that is empty or not valid Unicode.
    """

    def __init__(self, templates: Mapping[str, Template] | None = None) -> None:
        self._turns = _Turns()
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._rows: Float32 = np.empty((0, 0), np.float32)
        self._version = ("", "")
        self._calibrations: dict[str, str] = {}
        self._conditions: dict[str, Conditions] = {}
        self._counts: Counter[str] = Counter()
        self._changes = 0
        self._centred: _Centred | None = None
        for user_id, template in (templates or {}).items():
            self.add(user_id, template)

    @classmethod
    def from_store(cls, store: Store) -> Gallery:
        """Everybody in ``store``, once; who enrols later is added with :meth:`add`.

        Raises:
            ModelMismatchError: the store holds templates of several model versions; make them again first
                (``uvsdk_device.Runtime.gallery`` does).
        """
        return cls({user_id: store.template(user_id) for user_id in store.users()})

    def __getstate__(self) -> dict[str, object]:
        with self._turns.shared():
            return {
                **self.__dict__,
                "_turns": None,
                "_centred": None,
                "_rows": self._rows.copy(),
                "_ids": list(self._ids),
            } | {
                name: copy.copy(self.__dict__[name]) for name in ("_places", "_calibrations", "_conditions", "_counts")
            }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._turns = _Turns()

    def __repr__(self) -> str:
        return f"Gallery({len(self)} people, model {self.model_version[:12] or 'none yet'})"

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, user_id: object) -> bool:
        return isinstance(user_id, str) and bool(user_id) and canonical_user_id(user_id) in self._places

    @property
    def model_version(self) -> str:
        """The model every template was made with; empty while nobody is in it."""
        return self._version[0]

    @property
    def calibrations(self) -> frozenset[str]:
        """Digests of the calibrations that the templates' thresholds were read from, as far as they name them."""
        with self._turns.shared():
            return frozenset(self._counts) - {""}

    @property
    def changes(self) -> int:
        """How often somebody was added or removed: what was measured on the gallery holds until this number moves."""
        return self._changes

    def users(self) -> tuple[str, ...]:
        """Everyone in the gallery, sorted."""
        with self._turns.shared():
            return tuple(sorted(self._ids))

    def add(self, user_id: str, template: Template) -> None:
        """Put somebody in, in place of their earlier template if there is one.

        Raises:
            ModelMismatchError: another model version, modality or dimension than the others'.
            SettingsError: an id that is empty or not valid Unicode.
        """
        name = canonical_user_id(user_id)
        with self._turns.exclusive():
            self._check(template)
            place = self._places.get(name, len(self._ids))
            self._make_room(place)
            self._rows[place] = template.embedding
            self._ids[place : place + 1] = [user_id]
            self._places[name] = place
            self._forget_calibration(name)
            self._calibrations[name] = "" if template.threshold is None else template.threshold.calibration
            self._counts[self._calibrations[name]] += 1
            self._conditions[name] = dict(template.conditions)  # a copy: a read-only view is not pickled
            self._changes += 1

    def remove(self, user_id: str) -> None:
        """Take somebody out. Raises :class:`UnknownUserError` where nobody of that name is in it."""
        name = canonical_user_id(user_id)
        with self._turns.exclusive():
            if name not in self._places:
                raise UnknownUserError("nobody of that name is in this gallery")
            place, last = self._places.pop(name), len(self._ids) - 1
            if place != last:  # the last row takes the place, so that the rows stay without a gap
                self._ids[place], self._rows[place] = self._ids[last], self._rows[last]
                self._places[canonical_user_id(self._ids[place])] = place
            self._ids.pop()
            self._forget_calibration(name)
            del self._conditions[name]
            self._rows[last] = 0.0  # nobody's template stays behind
            self._changes += 1
            if not self._ids:
                self._version, self._rows = ("", ""), np.empty((0, 0), np.float32)

    def search(self, embedding: Float32, top: int = 1, *, centring: Compensation | None = None) -> SearchResult:
        """The ``top`` best people for one probe, exactly.

        Args:
            embedding: float32 (d,), unit norm, made with :attr:`model_version`: that is the caller's to check.
            top: how many, at least 1.
            centring: what is taken out of both sides first (:attr:`uvsdk.scoring.Calibration.centring`). The first
                search after a change then goes over everybody once more.

        Raises:
            SettingsError: ``top`` below 1.
            ModelMismatchError: another dimension.
            SampleError: not finite, or the norm is not 1.
        """
        if top < 1:
            raise SettingsError(f"a search gives at least 1 candidate, got top={top}")
        with self._turns.shared():
            people = len(self._ids)
            if not people:
                return SearchResult((), 0, 0)
            rows = self._rows[:people]
            probe = _checked(embedding, rows.shape[1])
            compared, side = rows, probe
            if centring is not None:
                compared, side = self._without(centring), centring.apply(probe).astype(np.float32)
            # One more than asked for, so that a tie for the first place is always seen.
            places = _contenders(compared, side, min(max(top, 2), people))
            scores = _exact(rows, places, probe, centring)
            ids = [self._ids[place] for place in places.tolist()]
            order = sorted(range(len(ids)), key=lambda i: (-scores[i], ids[i]))[:top]
            best_row = rows[places[order[0]]].copy()
            best_conditions = self._conditions[canonical_user_id(ids[order[0]])]
        tied = int((scores == scores.max()).sum())
        candidates = tuple(Candidate(ids[i], float(scores[i])) for i in order)
        return SearchResult(candidates, people, tied, best_row, best_conditions)

    def highest(self, probes: Float32, *, centring: Compensation | None = None) -> Float64:
        """The highest score of each probe over everybody, to within float32's rounding: for measuring thresholds.

        Args:
            probes: float32 (m, d) of unit rows.
            centring: as for :meth:`search`.

        Returns:
            float64 (m,); ``-inf`` where nobody is in the gallery.
        """
        best = np.full(len(probes), -np.inf)
        with self._turns.shared():
            rows = self._rows[: len(self._ids)]
            if centring is not None and len(rows):
                rows, probes = self._without(centring), centring.apply(probes).astype(np.float32)
            for start in range(0, len(rows), _BLOCK_ROWS):
                block = rows[start : start + _BLOCK_ROWS]
                best = np.maximum(best, (probes @ block.T).max(axis=1))
        return np.asarray(np.minimum(best, 1.0), np.float64)

    def _without(self, centring: Compensation) -> Float32:
        """Everybody's rows without the centre, float32 (people, d); kept until somebody comes or goes."""
        known = self._centred
        if known is None or known.changes != self._changes or not np.array_equal(known.centre, centring.centre):
            people = self._rows[: len(self._ids)]
            rows = np.empty_like(people)
            for start in range(0, len(rows), _BLOCK_ROWS):
                block = slice(start, start + _BLOCK_ROWS)
                rows[block] = centring.apply(people[block])
            known = self._centred = _Centred(centring.centre, self._changes, rows)
        return known.rows

    def _forget_calibration(self, name: str) -> None:
        digest = self._calibrations.pop(name, None)
        if digest is not None:
            self._counts[digest] -= 1
            if not self._counts[digest]:
                del self._counts[digest]

    def _check(self, template: Template) -> None:
        version = (template.model_version, template.modality)
        if not self._ids:
            self._version, self._rows = version, np.empty((0, len(template.embedding)), np.float32)
        if version != self._version:
            raise ModelMismatchError(
                f"the gallery holds {self._version[1]} templates of model {self._version[0][:12]}, this is a "
                f"{version[1]} template of model {version[0][:12]}: scores of different models cannot be ranked; make "
                "all templates with one model"
            )
        if len(template.embedding) != self._rows.shape[1]:
            raise ModelMismatchError(
                f"the gallery's templates have {self._rows.shape[1]} dimensions, this one has "
                f"{len(template.embedding)}; they come from different models"
            )

    def _make_room(self, place: int) -> None:
        """Let there be a row at ``place``; twice as many each time, so that adding N people copies O(N) rows."""
        if place < len(self._rows):
            return
        larger = np.zeros((max(_FIRST_ROWS, 2 * len(self._rows)), self._rows.shape[1]), np.float32)
        larger[: len(self._rows)] = self._rows
        self._rows = larger


@dataclass(frozen=True, slots=True, eq=False)
class _Centred:
    centre: Float32
    changes: int
    rows: Float32 = field(repr=False)


def _checked(embedding: Float32, dimension: int) -> Float32:
    if embedding.shape != (dimension,):
        raise ModelMismatchError(
            f"the gallery's templates have {dimension} dimensions, the embedding has shape {embedding.shape}; they "
            "come from different models"
        )
    norm = float(np.linalg.norm(embedding.astype(np.float64)))
    if not abs(norm - 1.0) <= _NORM_TOLERANCE:  # written so that NaN fails
        raise SampleError(f"an embedding has norm 1, got {norm:.4g}; normalise it as Bundle.embedding does")
    return np.ascontiguousarray(embedding, np.float32)


def _contenders(rows: Float32, probe: Float32, count: int) -> Int64:
    """Places of every row that can be among the ``count`` best, whatever the float32 product rounded."""
    # |fl(x . y) - x . y| <= d u / (1 - d u) |x| |y| in any order of summation (Higham, "Accuracy and Stability of
    # Numerical Algorithms", 2002, eq 3.5); both norms are 1 within a thousandth, and each of two scores may be off.
    # Rows that were centred are rounded once more on either side, by u |x| each.
    margin = 2 * 1.01 * (rows.shape[1] + 2) * 2.0**-24
    if len(rows) >= FAISS_FROM and (knn := _knn()) is not None:
        wanted = count
        while (wanted := wanted + max(wanted, _SPARE)) < _BLOCK_ROWS:
            scores, places = knn(probe[None], rows, wanted)
            if scores[0, -1] < scores[0, count - 1] - margin:
                return np.asarray(places[0][scores[0] >= scores[0, count - 1] - margin], np.int64)
    scores = rows @ probe
    border = np.partition(scores, len(scores) - count)[len(scores) - count]
    return np.flatnonzero(scores >= border - np.float32(margin)).astype(np.int64)


def _exact(rows: Float32, places: Int64, probe: Float32, centring: Compensation | None) -> Float64:
    """Scores in float64, float64 (len(places),); equal rows score equal to the last bit, wherever they lie."""
    vector = probe.astype(np.float64) if centring is None else centring.apply(probe)
    scores = np.empty(len(places), np.float64)
    for start in range(0, len(places), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        # Summed row by row: a matrix product may round rows at the end of a block otherwise than those inside.
        chosen = rows[places[block]]
        sides = chosen.astype(np.float64) if centring is None else centring.apply(chosen)
        scores[block] = (sides * vector).sum(axis=1)
    return np.clip(scores, -1.0, 1.0)


@functools.cache
def _knn() -> Callable[[Float32, Float32, int], tuple[Float32, Int64]] | None:
    """faiss' exact search over a matrix in place, ``None`` where faiss is not installed."""
    try:
        with steady(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of SWIG's types, at import
            import faiss
    except ModuleNotFoundError:
        return None

    def knn(probes: Float32, rows: Float32, wanted: int) -> tuple[Float32, Int64]:
        scores, places = faiss.knn(probes, rows, wanted, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, places

    return knn


class _Turns:
    """Any number of searches at a time, or one change; a change that waits goes before searches that come later."""

    def __init__(self) -> None:
        self._renew()
        in_child(self, _Turns._renew)

    def _renew(self) -> None:
        self._condition = threading.Condition()
        self._searching = 0
        self._changing = False
        self._waiting = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._changing and not self._waiting)
            self._searching += 1
        try:
            yield
        finally:
            with self._condition:
                self._searching -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._changing and not self._searching)
            finally:
                self._waiting -= 1
            self._changing = True
        try:
            with steady():
                yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()
