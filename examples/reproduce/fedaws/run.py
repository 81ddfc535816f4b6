"""Rerun FedAwS' tables 1 (CIFAR-10) and 4 (neighbours and step size).

``cifar10`` and ``sweep`` make what results.csv lacks; ``report`` draws it and puts its tables into the README; ``tune``
tries a setting on validation images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from examples.reproduce import data, record
from examples.reproduce.fedaws import cifar, figure, sweep, tables
from examples.reproduce.speakers import protocol
from uvsdk.federation.messages import TrainingConfig
from uvsdk.simulation import RoundRecord, Simulation, Tensors

HERE = Path(__file__).parent
RESULTS, TUNING = HERE / "results.csv", HERE / "tuning.csv"
SEEDS = (0, 1, 2)

_SAVED_EVERY = 200


class OutOfTimeError(Exception):
    """The seconds given to this piece of a run are over; its checkpoint is written."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    images = commands.add_parser("cifar10", help="Table 1")
    images.add_argument("--method", choices=cifar.METHODS, help="only this method")
    images.add_argument("--seed", type=int, default=0)
    images.add_argument("--passes", type=float, default=cifar.PASSES, help="over the training images")
    images.add_argument("--seconds", type=float, default=float("inf"), help="stop then; the same command goes on")
    tune = commands.add_parser("tune", help="a short run of Table 1 on validation images")
    tune.add_argument("method", choices=cifar.METHODS)
    tune.add_argument("--passes", type=float, default=3.0)
    tune.add_argument("--rate", type=float, help="step size of the server's Adam")
    tune.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting of the method")
    speech = commands.add_parser("sweep", help="Table 4")
    speech.add_argument("--seed", type=int, choices=SEEDS, help="only this seed")
    speech.add_argument("--seconds", type=float, default=float("inf"), help="begin no further run then")
    commands.add_parser("report", help="draw results.csv and put its tables into the README")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.command == "cifar10":
        for method in [chosen.method] if chosen.method else cifar.METHODS:
            if not record.has(RESULTS, method, cifar.SETTING, chosen.seed):
                table_1(method, chosen.seed, chosen.passes, chosen.seconds)
    elif chosen.command == "tune":
        tried(chosen.method, chosen.passes, chosen.rate, chosen.set)
    elif chosen.command == "sweep":
        table_4(SEEDS if chosen.seed is None else (chosen.seed,), chosen.seconds)
    else:
        figure.draw(RESULTS, HERE)
        tables.into(HERE / "README.md", record.read(RESULTS))


def table_1(method: str, seed: int, passes: float, seconds: float) -> None:
    """Train on all training images, measure on the test images and record it."""
    split = cifar.load(validation=False)
    config = cifar.config(method, seed, passes, split)
    try:
        simulation, spent = trained(config, cifar.population(split), seconds)
    except OutOfTimeError as reason:
        print(reason, flush=True)
        return
    figures = cifar.evaluate(simulation, split) | {"passes": passes, "training_time": spent}
    record.append(RESULTS, cifar.rows(method, cifar.SETTING, seed, figures))
    print(method, seed, figures, flush=True)


def trained(config: TrainingConfig, population: Tensors, seconds: float) -> tuple[Simulation, float]:
    """Train to the end, from the checkpoint of an earlier piece where there is one; the seconds of processor time.

    Raises:
        OutOfTimeError: after ``seconds``.
    """
    seed = config.seed or 0
    kept = data.cache() / f"fedaws-{config.algorithm}-{config.digest()[:16]}.uvm"
    clock = kept.with_suffix(".seconds")
    if kept.exists():
        simulation = Simulation.restore(kept, cifar.trunk(seed), population)
        before = float(clock.read_text())
    else:
        simulation, before = Simulation(config, cifar.trunk(seed), population), 0.0
    started, busy = time.perf_counter(), time.process_time()
    label = f"{config.algorithm} {seed}"
    while simulation.committed < config.rounds:
        ran = simulation.run(min(_SAVED_EVERY, config.rounds - simulation.committed))
        simulation.save(kept)
        clock.write_text(f"{before + time.process_time() - busy:.1f}")
        print(_progress(label, ran[-1], config.rounds), flush=True)
        if time.perf_counter() - started > seconds and simulation.committed < config.rounds:
            raise OutOfTimeError(f"{label}: {simulation.committed} of {config.rounds} rounds; run the command again")
    return simulation, before + time.process_time() - busy


def tried(method: str, passes: float, rate: float | None, changes: Sequence[str]) -> None:
    """A short run on the training images but 500 of each class, measured on those 500, added to tuning.csv."""
    split = cifar.load(validation=True)
    config = cifar.config(method, 0, passes, split, rate=rate)
    pairs = dict(change.split("=", 1) for change in changes)
    values = {name: float(text) for name, text in pairs.items()}
    config = replace(config, algorithm_settings=dict(config.algorithm_settings) | values)
    simulation = Simulation(config, cifar.trunk(0), cifar.population(split))
    simulation.run()
    setting = " ".join([f"rate={config.server_learning_rate:g}", f"passes={passes:g}", *changes])
    figures = cifar.evaluate(simulation, split)
    record.append(TUNING, cifar.rows(method, setting, 0, figures))
    print(method, setting, figures, flush=True)


def table_4(seeds: Sequence[int], seconds: float) -> None:
    """Every cell that is not recorded yet, as far as ``seconds`` go."""
    corpus = protocol.load()
    started = time.perf_counter()
    for cell, seed in [(cell, number) for number in seeds for cell in sweep.cells(number)]:
        if time.perf_counter() - started > seconds:
            return
        if not record.has(RESULTS, "fedaws", cell.setting, seed):
            rows = sweep.run(cell, seed, corpus)
            record.append(RESULTS, rows)
            print(cell.setting, seed, {row.metric: round(row.value, 3) for row in rows}, flush=True)


def _progress(label: str, record: RoundRecord, rounds: int) -> str:
    return (
        f"{label} round {record.round_id} of {rounds} loss {record.loss:.4f} cosine of class vectors "
        f"{record.mean_cosine:+.3f}"
    )


if __name__ == "__main__":
    main()
