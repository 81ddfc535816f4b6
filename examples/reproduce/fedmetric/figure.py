"""The plot beside the table, drawn from results.csv alone: ``python -m examples.reproduce.fedmetric.figure``."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matplotlib import pyplot
from matplotlib.axes import Axes

from examples.reproduce import record
from examples.reproduce.fedmetric import plans
from examples.reproduce.record import Row

HERE = Path(__file__).parent


def draw(results: Path = HERE / "results.csv", path: Path = HERE / "plot.png") -> None:
    """Table 2 as bars, Figures 2 and 3 as curves."""
    rows = [row for row in record.read(results) if row.metric == "auroc"]
    figure, axes = pyplot.subplots(
        1, 3, figsize=(12, 3.6), layout="constrained", gridspec_kw={"width_ratios": (3, 2, 2)}
    )
    _table(rows, axes[0])
    for sharing in ("proxy", "true"):
        _curve(rows, axes[1], sharing, "lambda", 0.3)
    _curve(rows, axes[2], "proxy", "s", 3.0)
    axes[1].legend()
    axes[0].set_xlabel("AUROC, % (the paper's: black)")
    axes[1].set_ylabel("AUROC, %")
    axes[1].set_xlabel("lambda, weight of the push")
    axes[2].set_xlabel("s, offset in radii")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _table(rows: list[Row], axes: Axes) -> None:
    """Bars from 55 %, a line each; the paper's number is a black stroke."""
    names, means, low, high, paper = [], [], [], [], []
    for plan in reversed(plans.PLANS):
        values = [row.value for row in rows if (row.method, row.setting) == (plan.method, plan.setting)]
        if len(plan.seeds) > 1 and values:
            names.append(f"{plan.method} {plan.setting}".strip())
            means.append(fmean(values))
            low.append(means[-1] - min(values))
            high.append(max(values) - means[-1])
            paper.append(plan.paper)
    bars = axes.barh(range(len(names)), means, xerr=(low, high), color="tab:blue")
    axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=4)
    for place, number in enumerate(paper):
        if number:
            axes.vlines(number, place - 0.4, place + 0.4, color="black")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(55, 107)


def _curve(rows: list[Row], axes: Axes, sharing: str, name: str, usual: float) -> None:
    """One sweep at seed 0; the usual value is the table's own run."""
    found = {
        float(row.setting.split("=")[1]): row.value
        for row in rows
        if row.method == "fedmetric" and row.setting.startswith(f"{sharing} {name}=")
    }
    for row in rows:
        if (row.method, row.setting, row.seed) == ("fedmetric", sharing, 0):
            found[usual] = row.value
    where = sorted(found)
    axes.plot(where, [found[x] for x in where], marker="o", label=sharing)


if __name__ == "__main__":
    draw()
