"""From observations to a calibration: which trials are made, and what is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.errors import EnrolmentError
from uvsdk.evaluation.observations import Observations
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import fitting
from uvsdk.scoring.calibration import Calibration, evenly
from uvsdk.scoring.cohort import Cohort, Normalisation
from uvsdk.scoring.compensation import DIRECTIONS, Compensation, compensation
from uvsdk.scoring.conditions import Conditions, together
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings, features
from uvsdk.scoring.moments import Moments

LEAST_PEOPLE: Final = 10
"""People a likelihood ratio is fitted to at least; of fewer only impostor scores are kept."""

LEAST_GENUINE: Final = 30
"""Genuine comparisons of original samples it is fitted to at least."""

COHORT_TOP: Final = 300
"""Cohort scores that AS-norm looks at most."""

COHORT_SHARE: Final = 1 / 3
"""Share of a smaller cohort that it looks at."""

_TRIALS_A_CELL = 4_000
_KEPT_RATIOS = 20_000
_COHORT_ROWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A calibration with what it was measured on.

    Args:
        calibration: for exactly the model that made the observations.
        originals: every comparison of original samples, scored on the calibration's scale; of a likelihood ratio
            those within each half of the people, whom the other half's averages scored.
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
    """Trials of one kind of template with one kind of probe: indices of both, int64 (n,) each."""

    template: _Side
    probe: _Side
    pairs: tuple[Int64, Int64]

    @property
    def is_genuine(self) -> Bool:
        """bool (n,): both are of one person."""
        own: Bool = self.template.person[self.pairs[0]] == self.probe.person[self.pairs[1]]
        return own

    def weights(self) -> Float64:
        """float64 (n,): 1 is shared by the impostor trials, and by the genuine ones so that people weigh the same."""
        own = self.is_genuine
        people = self.template.person[self.pairs[0]]
        weights = np.full(len(own), 1.0 / max(int((~own).sum()), 1))
        if own.any():
            counts = np.bincount(people[own])[people[own]]
            weights[own] = 1.0 / (counts * len(np.unique(people[own])))
        return weights


def fit(
    seen: Observations,
    *,
    model_version: str,
    source: str,
    as_norm: bool = False,
    keep_cohort: bool = False,
    prior: float = 0.5,
    directions: int = DIRECTIONS,
    seed: int = 0,
    now: float = 0.0,
) -> Fitted:
    """Measure impostor scores and, where there are people and samples enough, fit a likelihood ratio.

    Every kind of template meets every kind of probe that life has: a good template and a probe of each copy, and both
    of the same copy; templates of one sample and, where people have several for enrolment, means of those. In each
    such cell every pair of people counts the same. A likelihood ratio is fitted to trials within either half of the
    people, compensated by the averages of the other half.

    Args:
        seen: of :func:`uvsdk.evaluation.observations.observe`.
        model_version: of the model that made them.
        source: in words, whose samples they are.
        as_norm: whether scores are normalised against the cohort.
        keep_cohort: whether the cohort, people's embeddings, goes into the calibration; AS-norm needs it.
        prior: of a genuine trial, where the ratio should be best.
        directions: that the compensation takes out at most, see :attr:`uvsdk.modality.Modality.directions`.
        seed: of the draw of trials.
        now: seconds since 1970, which the calibration is dated by; 0 leaves it undated.

    Raises:
        EnrolmentError: no impostor trial can be made.
        ValueError: AS-norm without the cohort.
    """
    if as_norm and not keep_cohort:
        raise ValueError("AS-norm judges scores against the cohort, which must then be kept")
    rng = np.random.default_rng(seed)
    cell = _originals(seen)
    raw = _trials(cell, (cell.template.rows.astype(np.float64), cell.probe.rows.astype(np.float64)))
    if raw.is_genuine.all():
        raise EnrolmentError("no impostor trial can be made; a calibration needs two people with a usable sample")
    cohort, domain = _cohort(seen), Domain.of(_moments(seen))

    def calibrate(ratio: LikelihoodRatio | None) -> Calibration:
        return Calibration.from_scores(
            raw.impostor,
            model_version=model_version,
            source=source,
            ratio=ratio,
            cohort=cohort if keep_cohort else None,
            people=seen.people,
            measured_unix_s=now,
            domain=domain,
        )

    genuine = int(raw.is_genuine.sum())
    if seen.people < LEAST_PEOPLE or genuine < LEAST_GENUINE:
        return Fitted(calibrate(None), raw, _too_little(seen.people, genuine))
    halves = _halves(seen, rng)
    rank = min(directions, min(len(half) for half in halves) // 3)
    # Compensation and cohort are of the other half: people whom the average holds look more different than strangers
    # will, by 1 / (people - 1) in every score, and a threshold from their scores would let too many strangers in.
    parts = [
        _Part(seen.of(own), _scorer(seen.of(other), rank, as_norm=as_norm)) for own, other in (halves, halves[::-1])
    ]
    ratio, originals = _ratio(parts, _scorer(seen, rank, as_norm=as_norm), prior, rng)
    return Fitted(calibrate(ratio), originals, "")


def _too_little(people: int, genuine: int) -> str:
    return (
        f"{people} people with {genuine} genuine comparisons; a likelihood ratio needs {LEAST_PEOPLE} people and "
        f"{LEAST_GENUINE} comparisons of two samples of one person: add people, or recordings of each"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Scorer:
    """Scores the trials of a cell, genuine and impostor alike."""

    removed: Compensation
    normalisation: Normalisation | None

    def __call__(self, cell: _Cell, surroundings: Surroundings) -> tuple[Float64, Float64]:
        """Scores, float64 (n,), and features of the conditions, float64 (n, 1 + 3 k)."""
        a, b = cell.pairs
        templates, probes = self.removed.apply(cell.template.rows), self.removed.apply(cell.probe.rows)
        # Row by row, since all pairs of a large set would not fit into memory side by side.
        scores = np.einsum("nd,nd->n", templates[a], probes[b])
        if self.normalisation is not None:
            mean, deviation = self.normalisation.side(templates)
            probe_mean, probe_deviation = self.normalisation.side(probes)
            scores = ((scores - mean[a]) / deviation[a] + (scores - probe_mean[b]) / probe_deviation[b]) / 2
        first, second = surroundings.place(cell.template.conditions), surroundings.place(cell.probe.conditions)
        return scores, features(first[a], second[b])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Half of the people, and what scores them: made of the other half, so that nobody is held against themselves."""

    seen: Observations
    scorer: _Scorer


