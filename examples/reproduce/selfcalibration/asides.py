"""Subtracting the domain's mean, and strangers of the owner's sex.

``python -m examples.reproduce.selfcalibration.asides`` takes the bundles and ``--cache`` as ``run`` beside it does.
Medians over 20 draws.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from examples.reproduce.selfcalibration.domains import Embedded
from uvsdk.bundle import Bundle
from uvsdk.evaluation import metrics
from uvsdk.release.measurement import calibrate
from uvsdk.release.report import GROUPS, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring.moments import unit

SAMPLES, CENTRING, DEVICES, DRAWS = 5, 20, 40, 20

Floats = NDArray[np.float64]


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    chosen = parser.parse_args()
    for path in chosen.bundles:
        bundle = Bundle.open(path)
        for name in domains.VOICES if bundle.manifest.modality == "voice" else domains.FACES:
            _centring(domains.embedded(name, bundle, chosen.cache))
        if bundle.manifest.modality == "voice":
            _sexes(domains.embedded("read speech", bundle, chosen.cache))


def _centring(seen: Embedded) -> None:
    """Equal error rate and FNMR at 1 % of people whose mean was not subtracted, as they are and centred."""
    own = [np.unique(seen.recording[seen.person == index]) for index in range(seen.people)]
    several = np.array([index for index, recordings in enumerate(own) if len(recordings) > SAMPLES])
    counts = np.bincount(seen.person)
    found = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        enough = np.flatnonzero(counts >= 3)
        single = np.setdiff1d(enough, several)
        pool = single if len(single) >= CENTRING else enough
        apart = rng.permutation(pool)[: min(CENTRING, len(pool) // 2)]
        measured = np.setdiff1d(several, apart)
        centre = np.mean([seen.rows[seen.person == index].mean(axis=0) for index in apart], axis=0, dtype=np.float64)
        seed = int(rng.integers(1 << 30))
        plain, centred = (_rates(unit(seen.rows - offset), seen, measured, seed) for offset in (0.0 * centre, centre))
        found.append((*plain, *centred))
    values = 100 * np.median(np.array(found), axis=0)
    print(
        f"{seen.name}: {len(measured)} people, EER {values[0]:.2f} %, centred {values[2]:.2f} %; FNMR at 1 % "
        f"{values[1]:.1f} %, centred {values[3]:.1f} %",
        flush=True,
    )


def _rates(rows: Floats, seen: Embedded, people: NDArray[np.int64], seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    genuine, impostor = [], []
    for person in people:
        order = rng.permutation(np.flatnonzero(seen.person == person))
        template = unit(rows[order[:SAMPLES]].mean(axis=0))
        genuine.append(rows[order[SAMPLES:]] @ template)
        impostor.append(rows[np.isin(seen.person, people) & (seen.person != person)] @ template)
    own, others = np.concatenate(genuine), np.concatenate(impostor)
    limit = np.quantile(others, 0.99)
    return metrics.eer(metrics.curve(own, others)), float((own < limit).mean())


def _sexes(seen: Embedded) -> None:
    """False match rates of strangers of the owner's sex and of the other one, at an asked 1 %."""
    root = data.folder() / "speech_librispeech"
    with (root / "manifest.csv").open(newline="") as lines:
        speakers = sorted({row["speaker"] for row in csv.DictReader(lines)})
    assert len(speakers) == seen.people  # nobody was left out, so places are names
    table = [line.split("|") for line in (root / "SPEAKERS.TXT").read_text().splitlines() if not line.startswith(";")]
    sexes = {cells[0].strip(): cells[1].strip() for cells in table}
    sex = np.array([sexes[speaker] for speaker in speakers])
    able = np.flatnonzero(np.bincount(seen.person) >= SAMPLES)
    nobody = np.zeros((0, seen.rows.shape[1]), np.float32)
    found = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        devices = rng.permutation(able)[:DEVICES]
        rows = [seen.rows[seen.person == place][:SAMPLES] for place in devices]
        reports = [
            report_on(each, model_version="m", impostors="moments", evaluates=True, strangers=nobody) for each in rows
        ]
        groups = rng.integers(0, GROUPS, DEVICES).tolist()
        sums = ModelSums.of(zip(groups, reports, strict=True), model_version="m", impostors="moments")
        limit = calibrate(sums, source="a simulated deployment", now=1.0).threshold(0.01).score
        templates = np.stack([unit(each.mean(axis=0)) for each in rows])
        strangers = ~np.isin(seen.person, devices)
        let_in = seen.rows[strangers].astype(np.float64) @ templates.T >= limit
        same = sex[seen.person[strangers]][:, None] == sex[devices][None]
        found.append((let_in.mean(), let_in[same].mean(), let_in[~same].mean()))
    everybody, own, other = 100 * np.median(np.array(found), axis=0)
    print(f"{seen.name}: asked 1 %, everybody {everybody:.2f} %, own sex {own:.2f} %, other sex {other:.2f} %")


if __name__ == "__main__":
    main()
