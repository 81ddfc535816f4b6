"""What training the head, the last block or all of a pretrained encoder buys over leaving it alone.

``tune`` tries learning rates on the validation people, ``train`` makes the table's rows. A run whose rows are there is
not made again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from examples.reproduce.partial import corpus
from examples.reproduce.partial.corpus import Person, Split
from examples.reproduce.partial.figures import PARTS, Enrolled, Scores, gain, interval, parts
from examples.reproduce.partial.plans import PLANS, Plan
from examples.reproduce.record import Row, append, has
from uvsdk.arrays import Array, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart, FrozenViews, sample_digest
from uvsdk.simulation import Frozen, Prepared, Simulation
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.export import export_bundle
from uvsdk.training.loop import FrozenSamples, PreparedSamples

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)

_Parts = Mapping[str, Scores]
"""By :data:`examples.reproduce.partial.figures.PARTS`."""


class Model:
    """A pretrained encoder, of which a part is trained, and what its frozen part made of samples so far."""

    def __init__(self, plan: Plan) -> None:
        preprocessing = corpus.PREPROCESSING[plan.kind]
        backbone = backbones.get(plan.backbone, plan.train).load()
        self.bundle: Bundle = export_bundle(backbone, preprocessing=preprocessing)
        self.module: nn.Module = backbone.rest if isinstance(backbone, Partial) else backbone
        self.start = self.bundle.theta
        self._part = None if plan.train == "all" else FrozenPart(self.bundle)
        self._kept: dict[tuple[str, bool], FrozenViews] = {}

    def population(self, people: Mapping[str, Person]) -> Prepared | Frozen:
        """Their devices."""
        if self._part is None:
            return Prepared({name: person.enrol for name, person in people.items()}, self.bundle.manifest)
        return Frozen({name: self._views(person.enrol, crops=True) for name, person in people.items()})

    def embed(self, features: Sequence[Array]) -> Float64:
        """Unit embeddings, float64 (n, d)."""
        samples: PreparedSamples | FrozenSamples = PreparedSamples(features, self.bundle.manifest)
        if self._part is not None:
            samples = FrozenSamples(self._views(features, crops=False))
        rows: Float64 = samples.embed(self.module.eval(), None).numpy().astype(np.float64)
        return rows

    def enrolled(self, people: Mapping[str, Person]) -> Enrolled:
        """Their templates, each the mean of the enrolment, and probes."""
        means = np.stack([self.embed(person.enrol).mean(axis=0) for person in people.values()])
        templates = means / np.linalg.norm(means, axis=1, keepdims=True)
        return Enrolled(tuple(people), templates, tuple(self.embed(person.probes) for person in people.values()))

    def parts(self, people: Split) -> _Parts:
        """Of the people who train and of those who do not."""
        return parts(self.enrolled(people.train), self.enrolled(people.unseen))

    def _views(self, features: Sequence[Array], *, crops: bool) -> tuple[FrozenViews, ...]:
        assert self._part is not None
        keys = [(sample_digest(item), crops) for item in features]
        for key, item in zip(keys, features, strict=True):
            if key not in self._kept:
                self._kept[key] = self._part(item) if crops else self._part(item, crops=0)
        return tuple(self._kept[key] for key in keys)


def train(model: Model, plan: Plan, people: Mapping[str, Person], seed: int) -> float:
    """Train ``model`` from its start; the seconds that took."""
    backbones.unflatten(model.module, model.start)
    simulation = Simulation(plan.config(seed), model.module, model.population(people))
    started = time.perf_counter()
    simulation.run()
    return time.perf_counter() - started


def tune(plan: Plan, rates: Sequence[float], rounds: Sequence[int]) -> None:
    """The validation people's error rate under each of ``rates``, to ``tuning.csv``."""
    model = Model(plan)
    people = corpus.split(corpus.load(plan.kind, model.bundle), plan.kind, 0)
    rows = [_tried("frozen", plan.kind, model, people.validation)]
    for count in rounds:
        for rate in rates:
            tried = replace(plan, server_learning_rate=rate, rounds=count)
            seconds = train(model, tried, people.train, 0)
            rows.append(_tried(plan.algorithm, f"{plan.setting}, {count} rounds, {rate:g}", model, people.validation))
            print(f"{rows[-1].setting:<44} {rows[-1].value:6.2f} %  {seconds:.0f} s", flush=True)
    append(HERE / "tuning.csv", rows)


