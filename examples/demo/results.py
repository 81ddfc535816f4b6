"""What the demonstration measured, and ``report.json`` of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from data import People
from groups import Groups
from laboratory import Sides
from life import ROUTES, Lived, Pair

from uvsdk.evaluation import metrics
from uvsdk.evaluation.metrics import Curve
from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.evaluation.summary import Summary, summarise

TITLES = {
    "before": "Before",
    "centred": "Centred",
    "positive_only": "Positive-only",
    "fixed": "Fixed",
    "fedaws": "FedAwS",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One model: its trials, and how far its class matrix has fallen together.

    Args:
        name: key of :data:`TITLES`.
        outcomes: of probes of people who trained, and of people who never did.
        single: likewise of single clips as probes, where the samples are joined of such.
        mean_offdiagonal_cosine: of the class matrix.
        rounds: of training.
        seconds: of joining and training.
        spread: equal error rates of other seeds, of people who trained and of people who never did.
    """

    name: str
    outcomes: Sides[ProtocolOutcome]
    single: Sides[ProtocolOutcome]
    mean_offdiagonal_cosine: float
    rounds: int
    seconds: float
    spread: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing the demonstration tried at its end, and what came of it."""

    what: str
    outcome: str
    expected: bool


@dataclass(slots=True)
class Learned:
    """What came of a run, collected while it runs.

    Args:
        rows: one of each model.
        cosines: method -> (round, mean off-diagonal cosine of the class matrix).
        pairs: people who are tried after each release.
        lived: releases of the last method, oldest first.
        evaluations: of the last method, in words.
        checks: at the end.
    """

    rows: list[Row] = field(default_factory=list)
    cosines: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    lived: list[Lived] = field(default_factory=list)
    evaluations: tuple[str, ...] = ()
    checks: list[Check] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summaries:
    """Of each row: of what people say to be verified, and of single clips."""

    whole: list[Sides[Summary]]
    single: list[Sides[Summary]]

    @property
    def has_single(self) -> bool:
        """Whether anything is known of single clips."""
        return any(sides.trained or sides.strangers for sides in self.single)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything of one run."""

    people: People
    groups: Groups
    backbone: str
    learned: Learned
    seconds: float
    processor_s: float
    command: str
    seed: int

    @property
    def as_expected(self) -> bool:
        """Whether nothing went otherwise than the releases and the product say."""
        return all(check.expected for check in self.learned.checks) and not any(
            lived.objection for lived in self.learned.lived
        )

    def summaries(self) -> Summaries:
        """Values with intervals."""

        def of(outcome: ProtocolOutcome) -> Summary:
            return summarise(outcome, resamples=1000, seed=0)

        rows = self.learned.rows
        return Summaries([row.outcomes.each(of) for row in rows], [row.single.each(of) for row in rows])


def fnmr_at_one_percent(curve: Curve) -> float | None:
    """FNMR at a false match rate of 1 %; ``None`` where there are too few impostor trials to tell it."""
    if curve.impostor * 0.01 < metrics.TRIALS_PER_RATE * (1 - 1e-12):
        return None
    return metrics.fnmr_at_fmr(curve, 0.01).fnmr


def record(run: Run, summaries: Summaries) -> dict[str, object]:
    """What ``report.json`` holds."""
    learned = run.learned
    return {
        "people": len(run.people.people),
        "groups": {
            "trained": len(run.groups.trained),
            "evaluate": len(run.groups.evaluate),
            "outside": len(run.groups.outside),
        },
        "seed": run.seed,
        "seconds": round(run.seconds, 1),
        "processor_seconds": round(run.processor_s, 1),
        "source": run.people.source,
        "backbone": run.backbone,
        "rows": {
            row.name: {
                **_of_sides(whole, row.outcomes, row.spread),
                "single": _of_sides(single, row.single, None) if summaries.has_single else None,
                "mean_offdiagonal_cosine": row.mean_offdiagonal_cosine,
                "rounds": row.rounds,
                "seconds": round(row.seconds, 1),
            }
            for row, whole, single in zip(learned.rows, summaries.whole, summaries.single, strict=True)
        },
        "evaluations": list(learned.evaluations),
        "releases": [_released(lived) for lived in learned.lived],
        "checks": [
            {"what": check.what, "outcome": check.outcome, "as_expected": check.expected} for check in learned.checks
        ],
        "command": run.command,
    }


def _of_sides(
    summary: Sides[Summary],
    outcomes: Sides[ProtocolOutcome],
    spread: tuple[tuple[float, ...], tuple[float, ...]] | None,
) -> dict[str, object]:
    trained, strangers = spread or ((), ())
    return {
        "trained": _figures(summary.trained, outcomes.trained, trained),
        "strangers": _figures(summary.strangers, outcomes.strangers, strangers),
    }


def _figures(
    summary: Summary | None, outcome: ProtocolOutcome | None, seeds: Sequence[float]
) -> dict[str, object] | None:
    if summary is None or outcome is None:
        return None
    eer, curve = summary.intervals["eer"], outcome.trials.curve()
    return {
        "eer": eer.value,
        "eer_interval": [eer.low, eer.high],
        "fnmr_at_fmr_1e-2": fnmr_at_one_percent(curve),
        "eer_of_seeds": list(seeds),
        "genuine_trials": curve.genuine,
        "impostor_trials": curve.impostor,
        "failures_to_acquire": len(outcome.failures),
    }


def _released(lived: Lived) -> dict[str, object]:
    evaluation, limits, rates = lived.evaluation, lived.thresholds, lived.rates
    counts = {
        f"{name}_{route.lower()}": asdict(lived.count(route, genuine=kind))
        for name, kind in (("genuine", True), ("impostors", False))
        for route in ROUTES
    }
    return {
        "number": lived.number,
        "cause": lived.cause,
        "round": lived.release["round_id"],
        "thresholds": None if limits is None else list(limits),
        "asked_fmr": None if rates is None else rates[0],
        "fmr": None if rates is None else rates[1],
        "outside": lived.outside,
        "stayed": lived.stayed,
        "fnmr_of_evaluators": None if evaluation is None else evaluation["fnmr"],
        "evaluators": None if evaluation is None else evaluation["people"],
        **counts,
        "strangers": None if lived.strangers is None else asdict(lived.strangers),
        "objection": lived.objection,
    }
