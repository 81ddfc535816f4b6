"""``python -m examples.reproduce.augmentation.table`` writes the tables of README.md anew from the two CSV files."""

from __future__ import annotations

import statistics
from pathlib import Path

from examples.reproduce import record
from examples.reproduce.augmentation.run import PROBES, SETTINGS
from examples.reproduce.lfw.table import write

HERE = Path(__file__).parent


def main() -> None:
    """The command."""
    rows = record.read(HERE / "results.csv")
    lines = list[str]()
    for part, title in (("unseen", "strangers"), ("seen", "people who trained")):
        lines += [f"| {title}: EER, % | {' | '.join(PROBES)} |", f"|---|{'---|' * len(PROBES)}"]
        metrics = [f"eer_{part}_{condition}" for condition in PROBES]
        for method in dict.fromkeys(row.method for row in rows):
            found = {setting: _by_seed(rows, method, setting) for setting in ("frozen", *SETTINGS)}
            for setting, figures in found.items():
                lines.append(f"| `{method}`, {setting} | {' | '.join(_cell(figures[metric]) for metric in metrics)} |")
            head, augmented = found["head"], found["head, augmented"]
            rises = ([after - before for before, after in zip(head[m], augmented[m], strict=True)] for m in metrics)
            lines.append(f"| `{method}`, augmented less head | {' | '.join(_cell(rise, '+') for rise in rises)} |")
        lines.append("")
    views = record.read(HERE / "views.csv")
    lines += [
        "| mean cosine | clean to recording | clean to frames | frames to recording | of the mean shifts |",
        "|---|---|---|---|---|",
    ]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in views):
        values = (f"{row.value:.2f}" for row in views if (row.method, row.setting) == (method, setting))
        lines.append(f"| `{method}`, {setting} | {' | '.join(values)} |")
    write(HERE / "README.md", "\n".join(lines))


def _by_seed(rows: list[record.Row], method: str, setting: str) -> dict[str, list[float]]:
    """Metric -> its value under each seed, of the seeds under which every setting was run."""
    seeds = {row.seed for row in rows if (row.method, row.setting) == (method, list(SETTINGS)[-1])}
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row.method, row.setting) == (method, setting) and row.seed in seeds:
            found.setdefault(row.metric, []).append(row.value)
    return found


def _cell(values: list[float], sign: str = "") -> str:
    return f"{statistics.mean(values):{sign}.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
