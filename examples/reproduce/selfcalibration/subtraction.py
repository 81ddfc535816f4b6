"""Whether the domain's mean is taken out: ``python -m examples.reproduce.selfcalibration.subtraction BUNDLE BUNDLE``.

Devices enrol with five samples each and are asked twice, as production devices of a deployment with ``centring =
"measured"`` are: the first evaluation tells the mean of their means, in the second they report with it and without.
Reports are packed, unpacked, checked and concluded by production code. Then samples of people who never took part are
held against the devices' templates, and fresh samples of people who have several recordings against their own.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from examples.reproduce.selfcalibration.domains import Embedded
from uvsdk.bundle import Bundle
from uvsdk.records.codec import pack, unpack
from uvsdk.release.conclusion import conclude
from uvsdk.release.measurement import calibrate
from uvsdk.release.report import GROUPS, EvaluationReport, EvaluationTask, centre_of, check, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.moments import unit

HERE = Path(__file__).parent
SAMPLES, DRAWS, RATE = 5, 20, 0.01
DEVICES = {"letters": 12}
"""Of other domains eighty, so that more than fifty people stand behind the mean."""

MANY = 80
RESAMPLES = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """Shares in per cent: medians over draws of who takes part; low and high are 95 % over people, but for ``fmr``,
    where they are the 10 % and the 90 % quantile over draws.

    ``told`` and ``centred_told`` are what the devices report of themselves at ``rate``, the rate of the measurement,
    and ``change`` what the rule looks at; ``fnmr`` and ``centred_fnmr`` are of fresh samples at an asked 1 %.
    """

    domain: str
    devices: int
    chosen: int
    draws: int
    rate: float
    told: float
    centred_told: float
    change: float
    change_low: float
    change_high: float
    fmr: float
    fmr_low: float
    fmr_high: float
    centred_fmr: float
    centred_fmr_low: float
    centred_fmr_high: float
    people: int
    fnmr: float
    fnmr_low: float
    fnmr_high: float
    centred_fnmr: float
    centred_fnmr_low: float
    centred_fnmr_high: float
    difference: float
    difference_low: float
    difference_high: float


def main() -> None:
    """Measure the domains of the bundles that are at hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--domain", action="append", choices=tuple(domains.DOMAINS), help="only this one")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    parser.add_argument("--output", type=Path, default=HERE / "subtraction.csv")
    chosen = parser.parse_args()
    rows = []
    for path in chosen.bundles:
        bundle = Bundle.open(path)
        known = domains.VOICES if bundle.manifest.modality == "voice" else domains.FACES
        for name in chosen.domain or known:
            if name in known:
                rows.append(_measured(domains.embedded(name, bundle, chosen.cache)))
                print(rows[-1], flush=True)
    names = [field.name for field in fields(Row)]
    with chosen.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = {name: getattr(row, name) for name in names}
            writer.writerow({key: f"{item:.4g}" if isinstance(item, float) else item for key, item in values.items()})


@dataclass(frozen=True, slots=True)
class _Draw:
    rate: float
    told: float
    centred_told: float
    change: tuple[float, float, float]
    chosen: bool
    whole: Calibration
    centred: Calibration


def _measured(seen: Embedded) -> Row:
    counts = np.bincount(seen.person)
    able = np.flatnonzero(counts >= SAMPLES)
    devices = min(DEVICES.get(seen.name, MANY), len(able) - 5)
    fresh = [_fresh(seen, person) for person in able]
    several = [place for place, (_, probes) in enumerate(fresh) if len(probes)]
    found, rates, rejected = [], [], []
    for draw in range(DRAWS):
        rng = np.random.default_rng([draw, devices])
        order = rng.permutation(len(able))
        taking_part = able[order[:devices]]
        told = _evaluated([seen.rows[seen.person == person][:SAMPLES] for person in taking_part], rng)
        strangers = seen.rows[~np.isin(seen.person, taking_part)]
        templates = np.concatenate([fresh[place][0] for place in order[:devices]])
        both = (told.whole, told.centred)
        found.append(told)
        rates.append([_share(item, strangers, templates) for item in both])
        rejected.append([[1.0 - _share(item, *fresh[place][::-1]) for place in several] for item in both])
    return _row(seen.name, devices, found, 100 * np.array(rates), 100 * np.array(rejected).reshape(DRAWS, 2, -1))


