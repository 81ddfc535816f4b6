"""What learning together gives on top of a frozen CAM++, against impostors who took part and who did not.

``python -m examples.reproduce.learning.run [--only DOMAIN ...] [--seeds N]``

A plan whose rows are there is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from examples.reproduce.learning import corpus
from examples.reproduce.learning.corpus import Made, Person, Split
from examples.reproduce.learning.figures import Trials, changes
from examples.reproduce.record import Row, append, has
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle.frozen import FrozenViews
from uvsdk.federation import recipes
from uvsdk.federation.strategy import TEMPLATE
from uvsdk.release.report import SUMMED
from uvsdk.simulation import Frozen, Simulation
from uvsdk.simulation.evaluations import Evaluations
from uvsdk.training import backbones
from uvsdk.training.backbones import Affine

HERE = Path(__file__).resolve().parent
PARTIES = ("seen", "strangers", "newcomers")
"""Who is verified against whom: those who took part against each other, the same against strangers, and strangers, as
people who join later, against each other."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train.

    Args:
        domain: of :data:`examples.reproduce.learning.corpus.DOMAINS`.
        algorithm: registry name.
        trainers: how many people train.
        evaluators: how many only evaluate. With none, and under algorithms of which the server may have no mean,
            nothing is centred and nothing returns.
        head: ``centred``, ``long steps`` (the same, in steps four times as long), ``free`` (in such steps and without
            returns), ``last layer`` (CAM++'s own), ``last layer by voice-head`` (the same, by the recipe of that name
            in place of ``voice-centred``) or the length of a code.
    """

    domain: str
    algorithm: str
    trainers: int
    evaluators: int
    head: str = "centred"

    @property
    def setting(self) -> str:
        """As the table has it."""
        return f"{self.domain}, {self.trainers} train, {self.head}"


_CENTRED = ("centred", "long steps", "free")
_LAST = ("last layer", "last layer by voice-head")
_BROAD = ("telephone", "codec", "far field", "clean")
_METHODS = ("fedmetric", "fixed", "softmax")
PLANS = (
    *(Plan("letters", name, 8, 8) for name in ("fedaws", *_METHODS)),
    Plan("letters", "fedaws", 8, 8, "free"),
    *(Plan(domain, "fedaws", 100, 40) for domain in _BROAD),
    Plan("telephone", "fedaws", 100, 40, "free"),
    Plan("digits", "fedaws", 4, 0),
    *(Plan("telephone", name, 100, 40) for name in _METHODS),
    Plan("letters", "feduv", 8, 0, "255"),
    Plan("telephone", "fedaws", 20, 40),
    Plan("codec", "fedaws", 140, 40),
    Plan("letters", "fedaws", 8, 8, "last layer"),
    *(Plan(domain, "fedaws", 140, 40) for domain in _BROAD if domain != "codec"),
    *(Plan(domain, "fedaws", 20, 40) for domain in _BROAD if domain != "telephone"),
    Plan("telephone", "fedaws", 100, 40, "last layer"),
    Plan("telephone", "feduv", 100, 40, "255"),
    *(Plan(domain, name, 100, 40) for domain in ("far field", "codec") for name in _METHODS),
    *(Plan(domain, "fedaws", 100, 40, "long steps") for domain in _BROAD if domain != "clean"),
    Plan("letters", "fedaws", 8, 8, "long steps"),
    Plan("letters", "fedaws", 8, 8, _LAST[1]),
    Plan("telephone", "fedaws", 100, 40, _LAST[1]),
)

_Parties = dict[str, Trials]


class Laboratory:
    """CAM++'s last layer, and what it made of samples."""

    def __init__(self) -> None:
        self._last = backbones.get("campplus", "head").load().rest  # type: ignore[attr-defined]

    def trunk(self, head: str, seed: int) -> tuple[nn.Module, Callable[[Float32], Float32]]:
        """What is trained, and what makes its input of what the frozen layers gave, (n, 1024) -> (n, d)."""
        if head in _LAST:
            return backbones.get("campplus", "head").load().rest, lambda rows: rows  # type: ignore[attr-defined]
        if head in _CENTRED:
            return Affine(192), self.embedded
        code = nn.Linear(192, int(head), bias=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.orthogonal_(code.weight)
        return code, self.embedded

    @torch.no_grad()
    def embedded(self, rows: Float32) -> Float32:
        """What CAM++ makes of that, float32 (n, 192)."""
        made: Float32 = self._last(torch.from_numpy(rows)).numpy()
        return made


def trials(
    split: Split[Made], embed: Callable[[Made], Float64], templates: Mapping[str, Float64] = MappingProxyType({})
) -> _Parties:
    """Of the model as it is, by :data:`PARTIES`; ``templates`` are those that an algorithm put in place of means."""

    def enrolled(people: Mapping[str, Person[Made]]) -> dict[str, Float64]:
        means = {name: embed(person.enrol).mean(axis=0) for name, person in people.items()}
        found = {name: mean / np.linalg.norm(mean) for name, mean in means.items()}
        return {name: templates.get(name, found[name]) for name in found}

    own, others = ({name: embed(each.probes) for name, each in part.items()} for part in (split.train, split.strangers))
    seen, new = enrolled(split.train), enrolled(split.strangers)
    return {
        "seen": Trials.of(seen, own, own),
        "strangers": Trials.of(seen, own, others),
        "newcomers": Trials.of(new, others, others),
    }


def run(plan: Plan, seed: int, laboratory: Laboratory) -> tuple[dict[str, _Parties], dict[str, float]]:
    """One training: trials of each state of the model by name, and what it took."""
    people = corpus.split(corpus.load(plan.domain), seed, trainers=plan.trainers, evaluators=plan.evaluators)
    trunk, prepare = laboratory.trunk(plan.head, seed)
    named = {"deployment": "learning", "backbone": "campplus+centred", "algorithm": plan.algorithm}
    recipe = "voice-head" if plan.head == _LAST[1] else "voice-centred"
    config = replace(recipes.configured({**named, "recipe": recipe}), seed=seed)

    if plan.head in _CENTRED[1:]:
        config = replace(config, server_learning_rate=4 * config.server_learning_rate, backtracking=plan.head != "free")

    @torch.no_grad()
    def embed(rows: Float32) -> Float64:
        raw = trunk(torch.from_numpy(prepare(rows))).double().numpy()
        unit: Float64 = raw / np.linalg.norm(raw, axis=1, keepdims=True)
        return unit

    def views(person: Person[Float32]) -> tuple[FrozenViews, ...]:
        return tuple(FrozenViews(row[None], row[None]) for row in prepare(person.enrol))

    devices = Frozen({name: views(person) for name, person in {**people.train, **people.evaluate}.items()})
    simulation = Simulation(config, trunk, devices, evaluators=frozenset(people.evaluate))
    return trained(simulation, people, embed)


def trained(
    simulation: Simulation, people: Split[Made], embed: Callable[[Made], Float64]
) -> tuple[dict[str, _Parties], dict[str, float]]:
    """Train to the end: trials of each state of the model by name, and what it took.

    ``embed`` is what ``simulation.trunk``, as it is at the time, makes of somebody's samples.
    """
    found, started = {"frozen": trials(people, embed)}, time.perf_counter()
    told = people.evaluate and simulation.method.impostors in SUMMED
    evaluations = Evaluations(simulation) if told else None
    if evaluations is not None and any(isinstance(layer, Affine) for layer in simulation.trunk.modules()):
        found["centred"] = trials(people, embed)
    simulation.run(on_round=evaluations)
    kept = {
        name: memory[TEMPLATE].astype(np.float64) for name, memory in simulation.memories.items() if TEMPLATE in memory
    }
    algorithm = simulation.config.algorithm
    found[algorithm] = trials(people, embed, kept)
    facts = {"rounds": simulation.committed, "upload": 4 * len(simulation.theta), "strangers": len(people.strangers)}
    if evaluations is not None:
        backbones.unflatten(simulation.trunk, evaluations.released)
        found[f"{algorithm}, released"] = trials(people, embed)
        facts |= {"returns": evaluations.returns, "releases": evaluations.releases}
    return found, {**facts, "seconds": time.perf_counter() - started}


def rows_of(setting: str, algorithm: str, runs: Iterable[tuple[dict[str, _Parties], dict[str, float]]]) -> list[Row]:
    """Means and intervals of all seeds under seed -1, and what each training took; ``runs`` are those of seed 0 on."""
    rows, states = list[Row](), dict[str, dict[str, list[Trials]]]()
    for seed, (found, facts) in enumerate(runs):
        units = {"upload": "bytes", "seconds": "seconds"}
        rows += [Row(algorithm, setting, seed, name, value, units.get(name, "count")) for name, value in facts.items()]
        for state, parties in found.items():
            for party, each in parties.items():
                states.setdefault(state, {}).setdefault(party, []).append(each)
                fnmr = each.fnmr(np.ones(len(each.names), np.int64))
                rows.append(Row(state, setting, seed, f"fnmr_{party}", 100 * fnmr, "percent"))
                rows.append(Row(state, setting, seed, f"eer_{party}", 100 * each.eer, "percent"))
    for party in PARTIES:
        for state, told in changes({name: found[party] for name, found in states.items()}).items():
            for name in ("fnmr", "eer", "fallen", "low", "high"):
                rows.append(Row(state, setting, -1, f"{name}_{party}", getattr(told, name), "percent"))
    return rows


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="DOMAIN", help="e.g. telephone (all)")
    parser.add_argument("--seeds", type=int, default=3, help="0 to N - 1 (3)")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    laboratory = Laboratory()
    for plan in PLANS:
        if arguments.only and plan.domain not in arguments.only:
            continue
        if has(arguments.output, plan.algorithm, plan.setting, -1):
            continue
        rows = rows_of(plan.setting, plan.algorithm, (run(plan, seed, laboratory) for seed in range(arguments.seeds)))
        # What the start is does not depend on the method, and is written once.
        kept = [row for row in rows if row.method not in ("frozen", "centred") or plan.algorithm in ("fedaws", "feduv")]
        append(arguments.output, kept)
        means = {row.metric: row.value for row in rows if row.seed == -1 and row.method == plan.algorithm}
        print(plan.algorithm, plan.setting, {name: round(value, 1) for name, value in means.items()}, flush=True)


if __name__ == "__main__":
    main()
