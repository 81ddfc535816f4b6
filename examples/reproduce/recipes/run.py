"""Whether any run of a recipe ends worse than it began: five seeds, another order of additions, half the cohort gone.

``python -m examples.reproduce.recipes.run [--only RECIPE ...] [--algorithm NAME ...] [--variant VARIANT ...]``

A run whose rows are there is not made again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from examples.reproduce.partial import corpus
from examples.reproduce.partial.corpus import Person
from examples.reproduce.partial.figures import Scores, gain
from examples.reproduce.partial.plans import Plan
from examples.reproduce.partial.run import Model
from examples.reproduce.recipes.people import split
from examples.reproduce.recipes.shuffled import Shuffled
from examples.reproduce.record import Row, append, has
from uvsdk.federation import recipes
from uvsdk.federation.messages import TrainingConfig
from uvsdk.simulation import Engine, Simulation
from uvsdk.simulation.evaluations import Evaluations
from uvsdk.training import backbones

HERE = Path(__file__).resolve().parent
VARIANTS = ("in order", "shuffled", "half gone")
_SHUFFLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """What a recipe is tried on: a kind of :mod:`examples.reproduce.partial.corpus`."""

    recipe: str
    kind: str
    backbone: str
    algorithms: tuple[str, ...]


TASKS = (
    Task("voice-head", "telephone", "ge2e", ("fedaws", "fixed")),
    Task("letters", "letters", "ge2e", ("fedaws", "fixed", "positive_only")),
    Task("face-head", "small faces", "faceapi-resnet", ("fedaws", "fixed")),
    Task("voice-all", "letters", "ge2e", ("fedaws", "fixed")),
)


def config_of(task: Task, algorithm: str, seed: int, variant: str) -> TrainingConfig:
    """The configuration that a deployment gets of the recipe, with this seed; with half gone three devices suffice."""
    values = {"deployment": "recipes", "backbone": task.backbone, "algorithm": algorithm, "recipe": task.recipe}
    config = replace(recipes.configured(values), seed=seed)
    return replace(config, min_clients=3) if variant == "half gone" else config


def run(task: Task, algorithm: str, seed: int, variant: str, model: Model, people: Mapping[str, Person]) -> list[Row]:
    """One training from the start: error rates before and after, of those who train and of those who never did."""
    parts = split(people, task.kind, seed)
    groups = {"seen": parts.train, "unseen": parts.unseen}

    def measured() -> dict[str, Scores]:
        return {name: model.enrolled(group).scores() for name, group in groups.items()}

    backbones.unflatten(model.module, model.start)
    before = measured()
    simulation = Simulation(
        config_of(task, algorithm, seed, variant),
        model.module,
        model.population({**parts.train, **parts.validation}),
        Engine(failure_rate=0.5 if variant == "half gone" else 0.0),
        workers=Shuffled(model.module, _SHUFFLE + seed) if variant == "shuffled" else None,
        evaluators=frozenset(parts.validation),
    )
    evaluations = Evaluations(simulation)
    started = time.perf_counter()
    records = simulation.run(on_round=evaluations)
    seconds = time.perf_counter() - started
    after = measured()
    backbones.unflatten(model.module, evaluations.released)
    released = measured()
    found: list[tuple[str, float, str]] = []
    for part in groups:
        found.append((f"eer_{part}_before", 100 * before[part].eer(), "percent"))
        for ending, scores in (("", after), ("_released", released)):
            won = gain([before[part]], [scores[part]])
            found.append((f"eer_{part}{ending}", 100 * scores[part].eer(), "percent"))
            found += [
                (f"gain_{part}{ending}_low", 100 * won.low, "percent"),
                (f"gain_{part}{ending}_high", 100 * won.high, "percent"),
            ]
    found += [
        ("loss_first", records[0].loss, "loss"),
        ("loss_last", records[-1].loss, "loss"),
        ("rounds", simulation.committed, "count"),
        ("returns", evaluations.returns, "count"),
        ("releases", evaluations.releases, "count"),
        ("simulated", seconds, "seconds"),
    ]
    setting = f"{task.recipe}, {variant}"
    return [Row(algorithm, setting, seed, metric, value, unit) for metric, value, unit in found]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="RECIPE", help="e.g. letters (all)")
    parser.add_argument("--algorithm", nargs="*", default=[], metavar="NAME", help="e.g. fedaws (all of the task)")
    parser.add_argument("--variant", nargs="*", default=VARIANTS, metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5, help="0 to N - 1 (5)")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in TASKS:
        if arguments.only and task.recipe not in arguments.only:
            continue
        plan = Plan(task.kind, task.backbone, str(recipes.get(task.recipe).settings["train"]), "fedaws", 1.0)
        model = Model(plan)
        people = corpus.load(task.kind, model.bundle)
        for seed in range(arguments.seeds):
            for variant in arguments.variant:
                for algorithm in task.algorithms:
                    if arguments.algorithm and algorithm not in arguments.algorithm:
                        continue
                    if has(arguments.output, algorithm, f"{task.recipe}, {variant}", seed):
                        continue
                    rows = run(task, algorithm, seed, variant, model, people)
                    append(arguments.output, rows)
                    print(rows[0].method, rows[0].setting, seed, *(f"{row.value:.3g}" for row in rows), flush=True)


if __name__ == "__main__":
    main()