def _tried(method: str, setting: str, model: Model, people: Mapping[str, Person]) -> Row:
    return Row(method, setting, 0, "eer_validation", 100 * model.enrolled(people).scores().eer(), "percent")


def run(plan: Plan, results: Path) -> None:
    """The rows of ``plan`` and of the frozen encoder that it starts from, and of the differences."""
    if has(results, plan.algorithm, plan.setting, SEEDS[-1]):
        return
    model = Model(plan)
    everybody = corpus.load(plan.kind, model.bundle)
    untrained, trained = list[_Parts](), list[_Parts]()
    for seed in SEEDS:
        people = corpus.split(everybody, plan.kind, seed)
        backbones.unflatten(model.module, model.start)
        untrained.append(model.parts(people))
        seconds = train(model, plan, people.train, seed)
        trained.append(model.parts(people))
        rows = [Row(plan.algorithm, plan.setting, seed, "simulated", seconds, "seconds")]
        for method, setting, found in (
            ("frozen", _start(plan), untrained[-1]),
            (plan.algorithm, plan.setting, trained[-1]),
        ):
            rows += [
                Row(method, setting, seed, f"eer_{part}", 100 * scores.eer(), "percent")
                for part, scores in found.items()
            ]
        append(results, _kept(plan, rows))
        print(" ".join(f"{row.method} {row.setting} {row.metric} {row.value:.2f};" for row in rows), flush=True)
    append(results, _kept(plan, _pooled(plan, untrained, trained)))


def _kept(plan: Plan, rows: Sequence[Row]) -> list[Row]:
    """Rows of the frozen encoder are those that the plan of its head made; others differ by rounding (8 bits)."""
    return [row for row in rows if row.method != "frozen" or (plan.train, plan.algorithm) == ("head", "fedaws")]


def _start(plan: Plan) -> str:
    """The frozen encoder that a plan starts from: its own, or one behind an orthogonal head of fewer dimensions."""
    size = plan.backbone.partition("+")[2]
    return f"{plan.kind}, random {size}" if size else plan.kind


def _pooled(plan: Plan, untrained: Sequence[_Parts], trained: Sequence[_Parts]) -> list[Row]:
    """Intervals over people, the groups of the three seeds together; under seed -1, for they are of all seeds."""
    rows = []
    for part in PARTS:
        before, after = [found[part] for found in untrained], [found[part] for found in trained]
        for method, setting, found in (
            ("frozen", _start(plan), interval(before)),
            (plan.algorithm, plan.setting, interval(after)),
            (plan.algorithm, plan.setting, gain(before, after)),
        ):
            rows += [
                Row(method, setting, -1, f"{found.name}_{part}{end}", 100 * value, "percent")
                for end, value in (("", found.value), ("_low", found.low), ("_high", found.high))
            ]
    return rows


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("tune", "train"))
    parser.add_argument("--only", nargs="*", default=[], metavar="SETTING", help="e.g. 'voice, head' (all)")
    parser.add_argument("--algorithm", nargs="*", default=[], metavar="NAME", help="e.g. fedaws (all)")
    parser.add_argument("--rates", nargs="*", type=float, default=[], metavar="RATE", help="of tune")
    parser.add_argument("--rounds", nargs="*", type=int, default=[], metavar="N", help="of tune")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for plan in PLANS:
        if arguments.only and plan.setting not in arguments.only:
            continue
        if arguments.algorithm and plan.algorithm not in arguments.algorithm:
            continue
        if arguments.action == "tune":
            tune(plan, arguments.rates or (plan.server_learning_rate,), arguments.rounds or (plan.rounds,))
        else:
            run(plan, arguments.output)


if __name__ == "__main__":
    main()
