"""``python -m examples.reproduce.partial.table`` writes the README's table of results.csv anew."""

from __future__ import annotations

import re
from pathlib import Path

from examples.reproduce import record
from examples.reproduce.partial.figures import PARTS

HERE = Path(__file__).parent
POOLED = -1
HEAD = (
    "| method | setting | EER against those who took part | gain | EER against strangers | gain | newcomers among "
    "themselves | gain |"
)
_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def table() -> str:
    """Markdown: error rates over the seeds, with their intervals, and what was gained over the frozen encoder."""
    lines = [HEAD, "|---|---|---|---|---|---|---|---|"]
    rows = [row for row in record.read(HERE / "results.csv") if row.seed == POOLED]
    order = {"frozen": 0}
    names = sorted({(row.method, row.setting) for row in rows}, key=lambda name: _place(name, order))
    for method, setting in names:
        found = {row.metric: row.value for row in rows if (row.method, row.setting) == (method, setting)}
        cells = [cell for part in PARTS for cell in (_rate(found, f"eer_{part}"), _gain(found, f"gain_{part}"))]
        lines.append(f"| `{method}` | {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _place(name: tuple[str, str], order: dict[str, int]) -> tuple[str, int, int]:
    method, setting = name
    kind, _, part = setting.partition(", ")
    parts = ("", "random 64", "head", "head of 64", "block", "all")
    return kind, order.get(method, 1), parts.index(part)


def _rate(found: dict[str, float], metric: str) -> str:
    if metric not in found:
        return ""
    return f"{found[metric]:.1f} % ({found[f'{metric}_low']:.1f} to {found[f'{metric}_high']:.1f})"


def _gain(found: dict[str, float], metric: str) -> str:
    if metric not in found:
        return ""
    return f"{found[metric]:+.1f} ({found[f'{metric}_low']:+.1f} to {found[f'{metric}_high']:+.1f})"


if __name__ == "__main__":
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(_TABLE.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text), encoding="utf-8")