def _halves(seen: Observations, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """People in two halves at random, those with many recordings evenly in both."""
    people = np.unique(seen.person)
    counts = np.array([len(np.unique(seen.recording[seen.person == person])) for person in people])
    order = people[np.lexsort((rng.random(len(people)), -counts))]
    return np.sort(order[::2]), np.sort(order[1::2])


def _scorer(seen: Observations, rank: int, *, as_norm: bool) -> _Scorer:
    removed = _compensation(seen, rank)
    if not as_norm:
        return _Scorer(removed, None)
    cohort = _cohort(seen)
    top = max(2, min(COHORT_TOP, round(COHORT_SHARE * len(cohort.embeddings))))
    return _Scorer(removed, Normalisation.of(cohort, removed, top=top))


def _ratio(
    parts: list[_Part], final: _Scorer, prior: float, rng: np.random.Generator
) -> tuple[LikelihoodRatio, Trials]:
    """The ratio of every cell's trials within the halves, and the originals' trials under it."""
    cells = [(part.scorer, cell) for part in parts for cell in _cells(part.seen, rng)]
    everywhere = {id(side): side.conditions for _, cell in cells for side in (cell.template, cell.probe)}
    surroundings = Surroundings.of([item for of_side in everywhere.values() for item in of_side], parts[0].seen.kinds)
    scored = [scorer(cell, surroundings) for scorer, cell in cells]
    scores, rows = (np.concatenate([part[index] for part in scored]) for index in range(2))
    own = np.concatenate([cell.is_genuine for _, cell in cells])
    weights = np.concatenate([cell.weights() for _, cell in cells])
    location, log_scale = fitting.fit_impostors(rows[~own], scores[~own], weights=weights[~own])
    placed, widths = rows[~own] @ location, rows[~own] @ log_scale
    originals = [_originals(part.seen) for part in parts]
    genuine = sum(int(cell.is_genuine.sum()) for cell in originals)
    impostor = sum(len(cell.is_genuine) for cell in originals) - genuine
    line = LikelihoodRatio(
        compensation=final.removed,
        top=0 if final.normalisation is None else final.normalisation.top,
        surroundings=surroundings,
        location=location,
        log_scale=log_scale,
        limits=np.array([[placed.min(), placed.max()], [widths.min(), widths.max()]]),
        slope=1.0,
        offset=0.0,
        # What so many trials can show at most: none of them contradicts a ratio as far out as one in their number.
        lowest=-math.log(genuine),
        highest=math.log(impostor),
        impostor=np.zeros(1, np.float32),
        trials=impostor,
    )
    z = line.standardise(scores, rows)
    slope, offset = fitting.fit_line(
        z[own], z[~own], prior=prior, genuine_weights=weights[own], impostor_weights=weights[~own]
    )
    fitted = replace(line, slope=slope, offset=offset)
    fitted = replace(fitted, impostor=evenly(fitted.ratios(scores[~own], rows[~own]), _KEPT_RATIOS))
    shown = [fitted.ratios(*part.scorer(cell, surroundings)) for part, cell in zip(parts, originals, strict=True)]
    people = max(int(part.seen.person.max()) for part in parts) + 1
    return fitted, Trials(
        np.concatenate(shown),
        np.concatenate([cell.template.person[cell.pairs[0]] for cell in originals]),
        np.concatenate([cell.probe.person[cell.pairs[1]] for cell in originals]),
        tuple(str(index) for index in range(people)),
    )


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
    pairs = np.concatenate([own, impostor[0]]), np.concatenate([other, impostor[1]])
    return _Cell(template, probe, pairs)


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


def _originals(seen: Observations) -> _Cell:
    """Every original probe against everyone's mean template, or where nobody has probes, every pair of originals."""
    original = seen.copy == 0
    if (original & ~seen.enrolled).any():
        template = _one_template_each(_singles(seen, original & seen.enrolled))
        probe = _singles(seen, original & ~seen.enrolled)
        a, b = (part.ravel() for part in np.indices((len(template.rows), len(probe.rows))))
    else:
        template = probe = _singles(seen, original)
        a, b = np.triu_indices(len(template.rows), 1)
    return _Cell(template, probe, (a, b))


def _trials(cell: _Cell, rows: tuple[Float64, Float64]) -> Trials:
    """Cosines of a cell's pairs."""
    a, b = cell.pairs
    first, second = cell.template.person[a], cell.probe.person[b]
    names = tuple(str(index) for index in range(int(max(first.max(initial=0), second.max(initial=0))) + 1))
    return Trials(np.clip(np.einsum("nd,nd->n", rows[0][a], rows[1][b]), -1.0, 1.0), first, second, names)


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


def _moments(seen: Observations) -> Moments:
    """Sums over people, of their original samples alone: worse copies move everybody the same way."""
    sums = Moments.none(seen.embeddings.shape[1])
    original = seen.copy == 0
    for person in np.unique(seen.person[original]):
        sums += Moments.of(seen.embeddings[original & (seen.person == person)])
    return sums


def _cohort(seen: Observations) -> Cohort:
    """Originals, as many of each person as there is room for."""
    original = np.flatnonzero(seen.copy == 0)
    people = len(np.unique(seen.person[original]))
    each = max(1, _COHORT_ROWS // people)
    order = np.concatenate([original[seen.person[original] == person][:each] for person in np.unique(seen.person)])
    order = order[:_COHORT_ROWS]
    conditions = [[seen.conditions[index].get(kind.name, math.nan) for kind in seen.kinds] for index in order]
    columns = np.array(conditions, np.float32).reshape(len(order), len(seen.kinds))
    return Cohort(seen.embeddings[order], seen.person[order], columns)
