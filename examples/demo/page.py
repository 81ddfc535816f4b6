"""``report.html``: what a run measured, for people."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import tables
from life import ROUTES, Lived, Route
from results import TITLES, Run, Summaries, record

from uvsdk.evaluation import plots, report

_CAPTION = (
    "Trained: probes of people who took part in training, each against everybody's template. Strangers: probes of "
    "people who never trained, likewise; an attacker is a stranger. Each column is to be compared with its own "
    "start, for the people differ. EER: the rate at which as many impostors get in as genuine people are turned away; "
    "its interval and seeds are of strangers: a bootstrap over people, 1,000 resamples; "
    "lowest and highest equal error rate of the same rounds in one process. FNMR at a false match rate of 1 %, "
    "where there are impostor trials enough for it. Centred: the mean of all who joined taken off, which is what each "
    "method begins from. A mean cosine near 1 means that everybody's class vector has fallen onto one point."
)
_SINGLE_CAPTION = (
    "The clips that the probes above are joined of, each alone against the same templates. Nobody should be verified "
    "by as little: this is how hard it gets."
)


def write(run: Run, summaries: Summaries, folder: Path) -> None:
    """Write ``report.json`` and ``report.html`` into ``folder``."""
    (folder / "report.json").write_text(json.dumps(record(run, summaries), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(report.render(page(run, summaries)), encoding="utf-8")


def page(run: Run, summaries: Summaries) -> report.Report:
    """The report of a run."""
    groups = run.groups
    return report.Report(
        title="Learned together, nothing pooled",
        summary=f"{len(groups.joined)} device processes made one {run.people.modality} model over HTTP; each kept its "
        f"recordings, its features and its embeddings. {len(groups.trained)} of them trained, {len(groups.evaluate)} "
        f"only evaluated, and {len(groups.outside)} more people never took part. " + run.people.caveat,
        cards=(
            report.Card("People", str(len(run.people.people)), f"{len(groups.joined)} of them a process each"),
            *_cards(summaries),
            report.Card("Time", f"{run.seconds:.0f} s", f"{run.processor_s:.0f} processor seconds"),
        ),
        sections=(
            report.Section("Models", tables=_models(run, summaries), figures=_pictures(run)),
            _life(run),
            _attempts(run),
        ),
        command=run.command,
        environment=report.environment(),
        made=datetime.now(UTC),
    )


def _cards(summaries: Summaries) -> list[report.Card]:
    """Before and after, of those who trained and of strangers, as far as there are any."""
    first, last = (
        summary.each(lambda found: found.intervals["eer"]) for summary in summaries.whole[:: len(summaries.whole) - 1]
    )
    sides = {"EER, who trained": (first.trained, last.trained), "EER, strangers": (first.strangers, last.strangers)}
    return [
        report.Card(
            title,
            f"{tables.percent(after.value)} %",
            f"with FedAwS, {tables.interval(after.low, after.high)} %; {tables.percent(before.value)} % before",
        )
        for title, (before, after) in sides.items()
        if before is not None and after is not None
    ]


def _models(run: Run, summaries: Summaries) -> tuple[report.Table, ...]:
    last = len(run.learned.rows) - 1
    captions = (_CAPTION, _SINGLE_CAPTION)
    found = tables.models(run, summaries)
    return tuple(report.Table(table.header, table.rows, captions[place], last) for place, table in enumerate(found))


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
            "Strangers' scores before training",
            plots.svg(plots.histogram(first.trials.genuine, first.trials.impostor)),
            "Where the two overlap no threshold decides rightly.",
        ),
        report.Figure(
            "Strangers' scores after FedAwS", plots.svg(plots.histogram(last.trials.genuine, last.trials.impostor))
        ),
    )
    steps = max(len(points) for points in learned.cosines.values())
    if steps < 2 or any(math.isnan(y) for points in learned.cosines.values() for _, y in points):
        return figures
    drawn = plots.svg(plots.training(training, ylabel="mean off-diagonal cosine"))
    return (
        *figures,
        report.Figure("Class vectors while learning", drawn, "As the server's own monitor saw it; at 1 all are one."),
    )


def _life(run: Run) -> report.Section:
    releases = tables.releases(run)
    table = report.Table(
        releases.header,
        releases.rows,
        "Genuine and impostor attempts are samples of the same people after each release, over REST "
        "and on the device (REST · offline / of so many). FNMR: of single samples, by the people who only evaluate, as "
        "the release says it. Let in: of all verification samples of people who never trained, against "
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
            "each sample, * where it was accepted, and the threshold.",
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
