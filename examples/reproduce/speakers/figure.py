"""plot.png, and the table of README.md, made of results.csv: ``python -m examples.reproduce.speakers.figure``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from examples.reproduce import record
from examples.reproduce.record import Row
from examples.reproduce.speakers.plans import CENTRAL

HERE = Path(__file__).parent
COLUMNS = ("eer_unseen", "eer_unseen_5", "fnmr_at_fmr1_unseen", "fnmr_at_fmr1_unseen_5", "eer_seen", "mean_cosine")

IMPOSTORS = ("eer_seen_5", "eer_strangers_5", "fnmr_at_fmr1_seen_5", "fnmr_at_fmr1_strangers_5")
"""Of people who trained, against impostors who did and who did not."""

BEFORE, AFTER = "<!-- made of results.csv -->", "<!-- end -->"


def main() -> None:
    """Draw the figure, and put the table where README.md has its place."""
    rows = record.read(HERE / "results.csv")
    draw(rows, HERE / "plot.png")
    readme = HERE / "README.md"
    head, rest = readme.read_text().split(BEFORE)
    tail = rest.split(AFTER)[1]
    readme.write_text(f"{head}{BEFORE}\n\n{table(rows)}\n\n{impostors(rows)}\n\n{AFTER}{tail}")


def lines(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Method and setting of every line, best first, the reference at the top."""
    found = list(dict.fromkeys((row.method, row.setting) for row in rows))
    return sorted(found, key=lambda line: (line[0] != CENTRAL, statistics.fmean(_values(rows, line, "eer_unseen"))))


def table(rows: Sequence[Row]) -> str:
    """Mean and deviation over seeds, the ratio to the central reference, and a 95 % interval over the speakers."""
    heads = ["method", "setting", "seeds", "ratio", "eer_unseen, 95 % over speakers", *COLUMNS]
    text = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for line in lines(rows):
        eers = _values(rows, line, "eer_unseen")
        low, high = (statistics.fmean(_values(rows, line, f"eer_unseen_{end}")) for end in ("low", "high"))
        cells = [f"`{line[0]}`", line[1], str(len(eers)), _ratio(rows, line)]
        cells += [f"{low:.1f} to {high:.1f}", *(record.spread(_values(rows, line, column)) for column in COLUMNS)]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def impostors(rows: Sequence[Row]) -> str:
    """Of the runs that were measured against both: error rates against who took part and against who did not."""
    heads = ["method", "setting", "seeds", "EER, impostors who took part", "EER, impostors who did not"]
    heads += ["FNMR at FMR 1 %, impostors who took part", "FNMR at FMR 1 %, impostors who did not"]
    text = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for line in lines(rows):
        seeds = {row.seed for row in rows if (row.method, row.setting, row.metric) == (*line, IMPOSTORS[1])}
        if seeds:
            chosen = [row for row in rows if row.seed in seeds]
            cells = [f"`{line[0]}`", line[1], str(len(seeds))]
            cells += [record.spread(_values(chosen, line, column)) for column in IMPOSTORS]
            text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Equal error rates of unseen speakers: every seed, their mean, and the interval over speakers."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    order = lines(rows)[::-1]
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(order) + 1.4), layout="constrained")
    for place, line in enumerate(order):
        low, high = (statistics.fmean(_values(rows, line, f"eer_unseen_{end}")) for end in ("low", "high"))
        axes.plot([low, high], [place, place], color="0.75", linewidth=5, solid_capstyle="butt", zorder=1)
        for metric, colour, label in (
            ("eer_unseen", "tab:blue", "one utterance against one"),
            ("eer_unseen_5", "tab:orange", "five enrolled"),
        ):
            values = _values(rows, line, metric)
            shown = label if place == 0 else None
            axes.scatter(values, np.full(len(values), place), s=22, color=colour, label=shown, zorder=2)
    reference = statistics.fmean(_values(rows, (CENTRAL, ""), "eer_unseen") or [math.nan])
    for factor, style in ((1.0, "-"), (1.1, "--"), (1.3, ":")):
        if math.isnan(reference):
            break
        axes.axvline(factor * reference, color="0.4", linewidth=0.8, linestyle=style, zorder=0)
        axes.text(factor * reference, len(order) - 0.4, f"{factor:g}x", fontsize=7, ha="center", va="bottom")
    axes.set_yticks(range(len(order)), [f"{method}  {setting}".rstrip() for method, setting in order])
    axes.set_xscale("log")
    axes.set_xticks([5, 7, 10, 15, 20, 30, 50], ["5", "7", "10", "15", "20", "30", "50"])
    axes.minorticks_off()
    axes.set_xlabel("EER of 40 speakers never seen, % (bar: 95 % over speakers)")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _ratio(rows: Sequence[Row], line: tuple[str, str]) -> str:
    """Mean EER over that of the central reference with the same trunk."""
    reference = _values(rows, (CENTRAL, "tdnn" if line[1] == "tdnn" else ""), "eer_unseen")
    if not reference:
        return ""
    return f"{statistics.fmean(_values(rows, line, 'eer_unseen')) / statistics.fmean(reference):.2f}"


def _values(rows: Sequence[Row], line: tuple[str, str], metric: str) -> list[float]:
    return [row.value for row in rows if (row.method, row.setting) == line and row.metric == metric]


if __name__ == "__main__":
    main()
