"""``python -m examples.reproduce.conditions.speakers_table`` makes the table of two speakers of speakers.csv anew."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce import record
from examples.reproduce.conditions.speakers import EVERY_ONE, KINDS, LENGTHS_S, ONE
from examples.reproduce.lfw.table import write

HERE = Path(__file__).parent
HEADINGS = {"refused": "", "refused_with_overlap": ", with `--overlap`"}


def main() -> None:
    """The command."""
    write(HERE / "README.md", table(record.read(HERE / "speakers.csv")), name="speakers.csv")


def table(rows: list[record.Row]) -> str:
    """Percent refused by kind of recording and length, with the interval; a line for each model and kind."""
    found = {(row.method, row.setting, row.metric): row.value for row in rows}
    lines = [
        f"| recording | model | {' | '.join(f'{length} s' for length in LENGTHS_S)} |",
        f"|---|---|{'---|' * len(LENGTHS_S)}",
    ]
    after = KINDS.index(ONE[-1]) + 1
    for kind in (*KINDS[:after], EVERY_ONE, *KINDS[after:]):
        for method in dict.fromkeys(row.method for row in rows):
            for metric, heading in HEADINGS.items():
                cells = [_cell(found, (method, f"{length} s, {kind}"), metric) for length in LENGTHS_S]
                if any(cells):
                    lines.append(f"| {kind} | `{method}`{heading} | {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join(lines)


def _cell(found: dict[tuple[str, str, str], float], row: tuple[str, str], metric: str) -> str:
    if (*row, metric) not in found:
        return ""
    value, low, high = (found[*row, f"{metric}{end}"] for end in ("", "_low", "_high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
