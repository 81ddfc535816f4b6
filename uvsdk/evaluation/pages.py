"""The page of one evaluation: a summary's numbers, counts and plots as a :class:`~uvsdk.evaluation.report.Report`."""

from __future__ import annotations

from datetime import datetime

from uvsdk.evaluation import plots, report
from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.calibrated import Calibrated
from uvsdk.evaluation.conditions import Bin
from uvsdk.evaluation.groups import SMALL_GROUP, Attribute, GroupRates
from uvsdk.evaluation.rates import Rate
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
    return report.render(
        report.Report(
            title="Verification report",
            summary=f"{model}, measured on {data}.",
            cards=_cards(summary),
            sections=(
                _error_rates(summary),
                *_folds(summary),
                *_calibration(summary),
                *(_groups(summary, attribute) for attribute in summary.attributes),
                *_qualities(summary),
                _counted(summary),
                *_speed(summary),
            ),
            command=command,
            environment=report.environment(),
            made=made,
        )
    )


def _cards(summary: Summary) -> tuple[report.Card, ...]:
    cards = []
    if summary.accuracy is not None:
        note = f"± {percent(summary.accuracy.standard_error)} over {len(summary.accuracy.by_fold)} folds"
        cards.append(report.Card("Accuracy", percent(summary.accuracy.mean), note))
    cards.append(report.Card("Equal error rate", percent(summary.intervals["eer"].value), _interval(summary, "eer")))
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


def _error_rates(summary: Summary) -> report.Section:
    trials, curves = summary.outcome.trials, {"model": summary.curve}
    point = _working_point(summary)
    figures = (
        report.Figure(
            "Scores",
            plots.svg(plots.histogram(trials.genuine, trials.impostor, threshold=summary.working_point.threshold)),
            f"Each side as a share of its own trials; the threshold is where {point}.",
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
            plots.svg(plots.by_person(summary.fnmr_by_person)),
            f"False non-match rate of each person where {point}.",
        ),
    )
    return report.Section(
        "Error rates",
        paragraphs=(
            "A trial is accepted when its score reaches the threshold; equal scores move together. "
            f"Intervals are 95 % percentile bootstrap over people ({summary.resamples:,} resamples, "
            f"seed {summary.seed}).",
        ),
        tables=(report.Table(("Metric", "Value", "95 % interval"), tuple(summary.rows()), emphasised=0),),
        figures=figures,
    )


def _folds(summary: Summary) -> tuple[report.Section, ...]:
    found = summary.accuracy
    if found is None:
        return ()
    rows = [
        (f"Fold {number}", percent(rate), f"{threshold:.4f}")
        for number, (rate, threshold) in enumerate(zip(found.by_fold, found.thresholds, strict=True), 1)
    ]
    rows.append(("Mean ± standard error", f"{percent(found.mean)} ± {percent(found.standard_error)}", ""))
    table = report.Table(("", "Accuracy", "Threshold"), tuple(rows), emphasised=len(rows) - 1)
    words = "Each fold is decided by the threshold that makes most decisions right on all other folds."
    return (report.Section("Accuracy by fold", (words,), (table,)),)


def _calibration(summary: Summary) -> tuple[report.Section, ...]:
    found = summary.calibrated
    if found is None:
        return ()
    presets = tuple(
        (f"FMR {100 * p.threshold.fmr:g} %", f"{p.threshold.score:.4f}", _rate(p.fmr), _rate(p.fnmr))
        for p in found.presets
    )
    scale = "natural logarithm of the likelihood ratio" if found.llr is not None else "cosine similarity"
    table = report.Table(
        ("Set for", "Threshold", "FMR measured", "FNMR measured"),
        presets,
        f"Thresholds on the scale of the {scale}. Brackets hold 95 % intervals over people.",
    )
    return (
        report.Section(
            "The bundle's calibration",
            (
                "Thresholds and ratios that the bundle came with. They are put to the test only where these are not "
                "the samples it was calibrated with.",
            ),
            (*((table,) if presets else ()), *_ratio_table(found)),
            _ratio_figure(summary, found),
        ),
    )


def _ratio_table(found: Calibrated) -> tuple[report.Table, ...]:
    values = found.intervals
    if not values:
        return ()
    rows = [("Cllr (bits)", *(_number(values[name]) for name in ("cllr", "min_cllr")))]
    for name in values:
        if name.startswith("act_dcf_"):
            prior = name.removeprefix("act_dcf_")
            rows.append((f"Detection cost, prior {prior}", _number(values[name]), _number(values[f"min_dcf_{prior}"])))
    caption = (
        "Cllr is 0 where ratios are certain and right, 1 where they say nothing; a detection cost is 1 where nobody is "
        "accepted. What the right column is lower by, calibration could gain."
    )
    return (report.Table(("", "As calibrated", "Best possible with these scores"), tuple(rows), caption),)


def _ratio_figure(summary: Summary, found: Calibrated) -> tuple[report.Figure, ...]:
    if found.llr is None:
        return ()
    own = summary.outcome.trials.is_genuine
    drawing = plots.histogram(
        found.llr[own], found.llr[~own], threshold=0.0, xlabel="Natural logarithm of the likelihood ratio"
    )
    words = "At 0 a score is as likely from the same person as from another one."
    return (report.Figure("Likelihood ratios", plots.svg(drawing), words),)


