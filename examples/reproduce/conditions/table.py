"""``python -m examples.reproduce.conditions.table`` writes the table of README.md anew from results.csv."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce import record
from examples.reproduce.conditions.conditions import CONDITIONS
from examples.reproduce.lfw.table import write

HERE = Path(__file__).parent
COLUMNS = {
    "eer_both": "EER, both sides",
    "fmr_both": "FMR",
    "fnmr_both": "FNMR",
    "eer_probe": "EER, clean template",
    "fmr_probe": "FMR",
    "fnmr_probe": "FNMR",
}


def main() -> None:
    """The command."""
    rows = record.read(HERE / "results.csv")
    lines = [
        f"| model | condition | {' | '.join(COLUMNS.values())} | gave nothing, refused of recordings |",
        f"|---|---|{'---|' * len(COLUMNS)}---|",
    ]
    for method in dict.fromkeys(row.method for row in rows):
        for setting in (name for name in CONDITIONS if any(_is(row, method, name) for row in rows)):
            found = {row.metric: row.value for row in rows if _is(row, method, setting)}
            cells = " | ".join(_cell(found, metric) for metric in COLUMNS)
            counts = f"{found['gave_nothing']:.0f}, {found['refused_by_standard']:.0f} of {found['recordings']:.0f}"
            lines.append(f"| `{method}` | {setting} | {cells} | {counts} |")
    write(HERE / "README.md", "\n".join(lines))


def _is(row: record.Row, method: str, setting: str) -> bool:
    return (row.method, row.setting) == (method, setting)


def _cell(found: dict[str, float], metric: str) -> str:
    return f"{found[metric]:.2f} ({found[f'{metric}_low']:.2f} to {found[f'{metric}_high']:.2f})"


if __name__ == "__main__":
    main()