def _fresh(seen: Embedded, person: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A person's template, float32 (1, d), and samples of recordings that are not in it, float32 (n, d)."""
    own = np.flatnonzero(seen.person == person)
    enrolled = own[:SAMPLES]
    others = [place for place in own[SAMPLES:] if seen.recording[place] not in seen.recording[enrolled]]
    return unit(seen.rows[enrolled].mean(axis=0, keepdims=True)).astype(np.float32), seen.rows[others]


def _share(calibration: Calibration, probes: NDArray[np.float32], templates: NDArray[np.float32]) -> float:
    """Of probes against templates that are accepted at :data:`RATE`."""
    scores = calibration.compared(probes) @ calibration.compared(templates).T
    return float((scores >= calibration.threshold(RATE).score).mean())


def _evaluated(people: list[NDArray[np.float32]], rng: np.random.Generator) -> _Draw:
    """Two evaluations of one model: what the second says, and the calibration that either side of it gives."""
    groups = rng.integers(0, GROUPS, len(people)).tolist()  # production: by a keyed hash of the hashed id
    first = _sums(people, groups, None)[0]
    own = calibrate(first, source="a simulated deployment", now=1.0)
    centre = centre_of(own)
    if centre is None:  # of so few people production tells none; what it would do is measured all the same
        assert first.total is not None
        centre = first.total.strangers.centre.astype(np.float32)
    whole, centred = _sums(people, groups, centre)
    said = conclude(whole, whole, centred=centred, evaluation_id=2, collapse=np.nan, source="simulated", now=2.0)
    assert said.subtraction is not None
    change = said.subtraction.centred_fnmr - said.subtraction.fnmr
    return _Draw(
        said.subtraction.fmr,
        said.subtraction.fnmr,
        said.subtraction.centred_fnmr,
        (change, *said.subtraction.interval),
        said.subtraction.chosen,
        calibrate(whole, source="whole", now=2.0),
        calibrate(centred, source="centred", now=2.0),
    )


def _sums(
    people: list[NDArray[np.float32]], groups: list[int], centre: NDArray[np.float32] | None
) -> tuple[ModelSums, ModelSums]:
    """What the server adds up of one evaluation; without a centre both are of embeddings as they are."""
    dimension = people[0].shape[1]
    nobody = np.zeros((0, dimension), np.float32)
    task = EvaluationTask(
        1, "m", "m", "moments", True, nobody, nobody, np.zeros(0, np.float32) if centre is None else centre
    )
    arrived = []
    for rows in people:
        sides = [
            report_on(rows, model_version="m", impostors="moments", evaluates=True, strangers=nobody, centring=centring)
            for centring in (None, *(() if centre is None else (Compensation.centring(centre),)))
        ]
        sent = pack(EvaluationReport(1, sides[0], (), SAMPLES, centred=tuple(sides[1:])))
        arrived.append(unpack(EvaluationReport, sent))
        check(arrived[-1], task, dimension=dimension, cells=0)
    whole = [(group, report.candidate) for group, report in zip(groups, arrived, strict=True)]
    second = [(group, (*report.centred, report.candidate)[0]) for group, report in zip(groups, arrived, strict=True)]
    return (
        ModelSums.of(whole, model_version="m", impostors="moments"),
        ModelSums.of(second, model_version="m", impostors="moments", centre=centre),
    )


def _row(name: str, devices: int, found: list[_Draw], rates: Floats, rejected: Floats) -> Row:
    """``rates`` (draws, 2), ``rejected`` (draws, 2, people), per cent."""
    change = 100 * np.median([item.change for item in found], axis=0)
    people = rejected.mean(axis=0)  # a person's share over draws of the threshold
    sides = [_interval(people[0]), _interval(people[1]), _interval(people[1] - people[0])]
    fmr = [[np.median(side), np.quantile(side, 0.1), np.quantile(side, 0.9)] for side in rates.T]
    return Row(
        name,
        devices,
        sum(item.chosen for item in found),
        len(found),
        100 * float(np.median([item.rate for item in found])),
        100 * float(np.median([item.told for item in found])),
        100 * float(np.median([item.centred_told for item in found])),
        *(float(value) for value in change),
        *(float(value) for side in fmr for value in side),
        people.shape[1],
        *(value for side in sides for value in side),
    )


def _interval(values: Floats) -> tuple[float, float, float]:
    """Mean over people, and 95 % over people drawn again."""
    rng = np.random.default_rng(0)
    again = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(again, [0.025, 0.975]).tolist()
    return float(values.mean()), low, high


if __name__ == "__main__":
    main()