def _groups(summary: Summary, attribute: Attribute) -> report.Section:
    fnmr, fmr = [], []
    for group in attribute.groups:
        people = f"{group.people:,}{' (few)' if group.small else ''}"
        genuine = f"{group.fnmr.trials:,}" if group.fnmr is not None else "0"
        fnmr.append((group.name, people, genuine, _rate(group.fnmr), _points(group.fnmr_difference)))
        within = (_rate(group.fmr_within), _points(group.fmr_within_difference))
        fmr.append((group.name, people, *within, _rate(group.fmr_across)))
    missing = (
        f" {attribute.unknown_people:,} people have no label and are in no row." if attribute.unknown_people else ""
    )
    return report.Section(
        f"Groups by {attribute.name}",
        paragraphs=(
            f"All at one threshold, where {_working_point(summary)} over everybody. Brackets hold 95 % intervals over "
            "people; a difference is to all other groups together, in percentage points, and one whose interval holds "
            "0 was not shown.",
            *_caution(attribute),
        ),
        tables=(
            report.Table(
                ("False non-matches", "People", "Genuine trials", "FNMR", "Difference"),
                tuple(fnmr),
                f"(few): fewer than {SMALL_GROUP} people.{missing}",
            ),
            report.Table(
                ("False matches", "People", "FMR within", "Difference", "FMR across"),
                tuple(fmr),
                "Within: both people of a trial are in the group. Across: one of them is.",
            ),
        ),
        figures=_group_figures(attribute),
    )


def _caution(attribute: Attribute) -> tuple[str, ...]:
    few = [group for group in attribute.groups if group.small]
    if not few:
        return ()
    return (
        f"{len(few)} of {len(attribute.groups)} groups have fewer than {SMALL_GROUP} people. So few stand for nobody "
        "but themselves: neither a difference nor its absence says anything on the fairness of the model.",
    )


def _group_figures(attribute: Attribute) -> tuple[report.Figure, ...]:
    figures = []
    for title, pick in (("False non-match rate", _fnmr_of), ("False match rate within", _fmr_of)):
        rows = [(g.name, rate.value, rate.low, rate.high) for g in attribute.groups if (rate := pick(g)) is not None]
        if len(rows) > 1:
            figures.append(report.Figure(f"{title}, by {attribute.name}", plots.svg(plots.ranges(rows, xlabel=title))))
    return tuple(figures)


def _fnmr_of(group: GroupRates) -> Rate | None:
    return group.fnmr


def _fmr_of(group: GroupRates) -> Rate | None:
    return group.fmr_within


def _qualities(summary: Summary) -> tuple[report.Section, ...]:
    if not summary.qualities:
        return ()
    tables = tuple(
        report.Table(
            (summary.reported[name], "FNMR", "FMR", "Genuine", "Impostor"), tuple(_bin_row(part) for part in bins)
        )
        for name, bins in summary.qualities.items()
    )
    side = "of a trial's two samples the poorer counts" if _paired(summary) else "that of the probe counts"
    words = f"All at one threshold, where {_working_point(summary)}; {side}. Brackets hold 95 % intervals over people."
    return (report.Section("Good and poor samples", (words,), tables),)


def _paired(summary: Summary) -> bool:
    return summary.outcome.sides is not None and summary.outcome.sides.paired


def _bin_row(part: Bin) -> tuple[str, ...]:
    counts = (f"{rate.trials:,}" if rate is not None else "0" for rate in (part.fnmr, part.fmr))
    return (f"{part.low:.3g} to {part.high:.3g}".replace("-", "−"), _rate(part.fnmr), _rate(part.fmr), *counts)


def _counted(summary: Summary) -> report.Section:
    return report.Section(
        "What was counted",
        paragraphs=(f"Protocol: {summary.outcome.protocol}.",),
        tables=(
            report.Table(
                ("Count", "Number"),
                tuple(summary.counts()),
                caption="Samples that could not be processed are counted here and are in no error rate.",
            ),
        ),
    )


def _speed(summary: Summary) -> tuple[report.Section, ...]:
    if not summary.speeds:
        return ()
    rows = tuple((speed.stage, f"{1e3 * speed.median_s:.1f}", f"{1e3 * speed.p95_s:.1f}") for speed in summary.speeds)
    table = report.Table(("Stage", "Median (ms)", "95th percentile (ms)"), rows, emphasised=len(rows) - 1)
    words = "Wall-clock time a sample during this evaluation; whatever else the machine did is in it."
    return (report.Section("Speed", (words,), (table,)),)


def _interval(summary: Summary, name: str) -> str:
    text = summary.interval_text(name)
    return f"95 %: {text}" if text[0].isdigit() else text


def _working_point(summary: Summary) -> str:
    return f"FMR is {percent(summary.working_point.fmr)}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "no trial"
    return f"{percent(rate.value)} [{100 * rate.low:.2f} – {100 * rate.high:.2f}]"


def _points(found: Interval | None) -> str:
    if found is None:
        return "–"
    value, low, high = (f"{100 * part:+.2f}".replace("-", "−") for part in (found.value, found.low, found.high))
    return f"{value} [{low} to {high}]"


def _number(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f} – {found.high:.3f}]"
