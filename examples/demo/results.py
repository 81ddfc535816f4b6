"""What the demonstration measured, as a table on the terminal, ``report.json`` and ``report.html``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from data import People
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


@dataclass(frozen=True, slots=True)
class Row:
    """One model: its trials, and how far its class matrix has fallen together."""

    name: str
    outcome: ProtocolOutcome
    mean_offdiagonal_cosine: float
    rounds: int
    seconds: float
    spread: tuple[float, ...] | None = None

    @property
    def curve(self) -> Curve:
        """The error curves of the trials."""
        return self.outcome.trials.curve()


@dataclass(frozen=True, slots=True)
class Check:
    """One single verification the demonstration made, and what came of it."""

    what: str
    outcome: str
    expected: bool
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Everything of one run."""

    people: People
    backbone: str
    rows: tuple[Row, ...]
    cosines: dict[str, list[tuple[int, float]]]
    checks: tuple[Check, ...]
    seconds: float
    command: str
    seed: int
    events: tuple[str, ...] = ()

    def summaries(self) -> list[Summary]:
        """Values with intervals, a row each."""
        return [summarise(row.outcome, resamples=1000, seed=0) for row in self.rows]


def terminal_table(run: Run, summaries: Sequence[Summary]) -> TerminalTable:
    """The table printed at the end."""
    table = TerminalTable(title=f"{len(run.people.people)} people, {run.rows[-1].rounds} rounds")
    for heading in (
        "",
        "EER",
        "95 % interval",
        "three\nseeds",
        "FNMR at\nFMR 1 %",
        "mean off-\ndiag. cosine",
        "s",
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row, summary in zip(run.rows, summaries, strict=True):
        table.add_row(*_cells(row, summary))
    return table


def write(run: Run, summaries: Sequence[Summary], folder: Path) -> None:
    """Write ``report.json`` and ``report.html`` into ``folder``."""
    (folder / "report.json").write_text(json.dumps(_record(run, summaries), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(report.render(_page(run, summaries)), encoding="utf-8")


def _cells(row: Row, summary: Summary) -> tuple[str, ...]:
    eer = summary.intervals["eer"]
    return (
        TITLES[row.name],
        f"{100 * eer.value:.1f} %",
        f"{100 * eer.low:.1f} – {100 * eer.high:.1f} %",
        f"{100 * min(row.spread):.1f} – {100 * max(row.spread):.1f} %" if row.spread else "–",
        _fnmr(row.curve),
        f"{row.mean_offdiagonal_cosine:+.2f}",
        f"{row.seconds:.0f}" if row.rounds else "–",
    )


def _fnmr(curve: Curve) -> str:
    fnmr = _fnmr_at_one_percent(curve)
    return "too few trials" if fnmr is None else f"{100 * fnmr:.1f} %"


def _fnmr_at_one_percent(curve: Curve) -> float | None:
    if curve.impostor * 0.01 < metrics.TRIALS_PER_RATE * (1 - 1e-12):
        return None
    return metrics.fnmr_at_fmr(curve, 0.01).fnmr


def _record(run: Run, summaries: Sequence[Summary]) -> dict[str, object]:
    return {
        "people": len(run.people.people),
        "seed": run.seed,
        "seconds": round(run.seconds, 1),
        "source": run.people.source,
        "backbone": run.backbone,
        "rows": {
            row.name: {
                "eer": summary.intervals["eer"].value,
                "eer_interval": [summary.intervals["eer"].low, summary.intervals["eer"].high],
                "fnmr_at_fmr_1e-2": _fnmr_at_one_percent(row.curve),
                "eer_of_seeds": list(row.spread or ()),
                "mean_offdiagonal_cosine": row.mean_offdiagonal_cosine,
                "rounds": row.rounds,
                "seconds": round(row.seconds, 1),
                "genuine_trials": row.curve.genuine,
                "impostor_trials": row.curve.impostor,
                "failures_to_acquire": len(row.outcome.failures),
            }
            for row, summary in zip(run.rows, summaries, strict=True)
        },
        "checks": [
            {"what": check.what, "outcome": check.outcome, "as_expected": check.expected} for check in run.checks
        ],
        "events": list(run.events),
        "command": run.command,
    }


def _page(run: Run, summaries: Sequence[Summary]) -> report.Report:
    curves = {TITLES[row.name]: row.curve for row in run.rows}
    last, first = run.rows[-1], run.rows[0]
    headings = (
        "",
        "EER",
        "95 % interval",
        "three seeds",
        "FNMR at FMR 1 %",
        "mean off-diagonal cosine",
        "seconds",
    )
    table = report.Table(
        headings,
        tuple(_cells(row, summary) for row, summary in zip(run.rows, summaries, strict=True)),
        "Intervals: bootstrap over people, 1,000 resamples. Three seeds: the lowest and the highest equal error rate "
        "of the same rounds in one process. A mean off-diagonal cosine near 1 means that everybody's class vector has "
        "fallen onto one point.",
        emphasised=len(run.rows) - 1,
    )
    checks = report.Table(("Check", "Outcome"), tuple((check.what, check.outcome) for check in run.checks))
    steps = max(len(points) for points in run.cosines.values())
    training = {
        TITLES[name]: ([float(x) for x, _ in points], [y for _, y in points]) for name, points in run.cosines.items()
    }
    figures = (
        report.Figure("Detection error trade-off", plots.svg(plots.det(curves)), "Lower left is better."),
        report.Figure(
            "Scores before training",
            plots.svg(plots.histogram(first.outcome.trials.genuine, first.outcome.trials.impostor)),
        ),
        report.Figure(
            "Scores after FedAwS", plots.svg(plots.histogram(last.outcome.trials.genuine, last.outcome.trials.impostor))
        ),
        *(
            (
                report.Figure(
                    "Class vectors while learning",
                    plots.svg(plots.training(training, ylabel="mean off-diagonal cosine")),
                    "As the server's own monitor saw it.",
                ),
            )
            if steps > 1 and not any(math.isnan(y) for points in run.cosines.values() for _, y in points)
            else ()
        ),
    )
    eer = summaries[-1].intervals["eer"]
    return report.Report(
        title="Learned together, nothing pooled",
        summary=f"{len(run.people.people)} device processes trained one {run.people.modality} model over HTTP; each "
        "kept its recordings, its features and its embeddings. " + run.people.caveat,
        cards=(
            report.Card("People, a process each", str(len(run.people.people))),
            report.Card("EER before", f"{100 * summaries[0].intervals['eer'].value:.1f} %"),
            report.Card("EER with FedAwS", f"{100 * eer.value:.1f} %", f"{100 * eer.low:.1f} – {100 * eer.high:.1f} %"),
            report.Card("Time", f"{run.seconds:.0f} s"),
        ),
        sections=(
            report.Section("Models", tables=(table,), figures=figures),
            report.Section("From candidate to release", run.events),
            report.Section(
                "Single verifications with the FedAwS model",
                (
                    "The people shown are those whose enrolment samples agree best among themselves; no verification "
                    "sample had a say in that. Thresholds are set at a false match rate of 1 %, by "
                    "people who did not train.",
                ),
                tables=(checks,),
            ),
        ),
        command=run.command,
        environment=report.environment(),
        made=datetime.now(UTC),
    )
