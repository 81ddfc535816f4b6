"""From observations to a calibration: which trials are made, and what is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.errors import EnrolmentError
from uvsdk.evaluation.observations import Observations
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import fitting
from uvsdk.scoring.calibration import Calibration, evenly
from uvsdk.scoring.cohort import Cohort, Normalisation
from uvsdk.scoring.compensation import DIRECTIONS, Compensation, compensation
from uvsdk.scoring.conditions import CONDITIONS, Conditions, together
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings, features

LEAST_PEOPLE: Final = 10
"""People a likelihood ratio is fitted to at least; of fewer only impostor scores are kept."""

LEAST_GENUINE: Final = 30
"""Genuine comparisons of original samples it is fitted to at least."""

COHORT_TOP: Final = 100
"""Cohort scores that AS-norm looks at, or half of the cohort where it is smaller."""

_TRIALS_A_CELL = 4_000
_KEPT_RATIOS = 20_000
_COHORT_ROWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A calibration with what it was measured on.

    Args:
        calibration: for exactly the model that made the observations.
        originals: every comparison of original samples, scored on the calibration's scale.
        note: why there is no likelihood ratio; empty where there is one.
    """

    calibration: Calibration
    originals: Trials
    note: str


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Templates or probes of one kind: rows with their people, recordings (-1 for several) and conditions."""

    rows: Float32
    person: Int64
    recording: Int64
    conditions: tuple[Conditions, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """Trials of one kind of template with one kind of probe, as indices."""

    template: _Side
    probe: _Side
    genuine: tuple[Int64, Int64]
    impostor: tuple[Int64, Int64]


def fit(
    seen: Observations,
    *,
    model_version: str,
    source: str,
    as_norm: bool = False,
    keep_cohort: bool = True,
    prior: float = 0.5,
    directions: int = DIRECTIONS,
    seed: int = 0,
) -> Fitted:
    """Measure impostor scores and, where there are people and samples enough, fit a likelihood ratio.

    Every kind of template meets every kind of probe that life has: a good template and a probe of each copy, and both
    of the same copy; templates of one sample and, where people have several for enrolment, means of those. In each
    such cell every pair of people counts the same.

    Args:
        seen: of :func:`uvsdk.evaluation.observations.observe`.
        model_version: of the model that made them.
        source: in words, whose samples they are.
        as_norm: whether scores are normalised against the cohort.
        keep_cohort: whether the cohort goes into the calibration; AS-norm needs it.
        prior: of a genuine trial, where the ratio should be best.
        directions: that the compensation takes out at most.
        seed: of the draw of trials.

    Raises:
        EnrolmentError: no impostor trial can be made.
    """
    rng = np.random.default_rng(seed)
    raw = _originals(seen)
    if raw.is_genuine.all():
        raise EnrolmentError("no impostor trial can be made; a calibration needs two people with a usable sample")
    cohort = _cohort(seen)
    genuine = int(raw.is_genuine.sum())
    if seen.people < LEAST_PEOPLE or genuine < LEAST_GENUINE:
        plain = Calibration.from_scores(
            raw.impostor, model_version=model_version, source=source, cohort=cohort if keep_cohort else None
        )
        return Fitted(plain, raw, _too_little(seen.people, genuine))
    removed = _compensation(seen, min(directions, seen.people // 3))
    normalisation = None
    if as_norm:
        normalisation = Normalisation.of(cohort, removed, max(2, min(COHORT_TOP, len(cohort.embeddings) // 2)))
    ratio = _ratio(list(_cells(seen, rng)), seen, removed, normalisation, cohort, prior, raw)
    calibration = Calibration.from_scores(
        raw.impostor,
        model_version=model_version,
        source=source,
        ratio=ratio,
        cohort=cohort if keep_cohort or as_norm else None,
    )
    return Fitted(calibration, _originals(seen, calibration), "")


def _too_little(people: int, genuine: int) -> str:
    return (
        f"{people} people with {genuine} genuine comparisons; a likelihood ratio needs {LEAST_PEOPLE} people and "
        f"{LEAST_GENUINE} comparisons of two samples of one person: add people, or recordings of each"
    )


def _ratio(
    cells: list[_Cell],
    seen: Observations,
    removed: Compensation,
    normalisation: Normalisation | None,
    cohort: Cohort,
    prior: float,
    raw: Trials,
) -> LikelihoodRatio:
    surroundings = Surroundings.seen(seen.conditions)
    scored = [_scored(cell, removed, normalisation, cohort, surroundings) for cell in cells]
    rows = np.concatenate([part[1] for part in scored])
    impostor = np.concatenate([part[0] for part in scored])
    weights = np.concatenate([np.full(len(part[0]), 1.0 / max(len(part[0]), 1)) for part in scored])
    location, log_scale = fitting.fit_impostors(rows, impostor, weights)
    placed, widths = rows @ location, rows @ log_scale
    limits = np.array([[placed.min(), placed.max()], [widths.min(), widths.max()]])

    def standardised(scores: Float64, design: Float64) -> Float64:
        return (scores - np.clip(design @ location, *limits[0])) / np.exp(np.clip(design @ log_scale, *limits[1]))

    z_impostor = standardised(impostor, rows)
    z_genuine = np.concatenate([standardised(part[2], part[3]) for part in scored])
    genuine_weights = np.concatenate([part[4] for part in scored])
    slope, offset = fitting.fit_line(
        z_genuine, z_impostor, prior=prior, genuine_weights=genuine_weights, impostor_weights=weights
    )
    lowest, highest = -math.log(int(raw.is_genuine.sum())), math.log(len(raw.impostor))
    ratios = np.clip(slope * z_impostor + offset, lowest, highest)
    return LikelihoodRatio(
        compensation=removed,
        top=0 if normalisation is None else normalisation.top,
        surroundings=surroundings,
        location=location,
        log_scale=log_scale,
        limits=limits,
        slope=slope,
        offset=offset,
        lowest=lowest,
        highest=highest,
        impostor=evenly(ratios, _KEPT_RATIOS),
        trials=len(raw.impostor),
    )


def _scored(
    cell: _Cell,
    removed: Compensation,
    normalisation: Normalisation | None,
    cohort: Cohort,
    surroundings: Surroundings,
) -> tuple[Float64, Float64, Float64, Float64, Float64]:
    """Impostor scores and features, genuine scores, features and weights (every person the same) of one cell."""
    templates, probes = removed.apply(cell.template.rows), removed.apply(cell.probe.rows)
    sides = None
    if normalisation is not None:
        sides = [
            normalisation.side(vectors, cohort.person != side.person[:, None])
            for vectors, side in ((templates, cell.template), (probes, cell.probe))
        ]
    places = surroundings.place(cell.template.conditions), surroundings.place(cell.probe.conditions)

    def both(pairs: tuple[Int64, Int64]) -> tuple[Float64, Float64]:
        a, b = pairs
        scores = (templates[a] * probes[b]).sum(axis=1)
        if sides is not None:
            (mean, deviation), (probe_mean, probe_deviation) = sides
            scores = ((scores - mean[a]) / deviation[a] + (scores - probe_mean[b]) / probe_deviation[b]) / 2
        return scores, features(places[0][a], places[1][b])

    impostor, rows = both(cell.impostor)
    genuine, genuine_rows = both(cell.genuine)
    people = cell.template.person[cell.genuine[0]]
    counts = np.bincount(people, minlength=1)[people] if len(people) else np.ones(0)
    shares = 1.0 / counts
    return impostor, rows, genuine, genuine_rows, shares / max(float(shares.sum()), 1e-12)


def _cells(seen: Observations, rng: np.random.Generator) -> Iterator[_Cell]:
    """A good template with probes of each copy, and both of the same copy; empty cells are left out."""
    for means in (False, True):
        for copy in range(len(seen.copies)):
            for template_copy in {0, copy}:
                template = _means(seen, template_copy) if means else _singles(seen, seen.copy == template_copy)
                probe = _singles(seen, (seen.copy == copy) & (~seen.enrolled if means else True))
                cell = _cell(template, probe, rng)
                if cell is not None:
                    yield cell


def _cell(template: _Side, probe: _Side, rng: np.random.Generator) -> _Cell | None:
    impostor = _impostor_pairs(template.person, probe.person, rng)
    if not len(impostor[0]):
        return None
    same = template.person[:, None] == probe.person
    own, other = np.nonzero(same & (template.recording[:, None] != probe.recording))
    if len(own) > _TRIALS_A_CELL:
        chosen = rng.choice(len(own), _TRIALS_A_CELL, replace=False)
        own, other = own[chosen], other[chosen]
    return _Cell(template, probe, (own, other), impostor)


def _impostor_pairs(template: Int64, probe: Int64, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """One comparison for each ordered pair of people, or as many such pairs as a cell may have."""
    first, second = np.unique(template), np.unique(probe)
    a, b = (part.ravel() for part in np.meshgrid(first, second, indexing="ij"))
    kept = np.flatnonzero(a != b)
    if len(kept) > _TRIALS_A_CELL:
        kept = rng.choice(kept, _TRIALS_A_CELL, replace=False)
    return _one_each(template, a[kept], rng), _one_each(probe, b[kept], rng)


def _one_each(owner: Int64, wanted: Int64, rng: np.random.Generator) -> Int64:
    """For each person wanted, the index of a random row of theirs."""
    order = np.argsort(owner, kind="stable")
    start = np.searchsorted(owner[order], wanted, side="left")
    stop = np.searchsorted(owner[order], wanted, side="right")
    return order[start + (rng.random(len(wanted)) * (stop - start)).astype(np.int64)]


def _singles(seen: Observations, chosen: np.ndarray) -> _Side:
    found = np.flatnonzero(chosen)
    conditions = tuple(seen.conditions[index] for index in found)
    return _Side(seen.embeddings[found], seen.person[found], seen.recording[found], conditions)


def _means(seen: Observations, copy: int) -> _Side:
    """Templates of people with two enrolment samples or more."""
    rows, people, conditions = [], [], []
    for person in np.unique(seen.person):
        own = np.flatnonzero((seen.person == person) & (seen.copy == copy) & seen.enrolled)
        if len(own) > 1:
            mean = seen.embeddings[own].mean(axis=0, dtype=np.float64)
            rows.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
            people.append(int(person))
            conditions.append(together([seen.conditions[index] for index in own]))
    matrix = np.array(rows, np.float32).reshape(len(rows), seen.embeddings.shape[1])
    return _Side(matrix, np.array(people, np.int64), np.full(len(rows), -1, np.int64), tuple(conditions))


def _originals(seen: Observations, calibration: Calibration | None = None) -> Trials:
    """Every original probe against everyone's mean template, or where nobody has probes, every pair of originals."""
    original = seen.copy == 0
    if (original & ~seen.enrolled).any():
        enrolled = _singles(seen, original & seen.enrolled)
        template, probe = _one_template_each(enrolled), _singles(seen, original & ~seen.enrolled)
        a, b = (part.ravel() for part in np.indices((len(template.rows), len(probe.rows))))
    else:
        template = probe = _singles(seen, original)
        a, b = np.triu_indices(len(template.rows), 1)
    if calibration is None:
        scores = (template.rows[a].astype(np.float64) * probe.rows[b]).sum(axis=1)
    else:
        first, second = [template.conditions[index] for index in a], [probe.conditions[index] for index in b]
        scores = calibration.llrs(template.rows[a], probe.rows[b], first, second)
    names = tuple(str(index) for index in range(int(seen.person.max()) + 1))
    return Trials(np.clip(scores, *_bounds(calibration)), template.person[a], probe.person[b], names)


