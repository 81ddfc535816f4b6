"""What a device is asked when a model is evaluated, and what it says: nothing that is not summed over people.

The device embeds the features it has stored of its own enrolment under the candidate and under the released model. Each
sample is scored against the template of its others, and the score raised to what a fresh probe would have against the
template of all (:func:`uvsdk.scoring.personal.genuine_scores`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from uvsdk.arrays import Float32, Float64, Int32
from uvsdk.errors import BundleError, WireError
from uvsdk.records.later import later
from uvsdk.release import grid
from uvsdk.scoring import Calibration, sketch
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.moments import Moments
from uvsdk.scoring.personal import genuine_scores

Impostors: TypeAlias = Literal["moments", "third_moments", "cohort"]

SUMMED: Final = ("moments", "third_moments")
"""Of these, those by which impostors' scores come from sums of moments alone."""
"""Where impostors come from: sums of moments, or a cohort that the operator provides."""

GROUPS: Final = 10
"""Devices are put into so many groups for good; sums are kept of each, so that intervals come from leaving one out."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """What the server seals to one device when a candidate is evaluated.

    Args:
        evaluation_id: counts evaluations of a deployment.
        candidate: model version under evaluation.
        released: model version that verifies now.
        impostors: where impostors' scores come from (:data:`Impostors`).
        evaluates: whether this device never trains: only such devices tell of genuine scores and of strangers.
        cohort: float32 (n, d), unit rows of the cohort under the candidate; (0, d) without.
        released_cohort: float32 (n, d), the same under the released model.
        centre: float32 (d,), what is subtracted from embeddings of the released model in the second report on it; (0,)
            where none is asked for. It is the mean that the model's last evaluation by sums told (:func:`centre_of`).
    """

    evaluation_id: int
    candidate: str
    released: str
    impostors: str
    evaluates: bool
    cohort: Float32 = field(repr=False)
    released_cohort: Float32 = field(repr=False)
    centre: Float32 = later(lambda: np.zeros(0, np.float32))  # noqa: RUF009 - gives a dataclass field


@dataclass(frozen=True, slots=True)
class MomentSums:
    """One person's share in the sums of SPEC 17, in whole multiples of 1 / UNIT (:data:`uvsdk.release.grid.UNIT`).

    Args:
        mean: int32 (d,), the mean of the unit embeddings; zeros, with ``people`` 0, from a device that trains.
        outer: int32 (d (d + 1) / 2,), the upper triangle of its outer product.
        within: int32 (d (d + 1) / 2,), that of the covariance within the person; zeros of one sample.
        template: int32 (d,), the template, of unit length.
        template_outer: int32 (d (d + 1) / 2,), the upper triangle of its outer product.
        people: 1 where ``mean`` and ``outer`` are this person's.
        within_people: 1 where ``within`` is.
        inverse_samples: int, 1 / k in multiples of 1 / UNIT, where ``people`` is 1.
        third: int32 (m,), what this person's single samples add to third moments, as a sketch
            (:func:`uvsdk.scoring.sketch.excess`); zeros from a device that trains. Only under ``third_moments``.
    """

    mean: Int32
    outer: Int32
    within: Int32
    template: Int32
    template_outer: Int32
    people: int
    within_people: int
    inverse_samples: int
    third: Int32 = later(lambda: np.zeros(0, np.int32))  # noqa: RUF009 - gives a dataclass field


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One device's word on one model version.

    Args:
        model_version: which.
        genuine: int32 (cells + 1, BINS): in row 0 genuine scores, SHARE in sum; below it the same of each cell of
            conditions. Zeros from a device that trains, whose samples the model was fitted to.
        people: int32 (STEPS, LEVELS), see :func:`uvsdk.release.grid.table`.
        impostor: int32 (BINS,): scores of strangers against this person's template; zeros under ``moments``.
        moments: no row under ``cohort``.
        trials: genuine trials in ``genuine``.
    """

    model_version: str
    genuine: Int32
    people: Int32
    impostor: Int32
    moments: tuple[MomentSums, ...]
    trials: int


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What a device answers to an :class:`EvaluationTask`, sealed. ``released`` is empty where it equals the candidate.

    ``accepts`` is what this device's own acceptance test said of the candidate (:mod:`uvsdk.release.acceptance`) where
    it could try: 1 yes, 0 no, -1 not tried. ``centred`` is the report on the released model once more, of embeddings
    without the task's centre; empty where the task has none.
    """

    evaluation_id: int
    candidate: ModelReport
    released: tuple[ModelReport, ...]
    samples: int
    accepts: int = -1
    centred: tuple[ModelReport, ...] = later(tuple)


def report_on(
    rows: Float32,
    *,
    model_version: str,
    impostors: Impostors,
    evaluates: bool,
    strangers: Float32,
    cells: int = 0,
    cells_of: Sequence[Sequence[int]] = (),
    template: Float64 | None = None,
    centring: Compensation | None = None,
) -> ModelReport:
    """One device's report on one model.

    Args:
        rows: float32 (k, d), unit embeddings of the person's enrolment samples under that model.
        model_version: of that model.
        impostors: where impostors come from.
        evaluates: whether this device never trains.
        strangers: float32 (n, d), unit: the cohort; unused where moments are summed.
        cells: how many cells of conditions the modality has (:func:`uvsdk.scoring.cells.names`).
        template: float64 (d,), unit, by which this person is verified; ``None`` for the normalised mean of ``rows``.
        cells_of: those of each sample (:func:`uvsdk.scoring.cells.cells_of`); empty where none was measured.
        centring: what takes a centre out of samples, templates and strangers before they are compared and summed;
            ``None`` for nothing.

    Raises:
        BundleError: the model gives embeddings that are not finite, as one does whose training diverged; nothing of
            them could be summed.
    """
    if not np.isfinite(rows).all():
        raise BundleError(
            f"the model {model_version[:12]} gives embeddings that are not finite, so there is nothing to report of it"
        )
    scores = genuine_scores(rows, centring) if evaluates else np.empty(0)
    genuine = np.zeros((cells + 1, grid.BINS), np.int32)
    genuine[0] = grid.shares(scores)
    for cell in range(cells if len(scores) and cells_of else 0):
        genuine[cell + 1] = grid.shares(scores[[cell in own for own in cells_of]])
    template = _template(rows) if template is None else template
    if centring is not None:
        # As they will be compared: a template is the mean of samples as they are, and centred when it is.
        template, strangers = centring.apply(template.astype(np.float32)), centring.apply(strangers).astype(np.float32)
        rows = centring.apply(rows).astype(np.float32)
    impostor = np.zeros(grid.BINS, np.int32)
    if impostors not in SUMMED and len(strangers):
        impostor += grid.histogram(np.clip(strangers.astype(np.float64) @ template, -1.0, 1.0)).astype(np.int32)
    third = impostors == "third_moments"
    sums = (moment_sums(rows, template, evaluates=evaluates, third=third),) if impostors in SUMMED else ()
    people = grid.table(scores).astype(np.int32)
    return ModelReport(model_version, genuine, people, impostor, sums, min(len(scores), grid.SHARE))


def moment_sums(rows: Float32, template: Float64, *, evaluates: bool, third: bool) -> MomentSums:
    """The person's share in the sums, with third moments or without; a device that trains adds its template alone."""
    told = sketch.excess(rows) if evaluates else np.zeros(sketch.size(rows.shape[1]))
    own = Moments.of(rows) if evaluates else Moments.none(rows.shape[1])
    triangle = grid.packed_symmetric
    return MomentSums(
        mean=_int32(own.mean),
        outer=_int32(triangle(own.outer)),
        within=_int32(triangle(own.within)),
        template=_int32(template),
        template_outer=_int32(triangle(np.outer(template, template))),
        people=own.people,
        within_people=own.within_people,
        inverse_samples=int(grid.quantised(np.array([own.inverse_samples]))[0]),
        third=_int32(told if third else np.zeros(0)),
    )


