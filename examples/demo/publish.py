"""Publish what a run measured: in results.csv, in README.md and docs/measurements.md, and as the picture.

``python -m examples.demo.publish demo-output/report.json`` takes that run in and writes all of them anew; without a
report the documents and the picture are made of ``results.csv`` as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.reproduce import record
from examples.reproduce.record import Row

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.csv")
PICTURE = ROOT / "docs" / "demonstration.svg"
VOICES = "20 klettres voices"
TITLES = {
    "before": "before training",
    "positive_only": "positive-only",
    "fixed": "fixed vectors",
    "fedaws": "FedAwS",
}
FNMR = "fnmr_at_fmr_1e-2"
COUNTS = ("genuine_trials", "impostor_trials", "failures_to_acquire")
_BLOCK = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.DOTALL)

Figures = Mapping[tuple[str, str], float]
"""(method, metric) -> value, of one setting."""


def main() -> None:
    """Take a run in where one is named, and write what is made of the voices' rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="report.json of a run")
    parser.add_argument("--setting", default=VOICES, help=f"what the run is called in results.csv ({VOICES})")
    arguments = parser.parse_args()
    if arguments.report:
        record.append(RESULTS, rows(json.loads(arguments.report.read_text("utf-8")), arguments.setting))
    found = figures(record.read(RESULTS))
    for document, text in documents(found).items():
        document.write_text(text, encoding="utf-8")
    PICTURE.write_text(picture(found), encoding="utf-8")


def rows(report: Mapping[str, Any], setting: str) -> list[Row]:
    """The rows of ``results.csv`` that a run's ``report.json`` gives."""
    seed = report["seed"]
    found = []
    for method, row in report["rows"].items():
        low, high = row["eer_interval"]
        rates = {"eer": row["eer"], "eer_low_95": low, "eer_high_95": high, FNMR: row[FNMR]}
        found += [Row(method, setting, seed, name, value, "rate") for name, value in rates.items() if value is not None]
        if spread := row["eer_of_seeds"]:
            ends = {"eer_seeds_low": min(spread), "eer_seeds_high": max(spread)}
            found += [Row(method, setting, seed, name, round(value, 5), "rate") for name, value in ends.items()]
        found.append(
            Row(method, setting, seed, "mean_offdiagonal_cosine", round(row["mean_offdiagonal_cosine"], 4), "cosine")
        )
    last = report["rows"]["fedaws"]
    checks = [check["as_expected"] for check in report["checks"]]
    counts = {"rounds": last["rounds"], **{name: last[name] for name in COUNTS}}
    counts |= {"checks": len(checks), "checks_as_expected": sum(checks)}
    found.append(Row("all", setting, seed, "seconds", report["seconds"], "s"))
    return [*found, *(Row("all", setting, seed, name, value, "count") for name, value in counts.items())]


def figures(table: Sequence[Row], setting: str = VOICES) -> Figures:
    """What ``results.csv`` holds of one setting, by default that which is published."""
    return {(row.method, row.metric): row.value for row in table if row.setting == setting}


def documents(found: Figures) -> dict[Path, str]:
    """The documents that show the run, each with its block made anew."""
    blocks = {ROOT / "README.md": summary(found), ROOT / "docs" / "measurements.md": markdown(found)}
    return {
        path: _BLOCK.sub(lambda marks, block=block: f"{marks[1]}{block}\n{marks[2]}", path.read_text("utf-8"))
        for path, block in blocks.items()
    }


def summary(found: Figures) -> str:
    """The picture, and in words what it shows."""
    eer, fnmr = ([_percent(found[method, metric]) for method in ("before", "fedaws")] for metric in ("eer", FNMR))
    shown = ", ".join(f"{title} {_percent(found[method, 'eer'])} %" for method, title in TITLES.items())
    return (
        f"![Equal error rate: {shown}](docs/demonstration.svg)\n\n"
        "Twenty real voices, each on a device process of its own, half of which train and half only evaluate. With\n"
        f"FedAwS the equal error rate falls from {eer[0]} to {eer[1]} %, the share of genuine attempts rejected at a "
        f"false\nmatch rate of 1 % from {fnmr[0]} to {fnmr[1]} %. With twenty people the intervals are wide:\n"
        "[all figures, and what flatters them](docs/measurements.md#the-demonstration)."
    )


def markdown(found: Figures) -> str:
    """One row for each model, and what the run was."""
    lines = [
        "| 20 voices, verification on syllables | EER | 95 % interval | three seeds | FNMR at FMR 1 % "
        "| mean off-diagonal cosine |",
        "|---|---|---|---|---|---|",
    ]
    for method, title in TITLES.items():
        low, high = (_percent(found[method, f"eer_{end}_95"]) for end in ("low", "high"))
        ends = [found.get((method, f"eer_seeds_{end}")) for end in ("low", "high")]
        seeds = " – ".join(_percent(end) for end in ends if end is not None)
        lines.append(
            f"| {f'**{title}**' if method == 'fedaws' else title} | {_percent(found[method, 'eer'])} % "
            f"| {low} – {high} % | {f'{seeds} %' if seeds else '–'} | {_percent(found[method, FNMR])} % "
            f"| {found[method, 'mean_offdiagonal_cosine']:+.2f} |"
        )
    of_all = {metric: f"{value:,.0f}" for (method, metric), value in found.items() if method == "all"}
    words = (
        "{rounds} rounds; {genuine_trials} genuine and {impostor_trials} impostor trials; {failures_to_acquire} clips "
        "with too little\nspeech or of too poor quality left out; {checks_as_expected} of {checks} closing checks as "
        "expected; {seconds} s without the\ninstallation. Intervals: bootstrap over people. Three seeds: lowest and "
        "highest of the same\nrounds in one process."
    )
    lines += ["", words.format_map(of_all)]
    return "\n".join(lines)


def picture(found: Figures) -> str:
    """The equal error rates with their intervals, as SVG whose texts are texts."""
    import matplotlib as mpl

    from uvsdk.evaluation import plots

    values = {method: [found[method, f"eer{end}"] for end in ("", "_low_95", "_high_95")] for method in TITLES}
    figure = plots.ranges(
        [(TITLES[method], *of_method) for method, of_method in values.items()],
        xlabel="Equal error rate on syllables that nobody trained on, and its 95 % interval",
    )
    # A fixed frame, so that what is drawn depends on the values alone.
    figure.set_layout_engine("none")
    figure.set_size_inches(7.6, 2.3)
    (axes,) = figure.axes
    axes.set_position((0.205, 0.23, 0.585, 0.755))
    axes.set(xlim=(0, max(0.3, 1.02 * max(high for _, _, high in values.values()))), xticks=[0, 0.1, 0.2, 0.3])
    colours = [plots.PALETTE[2] if method == "fedaws" else plots.PALETTE[0] for method in TITLES]
    axes.collections[0].set(gid="intervals", color=colours)
    axes.lines[0].remove()
    for place, colour, (eer, low, high) in zip(reversed(range(len(TITLES))), colours, values.values(), strict=True):
        axes.plot(eer, place, "o", color=colour, gid="values")
        words = f"{_percent(eer)} %  ({_percent(low)} – {_percent(high)})"
        axes.text(1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=plots.INK)
    drawn = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "uvsdk", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


if __name__ == "__main__":
    main()
