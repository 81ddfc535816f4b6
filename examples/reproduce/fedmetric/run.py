"""FedMetric's Table 2 (MNIST) and the sweeps of its Figures 2 and 3.

``python -m examples.reproduce.fedmetric.run`` makes every run that results.csv lacks; ``--validate`` makes one on the
validation images instead, with settings to try, and adds it to tuning.csv.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from examples.reproduce import record
from examples.reproduce.fedmetric import digits, plans
from examples.reproduce.fedmetric.digits import DIGITS, Split
from examples.reproduce.fedmetric.plans import Plan
from examples.reproduce.record import Row
from uvsdk.federation.strategy import TEMPLATE
from uvsdk.simulation import Simulation
from uvsdk.simulation.references import deep_svdd

HERE = Path(__file__).parent
_SEEN = 1_000
"""Training images of a digit that its centre C_k is the mean of."""

RESULTS, TUNING = HERE / "results.csv", HERE / "tuning.csv"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", help="only this method")
    parser.add_argument("--setting", help="only this line of the method")
    parser.add_argument("--seed", type=int, choices=plans.SEEDS, help="only this seed")
    parser.add_argument("--validate", action="store_true", help="one run of --method on the validation images")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="try another setting")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    split = digits.load(validate=chosen.validate)
    if chosen.validate:
        measure(_tried(plans.find(chosen.method, chosen.setting or ""), chosen.set), split, chosen.seed or 0, TUNING)
        return
    for plan in plans.PLANS:
        for seed in plan.seeds if chosen.seed is None else (chosen.seed,):
            wanted = chosen.method in (None, plan.method) and chosen.setting in (None, plan.setting)
            if wanted and not record.has(RESULTS, plan.method, plan.setting, seed):
                measure(plan, split, seed, RESULTS)


def measure(plan: Plan, split: Split, seed: int, path: Path) -> None:
    """Train as planned, measure, and record."""
    started = time.perf_counter()
    figures = svdd(plan, split, seed) if plan.method == plans.LOCAL else federated(plan, split, seed)
    setting = plan.setting if path == RESULTS else plan.words()
    rows = [Row(plan.method, setting, seed, name, value, unit) for (name, unit), value in figures.items()]
    rows.append(Row(plan.method, setting, seed, "training_time", time.perf_counter() - started, "seconds"))
    record.append(path, rows)
    print(plan.method, setting, seed, {row.metric: round(row.value, 3) for row in rows}, flush=True)


def svdd(plan: Plan, split: Split, seed: int) -> dict[tuple[str, str], float]:
    """Ten networks that know nothing of each other."""
    columns = []
    for digit in range(DIGITS):
        trunk = digits.lenet(seed * DIGITS + digit, affine=False)
        outcome = deep_svdd.train(trunk, split.train[digit], plan.local(seed))
        columns.append(deep_svdd.scores(trunk, split.images, centre=outcome.centre))
    return {("auroc", "percent"): digits.auroc(np.stack(columns, axis=1), split.labels)}


def federated(plan: Plan, split: Split, seed: int) -> dict[tuple[str, str], float]:
    """One network of all devices."""
    trunk = digits.lenet(seed, code=plan.code)
    simulation = Simulation(plan.training(seed), trunk, split.population())
    simulation.run()
    probes = digits.embed(simulation.trunk, split.images)
    centres = np.stack([digits.embed(simulation.trunk, images[:_SEEN]).mean(axis=0) for images in split.train])
    scores = class_scores(simulation, centres, probes)
    directions = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    cosine = float((directions @ directions.T)[~np.eye(DIGITS, dtype=bool)].mean())
    return {("auroc", "percent"): digits.auroc(scores, split.labels), ("mean_cosine", "cosine"): cosine}


def class_scores(
    simulation: Simulation, centres: NDArray[np.float64], probes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(n, 10): -d(g, C_k) with the mean C_k of training embeddings, or the cosine with class vector or codeword."""
    classes, vectors = simulation.class_matrix()
    if len(classes):
        return probes @ vectors.T
    kept = [simulation.memories.get(user, {}) for user in simulation.population.users]
    if all(TEMPLATE in memory for memory in kept):
        return probes @ np.stack([memory[TEMPLATE] for memory in kept]).astype(np.float64).T
    distances: NDArray[np.float64] = np.linalg.norm(probes[:, None] - centres[None], axis=2)
    return -distances


def _tried(plan: Plan, changes: Sequence[str]) -> Plan:
    config, algorithm = dict(plan.config), dict(plan.algorithm)
    for change in changes:
        name, _, text = change.partition("=")
        value = json.loads(text) if text[:1] in "-0123456789tf" and text not in ("true", "fixed") else text
        if name.startswith("algorithm."):
            algorithm[name.removeprefix("algorithm.")] = value
        else:
            config[name] = value
    return replace(plan, config=config, algorithm=algorithm)


if __name__ == "__main__":
    main()