def centre_of(calibration: Calibration | None) -> Float32 | None:
    """The mean of people's means, float32 (d,), that a calibration from sums over people tells.

    ``None`` where it tells none: of few people (:data:`uvsdk.release.measurement.LEAST_PLACED`), from other trials, or
    on the scale of a likelihood ratio, whose people are placed where that compares them.
    """
    if calibration is None or calibration.tail is None or calibration.ratio is not None:
        return None
    if calibration.centre is not None:
        return calibration.centre
    return None if calibration.domain is None else calibration.domain.mean


def check(report: EvaluationReport, task: EvaluationTask, *, dimension: int, cells: int) -> None:
    """Raise :class:`WireError` for a report that answers something else, or that counts more than one person."""
    both = (report.candidate, *report.released)
    wanted = [task.candidate] if task.candidate == task.released else [task.candidate, task.released]
    if report.evaluation_id != task.evaluation_id or [item.model_version for item in both] != wanted:
        raise WireError("the report is on other models than the task's")
    if [item.model_version for item in report.centred] != [task.released] * bool(len(task.centre)):
        raise WireError("the report has centred scores that were not asked for, or lacks them")
    for item in (*both, *report.centred):
        _check_model(item, task, dimension=dimension, cells=cells)


def _check_model(item: ModelReport, task: EvaluationTask, *, dimension: int, cells: int) -> None:
    shapes = (item.genuine.shape, item.people.shape, item.impostor.shape)
    if shapes != ((cells + 1, grid.BINS), (grid.STEPS, grid.LEVELS), (grid.BINS,)):
        raise WireError(f"the histograms of the report have shapes {shapes}")
    counts = (item.genuine, item.people, item.impostor)
    if any(int(values.min()) < 0 for values in counts) or not 0 <= item.trials <= grid.SHARE:
        raise WireError("the report counts less than nothing, or more trials than fit")
    told = task.evaluates and item.trials > 0
    if not task.evaluates and item.trials:
        raise WireError("a device that trains tells nothing of genuine scores")
    sums = [int(row.sum(dtype=np.int64)) for row in item.genuine]
    if sums[0] != (grid.SHARE if told else 0) or any(value not in (0, grid.SHARE) for value in sums[1:]):
        raise WireError("every person adds the same to the genuine scores")
    if not (item.people.sum(axis=1) == int(told)).all():
        raise WireError("every person adds one to the table of people")
    if int(item.impostor.sum(dtype=np.int64)) > (len(task.cohort) if task.impostors == "cohort" else 0):
        raise WireError("the report has more impostor trials than there are strangers")
    if len(item.moments) != int(task.impostors in SUMMED):
        raise WireError("the report has moments that were not asked for, or lacks them")
    for moments in item.moments:
        _check_moments(moments, task, dimension)


