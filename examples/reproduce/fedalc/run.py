"""Train every method on Bibtex and measure P@1, P@3 and P@5.

``python -m examples.reproduce.fedalc.run`` makes every run that results.csv lacks; ``--validate`` makes one on the
validation part instead, with settings to try, and prints what came of it.
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
from torch.nn import functional

from examples.reproduce import record
from examples.reproduce.fedalc import laboratory, plans
from examples.reproduce.fedalc.corpus import Corpus, corpus, precision
from examples.reproduce.fedalc.federation import Federation
from examples.reproduce.fedalc.plans import Plan
from uvsdk.federation.classes.matrix import mean_offdiagonal_cosine

HERE = Path(__file__).parent
RESULTS, TUNING = HERE / "results.csv", HERE / "tuning.csv"
METRICS = ("P@1", "P@3", "P@5")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", help="only this method")
    parser.add_argument("--setting", help="only this row of the method")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--validate", action="store_true", help="one run on the validation part; nothing is recorded")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="try another setting")
    parser.add_argument("--train", action="append", default=[], metavar="NAME=VALUE", help="another training setting")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.validate:
        plan = plans.find(chosen.method, chosen.setting or "")
        plan = replace(
            plan,
            settings={**plan.settings, **_values(chosen.set)},
            training={**plan.training, **_values(chosen.train)},
        )
        train(plan, corpus(validate=True), chosen.seed or 0, report=50)
        return
    found = corpus(validate=False)
    for plan in plans.PLANS:
        for seed in plan.seeds:
            wanted = chosen.method in (None, plan.method) and chosen.setting in (None, plan.setting)
            missing = not record.has(RESULTS, plan.method, plan.setting, seed)
            if wanted and missing and chosen.seed in (None, seed):
                _record(plan.method, plan.setting, seed, train(plan, found, seed))
    for name, score in laboratory.BASELINES.items():
        for seed in laboratory.SEEDS[name]:
            wanted = chosen.method in (None, name) and chosen.setting in (None, "") and chosen.seed in (None, seed)
            if wanted and not record.has(RESULTS, name, "", seed):
                started = time.perf_counter()
                values = precision(score(found, seed), found.test.labels)
                figures = dict(zip(METRICS, values, strict=True))
                _record(name, "", seed, {**figures, "seconds": time.perf_counter() - started})


def train(plan: Plan, found: Corpus, seed: int, *, report: int = 0) -> dict[str, float]:
    """Train as planned; the figures by metric. Prints those of every ``report``-th round."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    federation = Federation(plans.config(plan, seed), plan.trunk(found.features), found, fraction=plan.fraction)

    def on_round(number: int, loss: float) -> None:
        if report and number % report == 0:
            figures = {name: round(value, 3) for name, value in evaluated(federation, found).items()}
            print(number, f"{loss:.4f}", figures, f"{time.perf_counter() - started:.0f} s", flush=True)

    federation.run(on_round)
    return {**evaluated(federation, found), "seconds": time.perf_counter() - started}


@torch.no_grad()
def evaluated(federation: Federation, found: Corpus) -> dict[str, float]:
    """P@k of the test part, labels ranked by the cosine of the class vectors on the server, and collapse."""
    trunk = federation.trunk.eval()
    rows = torch.cat([functional.normalize(trunk(part), dim=1) for part in found.test.words.split(512)])
    _, vectors = federation.class_matrix()
    scores = rows.double().numpy() @ vectors.T
    figures = dict(zip(METRICS, precision(scores, found.test.labels), strict=True))
    together = mean_offdiagonal_cosine(rows.double().numpy())
    return {**figures, "cosine_rows": mean_offdiagonal_cosine(vectors), "cosine_embeddings": together}


def _record(method: str, setting: str, seed: int, figures: dict[str, float]) -> None:
    units = {"seconds": "seconds", "cosine_rows": "cosine", "cosine_embeddings": "cosine"}
    rows = [
        record.Row(method, setting, seed, metric, value, units.get(metric, "percent"))
        for metric, value in figures.items()
        if np.isfinite(value)
    ]
    record.append(RESULTS, rows)
    print(method, setting, seed, {row.metric: round(row.value, 2) for row in rows}, flush=True)


def _values(pairs: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


if __name__ == "__main__":
    main()
