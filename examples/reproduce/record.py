"""The one form of every result here: rows of a CSV, and the table with mean and spread that a README shows.

``python -m examples.reproduce.record FOLDER/results.csv`` prints the table.
"""

from __future__ import annotations

import csv
import fcntl
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one run.

    Args:
        method: registry name of the method, or the name of a laboratory baseline.
        setting: what distinguishes this run from others of the method, in one word or two; empty for the default.
        seed: of the training.
        metric: its name, e.g. ``eer_unseen``.
        value: the figure.
        unit: ``percent``, ``cosine``, ``seconds``, ...
    """

    method: str
    setting: str
    seed: int
    metric: str
    value: float
    unit: str


COLUMNS = tuple(field.name for field in fields(Row))


def read(path: Path) -> list[Row]:
    """The rows of a CSV, none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(line["method"], line["setting"], int(line["seed"]), line["metric"], float(line["value"]), line["unit"])
            for line in csv.DictReader(file)
        ]


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add ``rows``, replacing those of the same method, setting, seed and metric; safe among several processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = {(row.method, row.setting, row.seed, row.metric): row for row in read(path)}
        kept |= {(row.method, row.setting, row.seed, row.metric): row for row in rows}
        draft = path.with_suffix(".draft")
        with draft.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in kept.values():
                *head, value, unit = astuple(row)
                writer.writerow([*head, f"{value:.6g}", unit])
        draft.replace(path)


def has(path: Path, method: str, setting: str, seed: int) -> bool:
    """Whether that run is recorded already, so that an interrupted command goes on where it stopped."""
    return any((row.method, row.setting, row.seed) == (method, setting, seed) for row in read(path))


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation over seeds, or the value alone.

    >>> spread([1.0, 2.0, 3.0]), spread([1.5])
    ('2.00 ± 1.00', '1.50')
    """
    mean = statistics.fmean(values)
    if math.isnan(mean) or len(values) < 2:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}"


def summary(path: Path, metrics: Sequence[str] = ()) -> str:
    """A Markdown table: one line for each method and setting, one column for each metric, mean ± spread over seeds."""
    rows = read(path)
    columns = list(metrics) or list(dict.fromkeys(row.metric for row in rows))
    lines = [
        f"| method | setting | seeds | {' | '.join(columns)} |",
        f"|---|---|---|{'---|' * len(columns)}",
    ]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in rows):
        of_run = [row for row in rows if (row.method, row.setting) == (method, setting)]
        cells = []
        for column in columns:
            values = [row.value for row in of_run if row.metric == column]
            cells.append(spread(values) if values else "")
        if any(cells):
            seeds = len({row.seed for row in of_run})
            lines.append(f"| `{method}` | {setting} | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary(Path(sys.argv[1]), sys.argv[2:]))