def _check_moments(sums: MomentSums, task: EvaluationTask, dimension: int) -> None:
    triangle = dimension * (dimension + 1) // 2
    vectors, matrices = (sums.mean, sums.template), (sums.outer, sums.within, sums.template_outer)
    if any(item.shape != (dimension,) for item in vectors) or any(item.shape != (triangle,) for item in matrices):
        raise WireError("the moments of the report are of another dimension")
    people = int(task.evaluates)
    if sums.people != people or not 0 <= sums.within_people <= people or not 0 <= sums.inverse_samples <= grid.UNIT:
        raise WireError("every person who evaluates counts once in the moments")
    longest = grid.UNIT * 1.01
    for vector, matrix in ((sums.mean, sums.outer), (sums.template, sums.template_outer)):
        if float(np.linalg.norm(vector.astype(np.float64))) > longest:
            raise WireError("a mean in the report is longer than an embedding")
        square = grid.restored(vector.astype(np.int64))
        apart = grid.restored(matrix.astype(np.int64)) - grid.packed_symmetric(np.outer(square, square))
        if float(np.abs(apart).max()) > 4.0 / grid.UNIT:
            raise WireError("an outer product in the report is not of its mean")
    within = grid.symmetric(grid.restored(sums.within.astype(np.int64)), dimension)
    deviations = np.sqrt(np.maximum(within.diagonal(), 0.0) + 1.0 / grid.UNIT)
    beyond = np.abs(within) > np.outer(deviations, deviations) + 1.0 / grid.UNIT  # Cauchy-Schwarz
    if beyond.any() or float(within.trace()) > 2.02:
        raise WireError("the covariance in the report is not of unit embeddings")
    if sums.third.shape != (sketch.size(dimension) if task.impostors == "third_moments" else 0,):
        raise WireError("the third moments of the report are of another dimension, or were not asked for")
    if float(np.linalg.norm(sums.third.astype(np.float64))) > (MOST_EXCESS * grid.UNIT if sums.within_people else 0.0):
        raise WireError("the third moments of the report are not of unit embeddings")


MOST_EXCESS: Final = 8.0
"""Longest sketch of a person's third moments: these are at most 4 long, of two samples; hashing changes that somewhat.
"""


def _template(rows: Float32) -> Float64:
    mean = rows.mean(axis=0, dtype=np.float64)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-12), np.float64)


def _int32(values: Float64) -> Int32:
    return grid.quantised(values).astype(np.int32)
