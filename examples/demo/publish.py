"""Publish what a run measured: in results.csv, in README.md and docs/measurements.md, and as the picture.

``python -m examples.demo.publish demo-output/report.json`` takes that run in and writes all of them anew; without a
report the documents and the picture are made of ``results.csv`` as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.reproduce import record
from examples.reproduce.record import Row

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.csv")
PICTURE = ROOT / "docs" / "demonstration.svg"
VOICES = "19 klettres voices, sentences"
TITLES = {
    "before": "before",
    "centred": "mean taken off",
    "positive_only": "positive-only",
    "fixed": "fixed vectors",
    "fedaws": "FedAwS",
}
_WHOLE, _ONE = "19 voices, sentences of five syllables", "the same, by one syllable"
FNMR = "fnmr_at_fmr_1e-2"
SIDES = ("trained", "strangers")
COUNTS = ("genuine_trials", "impostor_trials", "failures_to_acquire")
_TRIED = ("genuine_rest", "genuine_offline", "impostors_rest", "impostors_offline")
_RELEASE = re.compile(r"release (\d+): (.*)")
_BLOCK = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.DOTALL)

Figures = Mapping[tuple[str, str], float]
"""(method, metric) -> value, of one setting."""


def main() -> None:
    """Take a run in where one is named, and write what is made of the voices' rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="report.json of a run")
    parser.add_argument("--setting", default=VOICES, help=f"what the run is called in results.csv ({VOICES})")
    arguments = parser.parse_args()
    if arguments.report:
        taken = rows(json.loads(arguments.report.read_text("utf-8")), arguments.setting)
        # All of the setting at once: another run may have had other releases.
        others = [row for row in record.read(RESULTS) if row.setting != arguments.setting]
        RESULTS.unlink(missing_ok=True)
        record.append(RESULTS, [*others, *taken])
    found = figures(record.read(RESULTS))
    for document, text in documents(found).items():
        document.write_text(text, encoding="utf-8")
    PICTURE.write_text(picture(found), encoding="utf-8")


def rows(report: Mapping[str, Any], setting: str) -> list[Row]:
    """The rows of ``results.csv`` that a run's ``report.json`` gives."""
    seed = report["seed"]
    found = []
    for method, row in report["rows"].items():
        for side in SIDES:
            rates = _rates(row[side]) if row[side] else {}
            single = _rates(row["single"][side]) if row["single"] and row["single"][side] else {}
            rates |= {f"single_{name}": value for name, value in single.items()}
            found += [Row(method, setting, seed, f"{name}_{side}", value, "rate") for name, value in rates.items()]
        cosine = round(row["mean_offdiagonal_cosine"], 4)
        found.append(Row(method, setting, seed, "mean_offdiagonal_cosine", cosine, "cosine"))
    for released in report["releases"]:
        found += _of_a_release(released, setting, seed)
    last = report["rows"]["fedaws"]
    checks = [check["as_expected"] for check in report["checks"]]
    counts = {"rounds": last["rounds"], **report["groups"]}
    counts |= {f"{name}_{side}": last[side][name] for side in SIDES if last[side] for name in COUNTS}
    if last["single"]:
        single = last["single"]
        counts |= {f"single_{name}_{side}": single[side][name] for side in SIDES if single[side] for name in COUNTS}
    counts |= {"checks": len(checks), "checks_as_expected": sum(checks)}
    for name in ("seconds", "processor_seconds"):
        found.append(Row("all", setting, seed, name, report[name], "s"))
    return [*found, *(Row("all", setting, seed, name, value, "count") for name, value in counts.items())]


def _rates(side: Mapping[str, Any]) -> dict[str, float]:
    low, high = side["eer_interval"]
    rates = {"eer": side["eer"], "eer_low_95": low, "eer_high_95": high, FNMR: side[FNMR]}
    if spread := side["eer_of_seeds"]:
        rates |= {"eer_seeds_low": round(min(spread), 5), "eer_seeds_high": round(max(spread), 5)}
    return {name: value for name, value in rates.items() if value is not None}


