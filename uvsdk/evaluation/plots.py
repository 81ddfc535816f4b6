"""Plots of an evaluation, as SVG text or PNG bytes. No pyplot, no global state: each call builds its own figure.

Colours are those of Okabe and Ito (2008), told apart by people of every colour vision; series differ in line style
as well. Lines, texts and grid use the two colours :data:`INK` and :data:`GRID`, which a page may replace in the SVG.
Needs the ``evaluate`` extra (matplotlib).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from uvsdk.arrays import Float, Float64
from uvsdk.evaluation import metrics
from uvsdk.evaluation.metrics import Curve

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
INK = "#24292f"
GRID = "#d8dee4"
DET_TICKS = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
SIZE_INCH = (4.8, 4.2)
DRAWN_POINTS = 1500
_LOWEST_FMR = 1e-3

_PERCENT = FuncFormatter(lambda rate, _: _percent(rate))
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NAMESPACE = re.compile(r'\sxmlns(:\w+)?="[^"]*"')


def det(curves: Mapping[str, Curve]) -> Figure:
    """Detection error trade-off: FNMR over FMR, both on a normal deviate scale (Martin et al. 1997).

    A rate of 0 or 1 has no normal deviate; it is drawn at half a trial from the edge, the limit of what the trials
    can show.

    Args:
        curves: label -> curve, at most six.
    """
    figure, axes = _figure()
    lowest = min(0.5 / max(c.impostor, c.genuine) for c in curves.values())
    for number, (label, points) in enumerate(curves.items()):
        fmr, fnmr = _thin(*metrics.det_points(points))
        x = _deviate(np.clip(fmr, 0.5 / points.impostor, 1 - 0.5 / points.impostor))
        y = _deviate(np.clip(fnmr, 0.5 / points.genuine, 1 - 0.5 / points.genuine))
        _draw(axes, x, y, number, f"{label} (EER {_percent(metrics.eer(points))})")
    ticks = [rate for rate in DET_TICKS if rate >= lowest]
    places = _deviate(np.array(ticks))
    low, high = float(_deviate(np.array([max(lowest, 5e-5)]))[0]) - 0.1, float(places[-1])
    axes.plot([low, high], [low, high], color=GRID, linewidth=1, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="False match rate (%)", ylabel="False non-match rate (%)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(places.tolist(), [f"{100 * rate:g}" for rate in ticks])
    axes.set_aspect("equal")
    _legend(axes, "upper right")
    return figure


def roc(curves: Mapping[str, Curve]) -> Figure:
    """Receiver operating characteristic: true match rate over FMR, FMR on a logarithmic scale."""
    figure, axes = _figure()
    for number, (label, points) in enumerate(curves.items()):
        fmr, fnmr = _thin(*metrics.det_points(points))
        # The curve ends at the left edge with the rate it has there; what lies beyond is not drawn on the edge.
        shown = min(int((fmr >= _LOWEST_FMR).sum()) + 1, len(fmr))
        _draw(axes, np.maximum(fmr[:shown], _LOWEST_FMR), 1 - fnmr[:shown], number, label)
    axes.set_xscale("log")
    axes.set(xlim=(_LOWEST_FMR, 1), ylim=(0, 1.02), xlabel="False match rate", ylabel="True match rate (1 - FNMR)")
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.xaxis.set_ticks([10.0**p for p in range(round(np.log10(_LOWEST_FMR)), 1)])
    axes.yaxis.set_major_formatter(_PERCENT)
    _legend(axes, "lower right")
    return figure


def histogram(
    genuine: Float,
    impostor: Float,
    *,
    threshold: float | None = None,
    name: str = "",
    xlabel: str = "Cosine similarity",
) -> Figure:
    """Scores of genuine and impostor trials, each as a share of its own trials.

    Args:
        genuine: scores of genuine trials.
        impostor: scores of impostor trials.
        threshold: where to draw the accepting threshold; one at infinity is not drawn.
        name: what is written above the plot.
        xlabel: what the scores are.
    """
    figure, axes = _figure()
    edges = np.histogram_bin_edges(np.concatenate([np.ravel(genuine), np.ravel(impostor)]), bins=48)
    for label, scores, color in (("impostor", impostor, PALETTE[1]), ("genuine", genuine, PALETTE[0])):
        values = np.ravel(scores)
        share = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(share, edges, fill=True, color=color, alpha=0.35)
        axes.stairs(share, edges, color=color, linewidth=1.4, label=f"{label} ({len(values):,})")
    if threshold is not None and np.isfinite(threshold):
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=":", label=f"threshold {threshold:.3f}")
    axes.set(xlabel=xlabel, ylabel="Share of trials", title=name)
    axes.yaxis.set_major_formatter(_PERCENT)
    # Room on top for the legend: the two hills may lie anywhere below.
    axes.set_ylim(0, 1.3 * axes.dataLim.ymax)
    _legend(axes, "upper left")
    return figure


def by_person(rates: Sequence[float]) -> Figure:
    """One error rate a person, worst first, without names: whether an average hides people who are not recognised.

    Args:
        rates: the false non-match rate of each, in any order.
    """
    figure, axes = _figure()
    ordered = sorted(rates, reverse=True)
    axes.bar(range(1, len(ordered) + 1), ordered, color=PALETTE[0], width=0.85)
    mean = float(np.mean(ordered))
    axes.axhline(mean, color=INK, linewidth=1, linestyle=":", label=f"mean {_percent(mean)}")
    axes.set(xlabel="People, worst first", ylabel="False non-match rate", ylim=(0, max(1.05 * ordered[0], 0.05)))
    axes.yaxis.set_major_formatter(_PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, "upper right")
    return figure


def ranges(rows: Sequence[tuple[str, float, float, float]], *, xlabel: str) -> Figure:
    """One value with its interval a row, the first row on top: to see which intervals overlap.

    Args:
        rows: (label, value, low, high), rates in [0, 1] or differences of such.
        xlabel: what the values are.
    """
    figure, axes = _figure()
    # Rows of constant height, so that two groups do not fill the space of ten.
    figure.set_size_inches(SIZE_INCH[0], 1.0 + 0.32 * max(len(rows), 3))
    places = np.arange(len(rows))[::-1]
    value, low, high = (np.array([row[column] for row in rows]) for column in (1, 2, 3))
    axes.hlines(places, low, high, color=PALETTE[0], linewidth=1.8)
    axes.plot(value, places, "o", color=PALETTE[0], markersize=5)
    axes.set(xlabel=xlabel, ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticks(places.tolist(), [_short(row[0]) for row in rows])
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def training(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, ylabel: str) -> Figure:
    """One value over rounds of training, one line a series.

    Args:
        series: label -> (rounds, values), of equal length.
        ylabel: what the values are, with unit.
    """
    figure, axes = _figure()
    for number, (label, (rounds, values)) in enumerate(series.items()):
        _draw(axes, np.asarray(rounds, np.float64), np.asarray(values, np.float64), number, label)
    axes.set(xlabel="Round", ylabel=ylabel)
    _legend(axes, "best")
    return figure


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element to put into an HTML page: no prolog, no metadata, no namespace, no URL."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    return _NAMESPACE.sub("", text).replace("xlink:href", "href").strip()


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE_INCH, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both", labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)
        text.set_fontsize(10)
    return figure, axes


def _draw(axes: Axes, x: Float64, y: Float64, number: int, label: str) -> None:
    style = LINE_STYLES[number % len(LINE_STYLES)]
    axes.plot(x, y, color=PALETTE[number % len(PALETTE)], linestyle=style, linewidth=1.8, label=label)


def _legend(axes: Axes, place: Literal["upper left", "upper right", "lower right", "best"]) -> None:
    legend = axes.legend(loc=place, fontsize=8.5, frameon=False, labelcolor=INK)
    legend.set_in_layout(False)


def _deviate(rates: Float64) -> Float64:
    """Inverse of the normal distribution function, for rates strictly between 0 and 1."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(rate) for rate in rates.tolist()])


