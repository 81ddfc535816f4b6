"""The table of ``README.md`` from ``results.csv``: means over seeds, the highest, how many were worse.

``python -m examples.reproduce.recipes.table``
"""

from __future__ import annotations

import statistics
from pathlib import Path

from examples.reproduce.record import Row, read

HERE = Path(__file__).resolve().parent
HEAD = (
    "| recipe | method | runs | returns, releases | seen: start, end (highest), released "
    "| strangers: start, end (highest), released | ended worse: seen, strangers | released worse: seen, strangers |"
)
_PARTS = ("seen", "unseen")


def table(rows: list[Row]) -> str:
    """Equal error rates in percent: one line for each recipe, variant and method.

    Any rise counts as worse; in brackets those whose 95 % interval over people lies above 0.
    """
    lines = [HEAD, "|---|---|---|---|---|---|---|---|"]
    for setting, method in dict.fromkeys((row.setting, row.method) for row in rows):
        runs: dict[int, dict[str, float]] = {}
        for row in rows:
            if (row.setting, row.method) == (setting, method):
                runs.setdefault(row.seed, {})[row.metric] = row.value
        cells = [f"{_mean(runs, 'returns'):.1f}, {_mean(runs, 'releases'):.1f}"]
        cells += [
            f"{_mean(runs, f'eer_{part}_before'):.1f}, {_mean(runs, f'eer_{part}'):.1f} "
            f"({max(run[f'eer_{part}'] for run in runs.values()):.1f}), {_mean(runs, f'eer_{part}_released'):.1f}"
            for part in _PARTS
        ]
        cells += [_worse(runs, ""), _worse(runs, "_released")]
        lines.append(f"| {setting} | `{method}` | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _worse(runs: dict[int, dict[str, float]], which: str) -> str:
    """How many runs have a higher error rate than at the start, and of how many that is beyond the people's chance."""
    found = []
    for part in _PARTS:
        raw = sum(run[f"eer_{part}{which}"] > run[f"eer_{part}_before"] for run in runs.values())
        sure = sum(run[f"gain_{part}{which}_high"] < 0 for run in runs.values())
        found.append(f"{raw} ({sure})")
    return ", ".join(found)


def _mean(runs: dict[int, dict[str, float]], metric: str) -> float:
    return statistics.fmean(run[metric] for run in runs.values())


if __name__ == "__main__":
    print(table(read(HERE / "results.csv")))
