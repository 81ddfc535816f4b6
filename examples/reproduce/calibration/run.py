"""One threshold for every condition: ``python -m examples.reproduce.calibration.run voice.uvb``.

Half of the people calibrate, the other half is measured, then the other way round; see README.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.calibration import recordings
from uvsdk.bundle import Bundle
from uvsdk.evaluation import bootstrap, calibrating, metrics
from uvsdk.evaluation.observations import ORIGINAL, Observations
from uvsdk.evaluation.trials import Trials
from uvsdk.modality.voice.degradation import RECORDINGS
from uvsdk.scoring import Calibration, fitting
from uvsdk.scoring.intervals import clopper_pearson

FMR = 0.01
PRIOR = 0.01
RESAMPLES = 200
MEASURED = (recordings.FULL, *recordings.CUTS, *recordings.MADE_BY_CALIBRATE, recordings.BROWN)
COLUMNS = (
    "measured_half", "variant", "template", "probe", "people", "impostor_trials", "genuine_trials", "threshold",
    "fmr", "fmr_low", "fmr_high", "fmr_people_low", "fmr_people_high", "fnmr", "eer", "act_dcf", "min_dcf", "cllr",
    "min_cllr",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A calibration, and the straight line from cosine to ratio where it has none of its own."""

    name: str
    calibration: Calibration
    line: tuple[float, float] | None = None

    @property
    def threshold(self) -> float:
        """The one threshold, at a false match rate of 1 % by its own trials, as a likelihood ratio."""
        found = self.calibration.threshold(FMR, self.calibration.scale).score
        return found if self.line is None else self.line[0] * found + self.line[1]

    def ratios(self, seen: Observations, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log likelihood ratio of each pair of rows."""
        if self.line is not None:
            cosines = np.einsum("nd,nd->n", seen.embeddings[a].astype(np.float64), seen.embeddings[b])
            return self.line[0] * cosines + self.line[1]
        first, second = [seen.conditions[index] for index in a], [seen.conditions[index] for index in b]
        return self.calibration.llrs(seen.embeddings[a], seen.embeddings[b], template=first, probe=second)


def main() -> None:
    """Embed or load, fit, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="of uvsdk export ge2e")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.csv"))
    parser.add_argument("--kept", type=Path, help="keep the embeddings in this .npz, or take them from there")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--choose", action="store_true", help="measure inside the calibration half only, see README")
    arguments = parser.parse_args()
    if arguments.kept is not None and arguments.kept.exists():
        found = recordings.load(arguments.kept)
    else:
        folder = data.folder() / "speech_librispeech"
        found = recordings.embedded(folder, Bundle.open(arguments.bundle), arguments.seed)
        if arguments.kept is not None:
            recordings.save(arguments.kept, found)
    print("samples that gave nothing:", found.failures or "none")
    halves = split(found.observed, arguments.seed)
    if arguments.choose:
        inner = found.observed.of(halves[0])
        rows = list(measured("inside A", inner, split(inner, arguments.seed)))
    else:
        rows = [*measured("B", found.observed, halves), *measured("A", found.observed, halves[::-1])]
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))


