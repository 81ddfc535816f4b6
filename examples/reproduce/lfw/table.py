"""``python -m examples.reproduce.lfw.table`` writes the tables of README.md anew from the CSV files."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce import record
from examples.reproduce.lfw import company
from uvsdk.modality.sample import FACES_RULES

HERE = Path(__file__).parent
END = "<!-- end -->"


def main() -> None:
    """The command."""
    rows = record.read(HERE / "results.csv")
    lines = ["| model | setting | accuracy, % | EER, % (95 %) | failures to acquire |", "|---|---|---|---|---|"]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in rows):
        found = _of(rows, method, setting)
        failures = f"{found['failures_to_acquire']:.0f} of {found['samples']:,.0f}"
        eer = f"{found['eer']:.2f} ({found['eer_low']:.2f} to {found['eer_high']:.2f})"
        lines.append(f"| `{method}` | {setting} | {_accuracy(found)} | {eer} | {failures} |")
    for name, table in (
        ("results.csv", lines),
        ("company.csv", _company()),
        ("pictures", _pictures()),
        ("conditions.csv", _conditions()),
        ("templates.csv", _templates()),
    ):
        write(HERE / "README.md", "\n".join(table), name=name)


def _of(rows: list[record.Row], method: str, setting: str) -> dict[str, float]:
    return {row.metric: row.value for row in rows if (row.method, row.setting) == (method, setting)}


def _company() -> list[str]:
    rows = record.read(HERE / "company.csv")
    lines = [
        "| rule | people | photographs refused, % (95 %) | of | enrolments of three that fail |",
        "|---|---|---|---|---|",
    ]
    for rule in FACES_RULES:
        for half in company.HALVES:
            found = _of(rows, rule, f"photographs, {half}")
            three = _of(rows, rule, f"enrolments of three, {half}")
            lines.append(
                f"| `{rule}` | {half} | {_share(found, 'refused')} | {found['photographs']:.0f} "
                f"| {three['refused_count']:.0f} of {three['people']:.0f} |"
            )
    return lines


def _pictures() -> list[str]:
    rows = record.read(HERE / "company.csv")
    lines = [
        "| where they stand | " + " | ".join(f"{ratio:g}" for ratio in company.RATIOS) + " |",
        "|---|" + "---|" * len(company.RATIOS),
    ]
    for place in company.PLACES:
        cells = []
        for ratio in company.RATIOS:
            found = _of(rows, "single", f"{place}, ratio {ratio:g}, {company.HALVES[1]}")
            cells.append(" / ".join(f"{found[name]:.0f}" for name in ("refused", "larger_taken", "smaller_taken")))
        lines.append(f"| {place} | " + " | ".join(cells) + " |")
    return lines


def _conditions() -> list[str]:
    rows = record.read(HERE / "conditions.csv")
    lines = [
        "| probes | refused, % | FNMR of the rest, % (95 %) | FNMR of all, % (95 %) | FMR, % | trials |",
        "|---|---|---|---|---|---|",
    ]
    for setting in dict.fromkeys(row.setting for row in rows if row.setting != "threshold"):
        found = _of(rows, "sface-int8", setting)
        trials = f"{found['genuine_used']:.0f} of {found['genuine_trials']:.0f}"
        fmr = f"{found['fmr']:.2f}" if found["impostor_used"] else "–"
        lines.append(
            f"| {setting} | {found['refused']:.1f} | {_share(found, 'fnmr')} | {_share(found, 'fnmr_off')} | {fmr} "
            f"| {trials} |"
        )
    return lines


def _templates() -> list[str]:
    rows = [row for row in record.read(HERE / "templates.csv") if row.metric != "times_as_long"]
    lines = ["| data | how | accuracy, % | EER, % | FNMR at FMR 0.1 %, % (95 %) |", "|---|---|---|---|---|"]
    for method, setting in dict.fromkeys((row.method, row.setting) for row in rows):
        found = _of(rows, method, setting)
        lines.append(f"| {setting} | {method} | {_accuracy(found)} | {found['eer']:.2f} | {_share(found, 'fnmr')} |")
    return lines


def _share(found: dict[str, float], name: str) -> str:
    if name not in found:
        return "–"
    return f"{found[name]:.2f} ({found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f})"


def write(readme: Path, table: str, *, name: str = "results.csv") -> None:
    """Put a table between those markers of a README that bear a name."""
    text = readme.read_text(encoding="utf-8")
    start = f"<!-- made of {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{start}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def _accuracy(found: dict[str, float]) -> str:
    if "accuracy" not in found:
        return "–"
    error = found.get("accuracy_standard_error")
    return f"{found['accuracy']:.2f}" + (f" ± {error:.2f}" if error is not None else "")


if __name__ == "__main__":
    main()
