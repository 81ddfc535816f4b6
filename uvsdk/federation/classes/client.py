"""The device's side that FedAwS and its baselines share: the trunk pulled to the own class vector, which follows.

l = mean over the batch of max(0, tau_p - g . w)^2 with unit embeddings g and the unit class vector w (S0 Eq 23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.classes.matrix import HingeSettings
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


class VectorTask(Protocol):
    """What the server sends."""

    @property
    def vector(self) -> Float32:
        """(d,), unit."""
        ...


@dataclass(frozen=True, slots=True)
class OwnVector:
    """The own class vector on the device, (d,), unit."""

    vector: Tensor


def own_vector(vector: Float32) -> OwnVector:
    """Make the local state from the vector that the server sent.

    Args:
        vector: float32 or float64 (d,), unit.

    Raises:
        UpdateRejectedError: the server sent a vector that is not finite or not unit.
    """
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if vector.ndim != 1 or not abs(length - 1.0) <= 1e-3:
        raise UpdateRejectedError(
            f"the server sent a class vector of shape {vector.shape} and norm {length:.6g}, not 1"
        )
    return OwnVector(torch.tensor(np.array(vector)))  # a copy: what came off the wire is read-only


def parameters(local: OwnVector, settings: HingeSettings) -> tuple[Tensor, ...]:
    """The class vector, or nothing where it is frozen."""
    return (local.vector,) if settings.vector_rate > 0 else ()


def rate(settings: HingeSettings) -> float:
    """The class vector's learning rate as a multiple of the trunk's."""
    return settings.vector_rate


def loss(embeddings: Tensor, classes: Tensor, local: OwnVector, settings: HingeSettings) -> Tensor:
    """Mean over the batch of max(0, tau_p - s)^2, a scalar; ``embeddings`` are unit rows (B, d)."""
    shortfall = torch.relu(settings.margin_positive - embeddings @ local.vector)
    return (shortfall * shortfall).mean()


def constrain(local: OwnVector, settings: HingeSettings) -> None:
    """Put the class vector back on the sphere, in place."""
    if settings.vector_rate > 0:
        with torch.no_grad():
            local.vector.div_(torch.linalg.vector_norm(local.vector).clamp_min(1e-12))


def trained_vector(local: OwnVector) -> Float32:
    """The class vector as it now is, float32 (d,), normalised once more in float64."""
    vector = local.vector.detach().cpu().numpy().astype(np.float64)
    result: Float32 = (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)
    return result


SomeSettings = TypeVar("SomeSettings", bound=HingeSettings)
SomeTask = TypeVar("SomeTask", bound=VectorTask)
SomePayload = TypeVar("SomePayload")


def positive_hinge(
    settings: type[SomeSettings], task: type[SomeTask], payload: Callable[[Float32], SomePayload]
) -> ClientAlgorithm[SomeSettings, SomeTask, SomePayload, OwnVector]:
    """The device's side of an algorithm that has this loss and keeps nothing on the device.

    Args:
        settings: its settings.
        task: what its server sends.
        payload: makes what the device sends of the trained class vector, float32 (d,).
    """

    def begin(
        task: SomeTask, memory: Memory, embed: Embed, settings: SomeSettings, rng: np.random.Generator, secret: Secret
    ) -> OwnVector:
        return own_vector(task.vector)

    def finish(
        local: OwnVector, embed: Embed, settings: SomeSettings, rng: np.random.Generator, secret: Secret
    ) -> tuple[SomePayload, Memory]:
        return payload(trained_vector(local)), {}

    return ClientAlgorithm(
        task=task,
        begin=begin,
        parameters=parameters,
        rate=rate,
        loss=loss,
        constrain=constrain,
        finish=finish,
    )
