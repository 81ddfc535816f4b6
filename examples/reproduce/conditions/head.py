"""The federated head that the conditions judge: ``python -m examples.reproduce.conditions.head START.uvb -o HEAD.uvb``.

START is ``uvsdk export campplus+centred --train head --set frozen=float32``. A hundred people of LibriSpeech train by
the recipe ``voice-centred`` on what a noisy telephone makes of their voices (the domain ``telephone`` of
:mod:`examples.reproduce.learning.corpus`), forty others evaluate, and what they let through is released into HEAD. Who
took part is written to participants.txt: nobody of them is judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from examples.reproduce.conditions.corpora import PARTICIPANTS
from examples.reproduce.learning import corpus
from examples.reproduce.learning.corpus import Person
from examples.reproduce.learning.run import Laboratory
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenViews
from uvsdk.federation import recipes
from uvsdk.simulation import Frozen, Simulation
from uvsdk.simulation.evaluations import Evaluations

TRAINERS, EVALUATORS, SEED = 100, 40, 0


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--domain", choices=("telephone", "codec", "far field", "clean"), default="telephone")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start = Bundle.open(chosen.start)
    people = corpus.split(corpus.load(chosen.domain), SEED, trainers=TRAINERS, evaluators=EVALUATORS)
    trunk, prepare = Laboratory().trunk("centred", SEED)
    named = {"deployment": "conditions", "backbone": "campplus+centred", "algorithm": "fedaws"}
    config = replace(recipes.configured({**named, "recipe": "voice-centred"}), seed=SEED)

    def views(person: Person) -> tuple[FrozenViews, ...]:
        return tuple(FrozenViews(row[None], row[None]) for row in prepare(person.enrol))

    everybody = {**people.train, **people.evaluate}
    devices = Frozen({name: views(person) for name, person in everybody.items()})
    simulation = Simulation(config, trunk, devices, evaluators=frozenset(people.evaluate))
    evaluations = Evaluations(simulation)
    simulation.run(on_round=evaluations)
    start.with_theta(evaluations.released).save(chosen.output)
    PARTICIPANTS.write_text("".join(f"{name}\n" for name in sorted(everybody, key=int)), encoding="utf-8")
    print(
        f"{simulation.committed} rounds, {evaluations.releases} releases, {evaluations.returns} returns, "
        f"{len(everybody)} people took part"
    )


if __name__ == "__main__":
    main()
