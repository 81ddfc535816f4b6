"""One device after another, with the very function that a real device trains by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from uvsdk.errors import UpdateRejectedError, WireError
from uvsdk.federation import clipping
from uvsdk.simulation.jobs import Chunk, DeviceJob, Sent, algorithm_of
from uvsdk.training.loop import train_once


def train(module: nn.Module, jobs: Sequence[DeviceJob]) -> Chunk:
    """Train each of ``jobs`` by itself; the sum is made in their order, as the server makes it."""
    algorithm, settings = algorithm_of(jobs[0].config)
    total = np.zeros_like(jobs[0].theta)
    sent, failed = [], []
    for job in jobs:
        try:
            result = train_once(module, algorithm, settings, job.samples, job, job.rng, job.secret)
        except (UpdateRejectedError, WireError):
            failed.append(job.user)
            continue
        total += np.float32(job.weight) * result.delta
        norm = clipping.norm_of(result.delta)
        sent.append(Sent(job.user, result.samples, job.weight, norm, result.payload, result.memory, result.loss))
    return Chunk(total, tuple(sent), tuple(failed))
