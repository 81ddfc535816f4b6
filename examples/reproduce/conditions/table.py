"""``python -m examples.reproduce.conditions.table`` writes the tables of README.md and conditions.md anew from the CSV
files, and the processor time from ``tests/benchmarks/voice/speed.csv`` where that is there.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from examples.reproduce import record
from examples.reproduce.conditions.conditions import CONDITIONS, MIXED
from examples.reproduce.conditions.run import CLEAN, SIZE
from examples.reproduce.lfw.table import write

HERE = Path(__file__).parent
SPEED = HERE.parents[2] / "tests" / "benchmarks" / "voice" / "speed.csv"
MODELS: Final = {
    "resemblyzer": "Resemblyzer",
    "ge2e": "GE2E",
    "campplus": "CAM++, fp32",
    "campplus-int8": "CAM++, int8, as released",
    "campplus-head": "CAM++, fp32, federated head",
}
"""Name in the results -> in the table."""

MILLISECONDS: Final = {
    "resemblyzer": "Resemblyzer",
    "ge2e": "ge2e",
    "campplus": "campplus-fp32",
    "campplus-int8": "campplus-int8",
    "campplus-head": "campplus-fp32",
}
"""Name in the results -> method of the benchmark; the head adds a matrix of 192 x 192."""

PROBES: Final = (CLEAN, "G.711 mu-law", "pink noise 5 dB", "3 s", "2 s", "1 s", "3 s, G.711 mu-law")
_BOTH_ALONE = (CLEAN, "3 s", "2 s")
SHORT_OR_NOISY: Final = (
    ("1.5 s", "both"),
    ("1.5 s", "probe"),
    ("white noise 10 dB", "probe"),
    ("pink noise 10 dB", "probe"),
    ("pink noise 5 dB", "probe"),
    ("babble 10 dB", "probe"),
    ("babble 5 dB", "probe"),
)
COLUMNS: Final = {
    "eer_both": "EER, both sides",
    "fmr_both": "FMR",
    "fnmr_both": "FNMR",
    "eer_probe": "EER, clean template",
    "fmr_probe": "FMR",
    "fnmr_probe": "FNMR",
}

Found = dict[str, float]
"""Metric -> value."""


def main() -> None:
    """The command."""
    read, spoken = _results(HERE / "results.csv"), _results(HERE / "languages.csv")
    for name, lines in (
        ("eer", _overview(read, spoken, "eer_{}")),
        ("fnmr", _overview(read, spoken, "fnmr_{}_matched")),
        ("short or noisy", _aim(read)),
        ("languages.csv", _languages(spoken)),
    ):
        write(HERE / "README.md", "\n".join(lines), name=name)
    write(HERE / "conditions.md", "\n".join(_every(read)))


def _results(path: Path) -> dict[str, dict[str, Found]]:
    """Model -> setting -> metrics."""
    found: dict[str, dict[str, Found]] = {}
    for row in record.read(path):
        found.setdefault(row.method, {}).setdefault(row.setting, {})[row.metric] = row.value
    return {name: found[name] for name in MODELS if name in found}


def _overview(read: dict[str, dict[str, Found]], spoken: dict[str, dict[str, Found]], metric: str) -> list[str]:
    """One line a model; ``metric`` with a place for which side is worse."""
    speed = _milliseconds()
    heading = [
        *("clean", "telephone, both sides / clean template", "noise 5 dB, both / clean", "3 s", "2 s"),
        *("1 s, both / clean", "telephone 3 s, both / clean", "letters: one / five joined"),
        *("mean of the 24, both / clean", "worst of the 24, both sides", "ms at 5 s", "MB"),
    ]
    lines = [f"| | {' | '.join(heading)} |", f"|---|{'---|' * len(heading)}"]
    for name, settings in read.items():
        cells = []
        for condition in PROBES:
            kinds = ("both",) if condition in _BOTH_ALONE else ("both", "probe")
            cells.append(" / ".join(_value(settings.get(condition), metric.format(kind)) for kind in kinds))
        letters = spoken.get(name, {})
        cells.append(
            " / ".join(
                _value(letters.get(f"{corpus}, {CLEAN}"), metric.format("both"))
                for corpus in ("letter", "five letters")
            )
        )
        four_and_twenty = {each: settings[each] for each in CONDITIONS if each != CLEAN and each in settings}
        means = [
            f"{sum(found[metric.format(kind)] for found in four_and_twenty.values()) / len(four_and_twenty):.2f}"
            for kind in ("both", "probe")
        ]
        cells.append(" / ".join(means))
        worst = max(four_and_twenty, key=lambda each: four_and_twenty[each][metric.format("both")])
        cells.append(f"{four_and_twenty[worst][metric.format('both')]:.2f} ({worst})")
        cells.append(speed.get(name, "–"))
        cells.append(_value(settings.get(SIZE), "megabytes", digits=1))
        lines.append(f"| {MODELS[name]} | {' | '.join(cells)} |")
    return lines


def _aim(read: dict[str, dict[str, Found]]) -> list[str]:
    """What is refused of short speech and of noise, by what decides."""
    ways = {"_matched": "cosine, of this condition", "": "ratio", "_guarded": "ratio with the guard"}
    ways |= {"_released": "card", "_released_guarded": "card with the guard"}
    lines = [f"| model | template, probe | {' | '.join(ways.values())} |", f"|---|---|{'---|' * len(ways)}"]
    for name, settings in read.items():
        for condition, kind in SHORT_OR_NOISY:
            if condition in settings:
                found = settings[condition]
                cells = [
                    "–" if name == "resemblyzer" and way == "" else _interval(found, f"fnmr_{kind}{way}")
                    for way in ways
                ]
                template = condition if kind == "both" else CLEAN
                lines.append(f"| {MODELS[name]} | {template}, {condition} | {' | '.join(cells)} |")
    return lines


def _languages(spoken: dict[str, dict[str, Found]]) -> list[str]:
    lines = [
        "| model | recordings | EER, both sides | clean template | FMR, both sides | with the guard | FNMR "
        "| with the guard | outside | gave nothing |",
        f"|---|{'---|' * 9}",
    ]
    for name, settings in spoken.items():
        for setting, found in settings.items():
            if setting == SIZE:
                continue
            cells = [_interval(found, "eer_both"), _interval(found, "eer_probe")]
            way = "_released" if "fmr_both_released" in found else ""
            for metric in (f"fmr_both{way}", f"fmr_both{way}_guarded", f"fnmr_both{way}", f"fnmr_both{way}_guarded"):
                cells.append(_value(found, metric))
            cells.append(_value(found, f"outside_both{way}", digits=0))
            cells.append(f"{found['gave_nothing']:.0f} of {found['recordings']:.0f}")
            lines.append(f"| {MODELS[name]} | {setting} | {' | '.join(cells)} |")
    return lines


def _every(read: dict[str, dict[str, Found]]) -> list[str]:
    lines = [
        f"| model | condition | {' | '.join(COLUMNS.values())} | outside, both sides "
        "| gave nothing, refused of recordings |",
        f"|---|---|{'---|' * len(COLUMNS)}---|---|",
    ]
    for name, settings in read.items():
        for condition in (*CONDITIONS, *MIXED):
            if condition in settings:
                found = settings[condition]
                # Of a bundle with a card, at the card's threshold and with the guard.
                way = "_released_guarded" if "fmr_both_released_guarded" in found else "_guarded"
                way = way if f"fmr_both{way}" in found else ""
                cells = [_interval(found, metric if metric.startswith("eer") else metric + way) for metric in COLUMNS]
                outside = "outside_both_released" if "outside_both_released" in found else "outside_both"
                cells.append(_value(found, outside, digits=0))
                counts = f"{found['gave_nothing']:.0f}, {found['refused_by_standard']:.0f} of {found['recordings']:.0f}"
                lines.append(f"| {MODELS[name]} | {condition} | {' | '.join(cells)} | {counts} |")
    return lines


def _milliseconds() -> dict[str, str]:
    if not SPEED.exists():
        return {}
    with SPEED.open(newline="", encoding="utf-8") as lines:
        found = {
            row["method"]: row["value"]
            for row in csv.DictReader(lines)
            if (row["setting"], row["metric"]) == ("5 s", "processor time")
        }
    return {name: f"{float(found[method]):.0f}" for name, method in MILLISECONDS.items() if method in found}


def _value(found: Found | None, metric: str, *, digits: int = 2) -> str:
    return "–" if found is None or metric not in found else f"{found[metric]:.{digits}f}"


def _interval(found: Found, metric: str) -> str:
    if metric not in found:
        return "–"
    return f"{found[metric]:.2f} ({found[f'{metric}_low']:.2f} to {found[f'{metric}_high']:.2f})"


if __name__ == "__main__":
    main()
