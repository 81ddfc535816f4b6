"""Everything that is reported of one set of trials: values with intervals, counts, failures, parts of the trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from uvsdk.arrays import Float64
from uvsdk.evaluation import bootstrap, calibrated, conditions, groups, lfw, metrics
from uvsdk.evaluation.bootstrap import Interval, Statistic
from uvsdk.evaluation.calibrated import Calibrated
from uvsdk.evaluation.conditions import Bin
from uvsdk.evaluation.groups import Attribute, GroupLabels
from uvsdk.evaluation.lfw import Accuracy
from uvsdk.evaluation.metrics import Curve, OperatingPoint
from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.scoring import Calibration

RATES = (0.1, 0.01, 0.001, 0.0001)
PRIORS = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds a sample on the machine of the evaluation, one stage or all together."""

    stage: str
    median_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What was measured.

    Args:
        outcome: the trials.
        curve: error counts over the score.
        intervals: name -> value with its interval, for ``eer``, ``fnmr_at_fmr_1e-2`` (and the other rates the trials
            support), ``min_dcf_0.01``, ``min_dcf_0.05``, ``auroc``.
        eer_convex_hull: for comparison with tools that report it.
        unsupported: rates the impostor trials cannot support -> how many trials each needs.
        working_point: where the rates of people and parts were read: FMR 1 % where supported, else the equal error
            point.
        worst_decile_fnmr: mean FNMR of the worst tenth of the people at the working point.
        fnmr_by_person: FNMR of each person with a genuine trial at the working point, worst first, without names.
        calibrated: what the bundle's own calibration is worth here, where one was given.
        accuracy: of a protocol with at least two folds, else ``None``.
        attributes: of groups, where labels were given.
        qualities: quality -> the rates in bins of it; those that do not vary are left out.
        speeds: of the stages, then of all together; empty where it was not measured.
        resamples: of people, for every interval.
        seed: of these.
        reported: quality -> its heading.
    """

    outcome: ProtocolOutcome
    curve: Curve
    intervals: Mapping[str, Interval]
    eer_convex_hull: float
    unsupported: Mapping[float, int]
    working_point: OperatingPoint
    worst_decile_fnmr: float
    fnmr_by_person: tuple[float, ...]
    calibrated: Calibrated | None
    accuracy: Accuracy | None
    attributes: tuple[Attribute, ...]
    qualities: Mapping[str, tuple[Bin, ...]]
    speeds: tuple[Speed, ...]
    resamples: int
    seed: int
    reported: Mapping[str, str]

    @property
    def people_with_genuine(self) -> int:
        """How many people have at least one genuine trial."""
        return len(self.fnmr_by_person)

    @property
    def people(self) -> int:
        """How many people are in the trials."""
        trials = self.outcome.trials
        return len(np.union1d(trials.template_subject, trials.probe_subject))

    def rows(self) -> list[tuple[str, str, str]]:
        """Metric, value and interval as texts; a rate that is not supported says how many trials it needs."""
        rows = [(title(name), *self._texts(found, name)) for name, found in self.intervals.items()]
        rows.insert(1, ("EER, ROC convex hull", percent(self.eer_convex_hull), ""))
        if self.accuracy is not None:
            spread = f"± {percent(self.accuracy.standard_error)} standard error, {len(self.accuracy.by_fold)} folds"
            rows = [("Accuracy", percent(self.accuracy.mean), spread), *self._true_accepts(), *rows]
        for rate, needed in self.unsupported.items():
            rows.append((title(rate_name(rate)), "not supported", f"needs {needed:,} impostor trials"))
        worst = f"Worst tenth of people: FNMR at FMR {percent(self.working_point.fmr)}"
        rows.append((worst, percent(self.worst_decile_fnmr), ""))
        return rows

    def calibration_rows(self) -> list[tuple[str, str, str]]:
        """As :meth:`rows`, of the bundle's thresholds and likelihood ratios; empty where it has none."""
        if self.calibrated is None:
            return []
        rows = []
        for preset in self.calibrated.presets:
            name = f"Bundle's threshold for FMR {100 * preset.threshold.fmr:g} %"
            for kind, rate in (("FMR", preset.fmr), ("FNMR", preset.fnmr)):
                rows.append((f"{name}: {kind}", percent(rate.value), f"{percent(rate.low)} – {percent(rate.high)}"))
        for name, value in self.calibrated.intervals.items():
            rows.append((f"Likelihood ratio: {title(name)}", *self._texts(value, name)))
        return rows

    def interval_text(self, name: str) -> str:
        """The interval of one metric; where no error was seen, that, since resampling cannot make one appear."""
        return self._texts(self.intervals[name], name)[1]

    def counts(self) -> list[tuple[str, str]]:
        """What was counted, as texts."""
        acquired, outcome = len(self.outcome.failures), self.outcome
        counts = [
            ("People", f"{self.people:,}"),
            ("Genuine trials", f"{self.curve.genuine:,}"),
            ("Impostor trials", f"{self.curve.impostor:,}"),
            ("Samples", f"{outcome.samples:,}"),
            ("Failures to acquire", f"{acquired:,} ({percent(outcome.failure_to_acquire_rate)})"),
            *((f"– {reason}", f"{count:,}") for reason, count in outcome.failures_by_reason.items()),
            ("Failures to enrol", f"{len(outcome.not_enrolled):,}"),
            ("Repeated samples left out", f"{outcome.repeated:,}"),
        ]
        if outcome.left_out:
            counts.append(("Listed trials without a score", f"{outcome.left_out:,}"))
        return counts

    def _true_accepts(self) -> list[tuple[str, str, str]]:
        """FNMR as face verification writes it: the rate of true accepts at a rate of false accepts."""
        rows = []
        for name, found in self.intervals.items():
            if name.startswith("fnmr_at_fmr_"):
                span = f"{percent(1 - found.high)} – {percent(1 - found.low)}"
                words = span if found.high else self.interval_text(name)
                rows.append((title(name).replace("FNMR at FMR", "TAR at FAR"), percent(1 - found.value), words))
        return rows

    def _texts(self, found: Interval, name: str) -> tuple[str, str]:
        show = percent if _in_percent(name) else _decimal
        if _in_percent(name) and found.value == found.high == 0:
            return show(found.value), f"no error seen in {self.curve.genuine:,} genuine trials"
        return show(found.value), f"{show(found.low)} – {show(found.high)}"


