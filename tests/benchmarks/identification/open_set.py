"""Open-set identification on real people: are strangers named as rarely as asked for, and who of the known is missed?

See README.md for the command.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.enrolment import embedded
from tests.benchmarks.enrolment.embedded import People
from tests.benchmarks.identification import rates
from uvsdk.arrays import Float32
from uvsdk.errors import ThresholdError
from uvsdk.identify import SearchThreshold, cohort_threshold, search_threshold
from uvsdk.scoring import Calibration
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template

SEED, ENROLLED_SAMPLES = 0, 3
RATES = (0.01, 0.05, 0.1)
Row = tuple[str, str, int, str, str, str]


def main() -> None:
    """Measure every set and write open_set.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    embedded.arguments(parser)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("open_set.csv"))
    parsed = parser.parse_args()
    sets = embedded.load(parsed)
    rows: list[Row] = []
    for name, (modality, people) in sets.evaluated.items():
        rows += _measure(name, people, sets.strangers[modality])
    with parsed.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<12} {row[1]:<48} {row[3]:<16} {row[4]:>8} {row[5]}")


def _measure(name: str, people: People, strangers: People) -> Iterator[Row]:
    """Thresholds from one half of the strangers, false positives from the other."""
    order = np.random.default_rng(SEED).permutation(len(strangers.rows))
    measured, outside = strangers.rows[order[::2]], strangers.rows[order[1::2]]
    gallery, probes, subject = _enrolled(people)
    pairs = measured @ measured.T
    calibration = Calibration.from_scores(pairs[np.triu_indices(len(pairs), 1)], model_version="m", source=name)
    found = _searched(
        gallery, np.concatenate([probes, outside]), [*subject, *(f"other {i}" for i in range(len(outside)))]
    )
    for rate in RATES:
        for method in ("comparisons", "cohort"):
            setting = f"{name}, {len(gallery)} enrolled, FPIR {100 * rate:g} %"
            try:
                limit: SearchThreshold = (
                    search_threshold(calibration, len(gallery), fpir=rate)
                    if method == "comparisons"
                    else cohort_threshold(gallery, measured, fpir=rate)
                )
            except ThresholdError as error:
                print(f"{method}, {setting}: {error}")
                continue
            values = rates.intervals(found, threshold=limit.score, fpir=rate)
            for metric in ("fpir", "fnir"):
                value = values[metric]
                for suffix, number in (("", value.value), (" low", value.low), (" high", value.high)):
                    yield method, setting, SEED, metric + suffix, f"{100 * number:.3g}", "%"
    yield (
        *("exact", f"{name}, {len(gallery)} enrolled", SEED, "rank 1, closed set"),
        f"{100 * rates.identification_rate(found):.4g}",
        "%",
    )


def _enrolled(people: People) -> tuple[Gallery, Float32, list[str]]:
    """Everybody with a sample to spare is enrolled from three; the rest of theirs are probes."""
    gallery, probes, subject = Gallery(), [], []
    for person, count in sorted(Counter(people.person.tolist()).items()):
        own = np.flatnonzero(people.person == person)
        if count <= ENROLLED_SAMPLES:
            continue
        mean = people.rows[own[:ENROLLED_SAMPLES]].mean(axis=0, dtype=np.float64)
        embedding = np.asarray(mean / np.linalg.norm(mean), np.float32)
        gallery.add(str(person), Template(embedding, "m", "face", ENROLLED_SAMPLES))
        probes.append(people.rows[own[ENROLLED_SAMPLES:]])
        subject += [str(person)] * (count - ENROLLED_SAMPLES)
    return gallery, np.concatenate(probes), subject


def _searched(gallery: Gallery, probes: Float32, subject: list[str]) -> rates.Searches:
    """Every probe against everybody, by the gallery's own search."""
    users = gallery.users()
    place = {user: column for column, user in enumerate(users)}
    scores = np.empty((len(probes), len(users)))
    for row, probe in zip(scores, probes, strict=True):
        for candidate in gallery.search(probe, len(users)).candidates:
            row[place[candidate.user_id]] = candidate.score
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*users, *subject]))}
    return rates.searches(
        scores,
        probe_subject=np.array([numbers[name] for name in subject]),
        gallery_subject=np.array([numbers[name] for name in users]),
    )


if __name__ == "__main__":
    main()
