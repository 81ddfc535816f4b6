"""What one evaluation says in the end: is the candidate released, is what verifies calibrated anew, and why not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from uvsdk.errors import ThresholdError
from uvsdk.release import subtraction
from uvsdk.release.backtracking import Compared
from uvsdk.release.gate import LEAST_PEOPLE, Verdict, judge, paired_error
from uvsdk.release.measurement import MOST_REJECTED, Measured, measure
from uvsdk.release.record import Evaluation
from uvsdk.release.subtraction import Subtraction
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration

MOST_REFUSALS: Final = 0.2
"""Of the devices that could try a candidate, at most this share may say that they would not switch to it."""

STALE_S: Final = 90 * 86_400.0
"""Age at which a calibration of this deployment's own people is made anew."""

_MORE_PEOPLE: Final = 1.5
"""By how many times more people a newer calibration must be of, to take the place of one that is not stale."""

_CONFIDENCE: Final = 1.96


@dataclass(frozen=True, slots=True)
class Finding:
    """One model's part of an evaluation: what would be released with it, and the numbers that go into the record.

    ``cells`` is the false non-match rate of each cell of conditions (:func:`uvsdk.scoring.cells.names`) with how many
    people told of it; the rate is NaN where nobody did.
    """

    calibration: Calibration = field(repr=False)
    evaluation: Evaluation
    cells: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What an evaluation found.

    Args:
        passes: whether the candidate may be released by itself; never where it is the released model.
        reasons: why not, in words; empty where it passes.
        candidate: what was measured of it, ``None`` where too few told.
        released: the same of the released model.
        change: false non-match rate of the candidate less the released model's; NaN where it is not known.
        interval: 95 % interval of ``change``.
        collapse: mean cosine of different rows of the class matrix; NaN where there is none.
        compared: the candidate beside the released model, ``None`` where they are one, or where people did not suffice.
        subtraction: the released model with its domain's mean and without; ``None`` where it was not asked for, or
            where people did not suffice.
    """

    passes: bool
    reasons: tuple[str, ...]
    candidate: Finding | None
    released: Finding | None
    change: float = math.nan
    interval: tuple[float, float] = (-math.inf, math.inf)
    collapse: float = math.nan
    compared: Compared | None = None
    subtraction: Subtraction | None = None


def conclude(
    candidate: ModelSums,
    released: ModelSums,
    *,
    centred: ModelSums | None = None,
    verifies_centred: bool = False,
    evaluation_id: int,
    collapse: float,
    source: str,
    now: float,
    refusals: int = 0,
    tried: int = 0,
) -> Conclusion:
    """Measure both models by the same people at one rate, and judge.

    Args:
        candidate: sums of the model under evaluation.
        released: sums of the one that verifies now; the same version where only that is evaluated.
        centred: of the released model once more, without a centre (:attr:`uvsdk.release.sums.ModelSums.centre`), by
            which it is calibrated where that is better (:mod:`uvsdk.release.subtraction`); ``None`` where it was not
            asked for.
        verifies_centred: whether what verifies now has a centre; then the candidate is judged beside that.
        evaluation_id: for the record.
        collapse: mean cosine of different rows of the candidate's class matrix; NaN where there is none.
        source: in words, whose the sums are; the calibrations say so.
        now: seconds since 1970.
        refusals: devices whose own acceptance test the candidate does not pass; of the released model alone they say
            nothing, for what they tried is the calibration that is to be replaced.
        tried: devices that could try.
    """
    alone = candidate.model_version == released.model_version
    reasons = list[str]()
    new = _tried(candidate, None, reasons, source=source, now=now, name="the candidate")
    old = new if alone else _tried(released, None, reasons, source=source, now=now, name="the released model")
    without = None if centred is None else _tried(centred, None, [], source=source, now=now, name="")
    comparison = None
    if old is not None and without is not None and centred is not None:
        rate = max(old.fmr, without.fmr)
        sides = _at(rate, old, released, source=source, now=now), _at(rate, without, centred, source=source, now=now)
        comparison = subtraction.compare(*sides)
    verdict, compared = Verdict(False, (), math.nan, (-math.inf, math.inf)), None
    if new is not None and old is not None and not alone:
        present, told = old, released
        if verifies_centred and without is not None and centred is not None:
            present, told = without, centred
        # One rate for both, so that neither gains by a laxer one.
        rate = max(new.fmr, present.fmr)
        new, present = (
            _at(rate, new, candidate, source=source, now=now),
            _at(rate, present, told, source=source, now=now),
        )
        # What training goes by is a comparison of models, so of both as they are.
        old = _at(rate, old, released, source=source, now=now)
        compared = _compared(new, old)
        verdict = judge(new, present, collapse=collapse)
        reasons += verdict.reasons
    if comparison is not None and comparison.chosen and without is not None and centred is not None:
        old, released = without, centred
        if alone:
            new, candidate = without, centred
    of_candidate = _finding(new, candidate, evaluation_id, now)
    if of_candidate is not None and unusable(of_candidate):
        reasons.append(unusable(of_candidate))
    if not alone and refusals > MOST_REFUSALS * tried:
        reasons.append(f"{refusals} of {tried} devices would not switch to it: their own samples, or strangers, fail")
    passes = not alone and new is not None and old is not None and not reasons
    return Conclusion(
        passes,
        tuple(reasons),
        candidate=of_candidate,
        released=_finding(old, released, evaluation_id, now),
        change=verdict.change,
        interval=verdict.interval,
        collapse=collapse,
        compared=compared,
        subtraction=comparison,
    )


def _compared(new: Measured, old: Measured) -> Compared | None:
    """What training goes by; ``None`` where too few told of genuine trials."""
    if min(new.people, old.people) < LEAST_PEOPLE or not math.isfinite(new.around + old.around):
        return None
    error = paired_error(new.around_replicates, old.around_replicates)
    return Compared(new.model_version, new.around, old.model_version, old.around, error)


def unusable(finding: Finding) -> str:
    """Why a calibration is given to no model, in words; empty where it may be."""
    found = finding.evaluation
    if not -0.5 < found.threshold < 1.0:
        return f"at a false match rate of {found.fmr:g} its threshold is {found.threshold:.2f}, which nobody reaches"
    if found.trials and found.fnmr > MOST_REJECTED:
        return f"at a false match rate of {found.fmr:g} it rejects {found.fnmr:.0%} of genuine trials"
    return ""


def _finding(measured: Measured | None, sums: ModelSums, evaluation_id: int, now: float) -> Finding | None:
    if measured is None:
        return None
    cells = tuple(zip(measured.cells.tolist(), measured.cell_people.tolist(), strict=True))
    return Finding(measured.calibration, recorded(measured, sums, evaluation_id, now=now), cells)


def _at(rate: float, found: Measured, sums: ModelSums, *, source: str, now: float) -> Measured:
    """The same model at ``rate``; what would be released with it stays."""
    if found.fmr == rate:
        return found
    return replace(measure(sums, fmr=rate, source=source, now=now), calibration=found.calibration)


def _tried(
    sums: ModelSums, fmr: float | None, reasons: list[str], *, source: str, now: float, name: str
) -> Measured | None:
    try:
        return measure(sums, fmr=fmr, source=source, now=now)
    except ThresholdError as error:
        reasons.append(f"{name} was not measured: {error}")
        return None


def recorded(measured: Measured, sums: ModelSums, evaluation_id: int, *, now: float) -> Evaluation:
    """The measurement as a release names it; rates that nobody told of are 1 with an interval of everything."""
    low, high = measured.calibration.interval(measured.threshold)
    known = math.isfinite(measured.fnmr)
    error = _error(measured)
    fnmr = measured.fnmr if known else 1.0
    return Evaluation(
        evaluation_id=evaluation_id,
        impostors=sums.impostors,
        people=measured.people,
        trials=measured.trials,
        fmr=measured.fmr,
        fmr_low=low,
        fmr_high=high,
        threshold=measured.threshold,
        fnmr=fnmr,
        fnmr_low=max(0.0, fnmr - error) if known else 0.0,
        fnmr_high=min(1.0, fnmr + error) if known else 1.0,
        worst_fnmr=measured.worst_fnmr if math.isfinite(measured.worst_fnmr) else 1.0,
        measured_unix_s=now,
    )


def _error(measured: Measured) -> float:
    """Half of the 95 % interval of the false non-match rate, by the jackknife over groups; 1 where it is not known."""
    values = measured.replicates
    if len(values) < 2:
        return 1.0
    return _CONFIDENCE * float(((len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum()) ** 0.5)


def renews(old: Calibration | None, new: Calibration, *, own: bool, now: float) -> bool:
    """Whether the released model is given another calibration.

    Args:
        old: what it has.
        new: what the evaluation made of the same model.
        own: whether ``old`` was made by an evaluation of this deployment.
        now: seconds since 1970.
    """
    if old is None or not own or now - old.measured_unix_s > STALE_S:
        return True
    if new.centring is not None and old.centring is None:  # it was measured to be better
        return True
    return new.people >= _MORE_PEOPLE * old.people or new.strictest("cosine") < old.strictest("cosine")
