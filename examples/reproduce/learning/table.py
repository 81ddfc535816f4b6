"""The table of ``README.md`` from ``results.csv``, written into it.

``python -m examples.reproduce.learning.table``
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from examples.reproduce.learning.run import PARTIES
from examples.reproduce.record import Row, read

HERE = Path(__file__).resolve().parent
HEAD = (
    "| domain | who trains | head | model | against those who took part | against strangers | newcomers among "
    "themselves | upload |"
)


def table(rows: list[Row]) -> str:
    """FNMR at FMR 1 % and EER in percent, means over seeds, with how much of the frozen encoder's FNMR is gone."""
    lines = [HEAD, "|---|---|---|---|---|---|---|---|"]
    known = {(row.setting, row.method, row.metric): row.value for row in rows if row.seed == -1}
    sizes = {(row.setting, row.method): row.value for row in rows if row.metric == "upload"}
    for setting in sorted({row.setting for row in rows}, key=_order):
        domain, trainers, head = setting.split(", ")
        for method in dict.fromkeys(row.method for row in rows if row.setting == setting and row.seed == -1):
            cells = [_cell(known, setting, method, party) for party in PARTIES]
            size = sizes.get((setting, method))
            upload = f"{size / 1000:.0f} kB" if size else ""
            lines.append(
                f"| {domain} | {trainers.removesuffix(' train')} | {head} | {method} | {' | '.join(cells)} | {upload} |"
            )
    return "\n".join(lines)


def _cell(known: dict[tuple[str, str, str], float], setting: str, method: str, party: str) -> str:
    fnmr, eer, fallen, low, high = (
        known[setting, method, f"{name}_{party}"] for name in ("fnmr", "eer", "fallen", "low", "high")
    )
    rates = f"{fnmr:.1f}, {eer:.1f}"
    # Of a frozen encoder that never errs nothing can be gone.
    if method == "frozen" or math.isnan(low) or not known[setting, "frozen", f"fnmr_{party}"]:
        return rates
    return f"{rates} ({-fallen:+.0f} %: {-high:+.0f} to {-low:+.0f})"


def _order(setting: str) -> tuple[str, int, str]:
    domain, trainers, head = setting.split(", ")
    return domain, int(trainers.split()[0]), head


if __name__ == "__main__":
    readme = HERE / "README.md"
    filled = f"<!-- table -->\n{table(read(HERE / 'results.csv'))}\n<!-- /table -->"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(
        re.sub(r"<!-- table -->.*<!-- /table -->", lambda _: filled, text, flags=re.DOTALL), encoding="utf-8"
    )
