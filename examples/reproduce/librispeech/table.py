"""``python -m examples.reproduce.librispeech.table`` writes the table of README.md anew from results.csv."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce import record
from examples.reproduce.lfw.table import write

HERE = Path(__file__).parent
COLUMNS = {
    "eer": "EER",
    "fnmr_at_fmr_1e-2": "FNMR at FMR 1 %",
    "fnmr_at_fmr_1e-3": "FNMR at FMR 0.1 %",
    "fmr_within_F": "FMR among women",
    "fmr_within_M": "FMR among men",
}


def main() -> None:
    """The command."""
    rows = record.read(HERE / "results.csv")
    heading = " | ".join(f"{title}, % (95 %)" for title in COLUMNS.values())
    lines = [
        f"| model, setting | {heading} | minDCF 0.01 | failures to acquire |",
        f"|---|{'---|' * len(COLUMNS)}---|---|",
    ]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in rows):
        found = {row.metric: row.value for row in rows if (row.method, row.setting) == (method, setting)}
        cells = " | ".join(_cell(found, metric) for metric in COLUMNS)
        failures = f"{found['failures_to_acquire']:.0f} of {found['samples']:.0f}"
        lines.append(f"| `{method}`, {setting} | {cells} | {found['min_dcf_0.01']:.3f} | {failures} |")
    write(HERE / "README.md", "\n".join(lines))


def _cell(found: dict[str, float], metric: str) -> str:
    if metric not in found:
        return "–"
    return f"{found[metric]:.2f} ({found[f'{metric}_low']:.2f} to {found[f'{metric}_high']:.2f})"


if __name__ == "__main__":
    main()
