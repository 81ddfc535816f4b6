"""The page of one evaluation: a summary's numbers, counts and plots as a :class:`~uvsdk.evaluation.report.Report`."""

from __future__ import annotations

from datetime import datetime

from uvsdk.evaluation import plots, report
from uvsdk.evaluation.summary import Summary, percent, rate_name


def evaluation_page(summary: Summary, *, model: str, data: str, command: str, made: datetime | None = None) -> str:
    """One self-contained HTML page.

    Args:
        summary: what was measured.
        model: which model, in words.
        data: which samples, in words.
        command: how to make the page again.
        made: when.
    """
    trials, curves = summary.outcome.trials, {"model": summary.curve}
    threshold = summary.working_point.threshold
    figures = (
        report.Figure(
            "Scores",
            plots.svg(plots.histogram(trials.genuine, trials.impostor, threshold=threshold)),
            f"Each side as a share of its own trials; the threshold is where {_working_point(summary)}.",
        ),
        report.Figure(
            "Detection error trade-off",
            plots.svg(plots.det(curves)),
            "Both axes on a normal deviate scale: lower left is better.",
        ),
        report.Figure(
            "Receiver operating characteristic",
            plots.svg(plots.roc(curves)),
            "False match rate on a logarithmic scale: upper left is better.",
        ),
        report.Figure(
            "Each person",
            plots.svg(plots.by_person(list(trials.fnmr_by_subject(threshold).values()))),
            f"False non-match rate of each person where {_working_point(summary)}.",
        ),
    )
    return report.render(
        report.Report(
            title="Verification report",
            summary=f"{model}, measured on {data}.",
            cards=_cards(summary),
            sections=(
                report.Section(
                    "Error rates",
                    paragraphs=(
                        "A trial is accepted when its score reaches the threshold; equal scores move together. "
                        f"Intervals are 95 % percentile bootstrap over people ({summary.resamples:,} resamples, "
                        f"seed {summary.seed}).",
                    ),
                    tables=(report.Table(("Metric", "Value", "95 % interval"), tuple(summary.rows()), emphasised=0),),
                    figures=figures,
                ),
                report.Section(
                    "What was counted",
                    paragraphs=(f"Protocol: {summary.outcome.protocol}.",),
                    tables=(
                        report.Table(
                            ("Count", "Number"),
                            tuple(summary.counts()),
                            caption="Samples that could not be processed are counted here and are in no error rate.",
                        ),
                        *_failures(summary),
                    ),
                ),
            ),
            command=command,
            environment=report.environment(),
            made=made,
        )
    )


def _cards(summary: Summary) -> tuple[report.Card, ...]:
    eer = summary.intervals["eer"]
    cards = [report.Card("Equal error rate", percent(eer.value), _interval(summary, "eer"))]
    strict = summary.intervals.get(rate_name(0.01))
    if strict is not None:
        note = _interval(summary, rate_name(0.01))
        cards.append(report.Card("FNMR at FMR 1 %", percent(strict.value), note))
    cards.append(
        report.Card(
            "Worst tenth of people",
            percent(summary.worst_decile_fnmr),
            f"mean FNMR where {_working_point(summary)}",
        )
    )
    trials = summary.curve.genuine + summary.curve.impostor
    cards.append(
        report.Card("Trials", f"{trials:,}", f"{summary.curve.genuine:,} genuine, {summary.curve.impostor:,} impostor")
    )
    return tuple(cards)


def _interval(summary: Summary, name: str) -> str:
    text = summary.interval_text(name)
    return f"95 %: {text}" if text[0].isdigit() else text


def _working_point(summary: Summary) -> str:
    return f"FMR is {percent(summary.working_point.fmr)}"


def _failures(summary: Summary) -> tuple[report.Table, ...]:
    """Reasons of failures to acquire with their counts; whose samples they were is left out."""
    reasons: dict[str, int] = {}
    for failure in summary.outcome.failures:
        reasons[failure.kind] = reasons.get(failure.kind, 0) + 1
    if not reasons:
        return ()
    rows = tuple((reason, f"{count:,}") for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
    return (report.Table(("Failure to acquire", "Samples"), rows),)
