"""The tables of the README, made of results.csv alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from examples.reproduce import record
from examples.reproduce.record import Row

PAPER: Mapping[str, float] = {"positive_only": 10.7, "fixed": 83.3, "fedaws": 86.3, "softmax": 88.4}
"""P@1 of Table 1, CIFAR-10, ResNet-8."""

_MARK = "<!-- {name}: made by `run report` -->"


def into(readme: Path, rows: Sequence[Row]) -> None:
    """Put both tables between their marks, in the place of what is there."""
    text = readme.read_text()
    for name, lines in (("table 1", _table_1(rows)), ("table 4", _table_4(rows))):
        mark = _MARK.format(name=name)
        before, _, after = text.split(mark)
        text = f"{before}{mark}\n" + "\n".join(lines) + f"\n{mark}{after}"
    readme.write_text(text)


def _table_1(rows: Sequence[Row]) -> Iterable[str]:
    yield "| method | passes | P@1, % | the paper's | mean cosine between classes | FMR at 0.7, % | processor minutes |"
    yield "|---|---|---|---|---|---|---|"
    for setting in ("cifar10", "cifar10 4 passes"):
        for method, printed in PAPER.items():
            found = {metric: _values(rows, method, setting, metric) for metric in _metrics(rows, method, setting)}
            if found:
                minutes = [value / 60 for value in found["training_time"]]
                cells = [found["P@1"], [printed], found["mean_cosine"], found["fmr_at_0.7"], minutes]
                figures = " | ".join(record.spread(values) for values in cells)
                yield f"| `{method}` | {found['passes'][0]:g} | {figures} |"


def _table_4(rows: Sequence[Row]) -> Iterable[str]:
    yield "| mode | k | step | seeds | EER of the unseen, % | top-1 of the seen, % | mean cosine of class vectors |"
    yield "|---|---|---|---|---|---|---|"
    settings = {row.setting: None for row in rows if " k=" in row.setting}
    for setting in sorted(settings, key=_order):
        mode, k, step = setting.split()
        errors, top, cosine = (
            _values(rows, "fedaws", setting, metric) for metric in ("eer_unseen", "top1", "mean_cosine")
        )
        cells = [str(len(errors)), record.spread(errors), record.spread(top), record.spread(cosine)]
        yield f"| `{mode}` | {k[2:]} | {step[5:]} | " + " | ".join(cells) + " |"


def _order(setting: str) -> tuple[bool, float, float]:
    mode, k, step = setting.split()
    return mode == "hinge", float("inf") if k == "k=all" else float(k[2:]), float(step[5:])


def _metrics(rows: Sequence[Row], method: str, setting: str) -> set[str]:
    return {row.metric for row in rows if (row.method, row.setting) == (method, setting)}


def _values(rows: Sequence[Row], method: str, setting: str, metric: str) -> list[float]:
    return [row.value for row in rows if (row.method, row.setting, row.metric) == (method, setting, metric)]
