"""A whole federation in one process, without transport: for tests of what an algorithm does over many rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.bundle.manifest import Manifest
from uvsdk.federation import aggregation, clipping, optimisers, streams
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.round import (
    Method,
    ServerState,
    Update,
    accept,
    admit,
    assign,
    choose,
    commit,
    invite,
    weigh,
)
from uvsdk.federation.strategy import MEAN, Contribution, Memory
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
    manifest, trainer, method = manifest_of(config.backbone), LocalTrainer(secret=secret), Method.of(config)
    state = method.server.empty(manifest.dimension, method.settings)
    needed, nothing = MEAN in method.server.needs(method.settings), np.empty(0, np.float32)
    joining = [Admission(user, "m", len(people[user]), means[user] if needed else nothing) for user in sorted(people)]
    state, refused = admit(method, state, joining, seed=streams.round_seed(seed, 1), start=True)
    assert not refused
    server = ServerState(theta, optimisers.initial(len(theta), config), state)
    memories: dict[str, Memory] = {user: {} for user in people}
    tensors = [parameter.size for parameter in manifest.parameters]
    for round_id in range(1, config.rounds + 1):
        round_seed = streams.round_seed(seed, round_id)
        deltas, updates = [], []
        for user in sorted(people):
            request, invitation = None, invite(method, server.algorithm, user)
            if invitation is not None:
                chooser = streams.request_stream(seed, user, round_id)
                request, memories[user] = choose(method, invitation, memories[user], rng=chooser, secret=secret)
            task = assign(method, server.algorithm, user, request=request, seed=round_seed)
            control = server.optimiser.control if config.control_variates else None
            features = tuple(people[user])
            job = TrainingJob(config, manifest, round_id, server.theta, features, task, memories[user], control=control)
            result = trainer.train(job, streams.device_stream(seed, user, round_id))
            memories[user] = result.memory
            payload = accept(method, server.algorithm, user, result.payload)
            updates.append(Update(Contribution(user, result.samples, payload), clipping.norm_of(result.delta)))
            deltas.append(Whole(result.delta))
        samples = [len(people[user]) for user in people]
        mean = aggregation.weighted_mean(deltas, weigh(updates, math.inf, config), len(theta))
        done = commit(
            method, server, mean, updates, clip_norm=math.inf, everybody=samples, seed=round_seed, tensors=tensors
        )
        server = done.state
    users, vectors = method.server.class_matrix(server.algorithm)
    return Outcome(server.theta, users, vectors, server.algorithm)
