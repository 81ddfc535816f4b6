"""Writes the table of README.md from results.csv: ``python -m examples.reproduce.domains.table``."""

from __future__ import annotations

import csv
import re
from pathlib import Path

HERE = Path(__file__).parent
_HEAD = (
    "| card of | scale | set | outside % (strangers · genuine) | FMR %, asked 1 % | with what is asked outside "
    "| FNMR % | with | FMR %, asked 0.1 % | with | FNMR % | with |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def table(path: Path = HERE / "results.csv") -> str:
    """One line for each set and scale, the cards of halves A and B side by side."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [*_HEAD]
    keys = dict.fromkeys((row["modality"], row["scale"], row["set"]) for row in rows)
    for modality, scale, name in keys:
        own = [row for row in rows if (row["modality"], row["scale"], row["set"]) == (modality, scale, name)]
        at = {(row["half"], float(row["asked_fmr"])): row for row in own}

        def both(column: str, rate: float, digits: int = 1, at: dict[tuple[str, float], dict[str, str]] = at) -> str:
            return " / ".join(f"{float(at[half, rate][column]):.{digits}f}" for half in ("A", "B"))

        outside = f"{both('outside_impostor', 0.01, 0)} · {both('outside_genuine', 0.01, 0)}"
        cells = [both("fmr", 0.01), both("bar_fmr", 0.01), both("fnmr", 0.01, 0), both("bar_fnmr", 0.01, 0)]
        cells += [both("fmr", 0.001, 2), both("bar_fmr", 0.001, 2), both("fnmr", 0.001, 0), both("bar_fnmr", 0.001, 0)]
        lines.append(f"| {modality} | {scale} | {name} | {outside} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    filled = re.sub(r"<!-- table -->.*<!-- /table -->", f"<!-- table -->\n{table()}\n<!-- /table -->", text, flags=re.S)
    readme.write_text(filled, encoding="utf-8")
