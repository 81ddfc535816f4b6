"""The last block of CAM++, and all of it, trained: what either gives and sends.

``python -m examples.reproduce.learning.deeper [--part block all] [--domain telephone] [--rounds 16]``

Rows of ``results.csv`` whose head is ``block`` or ``all``; one seed, for a training takes minutes. Each begins centred
(:mod:`uvsdk.release.centring`), with the centred head behind CAM++ trained as well, in the steps of the recipe
``voice-all``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from examples.reproduce.learning import corpus
from examples.reproduce.learning.run import HERE, rows_of, trained
from examples.reproduce.record import append, has
from uvsdk.arrays import Array, Float64
from uvsdk.bundle.frozen import FrozenPart, FrozenViews, sample_digest
from uvsdk.federation import recipes
from uvsdk.simulation import Frozen, Prepared, Simulation
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.export import export_bundle
from uvsdk.training.loop import FrozenSamples, PreparedSamples

BACKBONE = "campplus+centred"
PARTS = ("block", "all")


class Model:
    """CAM++ of which a part is trained, and what its frozen layers made of samples so far."""

    def __init__(self, part: str) -> None:
        whole = backbones.get(BACKBONE, part).load()
        self.bundle = export_bundle(whole, preprocessing={"minimum_speech_s": 0.2})
        self.module = whole.rest if isinstance(whole, Partial) else whole
        self._part = None if part == "all" else FrozenPart(self.bundle)
        self._kept: dict[str, FrozenViews] = {}

    def population(self, people: dict[str, tuple[Array, ...]]) -> Prepared | Frozen:
        """Their devices. Samples are shorter than a view, so one crop of each has all of it."""
        if self._part is None:
            return Prepared(people, self.bundle.manifest)
        return Frozen({name: self._views(samples, crops=1) for name, samples in people.items()})

    def embed(self, features: Sequence[Array]) -> Float64:
        """Unit embeddings, float64 (n, d)."""
        samples: PreparedSamples | FrozenSamples = PreparedSamples(features, self.bundle.manifest)
        if self._part is not None:
            samples = FrozenSamples(self._views(features, crops=0))
        found: Float64 = samples.embed(self.module.eval(), None).numpy().astype(np.float64)
        return found

    def _views(self, features: Sequence[Array], *, crops: int) -> tuple[FrozenViews, ...]:
        assert self._part is not None
        for item in features:
            key = sample_digest(item)
            if key not in self._kept or len(self._kept[key].crops) < crops:
                self._kept[key] = self._part(item, crops=crops)
        return tuple(self._kept[sample_digest(item)] for item in features)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--domain", default="telephone", choices=sorted(corpus.DOMAINS))
    parser.add_argument("--trainers", type=int, default=20)
    parser.add_argument("--evaluators", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for part in arguments.part:
        setting = f"{arguments.domain}, {arguments.trainers} train, {part}"
        if has(arguments.output, "fedaws", setting, -1):
            continue
        model = Model(part)
        people = corpus.prepared(arguments.domain, model.bundle)
        split = corpus.split(people, 0, trainers=arguments.trainers, evaluators=arguments.evaluators)
        named = {"deployment": "learning", "backbone": BACKBONE, "algorithm": "fedaws", "recipe": "voice-all"}
        config = replace(
            recipes.configured({**named, "train": part, "rounds": arguments.rounds}),
            cooldown_rounds=arguments.rounds // 2,
        )
        devices = model.population({name: each.enrol for name, each in {**split.train, **split.evaluate}.items()})
        simulation = Simulation(config, model.module, devices, evaluators=frozenset(split.evaluate))
        rows = rows_of(setting, "fedaws", [trained(simulation, split, model.embed)])
        append(arguments.output, rows)
        print(setting, {row.metric: round(row.value, 1) for row in rows if row.method.startswith("fedaws")}, flush=True)


if __name__ == "__main__":
    main()
