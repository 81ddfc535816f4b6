"""How often a foreign domain is noticed, and what is let through: ``python -m examples.reproduce.domains.run``.

A card is made of half of the people of LibriSpeech, or of LFW's first fold; the other half and every shifted set is
verified under it, with what is asked for outside and without. See README.md.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from examples.reproduce.domains import samples
from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.bundle import Bundle
from uvsdk.evaluation import calibrating
from uvsdk.evaluation.observations import Observations
from uvsdk.modality import get
from uvsdk.scoring import Calibration, Scale
from uvsdk.scoring.conditions import Conditions, together
from uvsdk.scoring.domain import Domain

HERE = Path(__file__).parent
RATES = (0.01, 0.001)
SEED = 2026
RESAMPLES = 200
MAIN = {"voice": "librispeech", "face": "photographs"}
SHIFTS = {
    "voice": ("short", "brown", "telephone", "digits", "letters", "words"),
    "face": ("grey", "coarse", "studio"),
}
OF_THE_SAME = ("librispeech", "short", "brown", "telephone", "photographs", "grey", "coarse")
"""Sets of the people of the main set: only those of the other half are measured, with templates of one sample."""

_ENROLLED = 5
"""Samples a template is made of elsewhere."""

_IMPOSTORS = 4_000
COLUMNS = (
    "modality", "half", "scale", "set", "people", "impostor_trials", "genuine_trials", "outside_impostor",
    "outside_genuine", "asked_fmr", "fmr", "fmr_low", "fmr_high", "fnmr", "bar_fmr", "bar_fmr_low", "bar_fmr_high",
    "bar_fnmr", "strict_fmr",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """One set under one calibration.

    Args:
        values: float64 (n, 2), what is compared with the threshold, as it is and with what is asked for outside.
        outside: bool (n,), whether the guard spoke.
        template: int64 (n,), whose template.
        probe: int64 (n,), whose probe.
    """

    values: Float64
    outside: Bool
    template: Int64
    probe: Int64


def main() -> None:
    """Measure both modalities and write results.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    rows = [row for path in arguments.bundles for row in measure(Bundle.open(path))]
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def measure(bundle: Bundle) -> list[dict[str, object]]:
    """Every set under the card of either half, on both scales."""
    modality = bundle.manifest.modality
    main_set = samples.load(MAIN[modality], bundle, seed=SEED)
    rng = np.random.default_rng(SEED)
    people = rng.permutation(np.unique(main_set.person))
    halves = {"A": np.sort(people[::2]), "B": np.sort(people[1::2])}
    rows: list[dict[str, object]] = []
    for half, others in (("A", "B"), ("B", "A")):
        fitted = calibrating.fit(
            main_set.of(halves[half]),
            model_version=bundle.version,
            source="half of the people",
            directions=get(modality).directions,
            seed=SEED,
        ).calibration
        for name in (MAIN[modality], *SHIFTS[modality]):
            seen = main_set if name == MAIN[modality] else samples.load(name, bundle, seed=SEED)
            measured = _measured(seen, halves[others], name)
            for scale in ("llr", "cosine"):
                calibration = fitted if scale == "llr" else _plain(fitted, main_set.of(halves[half]))
                found = trials(measured, calibration, scale, enrolled=1 if name in OF_THE_SAME else _ENROLLED)
                for rate in RATES:
                    line = summary(found, calibration.threshold(rate, scale).score)
                    head = {"modality": modality, "half": half, "scale": scale, "set": name, "asked_fmr": rate}
                    rows.append(head | line)
                    print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    return rows


def _plain(fitted: Calibration, half: Observations) -> Calibration:
    """Decided by the cosine alone, as a calibration of few samples or of sums over devices is."""
    original = half.copy == 0
    return replace(fitted, ratio=None, domain=Domain.of_people(half.embeddings[original], half.person[original]))


