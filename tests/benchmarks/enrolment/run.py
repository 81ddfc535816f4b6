"""Are genuine samples refused, are foreign ones caught, and how many samples are enough? See README.md."""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.enrolment import embedded
from tests.benchmarks.enrolment.embedded import People
from uvsdk.arrays import Bool, Float32
from uvsdk.enrolment import consistency
from uvsdk.scoring import Calibration, clopper_pearson

SEED, ENROLMENTS, FMR = 0, 500, 0.01
MIXTURES = ((3, 0), (5, 0), (10, 0), (2, 1), (4, 1), (3, 2), (2, 2))
"""Own and foreign samples of an enrolment."""
COUNTS = (1, 2, 3, 5, 7)
Row = tuple[str, str, int, str, str, str]


@dataclass
class Tally:
    """Events among trials."""

    events: int = 0
    trials: int = 0

    def add(self, events: int, trials: int) -> None:
        self.events += events
        self.trials += trials

    def rows(self, method: str, setting: str, metric: str) -> Iterator[Row]:
        """The share in percent, its interval, and the trials."""
        if not self.trials:
            return
        low, high = clopper_pearson(self.events, self.trials)
        for name, value in (("", self.events / self.trials), (" low", low), (" high", high)):
            yield method, setting, SEED, metric + name, f"{100 * value:.3g}", "%"
        yield method, setting, SEED, f"{metric} trials", str(self.trials), ""


def main() -> None:
    """Measure every set and write results.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    embedded.arguments(parser)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.csv"))
    parsed = parser.parse_args()
    sets = embedded.load(parsed)
    rows: list[Row] = []
    for name, (modality, people) in sets.evaluated.items():
        strangers = sets.strangers[modality]
        pairs = strangers.rows @ strangers.rows.T
        calibration = Calibration.from_scores(
            pairs[np.triu_indices(len(pairs), 1)], model_version=modality, source="strangers"
        )
        same = consistency.limit(calibration)
        for own, foreign in MIXTURES:
            for method, limit in (("calibrated", same), ("uncalibrated", None)):
                rows += _mixture(people, own, foreign, limit, method, name)
        rows += _enough(people, calibration.threshold(FMR).score, name)
    with parsed.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<13} {row[1]:<40} {row[3]:<36} {row[4]:>8} {row[5]}")


def _mixture(people: People, own: int, foreign: int, same: float | None, method: str, name: str) -> Iterator[Row]:
    """What becomes of enrolments of ``own`` samples with ``foreign`` ones of one other person among them."""
    rng = np.random.default_rng(SEED)
    refused, caught, contradicted = Tally(), Tally(), Tally()
    for _ in range(ENROLMENTS):
        rows = _drawn(people, own, foreign, rng)
        found = consistency.majority(rows, same=same)
        contradicted.add(int(found is None), 1)
        if found is None:
            continue
        kept: Bool = np.isin(np.arange(len(rows)), found)
        refused.add(int((~kept[:own]).sum()), own)
        caught.add(int((~kept[own:]).sum()), foreign)
    setting = f"{name}, {own} own and {foreign} foreign"
    yield from contradicted.rows(method, setting, "enrolments contradicted")
    yield from refused.rows(method, setting, "own samples refused")
    yield from caught.rows(method, setting, "foreign samples caught")


def _drawn(people: People, own: int, foreign: int, rng: np.random.Generator) -> Float32:
    names = [person for person, count in Counter(people.person.tolist()).items() if count >= max(own, foreign)]
    first, second = rng.choice(names, 2, replace=False)
    mine = rng.choice(np.flatnonzero(people.person == first), own, replace=False)
    theirs = rng.choice(np.flatnonzero(people.person == second), foreign, replace=False)
    return np.asarray(people.rows[np.concatenate([mine, theirs])], np.float32)


def _enough(people: People, threshold: float, name: str) -> Iterator[Row]:
    """Genuine probes rejected by templates of more and more samples."""
    for count in COUNTS:
        rng, rejected = np.random.default_rng(SEED), Tally()
        for person, samples in Counter(people.person.tolist()).items():
            if samples <= count:
                continue
            for _ in range(5):
                order = rng.permutation(np.flatnonzero(people.person == person))
                template = people.rows[order[:count]].mean(axis=0)
                scores = people.rows[order[count : count + 5]] @ (template / np.linalg.norm(template))
                rejected.add(int((scores < threshold).sum()), len(scores))
        yield from rejected.rows(f"{count} samples", name, "probes rejected at FMR 1 %")


if __name__ == "__main__":
    main()
