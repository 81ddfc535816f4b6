"""Draw results.csv beside the paper's numbers; ``python -m examples.reproduce.fedalc.table`` calls it."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from examples.reproduce import record

HERE = Path(__file__).parent
METRICS = ("P@1", "P@3", "P@5")

# S2 Table VI; of FedAwS and FedALC the best lambda.
PAPER = {
    ("sleec", ""): (65.08, 39.64, 28.87),
    ("flag", ""): (11.43, 9.08, 7.36),
    ("fedmlh", ""): (11.14, 8.91, 7.47),
    ("positive_only", ""): (11.60, 9.11, 7.84),
    ("fedaws", "hinge"): (49.22, 30.74, 23.11),
    ("positive_only", "literal"): (11.60, 9.11, 7.84),
    ("fedaws", "topk_neg_sq"): (49.22, 30.74, 23.11),
    ("fedalc", "sigma"): (59.67, 36.04, 27.18),
    ("fedalc", "eq11"): (59.67, 36.04, 27.18),
    ("fedalc", "literal"): (59.67, 36.04, 27.18),
}
ORDER = (
    ("ridge", ""),
    ("sleec", ""),
    ("softmax", ""),
    ("fedalc", "sigma"),
    ("fedalc", "gamma"),
    ("fedalc", "eq11"),
    ("fedalc_fixed", ""),
    ("fedaws", "hinge"),
    ("fedaws", "topk_neg_sq"),
    ("fixed", ""),
    ("flag", ""),
    ("fedmlh", ""),
    ("positive_only", ""),
    ("fedalc", "literal"),
    ("positive_only", "literal"),
)
SWEPT = {"fedalc": "sigma", "fedaws": "hinge"}
MAIN_STEP = 0.1


def main() -> None:
    """Write plot.png."""
    rows = record.read(HERE / "results.csv")
    figure, (bars, sweep) = plt.subplots(1, 2, figsize=(12, 4.6), width_ratios=(2.6, 1), layout="constrained")
    present = [key for key in ORDER if _values(rows, key, "P@1")]
    for place, metric in enumerate(METRICS):
        values = [_values(rows, key, metric) for key in present]
        offsets = [index + 0.27 * (place - 1) for index in range(len(present))]
        bars.bar(
            offsets,
            [statistics.fmean(found) for found in values],
            0.25,
            yerr=[statistics.stdev(found) if len(found) > 1 else 0.0 for found in values],
            label=metric,
            color=f"C{place}",
        )
        marked = [(offset, PAPER[key][place]) for offset, key in zip(offsets, present, strict=True) if key in PAPER]
        bars.scatter([x for x, _ in marked], [y for _, y in marked], marker="_", color="black", s=60, zorder=3)
    bars.scatter([], [], marker="_", color="black", s=60, label="the paper")
    bars.set_xticks(range(len(present)), [" ".join(key).strip() for key in present], rotation=35, ha="right")
    bars.set_ylabel("percent")
    bars.set_title("Bibtex, mean and standard deviation over seeds")
    bars.set_ylim(0, 80)
    bars.legend(frameon=False, ncols=4, loc="upper center")
    for method, setting in SWEPT.items():
        points = {
            float(row.setting.removeprefix(setting) or MAIN_STEP): row.value
            for row in rows
            if row.method == method and row.metric == "P@1" and row.seed == 0 and _is_step(row.setting, setting)
        }
        sweep.semilogx(
            sorted(points), [points[step] for step in sorted(points)], marker="o", label=f"{method} {setting}"
        )
    sweep.set_xlabel("lambda x eta_s")
    sweep.set_ylabel("P@1, percent")
    sweep.set_title("Strength of the spreadout, one seed")
    sweep.legend(frameon=False)
    figure.savefig(HERE / "plot.png", dpi=110)


def _values(rows: list[record.Row], key: tuple[str, str], metric: str) -> list[float]:
    return [row.value for row in rows if (row.method, row.setting) == key and row.metric == metric]


def _is_step(setting: str, base: str) -> bool:
    rest = setting.removeprefix(base).strip()
    return setting.startswith(base) and (not rest or rest.replace(".", "").isdigit())