def summarise(
    outcome: ProtocolOutcome,
    *,
    resamples: int = 1000,
    seed: int = 0,
    labels: GroupLabels | None = None,
    calibration: Calibration | None = None,
    reported: Mapping[str, str] = MappingProxyType({}),
) -> Summary:
    """Measure the trials: values, bootstrap intervals over people, and what the trials cannot support.

    Args:
        outcome: the trials.
        resamples: of people, for the intervals.
        seed: of these.
        labels: of groups of people, where they are to be compared.
        calibration: of the bundle that made the embeddings, where its thresholds are to be tried.
        reported: qualities that error rates are to be told by -> heading (:attr:`uvsdk.modality.Modality.reported`).

    Raises:
        ValueError: no genuine or no impostor trial.
        SettingsError: the labels name nobody of the trials.
    """
    trials = outcome.trials
    points = trials.curve()
    supported = [rate for rate in RATES if points.impostor * rate >= metrics.TRIALS_PER_RATE * (1 - 1e-12)]
    statistics: dict[str, Statistic] = {"eer": metrics.eer}
    statistics |= {rate_name(rate): _fnmr_within(rate) for rate in supported}
    statistics |= {f"min_dcf_{prior:g}": _min_dcf(prior) for prior in PRIORS}
    statistics["auroc"] = metrics.auroc
    working_point = metrics.fnmr_at_fmr(points, 0.01) if 0.01 in supported else metrics.equal_error_point(points)
    threshold = working_point.threshold
    by_subject = sorted(trials.fnmr_by_subject(threshold).values(), reverse=True)
    sides, drawn = outcome.sides, {"resamples": resamples, "seed": seed}
    folds = None if outcome.folds is None or len(np.unique(outcome.folds)) < 2 else outcome.folds
    return Summary(
        outcome,
        points,
        bootstrap.intervals(trials, statistics, **drawn),
        metrics.eer_convex_hull(points),
        {rate: round(metrics.TRIALS_PER_RATE / rate) for rate in RATES if rate not in supported},
        working_point,
        metrics.worst_decile(by_subject),
        tuple(by_subject),
        None
        if calibration is None or sides is None
        else calibrated.measure(trials, sides, calibration=calibration, priors=PRIORS, **drawn),
        None if folds is None else lfw.accuracy(trials.scores, trials.is_genuine, folds=folds),
        () if labels is None else groups.measure(trials, labels, threshold=threshold, **drawn),
        {} if sides is None else conditions.measure(trials, sides, threshold=threshold, names=reported, **drawn),
        _speeds(outcome.timings_s),
        resamples,
        seed,
        reported,
    )


def _speeds(timings_s: Mapping[str, Float64]) -> tuple[Speed, ...]:
    if not timings_s:
        return ()
    stages = {**timings_s, "total": np.sum(list(timings_s.values()), axis=0)}
    return tuple(
        Speed(stage, float(np.median(seconds)), float(np.quantile(seconds, 0.95))) for stage, seconds in stages.items()
    )


def rate_name(rate: float) -> str:
    """The name of FNMR at a false match rate that is a power of ten.

    >>> rate_name(0.01)
    'fnmr_at_fmr_1e-2'
    """
    return f"fnmr_at_fmr_{rate:.0e}".replace("e-0", "e-")


def title(name: str) -> str:
    """A metric's name as a person reads it.

    >>> title("fnmr_at_fmr_1e-3"), title("min_dcf_0.01")
    ('FNMR at FMR 0.1 %', 'minDCF, prior 0.01')
    """
    if name.startswith("fnmr_at_fmr_"):
        return f"FNMR at FMR {100 * float(name.removeprefix('fnmr_at_fmr_')):g} %"
    if name.startswith("min_dcf_"):
        return f"minDCF, prior {name.removeprefix('min_dcf_')}"
    if name.startswith("act_dcf_"):
        return f"actual DCF, prior {name.removeprefix('act_dcf_')}"
    return {"eer": "EER", "auroc": "AUROC", "cllr": "Cllr", "min_cllr": "minCllr"}.get(name, name)


def _fnmr_within(rate: float) -> Statistic:
    return lambda points: metrics.lowest_within(points, rate).fnmr


def _min_dcf(prior: float) -> Statistic:
    return lambda points: metrics.min_dcf(points, prior)


def _in_percent(name: str) -> bool:
    return name == "eer" or name.startswith("fnmr")


def percent(rate: float) -> str:
    """A rate as text, in percent with two decimals."""
    return f"{100 * rate:.2f} %"


def _decimal(value: float) -> str:
    return f"{value:.4f}"
