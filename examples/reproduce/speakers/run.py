"""Train every method on 130 speakers, measure it on 40 others.

``python -m examples.reproduce.speakers.run`` makes every run that results.csv lacks, or of which it lacks the figures
against impostors who did not train; ``--validate`` makes one on the
validation speakers instead, with settings to try, and adds it to tuning.csv.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from examples.reproduce import data, record
from examples.reproduce.speakers import plans, protocol
from examples.reproduce.speakers.plans import Plan
from examples.reproduce.speakers.protocol import Corpus
from examples.reproduce.trunks import speaker_tdnn
from uvsdk.records.codec import Scalar
from uvsdk.simulation import Engine, Simulation
from uvsdk.simulation.references import central_softmax

HERE = Path(__file__).parent
RESULTS, TUNING = HERE / "results.csv", HERE / "tuning.csv"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", help="only this method")
    parser.add_argument("--setting", help="only this line of the method")
    parser.add_argument("--seed", type=int, choices=plans.SEEDS, help="only this seed")
    parser.add_argument("--validate", action="store_true", help="one run of --method on the validation speakers")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="try another setting")
    parser.add_argument("--warm", action="store_true", help="try a public warm start")
    parser.add_argument("--code", type=int, help="try a code head of this length")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    corpus = protocol.load()
    if chosen.validate:
        plan = _tried(plans.find(chosen.method, chosen.setting or ""), chosen.set, chosen.warm, chosen.code)
        validate(plan, corpus, chosen.seed or 0, chosen.threads)
        return
    for seed in plans.SEEDS if chosen.seed is None else (chosen.seed,):
        for plan in plans.PLANS:
            wanted = chosen.method in (None, plan.method) and chosen.setting in (None, plan.setting)
            if wanted and not _measured(plan, seed):
                test(plan, corpus, seed, chosen.threads)


def _measured(plan: Plan, seed: int) -> bool:
    """Whether a run is recorded, with what it does against impostors who did not train."""
    known = {(row.method, row.setting, row.seed, row.metric) for row in record.read(RESULTS)}
    return (plan.method, plan.setting, seed, f"eer_{protocol.STRANGERS}") in known


def test(plan: Plan, corpus: Corpus, seed: int, threads: int) -> None:
    """Train as planned, measure on the test speakers, and record it."""
    trunk, seconds = train(plan, corpus, seed, threads)
    figures = protocol.evaluate(trunk, corpus)
    if plan.code:
        inner = protocol.evaluate(before_code(trunk), corpus)
        figures |= {f"{name}_before_code": value for name, value in inner.items() if name.startswith("eer")}
    for metric, (low, high) in protocol.intervals(trunk, corpus).items():
        figures |= {f"{metric}_low": low, f"{metric}_high": high}
    figures["training_time"] = seconds
    record.append(RESULTS, protocol.rows(plan.method, plan.setting, seed, figures))
    print(plan.method, plan.setting, seed, {name: round(value, 3) for name, value in figures.items()}, flush=True)


def validate(plan: Plan, corpus: Corpus, seed: int, threads: int) -> None:
    """Train as planned and record the error rates of the validation speakers under the settings' names."""
    trunk, seconds = train(plan, corpus, seed, threads, watch=True)
    figures = protocol.validation(trunk, corpus)
    if plan.code:
        inner = protocol.validation(before_code(trunk), corpus)
        figures |= {f"{name}_before_code": value for name, value in inner.items()}
    record.append(TUNING, protocol.rows(plan.method, describe(plan), seed, {**figures, "training_time": seconds}))
    print(plan.method, describe(plan), {name: round(value, 3) for name, value in figures.items()}, round(seconds))


def train(plan: Plan, corpus: Corpus, seed: int, threads: int, *, watch: bool = False) -> tuple[nn.Module, float]:
    """The trained trunk and the seconds its training took, without those of a warm start."""
    trunk = _trunk(plan, corpus, seed)
    if plan.method == plans.CENTRAL:
        return trunk, central_softmax.train(trunk, corpus.train.population(), plan.central(seed)).seconds
    if plan.warm:
        trunk.load_state_dict(public_trunk(plan, corpus, seed).state_dict(), strict=False)
    config = plan.training(seed)
    simulation = Simulation(config, trunk, corpus.train.population(), engine=Engine(threads=threads))
    started = time.perf_counter()
    for part in range(1, 4):
        simulation.run(config.rounds * part // 3 - config.rounds * (part - 1) // 3)
        if watch:
            eer = protocol.eer_of(simulation.trunk, corpus.validation)
            print(f"round {config.rounds * part // 3}: {eer:.2f} % on the validation speakers", flush=True)
    return simulation.trunk, time.perf_counter() - started


def public_trunk(plan: Plan, corpus: Corpus, seed: int) -> nn.Module:
    """The central reference trained on the public speakers alone; trained once and kept outside the repository."""
    settings = replace(plans.WARM_START, seed=seed)
    kept = data.cache() / f"speakers-{plan.trunk}-{seed}-{abs(hash(settings)):x}.pt"
    trunk = _trunk(replace(plan, code=0), corpus, seed)
    if not kept.exists():
        central_softmax.train(trunk, corpus.public().population(), settings)
        draft = kept.with_suffix(f".{os.getpid()}")
        torch.save(trunk.state_dict(), draft)
        draft.replace(kept)
    trunk.load_state_dict(torch.load(kept, weights_only=True))
    return trunk.eval()


def _trunk(plan: Plan, corpus: Corpus, seed: int) -> nn.Module:
    """The untrained trunk of a plan; the first's standardisation is measured on public speech, views of 1 s."""
    if plan.trunk == "tdnn":
        return speaker_tdnn(seed, code=plan.code)
    return protocol.statistics_trunk(corpus.public().features.flatten(0, 1), seed, code=plan.code)


def before_code(trunk: nn.Module) -> nn.Module:
    """A copy of a trunk with FedUV's head taken off, which embeds people for whom no codeword was trained."""
    inner = copy.deepcopy(trunk)
    inner.code = None
    return inner


def describe(plan: Plan) -> str:
    """What a try changes, in one cell of tuning.csv."""
    parts = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in plan.config.items()
    ]
    parts += [f"algorithm.{name}={value}" for name, value in plan.algorithm.items()]
    parts += [plan.trunk] if plan.trunk != "statistics" else []
    parts += ["warm"] if plan.warm else []
    parts += [f"code={plan.code}"] if plan.code else []
    return " ".join(parts)


def _tried(plan: Plan, changes: Sequence[str], warm: bool, code: int | None) -> Plan:
    config, algorithm = dict(plan.config), dict(plan.algorithm)
    for change in changes:
        name, _, text = change.partition("=")
        target, key = (algorithm, name.removeprefix("algorithm.")) if name.startswith("algorithm.") else (config, name)
        target[key] = _value(text)
    return replace(
        plan, config=config, algorithm=algorithm, warm=plan.warm or warm, code=plan.code if code is None else code
    )


def _value(text: str) -> Scalar:
    try:
        found: Scalar = json.loads(text)
    except json.JSONDecodeError:
        return text
    return found


if __name__ == "__main__":
    main()
