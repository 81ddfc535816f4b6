"""The tables of the demonstration, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laboratory import Sides
from life import Lived
from results import TITLES, Row, Run, Summaries, fnmr_at_one_percent
from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable

from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.evaluation.summary import Summary

NOTHING = "–"
"""In a cell of which nothing is known."""

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
    "stran-\ngers let\nin %",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A table.

    Args:
        title: above it.
        headings: of the columns; a line break is as on the terminal.
        rows: a cell each column, the first names the row.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def printed(self) -> TerminalTable:
        """For the terminal."""
        table = TerminalTable(title=self.title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    @property
    def header(self) -> tuple[str, ...]:
        """The headings in one line each."""
        return tuple(heading.replace("-\n", "").replace("\n", " ") for heading in self.headings)


def models(run: Run, summaries: Summaries) -> list[Shown]:
    """The models by what people say to be verified and, where that is joined of single clips, by those alone."""
    rows = run.learned.rows
    whole = [_cells(row, row.outcomes, summary) for row, summary in zip(rows, summaries.whole, strict=True)]
    found = [_told(f"{len(run.people.people)} people, {rows[-1].rounds} rounds; FNMR at FMR 1 %", whole)]
    if summaries.has_single:
        single = [_cells(row, row.single, summary) for row, summary in zip(rows, summaries.single, strict=True)]
        found.append(_told("The same people and models, by one syllable of half a second", single))
    return found


def releases(run: Run) -> Shown:
    """The releases of the last method."""
    title = f"{TITLES['fedaws']}: what verified, and whom it let in (REST · offline)"
    return Shown(title, _OF_A_RELEASE, tuple(_of_a_release(lived) for lived in run.learned.lived))


def _told(title: str, rows: Sequence[tuple[str, ...]]) -> Shown:
    """Without columns of which nothing is known."""
    kept = [place for place in range(len(_HEADINGS)) if any(row[place] != NOTHING for row in rows)]
    return Shown(
        title, tuple(_HEADINGS[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows)
    )


def percent(rate: float) -> str:
    """To one decimal, without the sign."""
    return f"{100 * rate:.1f}"


def interval(low: float, high: float) -> str:
    """Of two rates."""
    return f"{percent(low)}–{percent(high)}"


def _fnmr(outcome: ProtocolOutcome | None) -> str:
    if outcome is None:
        return NOTHING
    fnmr = fnmr_at_one_percent(outcome.trials.curve())
    return NOTHING if fnmr is None else percent(fnmr)


def _cells(row: Row, outcomes: Sides[ProtocolOutcome], summary: Sides[Summary]) -> tuple[str, ...]:
    eer = summary.each(lambda found: found.intervals["eer"])
    seeds = row.spread[1] if row.spread and outcomes is row.outcomes else ()
    return (
        TITLES[row.name],
        NOTHING if eer.trained is None else percent(eer.trained.value),
        NOTHING if eer.strangers is None else percent(eer.strangers.value),
        NOTHING if eer.strangers is None else interval(eer.strangers.low, eer.strangers.high),
        interval(min(seeds), max(seeds)) if seeds else NOTHING,
        _fnmr(outcomes.trained),
        _fnmr(outcomes.strangers),
        f"{row.mean_offdiagonal_cosine:+.2f}" if outcomes is row.outcomes else NOTHING,
    )


def _of_a_release(lived: Lived) -> tuple[str, ...]:
    evaluation, limits, rates = lived.evaluation, lived.thresholds, lived.rates
    stay = f",\n{lived.stayed} stay" if lived.stayed else ""
    asked = "" if rates is None or rates[0] in (None, rates[1]) else f"{100 * (rates[0] or 0):g} asked, "
    return (
        f"{lived.number} {lived.cause}{stay}",
        str(lived.release["round_id"]),
        NOTHING if rates is None else f"{asked}{100 * rates[1]:g}{' (outside)' if lived.outside else ''}",
        NOTHING if limits is None else "–".join(dict.fromkeys(f"{limit:.2f}" for limit in limits)),
        NOTHING if evaluation is None else f"{percent(evaluation['fnmr'])}, {evaluation['people']}",
        lived.counts(genuine=True),
        lived.counts(genuine=False),
        NOTHING if lived.strangers is None else percent(lived.strangers.fmr),
    )
