"""``python -m examples.reproduce.selfcalibration.table`` writes the tables of README.md from the CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Put the tables between their markers."""
    path = HERE / "README.md"
    text = path.read_text(encoding="utf-8")
    made = {
        "domains": _domains(),
        "trained": _trained(),
        "devices": _devices(),
        "genuine": _genuine(),
        "subtraction": _subtraction(),
    }
    for name, lines in made.items():
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


def _devices() -> Iterable[str]:
    heads = (
        "domain",
        "devices",
        "strangers",
        "trials",
        "asked %",
        "FMR % [95 %]",
        "the release's own interval",
        "simulated, 10 to 90 %",
        "card: FMR %",
        "without its bar",
        "FNMR %",
        "card: FNMR %",
        "genuine trials",
    )
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    simulated = {(row["domain"], row["devices"], float(row["asked"])): row for row in _rows("results.csv")}
    for row in _rows("devices.csv"):
        value = {name: _short(text) for name, text in row.items() if name != "domain"}

        def ranged(name: str, value: dict[str, str] = value) -> str:
            if value[name] == "-":
                return "-"
            return f"{value[name]} [{value[f'{name}_low']}, {value[f'{name}_high']}]"

        drawn = simulated.get((row["domain"], row["devices"], float(row["asked"])))
        spread = "-" if drawn is None else f"{_short(drawn['fmr_low'])} to {_short(drawn['fmr_high'])}"
        told = "-" if value["fmr"] == "-" else f"{value['told_low']} to {value['told_high']}"
        own = "too few people" if value["fmr"] == "-" else f"**{value['fmr']}**{ranged('fmr')[len(value['fmr']) :]}"
        yield (
            f"| {row['domain']} | {row['devices']} | {row['strangers']} | {row['trials']} | {value['asked']} | {own} | "
            f"{told} | {spread} | {ranged('card_fmr')} | {value['card_bare']} | {ranged('fnmr')} | "
            f"{ranged('card_fnmr')} | {row['genuine_trials']} |"
        )


def _genuine() -> Iterable[str]:
    yield "| domain | people | samples | fresh probes | left one out | raised | accepted and kept |"
    yield "|---|---|---|---|---|---|---|"
    for row in _rows("genuine.csv"):
        fresh, left_out, corrected, kept = (_short(row[name]) for name in ("fresh", "left_out", "corrected", "kept"))
        who = f"{row['domain']} | {row['people']} | {row['samples']}"
        yield f"| {who} | **{fresh}** | {left_out} | {corrected} | {kept} |"


def _subtraction() -> Iterable[str]:
    heads = (
        "domain",
        "devices",
        "at FMR %",
        "devices tell FNMR %",
        "without the mean",
        "change [95 %]",
        "taken out",
        "FMR % at 1 %",
        "without",
        "people",
        "FNMR % at 1 %",
        "without",
    )
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in _rows("subtraction.csv"):
        value = {name: _short(text) for name, text in row.items() if name != "domain"}

        def ranged(name: str, value: dict[str, str] = value) -> str:
            return f"{value[name]} [{value[f'{name}_low']}, {value[f'{name}_high']}]"

        yield (
            f"| {row['domain']} | {row['devices']} | {value['rate']} | {value['told']} | {value['centred_told']} | "
            f"{ranged('change')} | {row['chosen']} of {row['draws']} | {ranged('fmr')} | **{value['centred_fmr']}** "
            f"[{value['centred_fmr_low']}, {value['centred_fmr_high']}] | {row['people']} | {ranged('fnmr')} | "
            f"**{value['centred_fnmr']}** [{value['centred_fnmr_low']}, {value['centred_fnmr_high']}] |"
        )


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _short(text: str) -> str:
    value = float(text)
    return "-" if np.isnan(value) else f"{value:.2g}"


if __name__ == "__main__":
    main()
