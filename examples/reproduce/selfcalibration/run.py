"""A threshold from a deployment's own devices: ``python -m examples.reproduce.selfcalibration.run voice.uvb face.uvb``.

Devices enrol with five samples each and report what production devices report; the reports are packed, unpacked,
checked, added up and become a calibration by production code. Nobody hands over a trial. Then samples of people who
never took part are held against the devices' templates. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from examples.reproduce.selfcalibration.domains import Embedded
from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.errors import ThresholdError
from uvsdk.records.codec import pack, unpack
from uvsdk.release.measurement import calibrate
from uvsdk.release.report import GROUPS, EvaluationReport, EvaluationTask, Impostors, ModelReport, check, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration
from uvsdk.scoring.cells import cells_of
from uvsdk.scoring.conditions import together
from uvsdk.scoring.moments import unit

HERE = Path(__file__).parent
SAMPLES = 5
DEVICES = (8, 12, 20, 30, 40, 80, 130)
STRANGERS = 5
"""People who take no part, at least."""

DRAWS = 40
RATES = (0.01, 0.001, 0.0001)
TRIALS_A_RATE = 10.0
"""Expected false matches without which a rate says nothing."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Person:
    """One person's part, with what only the measurement sees.

    Args:
        report: what a device sends, packed, unpacked and checked; ``None`` of a person with too few samples to enrol.
        template: float64 (d,).
        rows: float32 (n, d), all samples: probes of a stranger.
        genuine: float64 (m,), scores of the person's own samples of recordings that did not enrol.
        conditions: of the template.
        probes: of every sample.
    """

    report: ModelReport | None
    template: Floats
    rows: NDArray[np.float32]
    genuine: Floats
    conditions: dict[str, float]
    probes: tuple[dict[str, float], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Shares in per cent; low and high are the 10 % and the 90 % quantile over draws of people.

    ``within`` is the share of draws whose rate is at least half and at most twice the asked one, ``covered`` of those
    whose own 95 % interval holds the rate. ``card_cosine`` and
    ``card_ratio`` are the shipped card's thresholds at the same rate, on the same trials.
    """

    domain: str
    devices: int
    strangers: int
    asked: float
    fmr: float
    fmr_low: float
    fmr_high: float
    fmr_mean: float
    within: float
    covered: float
    card_cosine: float
    card_ratio: float
    fnmr: float
    card_cosine_fnmr: float
    genuine_trials: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every domain of the modalities of the bundles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--domain", action="append", choices=tuple(domains.DOMAINS), help="only this one")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    parser.add_argument("--third-moments", action="store_true", help="let devices tell them too; give --output as well")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    chosen = parser.parse_args(arguments)
    impostors: Impostors = "third_moments" if chosen.third_moments else "moments"
    for path in chosen.bundles:
        bundle = Bundle.open(path)
        known = domains.VOICES if bundle.manifest.modality == "voice" else domains.FACES
        for name in chosen.domain or known:
            if name in known:
                rows = measured(domains.embedded(name, bundle, chosen.cache), bundle, impostors)
                save(chosen.output, name, rows)


def measured(seen: Embedded, bundle: Bundle, impostors: Impostors = "moments") -> list[Row]:
    """All rows of one domain."""
    # Those of whom there are too few samples to enrol are strangers in every draw.
    order = sorted(range(seen.people), key=lambda index: (seen.person == index).sum() < SAMPLES)
    people = [_person(seen, index, bundle, impostors) for index in order]
    able = sum(person.report is not None for person in people)
    card = bundle.calibration
    assert card is not None
    ratios = _card_ratios(people[:able], people, card)
    found = []
    for devices in DEVICES:
        if devices > able or devices + STRANGERS > len(people):
            break
        found += _drawn(seen.name, people, able, devices, bundle.version, card, ratios)
    if not found:
        devices = able - 2
        try:
            _calibrated(people[:devices], np.random.default_rng(0), bundle.version)
        except ThresholdError as error:
            print(f"{seen.name}: {len(people)} people, {error}", flush=True)
    return found


def _person(seen: Embedded, index: int, bundle: Bundle, impostors: Impostors) -> Person:
    own = np.flatnonzero(seen.person == index)
    reader = modality.get(bundle.manifest.modality)
    measured = tuple(_conditions(seen, place, reader) for place in own)
    if len(own) < SAMPLES:
        return Person(None, np.zeros(0), seen.rows[own], np.zeros(0), {}, measured)
    order = np.random.default_rng(index).permutation(own)
    enrolled, others = order[:SAMPLES], order[SAMPLES:]
    fresh = [place for place in others if seen.recording[place] not in seen.recording[enrolled]]
    rows = seen.rows[enrolled]
    report = report_on(
        rows,
        model_version=bundle.version,
        impostors=impostors,
        evaluates=True,
        strangers=np.zeros((0, rows.shape[1]), np.float32),
        cells=sum(len(division.bounds) + 1 for division in reader.cells),
        cells_of=[cells_of(_conditions(seen, place, reader), reader.cells) for place in enrolled],
    )
    template = unit(rows.mean(axis=0, dtype=np.float64))
    return Person(
        _sent(report, bundle, impostors),
        template,
        seen.rows[own],
        seen.rows[fresh].astype(np.float64) @ template,
        together([_conditions(seen, place, reader) for place in enrolled]),
        measured,
    )


def _conditions(seen: Embedded, place: int, reader: modality.Modality) -> dict[str, float]:
    values = zip(reader.conditions, seen.conditions[place].tolist(), strict=True)
    return {kind.name: value for kind, value in values if np.isfinite(value)}


def _drawn(
    name: str,
    people: list[Person],
    able: int,
    devices: int,
    version: str,
    card: Calibration,
    ratios: list[list[Floats]],
) -> list[Row]:
    """Draws of one number of devices among those able to enrol, at each rate that its people support."""
    rates: dict[float, list[tuple[float, ...]]] = {}
    trials = genuine_trials = 0
    for draw in range(DRAWS):
        rng = np.random.default_rng([draw, devices])
        order = rng.permutation(able).tolist()
        taking_part, strangers = order[:devices], [*order[devices:], *range(able, len(people))]
        own = _calibrated([people[place] for place in taking_part], rng, version)
        probes = np.concatenate([people[place].rows for place in strangers]).astype(np.float64)
        scores = probes @ np.stack([people[place].template for place in taking_part]).T
        ratio = np.concatenate([ratios[place][stranger] for place in taking_part for stranger in strangers])
        genuine = np.concatenate([people[place].genuine for place in taking_part])
        trials, genuine_trials = scores.size, max(genuine_trials, len(genuine))
        for rate in RATES:
            if rate < own.strictest("cosine") * (1 - 1e-9) or trials * rate < TRIALS_A_RATE:
                continue
            limit = own.threshold(rate).score
            shipped = (_at(card, rate, "cosine"), _at(card, rate, "llr"))
            low, high = own.interval(limit)
            let_in = float((scores >= limit).mean())
            rates.setdefault(rate, []).append(
                (
                    let_in,
                    float(low <= let_in <= high),
                    float((scores >= shipped[0]).mean()),
                    float((ratio >= shipped[1]).mean()),
                    float((genuine < limit).mean()) if len(genuine) else float("nan"),
                    float((genuine < shipped[0]).mean()) if len(genuine) else float("nan"),
                )
            )
    return [
        _row(name, devices, len(people) - devices, rate, np.array(values), genuine_trials)
        for rate, values in rates.items()
    ]


def _row(name: str, devices: int, strangers: int, asked: float, values: Floats, genuine_trials: int) -> Row:
    fmr = values[:, 0]
    median = [100 * float(value) for value in np.median(values, axis=0)]
    row = Row(
        name,
        devices,
        strangers,
        100 * asked,
        median[0],
        100 * float(np.quantile(fmr, 0.1)),
        100 * float(np.quantile(fmr, 0.9)),
        100 * float(fmr.mean()),
        100 * float(((fmr >= asked / 2) & (fmr <= 2 * asked)).mean()),
        100 * float(values[:, 1].mean()),
        *median[2:],
        genuine_trials,
    )
    print(row, flush=True)
    return row


def _calibrated(people: list[Person], rng: np.random.Generator, version: str) -> Calibration:
    """What the server makes of the reports of these people."""
    groups = rng.integers(0, GROUPS, len(people)).tolist()  # production: by a keyed hash of the hashed id
    reports = [
        (group, person.report) for group, person in zip(groups, people, strict=True) if person.report is not None
    ]
    sums = ModelSums.of(reports, model_version=version, impostors="moments")
    return calibrate(sums, source="a simulated deployment", now=1.0)


def _sent(report: ModelReport, bundle: Bundle, impostors: Impostors) -> ModelReport:
    """The report after its way from a device to the server."""
    dimension = bundle.manifest.dimension
    nobody = np.zeros((0, dimension), np.float32)
    task = EvaluationTask(1, bundle.version, bundle.version, impostors, True, nobody, nobody)
    arrived = unpack(EvaluationReport, pack(EvaluationReport(1, report, (), SAMPLES)))
    check(arrived, task, dimension=dimension, cells=len(report.genuine) - 1)
    return arrived.candidate


def _card_ratios(enrolled: list[Person], everybody: list[Person], card: Calibration) -> list[list[Floats]]:
    """Of every template and every person's samples the shipped card's likelihood ratios."""
    starts = np.cumsum([0, *(len(person.rows) for person in everybody)])
    probes = np.concatenate([person.rows for person in everybody])
    conditions = [item for person in everybody for item in person.probes]
    found = []
    for person in enrolled:
        templates = np.broadcast_to(person.template.astype(np.float32), probes.shape)
        values = card.llrs(templates, probes, template=[person.conditions] * len(probes), probe=conditions)
        found.append([values[first:last] for first, last in itertools.pairwise(starts)])
    return found


def _at(card: Calibration, rate: float, scale: str) -> float:
    """The card's threshold at a rate, or at the lowest that its trials support."""
    kind = "llr" if scale == "llr" else "cosine"
    return card.threshold(max(rate, card.strictest(kind)), kind).score


def save(path: Path, domain: str, rows: list[Row]) -> None:
    """Replace the rows of a domain."""
    names = [field.name for field in fields(Row)]
    kept: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [dict(row) for row in csv.DictReader(file) if row["domain"] != domain]
    for row in rows:
        values = {name: getattr(row, name) for name in names}
        kept.append({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


if __name__ == "__main__":
    main()
