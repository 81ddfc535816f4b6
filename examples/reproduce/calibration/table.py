"""The README's table from ``results.csv``: ``python -m examples.reproduce.calibration.table``."""

from __future__ import annotations

import csv
import re
from pathlib import Path

HERE = Path(__file__).parent
HALVES = ("B", "A")
_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def table() -> str:
    """Markdown, a line for each variant and pair of conditions, both halves in each cell."""
    lines = [
        "| template | probe | variant | FMR % | FNMR % | EER % | act/min DCF | Cllr/min |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    with (HERE / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells.setdefault((row["template"], row["probe"], row["variant"]), {})[row["measured_half"]] = row
    for names, halves in cells.items():
        both = [halves[half] for half in HALVES]
        rates = [" / ".join(f"{100 * float(row[name]):.2f}" for row in both) for name in ("fmr", "fnmr", "eer")]
        pairs = [
            " / ".join(f"{float(row[actual]):.2f}·{float(row[least]):.2f}" for row in both)
            for actual, least in (("act_dcf", "min_dcf"), ("cllr", "min_cllr"))
        ]
        lines.append(f"| {' | '.join([*names, *rates, *pairs])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(_TABLE.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text), encoding="utf-8")