def _of_a_release(released: Mapping[str, Any], setting: str, seed: int) -> list[Row]:
    """Of one release; its number and its cause are the name of the method."""
    name = f"release {released['number']}: {released['cause']}"
    strangers, limits = released["strangers"] or {}, released["thresholds"] or (None, None)
    values = {
        "round": (released["round"], "count"),
        "threshold_low": (limits[0], "score"),
        "threshold_high": (limits[1], "score"),
        "asked_fmr": (released["asked_fmr"], "rate"),
        "fmr": (released["fmr"], "rate"),
        "outside": (float(released["outside"]), "count"),
        "stayed": (released["stayed"], "count"),
        "fnmr_of_evaluators": (released["fnmr_of_evaluators"], "rate"),
        "evaluators": (released["evaluators"], "count"),
        "strangers_fmr": (strangers.get("fmr"), "rate"),
        "strangers_trials": (strangers.get("trials"), "count"),
    }
    for tried in _TRIED:
        values |= {f"{tried}_{name}": (value, "count") for name, value in released[tried].items()}
    return [
        Row(name, setting, seed, metric, value, unit) for metric, (value, unit) in values.items() if value is not None
    ]


def figures(table: Sequence[Row], setting: str = VOICES) -> Figures:
    """What ``results.csv`` holds of one setting, by default that which is published."""
    return {(row.method, row.metric): row.value for row in table if row.setting == setting}


def documents(found: Figures) -> dict[Path, str]:
    """The documents that show the run, each with its block made anew."""
    blocks = {ROOT / "README.md": summary(found), ROOT / "docs" / "measurements.md": markdown(found)}
    return {
        path: _BLOCK.sub(lambda marks, block=block: f"{marks[1]}{block}\n{marks[2]}", path.read_text("utf-8"))
        for path, block in blocks.items()
    }


def summary(found: Figures) -> str:
    """The picture, and in words what it shows."""
    shown = ", ".join(f"{title} {_percent(found[method, 'eer_strangers'])} %" for method, title in TITLES.items())
    trained, evaluate, outside = (f"{found['all', group]:.0f}" for group in ("trained", "evaluate", "outside"))

    def steps(metric: str) -> str:
        first, second, last = (_percent(found[method, metric]) for method in ("before", "centred", "fedaws"))
        return f"{first}, {second} and {last} %"

    return (
        f"![Equal error rate of strangers: {shown}](docs/demonstration.svg)\n\n"
        f"Real voices, each on a device process of its own: {trained} train, {evaluate} only evaluate, {outside} never "
        "take part. Equal error\nrates before, with the mean of all taken off, and with what FedAwS learnt from there, "
        f"by sentences of nearly 3 s:\n**{steps('eer_trained')}** for those who trained, **{steps('eer_strangers')}** "
        "for people who never did. By a single\nsyllable, which nobody should be verified by: "
        f"{steps('single_eer_trained')}, and {steps('single_eer_strangers')}. With so few\npeople the intervals are "
        "wide: [all figures, each release, and what flatters them](docs/measurements.md#the-demonstration)."
    )


def markdown(found: Figures) -> str:
    """One row for each model and each release, and what the run was."""
    of_all = {metric: f"{value:,.0f}" for (method, metric), value in found.items() if method == "all"}
    words = (
        "{rounds} rounds. Trained: probes of the {trained} people whose devices train ({genuine_trials_trained} "
        "genuine, {impostor_trials_trained} impostor\n"
        "trials); strangers: of {evaluate} who only evaluate and {outside} who never take part "
        "({genuine_trials_strangers}, {impostor_trials_strangers}); each against\n"
        "everybody's template. By one syllable: {single_genuine_trials_trained} and "
        "{single_impostor_trials_trained}; {single_genuine_trials_strangers} and {single_impostor_trials_strangers}. "
        "FNMR is told\nwhere there are impostor trials enough. Mean taken off: that of all who joined, which is where "
        "each method begins.\nIntervals: bootstrap over people. Three seeds: lowest and highest of the same rounds in "
        "one process."
    )
    end = (
        "Genuine and impostors: three sentences of each of six people, and of impostors who never took part, the same "
        "after\neach release; accepted over REST and offline on the device. FNMR: of single sentences, as the release "
        "says it.\nStrangers: all sentences of people who never trained, at the release's threshold. "
        "{checks_as_expected} of {checks}\nclosing checks as expected; {seconds} s without the installation, "
        "{processor_seconds} processor seconds."
    )
    models = [*_models(found), "", *_models(found, "single_", _ONE)]
    return "\n".join([*models, "", words.format_map(of_all), "", *_releases(found), "", end.format_map(of_all)])


