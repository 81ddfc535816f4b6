"""``python -m examples.reproduce.lfw.table`` writes the table of README.md anew from results.csv."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce import record

HERE = Path(__file__).parent
START, END = "<!-- made of results.csv -->", "<!-- end -->"


def main() -> None:
    """The command."""
    rows = record.read(HERE / "results.csv")
    lines = ["| model | setting | accuracy, % | EER, % (95 %) | failures to acquire |", "|---|---|---|---|---|"]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in rows):
        found = {row.metric: row.value for row in rows if (row.method, row.setting) == (method, setting)}
        failures = f"{found['failures_to_acquire']:.0f} of {found['samples']:,.0f}"
        eer = f"{found['eer']:.2f} ({found['eer_low']:.2f} to {found['eer_high']:.2f})"
        lines.append(f"| `{method}` | {setting} | {_accuracy(found)} | {eer} | {failures} |")
    write(HERE / "README.md", "\n".join(lines))


def write(readme: Path, table: str) -> None:
    """Put a table between the markers of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def _accuracy(found: dict[str, float]) -> str:
    if "accuracy" not in found:
        return "–"
    error = found.get("accuracy_standard_error")
    return f"{found['accuracy']:.2f}" + (f" ± {error:.2f}" if error is not None else "")


if __name__ == "__main__":
    main()