def split(seen: Observations, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """People in two halves at random; those with several recordings are split evenly."""
    rng = np.random.default_rng(seed)
    people = np.unique(seen.person)
    counts = np.array([len(np.unique(seen.recording[seen.person == person])) for person in people])
    order = [rng.permutation(people[chosen]) for chosen in (counts > 1, counts == 1)]
    first = np.concatenate([part[::2] for part in order])
    return first, np.setdiff1d(people, first)


def measured(
    name: str, seen: Observations, halves: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> Iterator[dict[str, object]]:
    """Calibrate on the first half, measure on the second."""
    names = [ORIGINAL, *(copy for copy in RECORDINGS if copy in seen.copies)]
    shown = recordings.only(seen.of(halves[0]), names)
    tested = seen.of(halves[1])
    for variant in variants(shown):
        for template in MEASURED:
            for probe in MEASURED:
                if template in (ORIGINAL, probe):
                    yield row(name, variant, tested, template, probe)


def variants(shown: Observations) -> Iterator[Variant]:
    """Cosine with one line, then likelihood ratios without and with AS-norm."""
    fitted = calibrating.fit(shown, model_version="m", source="the other half")
    plain = recordings.only(shown, [ORIGINAL])
    bare = calibrating.fit(plain, model_version="m", source="the other half")
    cosine = replace(bare.calibration, ratio=None)
    a, b = np.triu_indices(len(plain.embeddings), 1)
    scores = np.einsum("nd,nd->n", plain.embeddings[a].astype(np.float64), plain.embeddings[b])
    own = plain.person[a] == plain.person[b]
    yield Variant("cosine", cosine, fitting.fit_line(scores[own], scores[~own]))
    yield Variant("ratio", fitted.calibration)
    yield Variant(
        "ratio, AS-norm",
        calibrating.fit(shown, model_version="m", source="", as_norm=True, keep_cohort=True).calibration,
    )


def row(half: str, variant: Variant, seen: Observations, template: str, probe: str) -> dict[str, object]:
    """One line of the table."""
    trials = compared(variant, seen, template, probe)
    points, limit = trials.curve(), variant.threshold

    def rate(curve: metrics.Curve) -> float:
        return metrics.at_threshold(curve, limit).fmr

    accepted = int((trials.impostor >= limit).sum())
    over = bootstrap.intervals(trials, {"fmr": rate}, resamples=RESAMPLES)["fmr"]
    words = {
        "measured_half": half,
        "variant": variant.name,
        "template": template,
        "probe": probe,
        "people": len(np.unique(seen.person)),
        "impostor_trials": len(trials.impostor),
        "genuine_trials": len(trials.genuine),
    }
    low, high = clopper_pearson(accepted, len(trials.impostor))
    figures = {
        "threshold": limit,
        "fmr": rate(points),
        "fmr_low": low,
        "fmr_high": high,
        "fmr_people_low": over.low,
        "fmr_people_high": over.high,
        "fnmr": metrics.at_threshold(points, limit).fnmr,
        "eer": metrics.eer(points),
        "act_dcf": metrics.act_dcf(points, metrics.bayes_threshold(PRIOR), prior=PRIOR),
        "min_dcf": metrics.min_dcf(points, PRIOR),
        "cllr": metrics.cllr(trials.genuine, trials.impostor),
        "min_cllr": metrics.min_cllr(points),
    }
    return words | {name: f"{figure:.5f}" for name, figure in figures.items()}


def compared(variant: Variant, seen: Observations, template: str, probe: str) -> Trials:
    """Impostors are every ordered pair of people once, genuine trials every two recordings of one person."""
    sides = [
        np.flatnonzero(seen.copy == seen.copies.index(recordings.measured_name(name))) for name in (template, probe)
    ]
    a, b = (part.ravel() for part in np.meshgrid(*sides, indexing="ij"))
    own = (seen.person[a] == seen.person[b]) & (seen.recording[a] != seen.recording[b])
    alone = np.isin(seen.recording, [seen.recording[seen.person == person].min() for person in np.unique(seen.person)])
    other = (seen.person[a] != seen.person[b]) & alone[a] & alone[b]
    kept = own | other
    if template == probe:
        kept &= a < b
    names = tuple(str(index) for index in range(int(seen.person.max()) + 1))
    return Trials(variant.ratios(seen, a[kept], b[kept]), seen.person[a[kept]], seen.person[b[kept]], names)


def table(rows: list[dict[str, object]]) -> str:
    """The rows as Markdown, rates in percent, both halves beside each other."""
    halves = list(dict.fromkeys(str(item["measured_half"]) for item in rows))
    lines = ["| template | probe | variant | FMR % | FNMR % | EER % | act/min DCF | Cllr/min |", "|" + "---|" * 8]
    for item in rows:
        if item["measured_half"] != halves[0]:
            continue
        key = [item[name] for name in ("template", "probe", "variant")]
        same = [other for other in rows if [other[name] for name in ("template", "probe", "variant")] == key]
        cells = [
            " / ".join(f"{100 * float(str(other[name])):.2f}" for other in same) for name in ("fmr", "fnmr", "eer")
        ]
        cells += [
            " / ".join(f"{float(str(other[x])):.2f}·{float(str(other[y])):.2f}" for other in same)
            for x, y in (("act_dcf", "min_dcf"), ("cllr", "min_cllr"))
        ]
        lines.append("| " + " | ".join([*(str(part) for part in key), *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
