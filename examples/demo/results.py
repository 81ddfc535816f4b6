"""What the demonstration measured, as tables on the terminal, ``report.json`` and ``report.html``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from data import People
from groups import Groups
from laboratory import Sides
from life import ROUTES, Lived, Pair, Route
from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable

from uvsdk.evaluation import metrics, plots, report
from uvsdk.evaluation.metrics import Curve
from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.evaluation.summary import Summary, summarise

TITLES = {
    "before": "Before",
    "positive_only": "Positive-only",
    "fixed": "Fixed",
    "fedaws": "FedAwS",
}

# Lines as on a terminal of eighty columns.
_HEADINGS = (
    "",
    "EER %\ntrained",
    "EER %\nstran-\ngers",
    "95 %\ninterval",
    "three\nseeds",
    "FNMR %\ntrained",
    "FNMR %\nstran-\ngers",
    "mean\ncosine",
)
_OF_A_RELEASE = (
    "release",
    "round",
    "FMR\n%",
    "thre-\nshold",
    "FNMR %,\npeople",
    "genuine\naccepted",
    "impostors\naccepted",
    "clips\nlet in\n%",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One model: its trials, and how far its class matrix has fallen together.

    Args:
        name: key of :data:`TITLES`.
        outcomes: of probes of people who trained, and of people who never did.
        mean_offdiagonal_cosine: of the class matrix.
        rounds: of training.
        seconds: of joining and training.
        spread: equal error rates of other seeds, of people who trained and of people who never did.
    """

    name: str
    outcomes: Sides[ProtocolOutcome]
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

    def summaries(self) -> list[Sides[Summary]]:
        """Values with intervals, a row each."""
        return [
            row.outcomes.each(lambda outcome: summarise(outcome, resamples=1000, seed=0)) for row in self.learned.rows
        ]


def terminal_table(run: Run, summaries: Sequence[Sides[Summary]]) -> TerminalTable:
    """The models, as printed at the end."""
    rows = [_cells(row, summary) for row, summary in zip(run.learned.rows, summaries, strict=True)]
    return _printed(
        f"{len(run.people.people)} people, {run.learned.rows[-1].rounds} rounds; FNMR at FMR 1 %", _HEADINGS, rows
    )


def releases_table(run: Run) -> TerminalTable:
    """The releases of the last method, as printed at the end."""
    title = f"{TITLES['fedaws']}: what verified, and whom it let in (REST · offline)"
    return _printed(title, _OF_A_RELEASE, [_of_a_release(lived) for lived in run.learned.lived])


