"""Whom a released calibration gives away: whether somebody of whom one has a recording is among those who evaluated.

Usage: python -m tests.benchmarks.evaluation.membership BUNDLE [--kept EMBEDDINGS.npz]

The first half of every LibriSpeech clip is what a member's device has summed, the second half is what the attacker has,
of members and of others alike; both are of one session, which flatters the attacker. The attacker also has recordings
of people of the same kind, and looks for members in the mean by the most powerful linear test (offsets whitened by the
covariance of those people) and in the directions by the share of the offset that lies along them. Printed is the area
under the curve, mean of the draws: 0.5 is a guess.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

import numpy as np
import soundfile

from tests import real_data
from uvsdk.arrays import Float64
from uvsdk.bundle.inference import embed, open_bundle
from uvsdk.errors import SampleError
from uvsdk.release.measurement import PEOPLE_A_DIRECTION
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.moments import Moments

PEOPLE = (8, 20, 50, 100)
DRAWS, OTHERS, SEED = 30, 60, 2026


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--kept", type=Path, help="embeddings of an earlier run, or where this one keeps them")
    chosen = parser.parse_args()
    if chosen.kept is not None and chosen.kept.exists():
        kept = np.load(chosen.kept)
        first, second = kept["first"], kept["second"]
    else:
        first, second = _halves(chosen.bundle)
        if chosen.kept is not None:
            np.savez(chosen.kept, first=first, second=second)
    print(f"{len(first)} people, {DRAWS} draws")
    print("| people who evaluate | mean alone | mean and one direction for every 50 | mean and all directions |")
    print("|---|---|---|---|")
    for people in PEOPLE:
        told = (0, people // PEOPLE_A_DIRECTION, people - 1)
        areas = [f"{_area(first, second, people, directions):.2f}" for directions in told]
        print(f"| {people} | {' | '.join(areas)} |")


def _area(first: Float64, second: Float64, people: int, directions: int) -> float:
    rng = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS):
        order = rng.permutation(len(first))
        members, others, known = np.split(order, [people, people + OTHERS])
        sums = Moments.none(first.shape[1])
        for row in first[members]:
            sums += Moments.of(row[None])
        domain = Domain.of(sums, directions=directions)
        assert domain is not None  # people differ
        centre, spread = second[known].mean(axis=0), np.cov(second[known].T)
        spread += np.eye(len(centre)) * np.trace(spread) / len(centre) * 0.01
        offsets = second[np.concatenate([members, others])] - centre
        score = _standard(offsets @ np.linalg.solve(spread, domain.mean - centre))
        if directions:
            along = ((offsets @ domain.directions.T.astype(np.float64)) ** 2).sum(axis=1)
            score += 2.0 * _standard(along / (offsets**2).sum(axis=1))
        ranks = np.argsort(np.argsort(score))[:people]
        found.append((ranks.mean() - (people - 1) / 2) / OTHERS)
    return float(np.mean(found))


def _standard(values: Float64) -> Float64:
    return np.asarray((values - values.mean()) / values.std(), np.float64)


def _halves(path: Path) -> tuple[Float64, Float64]:
    bundle, first, second = open_bundle(path), [], []
    folder = real_data.file("speech_librispeech")
    with (folder / "manifest.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "cohort_train-clean-100"]
    for row in rows:
        pcm, rate = soundfile.read(folder / row["path"], dtype="float32")
        halves = []
        for part in np.array_split(pcm, 2):
            wav = io.BytesIO()
            soundfile.write(wav, part, rate, format="WAV")
            halves.append(wav.getvalue())
        try:
            pair = [embed(half, bundle).embedding for half in halves]
        except SampleError:  # too little speech in one of them
            continue
        first.append(pair[0])
        second.append(pair[1])
    return np.array(first, np.float64), np.array(second, np.float64)


if __name__ == "__main__":
    main()
