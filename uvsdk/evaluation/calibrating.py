"""From observations to a calibration: which trials are made, and what is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.errors import EnrolmentError
from uvsdk.evaluation.cells import Cell, cells, of_originals, one_template_each, singles
from uvsdk.evaluation.observations import Observations
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import fitting
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.cohort import Cohort, Normalisation
from uvsdk.scoring.compensation import DIRECTIONS, Compensation, compensation
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings, features
from uvsdk.scoring.ranked import keep

LEAST_PEOPLE: Final = 10
"""People a likelihood ratio is fitted to at least; of fewer only impostor scores are kept."""

LEAST_GENUINE: Final = 30
"""Genuine comparisons of original samples it is fitted to at least."""

COHORT_TOP: Final = 300
"""Cohort scores that AS-norm looks at most."""

COHORT_SHARE: Final = 1 / 3
"""Share of a smaller cohort that it looks at."""

BLOCKS: Final = 4
"""People are divided into so many blocks; a trial is scored by averages over the blocks that neither side is in."""

_KEPT_RATIOS = 50_000
_PAIRS_AT_ONCE = 1 << 16
_COHORT_ROWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A calibration with what it was measured on.

    Args:
        calibration: for exactly the model that made the observations.
        originals: every comparison of original samples, scored on the calibration's scale; on a likelihood ratio by
            averages over people who are on neither side.
        note: why there is no likelihood ratio; empty where there is one.
    """

    calibration: Calibration
    originals: Trials
    note: str


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
    among: Collection[int] | None = None,
) -> Fitted:
    """Measure impostor scores and, where there are people and samples enough, fit a likelihood ratio.

    Every kind of template meets every kind of probe that life has: a good template and a probe of each copy, and both
    of the same copy; templates of one sample and, where people have several for enrolment, means of those. In each
    such cell every pair of people counts the same. A likelihood ratio is fitted to these trials, each compensated by
    averages over people who are on neither side of it.

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
        among: people, by index, between whom impostor scores are kept: thresholds are then of trials within this group,
            while whatever is learnt is learnt of everybody; ``None`` for all.

    Raises:
        EnrolmentError: no impostor trial can be made.
        ValueError: AS-norm without the cohort.
    """
    if as_norm and not keep_cohort:
        raise ValueError("AS-norm judges scores against the cohort, which must then be kept")
    rng = np.random.default_rng(seed)
    cell = of_originals(seen)
    raw = _trials(cell)
    if not _impostors(cell, among).any():
        raise EnrolmentError("no impostor trial can be made; a calibration needs two people with a usable sample")
    cohort = _cohort(seen)

    kept = seen.people if among is None else len(np.intersect1d(seen.person, list(among)))

    def calibrate(ratio: LikelihoodRatio | None) -> Calibration:
        return Calibration.from_scores(
            raw.scores[_impostors(cell, among)],
            model_version=model_version,
            source=source,
            ratio=ratio,
            cohort=cohort if keep_cohort else None,
            people=kept,
            measured_unix_s=now,
            domain=_domain(seen, ratio),
        )

    genuine = int(raw.is_genuine.sum())
    if seen.people < LEAST_PEOPLE or genuine < LEAST_GENUINE:
        return Fitted(calibrate(None), raw, _too_little(seen.people, genuine))
    crossed, final = _scorers(seen, directions, rng, as_norm=as_norm)
    ratio, shown = _ratio(seen, cell, crossed, final, prior, rng, among)
    return Fitted(calibrate(ratio), replace(raw, scores=shown), "")


