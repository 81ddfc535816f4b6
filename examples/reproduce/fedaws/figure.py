"""The plots beside the tables, drawn from results.csv alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from examples.reproduce import record
from examples.reproduce.record import Row


def draw(results: Path, folder: Path) -> None:
    """Write ``cifar10.png`` and ``sweep.png`` into ``folder``, each where its rows are there."""
    rows = record.read(results)
    images = [row for row in rows if row.setting.startswith("cifar10")]
    cells = [row for row in rows if " k=" in row.setting]
    if images:
        _cifar10(images, folder / "cifar10.png")
    if cells:
        _sweep(cells, folder / "sweep.png")


def _cifar10(rows: list[Row], path: Path) -> None:
    from matplotlib import pyplot

    methods = ("positive_only", "fixed", "fedaws", "softmax")
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for place, metric in zip(axes, ("P@1", "fmr_at_0.7"), strict=True):
        for shift, setting, label in ((-0.2, "cifar10 4 passes", "4 passes"), (0.2, "cifar10", "8 passes")):
            values = {row.method: row.value for row in rows if (row.setting, row.metric) == (setting, metric)}
            where = [methods.index(method) + shift for method in values]
            place.bar_label(place.bar(where, list(values.values()), 0.38, label=label), fmt="%.1f", fontsize=8)
        place.set_xticks(range(len(methods)), methods)
        place.set_ylabel(f"{metric}, %")
        place.set_ylim(0, 108)
    axes[1].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _sweep(rows: list[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
    for mode in ("topk_neg_sq", "hinge"):
        by_k: dict[int, list[float]] = {}
        by_step: dict[float, list[float]] = {}
        for row in rows:
            name, k, step = row.setting.split()
            if name != mode or row.metric != "eer_unseen":
                continue
            neighbours, size = k.removeprefix("k="), float(step.removeprefix("step="))
            if size == 0.1:
                by_k.setdefault(129 if neighbours == "all" else int(neighbours), []).append(row.value)
            if neighbours == "10" and row.seed == 0:
                by_step.setdefault(size, []).append(row.value)
        for place, found in zip(axes, (by_k, by_step), strict=True):
            where = sorted(found)
            place.plot(where, [fmean(found[x]) for x in where], marker="o", label=mode)
            place.vlines(where, [min(found[x]) for x in where], [max(found[x]) for x in where], alpha=0.5)
    for place, label in zip(axes, ("k, of 129 others (step 0.1)", "step = lambda x eta_s (k = 10)"), strict=True):
        place.set_xscale("log")
        place.set_xlabel(label)
        place.grid(alpha=0.3)
    axes[0].set_ylabel("EER of unseen speakers, %")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
