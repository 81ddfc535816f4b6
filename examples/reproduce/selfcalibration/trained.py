"""What training does to a threshold: ``python -m examples.reproduce.selfcalibration.trained voice.uvb``.

A head over the frozen voice model is trained by FedAwS on 40 people's five samples each, read speech as a noisy
telephone hears it. The threshold comes from reports of those 40 themselves, or from 20 people who only evaluate with
the 40 giving their templates alone; both are held against people who took no part at all.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from uvsdk.bundle import Bundle
from uvsdk.federation.messages import TrainingConfig
from uvsdk.release.measurement import calibrate
from uvsdk.release.report import GROUPS, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration
from uvsdk.scoring.moments import unit
from uvsdk.simulation import Simulation, Tensors

HERE = Path(__file__).parent
DOMAIN = "read speech, 8 kHz, 10 dB"
TRAIN, EVALUATE, SAMPLES = 40, 20, 5
ROUNDS = (0, 20, 40)
DRAWS = 20
COLUMNS = ("draw", "rounds", "threshold_from", "asked", "fmr", "fnmr_of_those_who_trained")
_HEAD = {"local_steps": 5, "batch_size": 5, "learning_rate": 0.5}

Rows = NDArray[np.float32]


def main() -> None:
    """Draws of people, each trained once and measured before, in the middle and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="of uvsdk export ge2e")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    parser.add_argument("--output", type=Path, default=HERE / "trained.csv")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seen = domains.embedded(DOMAIN, Bundle.open(chosen.bundle), chosen.cache)
    people = [seen.rows[seen.person == index] for index in range(seen.people)]
    people = [rows for rows in people if len(rows) >= SAMPLES]
    with chosen.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for draw in range(DRAWS):
            for row in _drawn(people, draw):
                writer.writerow([f"{value:.5g}" if isinstance(value, float) else value for value in row])
            file.flush()
    summarise(chosen.output)


def _drawn(people: list[Rows], draw: int) -> list[tuple[object, ...]]:
    rng = np.random.default_rng(draw)
    order = rng.permutation(len(people)).tolist()
    train = [people[place][:SAMPLES] for place in order[:TRAIN]]
    evaluate = [people[place][:SAMPLES] for place in order[TRAIN : TRAIN + EVALUATE]]
    strangers = np.concatenate([people[place] for place in order[TRAIN + EVALUATE :]])
    population = Tensors({f"device {place}": torch.from_numpy(rows) for place, rows in enumerate(train)})
    head = torch.nn.Linear(people[0].shape[1], people[0].shape[1], bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(people[0].shape[1]))
    config = TrainingConfig("lab", "tensors", "custom", "fedaws", rounds=max(ROUNDS), seed=draw, **_HEAD)
    simulation = Simulation(config, head, population)
    found: list[tuple[object, ...]] = []
    done = 0
    for rounds in ROUNDS:
        simulation.run(rounds - done)
        done = rounds
        weight = head.weight.detach().numpy()
        own, others, probes = ([_embedded(rows, weight) for rows in part] for part in (train, evaluate, [strangers]))
        templates = np.stack([unit(rows.mean(axis=0)) for rows in own])
        scores = probes[0] @ templates.T
        genuine = np.concatenate([rows @ template for rows, template in zip(own, templates, strict=True)])
        for name, calibration in (
            ("those who trained", _calibrated([(rows, True) for rows in own], rng)),
            ("who only evaluate", _calibrated([*((r, True) for r in others), *((r, False) for r in own)], rng)),
        ):
            for asked in (0.01, 0.001):
                limit = calibration.threshold(asked).score
                rate, rejected = float((scores >= limit).mean()), float((genuine < limit).mean())
                found.append((draw, rounds, name, asked, rate, rejected))
    return found


def _embedded(rows: Rows, weight: Rows) -> Rows:
    return np.asarray(unit(rows @ weight.T), np.float32)


def _calibrated(people: list[tuple[Rows, bool]], rng: np.random.Generator) -> Calibration:
    nobody = np.zeros((0, people[0][0].shape[1]), np.float32)
    reports = [
        report_on(rows, model_version="m", impostors="moments", evaluates=evaluates, strangers=nobody)
        for rows, evaluates in people
    ]
    groups = rng.integers(0, GROUPS, len(reports)).tolist()
    sums = ModelSums.of(zip(groups, reports, strict=True), model_version="m", impostors="moments")
    return calibrate(sums, source="a simulated deployment", now=1.0)


def summarise(path: Path) -> None:
    """Print median [10 %, 90 %] over draws, in per cent."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = sorted({(int(row["rounds"]), row["threshold_from"], -float(row["asked"])) for row in rows})
    for rounds, name, asked in keys:
        rates = [
            100 * float(row["fmr"])
            for row in rows
            if (int(row["rounds"]), row["threshold_from"], -float(row["asked"])) == (rounds, name, asked)
        ]
        low, middle, high = np.quantile(rates, (0.1, 0.5, 0.9))
        print(f"{rounds} rounds, {name}, asked {-100 * asked:g} %: {middle:.3g} [{low:.3g}, {high:.3g}] %")


if __name__ == "__main__":
    main()
