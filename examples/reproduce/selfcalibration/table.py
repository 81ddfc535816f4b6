"""``python -m examples.reproduce.selfcalibration.table`` writes the tables of README.md from the CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Put both tables between their markers."""
    path = HERE / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, lines in (("domains", _domains()), ("trained", _trained())):
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        text = before + "\n".join([start, "", *lines, "", end]) + rest.partition(end)[2]
    path.write_text(text, encoding="utf-8")


def _domains() -> Iterable[str]:
    heads = (
        "domain",
        "devices",
        "strangers",
        "asked %",
        "FMR %",
        "mean",
        "in bounds",
        "in interval",
        "card, cosine",
        "ratio",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in _rows("results.csv"):
        value = {name: _short(text) for name, text in row.items() if name != "domain"}
        yield (
            f"| {row['domain']} | {row['devices']} | {row['strangers']} | {value['asked']} | **{value['fmr']}** "
            f"[{value['fmr_low']}, {value['fmr_high']}] | {value['fmr_mean']} | {float(row['within']):.0f} % | "
            f"{float(row['covered']):.0f} % | {value['card_cosine']} | {value['card_ratio']} |"
        )


def _trained() -> Iterable[str]:
    rows = _rows("trained.csv")
    yield "| rounds | threshold from | asked 1 % | asked 0.1 % |"
    yield "|---|---|---|---|"
    for rounds, name in sorted({(int(row["rounds"]), row["threshold_from"]) for row in rows}):
        cells = []
        for asked in (0.01, 0.001):
            rates = [
                100 * float(row["fmr"])
                for row in rows
                if (int(row["rounds"]), row["threshold_from"], float(row["asked"])) == (rounds, name, asked)
            ]
            low, middle, high = np.quantile(rates, (0.1, 0.5, 0.9))
            cells.append(f"{middle:.2g} [{low:.2g}, {high:.2g}]")
        yield f"| {rounds} | {name} | {cells[0]} | {cells[1]} |"


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _short(text: str) -> str:
    value = float(text)
    return "-" if np.isnan(value) else f"{value:.2g}"


if __name__ == "__main__":
    main()
