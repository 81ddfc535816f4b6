"""``python -m examples.reproduce.augmentation.table`` writes the tables of README.md anew from the two CSV files."""

from __future__ import annotations

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
        if not any(row.seed == -1 for row in rows):
            break
        heading = " | ".join(PROBES)
        lines += [f"| {title}: EER, % | {heading} |", f"|---|{'---|' * len(PROBES)}"]
        for method in dict.fromkeys(row.method for row in rows):
            for setting in ("frozen", *SETTINGS):
                found = {row.metric: row.value for row in rows if _is(row, method, setting)}
                if found:
                    cells = " | ".join(_cell(found, f"eer_{part}_{condition}") for condition in PROBES)
                    lines.append(f"| `{method}`, {setting} | {cells} |")
            found = {row.metric: row.value for row in rows if _is(row, method, "head, augmented")}
            if found:
                cells = " | ".join(_cell(found, f"gain_over_head_{part}_{condition}", "+") for condition in PROBES)
                lines.append(f"| `{method}`, what augmentation takes off the head | {cells} |")
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


def _is(row: record.Row, method: str, setting: str) -> bool:
    return (row.method, row.setting, row.seed) == (method, setting, -1)


def _cell(found: dict[str, float], metric: str, sign: str = "") -> str:
    ends = (found[f"{metric}{end}"] for end in ("", "_low", "_high"))
    value, low, high = (f"{number:{sign}.1f}" for number in ends)
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    main()
