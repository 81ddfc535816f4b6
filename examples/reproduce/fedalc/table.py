"""Put the table of results.csv, with the paper's numbers, and its plot into README.md.

``python -m examples.reproduce.fedalc.table`` after a run.
"""

from __future__ import annotations

import re
from pathlib import Path

from examples.reproduce import record
from examples.reproduce.fedalc import laboratory, plans, plot

HERE = Path(__file__).parent
_HEAD = (
    "| method | setting | seeds | P@1 | P@3 | P@5 | the paper's | mean cosine of embeddings |",
    "|---|---|---|---|---|---|---|---|",
)
_PLACE = re.compile(r"(<!-- table -->\n).*?(<!-- end of table -->)", re.DOTALL)


def main() -> None:
    """Write both."""
    rows = record.read(HERE / "results.csv")
    keys = [(plan.method, plan.setting) for plan in plans.PLANS] + [(name, "") for name in laboratory.BASELINES]
    lines = [*_HEAD, *(_line(rows, key) for key in keys if any((row.method, row.setting) == key for row in rows))]
    readme = HERE / "README.md"
    text = _PLACE.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], readme.read_text())
    readme.write_text(text)
    plot.main()


def _line(rows: list[record.Row], key: tuple[str, str]) -> str:
    of_run = [row for row in rows if (row.method, row.setting) == key]
    cells = []
    for metric in (*plot.METRICS, "cosine_embeddings"):
        values = [row.value for row in of_run if row.metric == metric]
        cells.append(record.spread(values) if values else "")
    papers = " / ".join(f"{value:.2f}" for value in plot.PAPER.get(key, ()))
    figures = " | ".join([*cells[:3], papers, cells[3]])
    return f"| `{key[0]}` | {key[1]} | {len({row.seed for row in of_run})} | {figures} |"


if __name__ == "__main__":
    main()
