"""Everything that is reported of one set of trials: values with intervals, counts, failures, and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from uvsdk.evaluation import bootstrap, metrics
from uvsdk.evaluation.bootstrap import Interval, Statistic
from uvsdk.evaluation.metrics import Curve, OperatingPoint
from uvsdk.evaluation.protocols import Outcome

RATES = (0.1, 0.01, 0.001, 0.0001)
PRIORS = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Summary:
    """What was measured.

    Args:
        intervals: name -> value with its interval, for ``eer``, ``fnmr_at_fmr_1e-2`` (and the other rates the trials
            support), ``min_dcf_0.01``, ``min_dcf_0.05``, ``auroc``.
        eer_convex_hull: for comparison with tools that report it.
        unsupported: rates the impostor trials cannot support -> how many trials each needs.
        working_point: where the per-person rates were read: FMR 1 % where supported, else the equal error point.
        worst_decile_fnmr: mean FNMR of the worst tenth of the people at the working point.
        people_with_genuine: people with at least one genuine trial.
    """

    outcome: Outcome
    curve: Curve
    intervals: Mapping[str, Interval]
    eer_convex_hull: float
    unsupported: Mapping[float, int]
    working_point: OperatingPoint
    worst_decile_fnmr: float
    people_with_genuine: int
    resamples: int
    seed: int

    def record(self) -> dict[str, object]:
        """The summary as plain JSON values. Labels of people and files stay out: only counts are kept."""
        return {
            "protocol": self.outcome.protocol,
            "people": len(self.outcome.trials.subjects),
            "genuine_trials": self.curve.genuine,
            "impostor_trials": self.curve.impostor,
            "samples": self.outcome.samples,
            "failures_to_acquire": len(self.outcome.failures),
            "failures_to_enrol": len(self.outcome.not_enrolled),
            "repeated_samples_left_out": self.outcome.repeated,
            "metrics": {
                name: {"value": found.value, "low": found.low, "high": found.high}
                for name, found in self.intervals.items()
            },
            "eer_convex_hull": self.eer_convex_hull,
            "unsupported": {rate_name(rate): {"impostor_trials_needed": n} for rate, n in self.unsupported.items()},
            "working_point": {
                # JSON has no infinity; null says that no score reaches the threshold.
                "threshold": self.working_point.threshold if math.isfinite(self.working_point.threshold) else None,
                "fmr": self.working_point.fmr,
                "fnmr": self.working_point.fnmr,
            },
            "worst_decile_fnmr": self.worst_decile_fnmr,
            "people_with_genuine_trials": self.people_with_genuine,
            "bootstrap": {"resamples": self.resamples, "seed": self.seed, "confidence": 0.95, "unit": "person"},
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """Metric, value and interval as texts; a rate that is not supported says how many trials it needs."""
        rows = []
        for name, found in self.intervals.items():
            show = percent if _in_percent(name) else _decimal
            rows.append((title(name), show(found.value), self.interval_text(name)))
        rows.insert(1, ("EER, ROC convex hull", percent(self.eer_convex_hull), ""))
        for rate, needed in self.unsupported.items():
            rows.append((title(rate_name(rate)), "not supported", f"needs {needed:,} impostor trials"))
        rows.append(
            (
                f"Worst tenth of people: FNMR at FMR {percent(self.working_point.fmr)}",
                percent(self.worst_decile_fnmr),
                "",
            )
        )
        return rows

    def interval_text(self, name: str) -> str:
        """The interval of one metric; where no error was seen, that, since resampling cannot make one appear."""
        found = self.intervals[name]
        show = percent if _in_percent(name) else _decimal
        if _in_percent(name) and found.value == found.high == 0:
            return f"no error seen in {self.curve.genuine:,} genuine trials"
        return f"{show(found.low)} – {show(found.high)}"

    def counts(self) -> list[tuple[str, str]]:
        """What was counted, as texts."""
        acquired, outcome = len(self.outcome.failures), self.outcome
        return [
            ("People", f"{len(outcome.trials.subjects):,}"),
            ("Genuine trials", f"{self.curve.genuine:,}"),
            ("Impostor trials", f"{self.curve.impostor:,}"),
            ("Samples", f"{outcome.samples:,}"),
            ("Failures to acquire", f"{acquired:,} ({percent(outcome.failure_to_acquire_rate)})"),
            ("Failures to enrol", f"{len(outcome.not_enrolled):,}"),
            ("Repeated samples left out", f"{outcome.repeated:,}"),
        ]


def summarise(outcome: Outcome, *, resamples: int = 1000, seed: int = 0) -> Summary:
    """Measure the trials: values, bootstrap intervals over people, and what the trials cannot support."""
    trials = outcome.trials
    points = trials.curve()
    supported = [rate for rate in RATES if points.impostor * rate >= metrics.TRIALS_PER_RATE * (1 - 1e-12)]
    statistics: dict[str, Statistic] = {"eer": metrics.eer}
    statistics |= {rate_name(rate): _fnmr_within(rate) for rate in supported}
    statistics |= {f"min_dcf_{prior:g}": _min_dcf(prior) for prior in PRIORS}
    statistics["auroc"] = metrics.auroc
    working_point = metrics.fnmr_at_fmr(points, 0.01) if 0.01 in supported else metrics.equal_error_point(points)
    by_subject = list(trials.fnmr_by_subject(working_point.threshold).values())
    return Summary(
        outcome,
        points,
        bootstrap.intervals(trials, statistics, resamples=resamples, seed=seed),
        metrics.eer_convex_hull(points),
        {rate: round(metrics.TRIALS_PER_RATE / rate) for rate in RATES if rate not in supported},
        working_point,
        metrics.worst_decile(by_subject),
        len(by_subject),
        resamples,
        seed,
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
    return {"eer": "EER", "auroc": "AUROC"}.get(name, name)


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
