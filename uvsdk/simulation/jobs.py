"""One device's job in one simulated round, and what a chunk of devices makes of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError, WireError
from uvsdk.federation import algorithms, controls
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import AnyClientAlgorithm, Memory, Secret
from uvsdk.records import codec
from uvsdk.training.loop import Forward, Samples, batches, class_places, torch_seed


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """What one device is handed: an :class:`uvsdk.training.loop.Assignment` with its samples and its randomness.

    Args:
        weight: p_i of the round, before anyone failed (SPEC 1.2).
        clip_norm: longest delta that counts in the round.
    """

    user: str
    config: TrainingConfig
    theta: Float32
    task: bytes
    memory: Memory
    control: Float32 | None
    samples: Samples
    rng: np.random.Generator
    secret: Secret
    weight: float
    clip_norm: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What one device sends beside its delta, and what it keeps; ``norm`` is the delta's, NaN where nobody asked."""

    user: str
    samples: int
    weight: float
    norm: float
    payload: bytes
    memory: Memory
    loss: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the devices of one chunk made of their jobs.

    Args:
        total: float32 (P,), sum over ``sent`` of weight x delta.
        sent: of those who finished, in the order of the jobs.
        failed: the others, whose loss or parameters stopped being numbers, or who refused their task.
    """

    total: Float32
    sent: tuple[Sent, ...]
    failed: tuple[str, ...]


class InseparableError(Exception):
    """Internal: a large batch cannot give what this round asks for, since no device has a trunk of its own in it."""


@dataclass(slots=True)
class Member:
    """A device in the middle of its job: its algorithm has begun."""

    job: DeviceJob
    local: Any
    memory: Memory
    variate: Float32 | None
    drawn: Iterator[list[int]]
    places: Tensor
    seed: int

    def views(self) -> tuple[Tensor, Tensor]:
        """Views (B, ...) and class places (B,) of the next step."""
        batch = next(self.drawn)
        return self.job.samples.views(batch, self.job.rng), self.places.index_select(0, torch.tensor(batch))


def begin(job: DeviceJob, algorithm: AnyClientAlgorithm, settings: object, forward: Forward) -> Member:
    """Let the algorithm begin; numbers are drawn in the order in which :func:`uvsdk.training.loop.train_once` does.

    Raises:
        UpdateRejectedError, WireError: the device refuses its task.
    """
    seed = torch_seed(job.rng)
    memory, variate = controls.split(job)
    task = codec.unpack(algorithm.task, job.task)
    local = algorithm.begin(task, memory, embedder(job.samples, forward), settings, job.rng, job.secret)
    drawn = batches(len(job.samples), job.config.batch_size, job.rng)
    return Member(job, local, memory, variate, drawn, class_places(job.samples), seed)


def embedder(samples: Samples, forward: Forward) -> Callable[..., Tensor]:
    """The ``embed`` of an algorithm, under one trunk."""

    def embed(indices: Sequence[int] | None = None, /) -> Tensor:
        return samples.embed(forward, indices)

    return embed


def algorithm_of(config: TrainingConfig) -> tuple[AnyClientAlgorithm, object]:
    """The algorithm and its settings."""
    return algorithms.client(config.algorithm), algorithms.settings(config.algorithm, config.algorithm_settings)


def begin_all(
    jobs: Sequence[DeviceJob], algorithm: AnyClientAlgorithm, settings: object, forward: Forward
) -> tuple[list[Member], list[str]]:
    """Those whose algorithm has begun, and those who refused their task."""
    members, failed = [], []
    for job in jobs:
        try:
            members.append(begin(job, algorithm, settings, forward))
        except (UpdateRejectedError, WireError):
            failed.append(job.user)
    return members, failed


def finish(member: Member, algorithm: AnyClientAlgorithm, settings: object, forward: Forward, loss: float) -> Sent:
    """Let the algorithm finish with the trunk as it now is."""
    job = member.job
    embed = embedder(job.samples, forward)
    payload, memory = algorithm.finish(member.local, embed, settings, job.rng, job.secret)
    return Sent(job.user, len(job.samples), job.weight, math.nan, codec.pack(payload), memory, loss)
