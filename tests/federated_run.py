"""A whole federation in one process, without transport: for tests of what an algorithm does over many rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.bundle.manifest import Manifest
from uvsdk.federation import aggregation, algorithms, optimisers, streams
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import MEAN, Contribution, Memory
from uvsdk.records import codec
from uvsdk.training import backbones
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob


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
    """``config.rounds`` rounds with everybody taking part, under the streams of a server whose seed is ``seed``."""
    secret = np.random.default_rng(seed).bytes
    manifest, trainer = manifest_of(config.backbone), LocalTrainer(secret=secret)
    half, choosing = algorithms.server(config.algorithm), algorithms.request(config.algorithm)
    settings = algorithms.settings(config.algorithm, config.algorithm_settings)
    state = half.empty(manifest.dimension, settings)
    rng = streams.server_stream(streams.round_seed(seed, 1), streams.ADMIT)
    for user in sorted(people):
        mean = means[user] if MEAN in half.needs(settings) else np.empty(0, np.float32)
        state = half.admit(state, Admission(user, "m", len(people[user]), mean), settings, rng)
    state = half.start(state, settings, rng)
    optimiser = optimisers.initial(len(theta), config)
    memories: dict[str, Memory] = {user: {} for user in people}
    for round_id in range(1, config.rounds + 1):
        round_seed = streams.round_seed(seed, round_id)
        results = []
        for user in sorted(people):
            request = None
            if choosing is not None:
                invitation = choosing.invite(state, user, settings)
                chooser = streams.request_stream(seed, user, round_id)
                request, memories[user] = choosing.choose(invitation, memories[user], settings, chooser, secret)
            drawn = streams.server_stream(round_seed, streams.TASK, user)
            task = codec.pack(half.task(state, user, request, settings, drawn))
            control = optimiser.control if config.control_variates else None
            features = tuple(people[user])
            job = TrainingJob(config, manifest, round_id, theta, features, task, memories[user], control=control)
            result = trainer.train(job, streams.device_stream(seed, user, round_id))
            results.append((user, result))
            memories[user] = result.memory
        contributions = []
        for user, result in results:
            payload = codec.unpack(half.payload, result.payload)
            half.check(payload, state, user, settings)
            contributions.append(Contribution(user, result.samples, payload))
        weights = aggregation.sample_weights([result.samples for _, result in results], config)
        delta = aggregation.weighted_mean([Whole(result.delta) for _, result in results], weights, len(theta))
        theta, optimiser = optimisers.step(theta, delta, optimiser, config)
        state = half.step(state, tuple(contributions), settings, streams.server_stream(round_seed, streams.STEP))
    users, vectors = half.class_matrix(state)
    return Outcome(theta, users, vectors, state)
