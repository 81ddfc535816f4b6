"""What a bundle's own calibration is worth on these trials: its likelihood ratios, and its thresholds.

The trials say something on a deployment only where they are not those that the bundle was calibrated with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float64
from uvsdk.errors import ThresholdError
from uvsdk.evaluation import bootstrap, metrics
from uvsdk.evaluation.bootstrap import Interval, Statistic
from uvsdk.evaluation.conditions import Sides
from uvsdk.evaluation.metrics import Curve
from uvsdk.evaluation.rates import Rate, Resampled
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import Calibration, Threshold
from uvsdk.scoring.conditions import conditions_of

TARGETS = (0.1, 0.01, 0.001, 0.0001)
_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Preset:
    """A threshold that the bundle sets for a false match rate, and both rates that these trials have at it."""

    threshold: Threshold
    fmr: Rate
    fnmr: Rate


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A calibrated bundle's thresholds and, where it has them, its likelihood ratios.

    Args:
        presets: of the target rates that the calibration supports, on the scale it decides by.
        llr: float64 (N,), natural logarithm of each trial's likelihood ratio; ``None`` of a bundle that gives none.
        intervals: name -> value with its interval, for ``cllr``, ``min_cllr``, and ``act_dcf_P`` and ``min_dcf_P`` of
            each prior: what the ratios cost as they are, and what a perfect threshold or map would cost; empty
            likewise.
    """

    presets: tuple[Preset, ...]
    llr: Float64 | None
    intervals: Mapping[str, Interval]


def measure(
    trials: Trials,
    sides: Sides,
    *,
    calibration: Calibration,
    priors: tuple[float, ...],
    resamples: int = 1000,
    seed: int = 0,
) -> Calibrated:
    """Hold a calibration against trials.

    Args:
        trials: what was compared, with genuine and impostor trials.
        sides: the samples behind each trial, embedded by the model that was calibrated.
        calibration: the bundle's.
        priors: of a genuine trial, for the detection costs.
        resamples: of people, for the intervals.
        seed: of these.
    """
    llr = None if calibration.ratio is None else likelihood_ratios(sides, calibration)
    intervals: dict[str, Interval] = {}
    if llr is not None:
        ratios = Trials(llr, trials.template_subject, trials.probe_subject, trials.subjects)
        statistics: dict[str, Statistic] = {"cllr": cllr, "min_cllr": metrics.min_cllr}
        for prior in priors:
            statistics |= {f"act_dcf_{prior:g}": _act_dcf(prior), f"min_dcf_{prior:g}": _min_dcf(prior)}
        intervals = bootstrap.intervals(ratios, statistics, resamples=resamples, seed=seed)
    values = trials.scores if llr is None else llr
    return Calibrated(_presets(trials, values, calibration, resamples, seed), llr, intervals)


def likelihood_ratios(sides: Sides, calibration: Calibration) -> Float64:
    """The natural logarithm of each trial's likelihood ratio, float64 (N,), a portion of the trials at a time."""
    kinds = () if calibration.ratio is None else calibration.ratio.surroundings.conditions
    template = [conditions_of(measured, kinds) for measured in sides.template]
    probe = [conditions_of(measured, kinds) for measured in sides.probe]
    found = np.empty(len(sides.probe_index))
    for start in range(0, len(found), _AT_ONCE):
        one = sides.template_index[start : start + _AT_ONCE]
        other = sides.probe_index[start : start + _AT_ONCE]
        found[start : start + _AT_ONCE] = calibration.llrs(
            sides.template_rows[one],
            sides.probe_rows[other],
            template=[template[index] for index in one.tolist()],
            probe=[probe[index] for index in other.tolist()],
        )
    return found


def cllr(points: Curve) -> float:
    """:func:`uvsdk.evaluation.metrics.cllr` of counted scores, so that a resample need not repeat them."""
    ratios = points.thresholds[:-1]
    genuine, impostor = np.diff(points.false_non_matches), -np.diff(points.false_matches)
    missed = genuine @ np.logaddexp(0.0, -ratios) / points.genuine
    false = impostor @ np.logaddexp(0.0, ratios) / points.impostor
    return float(missed + false) / (2 * math.log(2))


def _presets(
    trials: Trials, values: Float64, calibration: Calibration, resamples: int, seed: int
) -> tuple[Preset, ...]:
    drawn = Resampled(trials, resamples=resamples, seed=seed)
    own = trials.is_genuine
    found = []
    for target in TARGETS:
        try:
            threshold = calibration.threshold(target, calibration.scale)
        except ThresholdError:
            continue
        accepted = values >= threshold.score
        fmr = drawn.tally(accepted, [np.where(own, -1, 0)], 1).rate(0)
        fnmr = drawn.tally(~accepted, [np.where(own, 0, -1)], 1).rate(0)
        if fmr is not None and fnmr is not None:
            found.append(Preset(threshold, fmr, fnmr))
    return tuple(found)


def _min_dcf(prior: float) -> Statistic:
    return lambda points: metrics.min_dcf(points, prior)


def _act_dcf(prior: float) -> Statistic:
    return lambda points: metrics.act_dcf(points, metrics.bayes_threshold(prior), prior=prior)
