"""A whole federation in one process, without transport: for tests of what an algorithm does over many rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk import backbones
from uvsdk.arrays import Array, Float32, Float64
from uvsdk.bundle import Manifest
from uvsdk.federation import aggregation, algorithms, codec, optimisers
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.participation import TrainingJob
from uvsdk.federation.strategy import Contribution
from uvsdk.training import LocalTrainer


@dataclass(frozen=True)
class Whole:
    """An update that lies in memory, in one chunk."""

    delta: Float32

    def chunks(self):  # type: ignore[no-untyped-def]
        yield self.delta


@dataclass(frozen=True)
class Outcome:
    theta: Float32
    users: tuple[str, ...]
    vectors: Float64
    state: object


def manifest_of(name: str) -> Manifest:
    kind = backbones.get(name)
    return Manifest(
        modality=kind.modality,
        backbone=name,
        dimension=kind.dimension,
        preprocessing=dict(kind.preprocessing),
        parameters=backbones.parameters(kind.random()),
        sources=(),
    )


def run(
    config: TrainingConfig,
    people: dict[str, Sequence[Array]],
    means: dict[str, Float32],
    *,
    theta: Float32,
    seed: int = 0,
) -> Outcome:
    """``config.rounds`` rounds with everybody taking part."""
    rng = np.random.default_rng(seed)
    manifest, trainer = manifest_of(config.backbone), LocalTrainer()
    half = algorithms.server(config.algorithm)
    settings = algorithms.settings(config.algorithm, config.algorithm_settings)
    state = half.empty(manifest.dimension, settings)
    for user, samples in people.items():
        mean = means[user] if half.needs_mean(settings) else np.empty(0, np.float32)
        state = half.admit(state, Admission(user, "m", len(samples), mean), settings, rng)
    state = half.start(state, settings, rng)
    optimiser = optimisers.initial(len(theta), config)
    for round_id in range(config.rounds):
        results = []
        for user in sorted(people):
            task = codec.pack(half.task(state, user, settings))
            job = TrainingJob(config, manifest, round_id, theta, tuple(people[user]), task, {})
            results.append((user, trainer.train(job, rng)))
        contributions = []
        for user, result in results:
            payload = codec.unpack(half.payload, result.payload)
            half.check(payload, state, user, settings)
            contributions.append(Contribution(user, result.samples, payload))
        weights = aggregation.sample_weights([result.samples for _, result in results], config)
        delta = aggregation.weighted_mean([Whole(result.delta) for _, result in results], weights, len(theta))
        theta, optimiser = optimisers.step(theta, delta, optimiser, config)
        state = half.step(state, tuple(contributions), settings, rng)
    users, vectors = half.class_matrix(state)
    return Outcome(theta, users, vectors, state)
