"""One device after another, with the very function that a real device trains by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from uvsdk.errors import UpdateRejectedError, WireError
from uvsdk.federation import clipping
from uvsdk.simulation.parts import Chunk, Part, Sent, halves
from uvsdk.training.loop import train_once


def train(module: nn.Module, parts: Sequence[Part]) -> Chunk:
    """Train each of ``parts`` by itself; the sum is made in their order, as the server makes it."""
    half, settings = halves(parts[0].config)
    total = np.zeros_like(parts[0].theta)
    sent, failed = [], []
    for part in parts:
        try:
            result = train_once(module, half, settings, part.samples, part, part.rng, part.secret)
        except (UpdateRejectedError, WireError):
            failed.append(part.user)
            continue
        total += np.float32(part.weight) * result.delta
        norm = clipping.norm_of(result.delta)
        sent.append(Sent(part.user, result.samples, part.weight, norm, result.payload, result.memory, result.loss))
    return Chunk(total, tuple(sent), tuple(failed))