def _models(found: Figures, prefix: str = "", what: str = _WHOLE) -> list[str]:
    """A row for each model; columns of which nothing is known are left out."""
    headings = [what, "EER, trained", "EER, strangers", "95 % interval", "three seeds"]
    headings += ["FNMR at FMR 1 %, trained", "strangers", "mean off-diagonal cosine"]
    rows = []
    for method, title in TITLES.items():
        cells = [f"**{title}**" if method == "fedaws" else title]
        cells += [_cell(found, method, f"{prefix}eer_{side}") for side in SIDES]
        for kind in ("{}_95", "seeds_{}"):
            ends = [found.get((method, f"{prefix}eer_{kind.format(end)}_strangers")) for end in ("low", "high")]
            both = " – ".join(_percent(end) for end in ends if end is not None)
            cells.append(f"{both} %" if both else "–")
        cells += [_cell(found, method, f"{prefix}{FNMR}_{side}") for side in SIDES]
        cells.append("–" if prefix else f"{found[method, 'mean_offdiagonal_cosine']:+.2f}")
        rows.append(cells)
    kept = [place for place in range(len(headings)) if any(row[place] != "–" for row in rows)]
    lines = [[row[place] for place in kept] for row in (headings, *rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return [head, "|" + "---|" * len(kept), *body]


def _releases(found: Figures) -> list[str]:
    lines = [
        "| FedAwS, release | round | FMR asked, read for | threshold | FNMR, who evaluates | genuine, REST, offline "
        "| impostors, REST, offline | strangers let in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = {method: match for method, _ in found if (match := _RELEASE.fullmatch(method))}
    for name, match in sorted(names.items(), key=lambda item: int(item[1][1])):
        of = {metric: value for (method, metric), value in found.items() if method == name}
        rates = [f"{100 * of[rate]:g} %" for rate in ("asked_fmr", "fmr") if rate in of]
        limits = dict.fromkeys(f"{of[end]:.2f}" for end in ("threshold_low", "threshold_high") if end in of)
        tried = [
            " · ".join(
                f"{of[f'{kind}_{way}_accepted']:.0f}/{of[f'{kind}_{way}_tried']:.0f}" for way in ("rest", "offline")
            )
            if of[f"{kind}_rest_tried"]
            else "–"
            for kind in ("genuine", "impostors")
        ]
        stayed = f" ({of['stayed']:.0f} stay)" if of.get("stayed") else ""
        cells = [f"{match[1]}, {match[2]}{stayed}", f"{of['round']:.0f}", ", ".join(rates) or "–"]
        cells += [" – ".join(limits) or "–"]
        cells += [f"{_percent(of['fnmr_of_evaluators'])} % of {of['evaluators']:.0f}" if "evaluators" in of else "–"]
        cells += [*tried, f"{_percent(of['strangers_fmr'])} %" if "strangers_fmr" in of else "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(found: Figures, method: str, metric: str) -> str:
    value = found.get((method, metric))
    return "–" if value is None else f"{_percent(value)} %"


def picture(found: Figures) -> str:
    """The equal error rates with their intervals, as SVG whose texts are texts."""
    import matplotlib as mpl

    from uvsdk.evaluation import plots

    values = {
        method: [found[method, f"eer{end}_strangers"] for end in ("", "_low_95", "_high_95")] for method in TITLES
    }
    figure = plots.ranges(
        [(TITLES[method], *of_method) for method, of_method in values.items()],
        xlabel="Equal error rate of people who never trained, its 95 % interval; hollow: of those who did",
    )
    # A fixed frame, so that what is drawn depends on the values alone.
    figure.set_layout_engine("none")
    figure.set_size_inches(7.6, 2.3)
    (axes,) = figure.axes
    axes.set_position((0.205, 0.23, 0.585, 0.755))
    most = 1.02 * max(high for _, _, high in values.values())
    step = 0.1 if most > 0.1 else 0.01
    # A little to the left of nothing, so that a mark at zero is seen whole.
    axes.set(xlim=(-0.012 * most, most), xticks=[step * tick for tick in range(math.floor(most / step) + 1)])
    colours = [plots.PALETTE[2] if method == "fedaws" else plots.PALETTE[0] for method in TITLES]
    axes.collections[0].set(gid="intervals", color=colours)
    axes.lines[0].remove()
    for place, colour, (eer, low, high) in zip(reversed(range(len(TITLES))), colours, values.values(), strict=True):
        axes.plot(eer, place, "o", color=colour, gid="values")
        trained = found[list(TITLES)[-1 - place], "eer_trained"]
        axes.plot(trained, place, "o", color=colour, markerfacecolor="white", gid="trained")
        words = f"{_percent(eer)} %  ({_percent(low)} – {_percent(high)})"
        axes.text(1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=plots.INK)
    drawn = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "uvsdk", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


if __name__ == "__main__":
    main()