def _thin(fmr: Float64, fnmr: Float64) -> tuple[Float64, Float64]:
    """At most about DRAWN_POINTS of the corners: those that a pixel more to either side would not show."""
    if len(fmr) <= DRAWN_POINTS:
        return fmr, fnmr
    # Evenly spaced along both rates on a logarithmic scale, so that the rare errors keep their steps.
    way = np.cumsum(np.abs(np.diff(np.log(fmr + 1e-6), prepend=0)) + np.abs(np.diff(np.log(fnmr + 1e-6), prepend=0)))
    keep = np.unique(np.searchsorted(way, np.linspace(way[0], way[-1], DRAWN_POINTS)))
    return fmr[keep], fnmr[keep]


def _short(label: str) -> str:
    """A label that leaves room for the plot; a dollar sign would start a formula."""
    return (label if len(label) <= 24 else label[:23] + "…").replace("$", r"\$")


def _percent(rate: float) -> str:
    """A rate in percent with as many digits as it needs.

    >>> _percent(0.5), _percent(0.123), _percent(0.001), _percent(0.0)
    ('50 %', '12.3 %', '0.1 %', '0 %')
    """
    percent = round(100 * rate, 1) if abs(rate) >= 0.0095 else float(f"{100 * rate:.2g}")
    return f"{percent:g} %"