def _too_little(people: int, genuine: int) -> str:
    return (
        f"{people} people with {genuine} genuine comparisons; a likelihood ratio needs {LEAST_PEOPLE} people and "
        f"{LEAST_GENUINE} comparisons of two samples of one person: add people, or recordings of each"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Scorer:
    """Scores pairs of embeddings, genuine and impostor alike."""

    removed: Compensation
    normalisation: Normalisation | None

    def __call__(self, templates: Float32, probes: Float32, pairs: tuple[Int64, Int64]) -> Float64:
        """float64 (n,) of ``pairs`` of rows."""
        a, b = pairs
        first, second = self.removed.apply(templates), self.removed.apply(probes)
        scores = _cosines(first, second, pairs)
        if self.normalisation is not None:
            mean, deviation = self.normalisation.side(first)
            probe_mean, probe_deviation = self.normalisation.side(second)
            scores = ((scores - mean[a]) / deviation[a] + (scores - probe_mean[b]) / probe_deviation[b]) / 2
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class _Crossed:
    """Scores every trial with what was learnt of people who are on neither side of it.

    Args:
        blocks: int64, the block of each person, by index.
        scorers: pair of blocks, the lower first -> made of everybody else.
    """

    blocks: Int64
    scorers: Mapping[tuple[int, int], _Scorer]

    def __call__(self, cell: Cell) -> Float64:
        """float64 (n,), the score of each pair of the cell."""
        a, b = cell.pairs
        first, second = self.blocks[cell.template.person][a], self.blocks[cell.probe.person][b]
        low, high = np.minimum(first, second), np.maximum(first, second)
        scores = np.zeros(len(a))
        for (one, other), scorer in self.scorers.items():
            chosen = np.flatnonzero((low == one) & (high == other))
            if len(chosen):
                templates, left = np.unique(a[chosen], return_inverse=True)
                probes, right = np.unique(b[chosen], return_inverse=True)
                rows = cell.template.rows[templates], cell.probe.rows[probes]
                scores[chosen] = scorer(*rows, (left.astype(np.int64), right.astype(np.int64)))
        return scores


def _scorers(
    seen: Observations, directions: int, rng: np.random.Generator, *, as_norm: bool
) -> tuple[_Crossed, _Scorer]:
    """What scores these people's own trials, and what will score everybody else's.

    Compensation and cohort of the first are of people on neither side of a trial: those whom the average holds look
    more different than strangers will, by 1 / (people - 1) in every score, and a threshold from their scores would let
    too many strangers in.
    """
    people, blocks = np.unique(seen.person), _blocks(seen, rng)
    pairs = [(one, other) for one in range(BLOCKS) for other in range(one, BLOCKS)]
    others = {pair: people[~np.isin(blocks[people], pair)] for pair in pairs}
    rank = min(directions, min(map(len, others.values())) // 3)
    scorers = {pair: _scorer(seen.of(left), rank, as_norm=as_norm) for pair, left in others.items()}
    return _Crossed(blocks, scorers), _scorer(seen, rank, as_norm=as_norm)


def _blocks(seen: Observations, rng: np.random.Generator) -> Int64:
    """The block of each person, at random, those with many recordings evenly in all."""
    people = np.unique(seen.person)
    counts = np.array([len(np.unique(seen.recording[seen.person == person])) for person in people])
    order = people[np.lexsort((rng.random(len(people)), -counts))]
    blocks = np.zeros(int(people[-1]) + 1, np.int64)
    blocks[order] = np.arange(len(order)) % BLOCKS
    return blocks


def _scorer(seen: Observations, rank: int, *, as_norm: bool) -> _Scorer:
    removed = _compensation(seen, rank)
    if not as_norm:
        return _Scorer(removed, None)
    cohort = _cohort(seen)
    top = max(2, min(COHORT_TOP, round(COHORT_SHARE * len(cohort.embeddings))))
    return _Scorer(removed, Normalisation.of(cohort, removed, top=top))


def _ratio(
    seen: Observations,
    originals: Cell,
    crossed: _Crossed,
    final: _Scorer,
    prior: float,
    rng: np.random.Generator,
    among: Collection[int] | None,
) -> tuple[LikelihoodRatio, Float64]:
    """The ratio of every cell's trials, and that of each of the originals' trials."""
    made = list(cells(seen, rng))
    everywhere = {id(side): side.conditions for cell in made for side in (cell.template, cell.probe)}
    surroundings = Surroundings.of([item for of_side in everywhere.values() for item in of_side], seen.kinds)
    scores = np.concatenate([crossed(cell) for cell in made])
    rows = np.concatenate([_features(cell, surroundings) for cell in made])
    own = np.concatenate([cell.is_genuine for cell in made])
    weights = np.concatenate([cell.weights() for cell in made])
    location, log_scale = fitting.fit_impostors(rows[~own], scores[~own], weights=weights[~own])
    placed, widths = rows[~own] @ location, rows[~own] @ log_scale
    genuine, impostor = int(originals.is_genuine.sum()), int(_impostors(originals, among).sum())
    counted = np.concatenate([_impostors(cell, among) for cell in made])
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
    kept = keep(fitted.ratios(scores[counted], rows[counted]), _KEPT_RATIOS)
    fitted = replace(fitted, impostor=kept.values, above=kept.above if kept.trials > len(kept.values) else None)
    return fitted, fitted.ratios(crossed(originals), _features(originals, surroundings))


def _impostors(cell: Cell, among: Collection[int] | None) -> Bool:
    """bool (n,): two different people, both of a group where one is named."""
    if among is None:
        return ~cell.is_genuine
    a, b = cell.pairs
    group = np.array(sorted(among), np.int64)
    inside: Bool = np.isin(cell.template.person, group)[a] & np.isin(cell.probe.person, group)[b]
    return inside & ~cell.is_genuine


def _features(cell: Cell, surroundings: Surroundings) -> Float64:
    """Of the conditions of both sides, float64 (n, 1 + 3 k)."""
    a, b = cell.pairs
    return features(surroundings.place(cell.template.conditions)[a], surroundings.place(cell.probe.conditions)[b])


def _cosines(templates: Float64, probes: Float64, pairs: tuple[Int64, Int64]) -> Float64:
    """float64 (n,), of ``pairs`` of rows; all pairs of a large set would not fit into memory side by side."""
    a, b = pairs
    scores = np.empty(len(a))
    for start in range(0, len(a), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        scores[part] = np.einsum("nd,nd->n", templates[a[part]], probes[b[part]])
    return scores


def _trials(cell: Cell) -> Trials:
    """Cosines of a cell's pairs."""
    a, b = cell.pairs
    first, second = cell.template.person[a], cell.probe.person[b]
    names = tuple(str(index) for index in range(int(max(first.max(initial=0), second.max(initial=0))) + 1))
    scores = _cosines(cell.template.rows.astype(np.float64), cell.probe.rows.astype(np.float64), cell.pairs)
    return Trials(np.clip(scores, -1.0, 1.0), first, second, names)


def _compensation(seen: Observations, directions: int) -> Compensation:
    original = np.flatnonzero(seen.copy == 0)
    where = {int(recording): int(index) for recording, index in zip(seen.recording[original], original, strict=True)}
    worse = np.array([index for index in np.flatnonzero(seen.copy) if int(seen.recording[index]) in where], np.int64)
    base = np.array([where[int(seen.recording[index])] for index in worse], np.int64)
    moved = seen.embeddings[worse] - seen.embeddings[base]
    people = one_template_each(singles(seen, seen.copy == 0))
    return compensation(people.rows, moved, directions=directions)


def _domain(seen: Observations, ratio: LikelihoodRatio | None) -> Domain | None:
    """Of people's original samples as they are compared: worse copies move everybody the same way."""
    original = seen.copy == 0
    rows = seen.embeddings[original]
    compared = rows if ratio is None else ratio.compensation.apply(rows)
    return Domain.of_people(compared, seen.person[original])


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
