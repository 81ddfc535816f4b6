"""What the README says of ``results.csv`` and of the cards: ``python -m examples.reproduce.calibration.table``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

import uvsdk
from uvsdk.errors import ThresholdError
from uvsdk.modality import get
from uvsdk.scoring import Calibration, Scale
from uvsdk.scoring.record import from_bytes

HERE = Path(__file__).parent
HALVES = ("B", "A")
SCALES: Final[tuple[Scale, ...]] = ("llr", "cosine")
RATES = (1e-2, 1e-3, 1e-4)
MODELS = {"9ebe00b9": "campplus (head)", "9d9156f5": "sface", "d9dbfbc1": "ge2e"}
"""A card's name, which is a digest, and what ``uvsdk export`` calls the model it is of."""


def table() -> str:
    """Markdown, a line for each variant and pair of conditions, both halves in each cell."""
    lines = [
        "| template | probe | variant | FMR % | FNMR % | EER % | act/min DCF | Cllr/min |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    with (HERE / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells.setdefault((row["template"], row["probe"], row["variant"]), {})[row["measured_half"]] = row
    for names, halves in cells.items():
        both = [halves[half] for half in HALVES]
        rates = [" / ".join(f"{100 * float(row[name]):.2f}" for row in both) for name in ("fmr", "fnmr", "eer")]
        pairs = [
            " / ".join(f"{float(row[actual]):.2f}·{float(row[least]):.2f}" for row in both)
            for actual, least in (("act_dcf", "min_dcf"), ("cllr", "min_cllr"))
        ]
        lines.append(f"| {' | '.join([*names, *rates, *pairs])} |")
    return "\n".join(lines)


def cards() -> str:
    """Markdown, a line for each card in the package: people, trials, and the threshold of each rate on both scales."""
    lines = [
        "| card | model | measured on | trials | scale | " + " | ".join(f"FMR {rate:.2%}" for rate in RATES) + " |",
        "|---|---|---|---|---|" + "---|" * len(RATES),
    ]
    folder = Path(uvsdk.__file__).parent / "data" / "cards"
    for path in sorted(folder.glob("*.bin")):
        card = from_bytes(path.read_bytes(), [*get("voice").conditions, *get("face").conditions])
        for scale in SCALES:
            told = f"`{path.stem[:8]}` | {MODELS[path.stem[:8]]} | {card.source} | {card.account}"
            first = told if scale == SCALES[0] else "| | |"
            lines.append(f"| {first} | {scale} | {' | '.join(_threshold(card, rate, scale) for rate in RATES)} |")
    return "\n".join(lines)


def _threshold(card: Calibration, rate: float, scale: Scale) -> str:
    try:
        return f"{card.threshold(rate, scale).score:.3f}"
    except ThresholdError:
        return "not supported"


def rewritten(text: str) -> str:
    """The README with both blocks as they are now."""
    for name, block in (("table", table()), ("cards", cards())):
        start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}{block}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(rewritten(readme.read_text(encoding="utf-8")), encoding="utf-8")