def write(run: Run, summaries: Sequence[Sides[Summary]], folder: Path) -> None:
    """Write ``report.json`` and ``report.html`` into ``folder``."""
    (folder / "report.json").write_text(json.dumps(_record(run, summaries), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(report.render(_page(run, summaries)), encoding="utf-8")


def _printed(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> TerminalTable:
    table = TerminalTable(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _cells(row: Row, summary: Sides[Summary]) -> tuple[str, ...]:
    eer = summary.each(lambda found: found.intervals["eer"])
    seeds = row.spread[1] if row.spread else ()
    return (
        TITLES[row.name],
        "–" if eer.trained is None else _percent(eer.trained.value),
        "–" if eer.strangers is None else _percent(eer.strangers.value),
        "–" if eer.strangers is None else _range(eer.strangers.low, eer.strangers.high),
        _range(min(seeds), max(seeds)) if seeds else "–",
        _fnmr(row.outcomes.trained),
        _fnmr(row.outcomes.strangers),
        f"{row.mean_offdiagonal_cosine:+.2f}",
    )


def _of_a_release(lived: Lived) -> tuple[str, ...]:
    evaluation, limits, rates = lived.evaluation, lived.thresholds, lived.rates
    asked = "" if rates is None or rates[0] in (None, rates[1]) else f"{100 * (rates[0] or 0):g} asked, "
    return (
        f"{lived.number} {lived.cause}{f', {lived.stayed} stay' if lived.stayed else ''}",
        str(lived.release["round_id"]),
        "–" if rates is None else f"{asked}{100 * rates[1]:g}{' (outside)' if lived.outside else ''}",
        "–" if limits is None else "–".join(dict.fromkeys(f"{limit:.2f}" for limit in limits)),
        "–" if evaluation is None else f"{_percent(evaluation['fnmr'])}, {evaluation['people']}",
        lived.counts(genuine=True),
        lived.counts(genuine=False),
        "–" if lived.strangers is None else _percent(lived.strangers.fmr),
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def _range(low: float, high: float) -> str:
    return f"{_percent(low)}–{_percent(high)}"


def _fnmr(outcome: ProtocolOutcome | None) -> str:
    if outcome is None:
        return "–"
    fnmr = _fnmr_at_one_percent(outcome.trials.curve())
    return "–" if fnmr is None else _percent(fnmr)


def _fnmr_at_one_percent(curve: Curve) -> float | None:
    if curve.impostor * 0.01 < metrics.TRIALS_PER_RATE * (1 - 1e-12):
        return None
    return metrics.fnmr_at_fmr(curve, 0.01).fnmr


def _record(run: Run, summaries: Sequence[Sides[Summary]]) -> dict[str, object]:
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
                "trained": _figures(row, summary.trained, row.outcomes.trained, 0),
                "strangers": _figures(row, summary.strangers, row.outcomes.strangers, 1),
                "mean_offdiagonal_cosine": row.mean_offdiagonal_cosine,
                "rounds": row.rounds,
                "seconds": round(row.seconds, 1),
            }
            for row, summary in zip(learned.rows, summaries, strict=True)
        },
        "evaluations": list(learned.evaluations),
        "releases": [_released(lived) for lived in learned.lived],
        "checks": [
            {"what": check.what, "outcome": check.outcome, "as_expected": check.expected} for check in learned.checks
        ],
        "command": run.command,
    }


def _figures(row: Row, summary: Summary | None, outcome: ProtocolOutcome | None, side: int) -> dict[str, object] | None:
    if summary is None or outcome is None:
        return None
    eer, curve = summary.intervals["eer"], outcome.trials.curve()
    return {
        "eer": eer.value,
        "eer_interval": [eer.low, eer.high],
        "fnmr_at_fmr_1e-2": _fnmr_at_one_percent(curve),
        "eer_of_seeds": list(row.spread[side]) if row.spread else [],
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


def _page(run: Run, summaries: Sequence[Sides[Summary]]) -> report.Report:
    groups = run.groups
    eers = [summary.each(lambda found: found.intervals["eer"]) for summary in summaries]
    shown = [eer.strangers or eer.trained for eer in eers]
    first, last = shown[0], shown[-1]
    whose = "strangers" if eers[-1].strangers is not None else "all trained"
    assert first is not None
    assert last is not None
    return report.Report(
        title="Learned together, nothing pooled",
        summary=f"{len(groups.joined)} device processes made one {run.people.modality} model over HTTP; each kept its "
        f"recordings, its features and its embeddings. {len(groups.trained)} of them trained, {len(groups.evaluate)} "
        f"only evaluated, and {len(groups.outside)} more people never took part. " + run.people.caveat,
        cards=(
            report.Card("People", str(len(run.people.people)), f"{len(groups.joined)} of them a process each"),
            report.Card("EER before", f"{_percent(first.value)} %", whose),
            report.Card("EER with FedAwS", f"{_percent(last.value)} %", f"{whose}, {_range(last.low, last.high)} %"),
            report.Card("Time", f"{run.seconds:.0f} s", f"{run.processor_s:.0f} processor seconds"),
        ),
        sections=(
            report.Section("Models", tables=(_models(run, summaries),), figures=_pictures(run)),
            _life(run),
            _attempts(run),
        ),
        command=run.command,
        environment=report.environment(),
        made=datetime.now(UTC),
    )


def _models(run: Run, summaries: Sequence[Sides[Summary]]) -> report.Table:
    return report.Table(
        _flat(_HEADINGS),
        tuple(_cells(row, summary) for row, summary in zip(run.learned.rows, summaries, strict=True)),
        "Trained: probes of people who took part in training, each against everybody's template. Strangers: probes of "
        "people who never trained, likewise; an attacker is a stranger. Each column is to be compared with its own "
        "start, for the people differ. Interval and seeds are of strangers: a bootstrap over people, 1,000 resamples; "
        "lowest and highest equal error rate of the same rounds in one process. FNMR at a false match rate of 1 %. A "
        "mean off-diagonal cosine near 1 means that everybody's class vector has fallen onto one point.",
        emphasised=len(run.learned.rows) - 1,
    )


def _pictures(run: Run) -> tuple[report.Figure, ...]:
    learned = run.learned
    outcomes = {TITLES[row.name]: row.outcomes.strangers or row.outcomes.trained for row in learned.rows}
    found = {title: outcome for title, outcome in outcomes.items() if outcome is not None}
    first, *_, last = found.values()
    training = {
        TITLES[name]: ([float(x) for x, _ in points], [y for _, y in points])
        for name, points in learned.cosines.items()
    }
    curves = {title: outcome.trials.curve() for title, outcome in found.items()}
    figures = (
        report.Figure("Detection error trade-off, strangers", plots.svg(plots.det(curves)), "Lower left is better."),
        report.Figure(
            "Strangers' scores before training", plots.svg(plots.histogram(first.trials.genuine, first.trials.impostor))
        ),
        report.Figure(
            "Strangers' scores after FedAwS", plots.svg(plots.histogram(last.trials.genuine, last.trials.impostor))
        ),
    )
    steps = max(len(points) for points in learned.cosines.values())
    if steps < 2 or any(math.isnan(y) for points in learned.cosines.values() for _, y in points):
        return figures
    drawn = plots.svg(plots.training(training, ylabel="mean off-diagonal cosine"))
    return (*figures, report.Figure("Class vectors while learning", drawn, "As the server's own monitor saw it."))


def _life(run: Run) -> report.Section:
    table = report.Table(
        _flat(_OF_A_RELEASE),
        tuple(_of_a_release(lived) for lived in run.learned.lived),
        "Genuine and impostor attempts are single clips of the same people after each release, over REST "
        "and on the device (REST · offline / of so many). FNMR: of single clips, by the people who only evaluate, as "
        "the release says it. Clips let in: of all single verification clips of people who never trained, against "
        "everybody's template, at the release's threshold. (outside): the calibration was made of other recordings, so "
        "that more is asked for.",
    )
    checks = report.Table(
        ("At the end", "Outcome", ""),
        tuple(
            (check.what, check.outcome, "as expected" if check.expected else "NOT as expected")
            for check in run.learned.checks
        ),
    )
    objections = tuple(
        f"Not as expected, release {lived.number}: {lived.objection}" for lived in run.learned.lived if lived.objection
    )
    return report.Section(
        "From candidate to release, with FedAwS", (*run.learned.evaluations, *objections), tables=(table, checks)
    )


def _attempts(run: Run) -> report.Section:
    tried = [lived for lived in run.learned.lived if lived.attempts]
    rows = []
    for claimed in dict.fromkeys(pair.claimed for pair in run.learned.pairs):
        impostors = [pair.impostor for pair in run.learned.pairs if pair.claimed == claimed]
        for genuine in (True, False):
            for route in ROUTES:
                who = claimed if genuine else f"{', '.join(dict.fromkeys(impostors))} as {claimed}"
                rows.append((who, route, *(_scores(lived, claimed, route, genuine=genuine) for lived in tried)))
    header = ("Who", "Route", *(f"Release {lived.number}" for lived in tried))
    return report.Section(
        "Each attempt",
        (
            "Claimed are the people whose enrolment samples agree best among themselves under the model of the start, "
            "half of them of those who trained; no verification sample had a say in that. Impostors are people who "
            "never took part, as far as there are any. Scores of "
            "each clip, * where it was accepted, and the threshold.",
        ),
        tables=(report.Table(header, tuple(rows)),),
    )


def _scores(lived: Lived, claimed: str, route: Route, *, genuine: bool) -> str:
    """Of one person's attempts at one release; what was accepted is marked."""
    found = [
        item for item in lived.attempts if (item.pair.claimed, item.route, item.genuine) == (claimed, route, genuine)
    ]
    scores = ", ".join(f"{item.score:.2f}{'*' if item.accepted else ''}" for item in found if item.accepted is not None)
    return f"{scores or 'none'} at {found[0].threshold:.2f}" if found else "–"


def _flat(headings: Sequence[str]) -> tuple[str, ...]:
    return tuple(heading.replace("-\n", "").replace("\n", " ") for heading in headings)