def _bounds(calibration: Calibration | None) -> tuple[float, float]:
    return (-1.0, 1.0) if calibration is None else (-np.inf, np.inf)


def _one_template_each(enrolled: _Side) -> _Side:
    rows, conditions = [], []
    people = np.unique(enrolled.person)
    for person in people:
        own = np.flatnonzero(enrolled.person == person)
        mean = enrolled.rows[own].mean(axis=0, dtype=np.float64)
        rows.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
        conditions.append(together([enrolled.conditions[index] for index in own]))
    matrix = np.array(rows, np.float32).reshape(len(rows), enrolled.rows.shape[1])
    return _Side(matrix, people, np.full(len(people), -1, np.int64), tuple(conditions))


def _compensation(seen: Observations, directions: int) -> Compensation:
    original = np.flatnonzero(seen.copy == 0)
    where = {int(recording): int(index) for recording, index in zip(seen.recording[original], original, strict=True)}
    worse = np.array([index for index in np.flatnonzero(seen.copy) if int(seen.recording[index]) in where], np.int64)
    base = np.array([where[int(seen.recording[index])] for index in worse], np.int64)
    moved = seen.embeddings[worse] - seen.embeddings[base]
    people = _one_template_each(_singles(seen, seen.copy == 0))
    return compensation(people.rows, moved, directions=directions)


def _cohort(seen: Observations) -> Cohort:
    """Originals, as many of each person as there is room for."""
    original = np.flatnonzero(seen.copy == 0)
    people = len(np.unique(seen.person[original]))
    each = max(1, _COHORT_ROWS // people)
    order = np.concatenate([original[seen.person[original] == person][:each] for person in np.unique(seen.person)])
    order = order[:_COHORT_ROWS]
    conditions = [[seen.conditions[index].get(name, math.nan) for name in CONDITIONS] for index in order]
    return Cohort(seen.embeddings[order], seen.person[order], np.array(conditions, np.float32))


__all__ = ["COHORT_TOP", "LEAST_GENUINE", "LEAST_PEOPLE", "Fitted", "fit"]