def _measured(seen: Observations, others: Int64, name: str) -> Observations:
    """Originals only; of a shift of the main set's own people, those of the half that did not calibrate."""
    found = seen.of(others) if name in OF_THE_SAME else seen
    kept = found.copy == 0
    return Observations(
        found.embeddings[kept],
        found.person[kept],
        found.recording[kept],
        found.copy[kept],
        found.enrolled[kept],
        tuple(row for row, keep in zip(found.conditions, kept, strict=True) if keep),
        found.copies,
        found.kinds,
    )


def trials(seen: Observations, calibration: Calibration, scale: Scale, *, enrolled: int) -> Trials:
    """Every later sample of a person against their template, and as many strangers as there is time for."""
    rng = np.random.default_rng(SEED)
    templates: list[tuple[Float32, Conditions]] = []
    probes: list[Int64] = []
    people = np.unique(seen.person)
    for person in people:
        own = rng.permutation(np.flatnonzero(seen.person == person))
        first = own[: min(enrolled, max(len(own) - 1, 1))]
        mean = seen.embeddings[first].mean(axis=0, dtype=np.float64)
        row = np.asarray(mean / np.linalg.norm(mean), np.float32)
        templates.append((row, together([seen.conditions[index] for index in first])))
        probes.append(own[len(first) :] if len(own) > len(first) else own)
    pairs = [
        (template, probe, index)
        for template in range(len(people))
        for probe in range(len(people))
        for index in probes[probe][: None if template == probe else 3].tolist()
        if template != probe or len(np.flatnonzero(seen.person == people[probe])) > 1
    ]
    strangers = [pair for pair in pairs if pair[0] != pair[1]]
    kept = rng.permutation(len(strangers))[:_IMPOSTORS]
    pairs = [pair for pair in pairs if pair[0] == pair[1]] + [strangers[index] for index in kept]
    values, outside = np.zeros((len(pairs), 2)), np.zeros(len(pairs), np.bool_)
    for place, (template, _, index) in enumerate(pairs):
        (row, conditions), probe_row = templates[template], seen.embeddings[index]
        sides = {"template": conditions, "probe": seen.conditions[index]}
        placement = calibration.place(row, probe_row, **sides)
        outside[place] = placement.verdict == "outside"
        for column, rise in enumerate((0.0, 1.0)):
            if scale == "llr":
                values[place, column] = calibration.llr(row, probe_row, **sides, rise=rise * placement.rise)
            else:
                values[place, column] = float(row @ probe_row) - rise * placement.cosine_rise
    return Trials(values, outside, np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs]))


def summary(found: Trials, threshold: float) -> dict[str, object]:
    """Rates in percent; intervals of 95 % over people, who are drawn anew and take all their trials along."""
    rng = np.random.default_rng(SEED)
    genuine = found.template == found.probe
    accepted = found.values >= threshold
    people = int(max(found.template.max(), found.probe.max())) + 1
    line: dict[str, object] = {
        "people": people,
        "impostor_trials": int((~genuine).sum()),
        "genuine_trials": int(genuine.sum()),
        "outside_impostor": _percent(found.outside[~genuine]),
        "outside_genuine": _percent(found.outside[genuine]),
        "strict_fmr": _percent(accepted[~genuine & ~found.outside, 0]),
    }
    for column, name in enumerate(("", "bar_")):
        line[f"{name}fmr"] = _percent(accepted[~genuine, column])
        line[f"{name}fnmr"] = _percent(~accepted[genuine, column])
        rates = []
        for _ in range(RESAMPLES):
            count = np.bincount(rng.integers(0, people, people), minlength=people)
            weights = (count[found.template] * count[found.probe])[~genuine].astype(np.float64)
            if weights.sum():
                rates.append(float(np.average(accepted[~genuine, column], weights=weights)))
        low, high = np.quantile(rates, (0.025, 0.975))
        line[f"{name}fmr_low"], line[f"{name}fmr_high"] = round(100 * low, 3), round(100 * high, 3)
    return line


def _percent(flags: Bool) -> float:
    return round(100 * float(flags.mean()), 3) if len(flags) else float("nan")


if __name__ == "__main__":
    main()
