"""``python -m examples.reproduce.augmentation.table`` writes the tables of README.md anew from the CSV files."""

from __future__ import annotations

import statistics
from pathlib import Path

from examples.reproduce import record
from examples.reproduce.augmentation import faces
from examples.reproduce.augmentation.run import PROBES, SETTINGS
from examples.reproduce.lfw.table import write
from examples.reproduce.partial.figures import PARTS

HERE = Path(__file__).parent
_TITLES = {
    "seen": "who trained, impostors who took part",
    "strangers": "who trained, impostors who did not",
    "unseen": "newcomers among themselves",
    "studio": "ORL, who took no part",
}


def main() -> None:
    """The command."""
    write(HERE / "README.md", "\n".join(lines()))


def lines() -> list[str]:
    """All tables of the page, line by line."""
    rows, seen = record.read(HERE / "results.csv"), record.read(HERE / "faces.csv")
    found = _tables(rows, list(PROBES), list(SETTINGS), PARTS)
    found += _tables(seen, list(faces.PROBES), list(faces.SETTINGS), tuple(_TITLES))
    views = record.read(HERE / "views.csv")
    found += [
        "| mean cosine | clean to recording | clean to frames | frames to recording | of the mean shifts |",
        "|---|---|---|---|---|",
    ]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in views):
        values = (f"{row.value:.2f}" for row in views if (row.method, row.setting) == (method, setting))
        found.append(f"| `{method}`, {setting} | {' | '.join(values)} |")
    return found


def _tables(rows: list[record.Row], probes: list[str], settings: list[str], parts: tuple[str, ...]) -> list[str]:
    text = list[str]()
    for part in parts:
        text += [f"| {_TITLES[part]}: EER, % | {' | '.join(probes)} |", f"|---|{'---|' * len(probes)}"]
        metrics = [f"eer_{part}_{condition}" for condition in probes]
        for method in dict.fromkeys(row.method for row in rows if row.metric in metrics):
            found = {setting: _by_seed(rows, method, setting, settings[-1]) for setting in ("frozen", *settings)}
            for setting, figures in found.items():
                text.append(f"| `{method}`, {setting} | {' | '.join(_cell(figures[metric]) for metric in metrics)} |")
            head, augmented = found["head"], found[settings[-1]]
            rises = ([after - before for before, after in zip(head[m], augmented[m], strict=True)] for m in metrics)
            text.append(f"| `{method}`, augmented less head | {' | '.join(_cell(rise, '+') for rise in rises)} |")
        text.append("")
    return text


def _by_seed(rows: list[record.Row], method: str, setting: str, last: str) -> dict[str, list[float]]:
    """Metric -> its value under each seed, of the seeds under which every setting, up to the last, was run."""
    seeds = {row.seed for row in rows if (row.method, row.setting) == (method, last)}
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row.method, row.setting) == (method, setting) and row.seed in seeds:
            found.setdefault(row.metric, []).append(row.value)
    return found


def _cell(values: list[float], sign: str = "") -> str:
    return f"{statistics.mean(values):{sign}.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
