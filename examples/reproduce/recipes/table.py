"""The table of ``README.md`` from ``results.csv``: worst and mean over seeds, and the runs that ended worse.

``python -m examples.reproduce.recipes.table``
"""

from __future__ import annotations

import statistics
from pathlib import Path

from examples.reproduce.record import Row, read

HERE = Path(__file__).resolve().parent
HEAD = "| recipe | method | runs | EER seen: before, after (highest) | unseen: before, after (highest) | ended worse |"


def table(rows: list[Row]) -> str:
    """One line for each recipe, method and variant; a run ended worse where either error rate rose."""
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for setting, method in dict.fromkeys((row.setting, row.method) for row in rows):
        runs: dict[int, dict[str, float]] = {}
        for row in rows:
            if (row.setting, row.method) == (setting, method):
                runs.setdefault(row.seed, {})[row.metric] = row.value
        cells = [
            f"{_mean(runs, f'eer_{part}_before'):.1f} %, {_mean(runs, f'eer_{part}'):.1f} % "
            f"({max(run[f'eer_{part}'] for run in runs.values()):.1f})"
            for part in ("seen", "unseen")
        ]
        worse = [
            sum(run[f"eer_{part}"] > run[f"eer_{part}_before"] for run in runs.values()) for part in ("seen", "unseen")
        ]
        told = "none" if not any(worse) else f"{worse[0]} seen, {worse[1]} unseen"
        lines.append(f"| {setting} | `{method}` | {len(runs)} | {' | '.join(cells)} | {told} |")
    return "\n".join(lines)


def _mean(runs: dict[int, dict[str, float]], metric: str) -> float:
    return statistics.fmean(run[metric] for run in runs.values())


if __name__ == "__main__":
    print(table(read(HERE / "results.csv")))
