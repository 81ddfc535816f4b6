"""The device's half that FedAwS and its baselines share: the trunk pulled to the own class vector, which follows.

l = mean over the batch of max(0, tau_p - g . w)^2 with unit embeddings g and the unit class vector w (S0 Eq 23).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError


class PositiveSettings(Protocol):
    """Settings of an algorithm that uses the positive hinge."""

    @property
    def margin_positive(self) -> float:
        """tau_p, a cosine."""
        ...


@dataclass(frozen=True, slots=True)
class OwnVector:
    """The own class vector on the device, (d,), unit; a leaf that requires gradient unless it is frozen."""

    vector: Tensor


def own_vector(vector: Float32, *, rate: float) -> OwnVector:
    """Make the local state from the vector that the server sent.

    Args:
        vector: float32 or float64 (d,), unit.
        rate: its learning rate as a multiple of the trunk's, realised by scaling its gradient; 0 freezes it.

    Raises:
        UpdateRejectedError: the server sent a vector that is not finite or not unit.
    """
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if vector.ndim != 1 or not abs(length - 1.0) <= 1e-3:
        raise UpdateRejectedError(
            f"the server sent a class vector of shape {vector.shape} and norm {length:.6g}, not 1"
        )
    # A copy: what came off the wire is read-only.
    tensor = torch.tensor(np.array(vector), requires_grad=rate > 0)
    if rate > 0:
        tensor.register_hook(lambda slope: slope * rate)  # type: ignore[no-untyped-call]
    return OwnVector(tensor)


def parameters(local: OwnVector) -> tuple[Tensor, ...]:
    """The class vector, or nothing where it is frozen."""
    return (local.vector,) if local.vector.requires_grad else ()


def loss(embeddings: Tensor, local: OwnVector, settings: PositiveSettings) -> Tensor:
    """Mean over the batch of max(0, tau_p - s)^2, a scalar; ``embeddings`` are unit rows (B, d)."""
    shortfall = torch.relu(settings.margin_positive - embeddings @ local.vector)
    return (shortfall * shortfall).mean()


def constrain(local: OwnVector) -> None:
    """Put the class vector back on the sphere, in place."""
    if not local.vector.requires_grad:
        return
    with torch.no_grad():
        local.vector.div_(torch.linalg.vector_norm(local.vector).clamp_min(1e-12))


def trained_vector(local: OwnVector) -> Float32:
    """The class vector as it now is, float32 (d,), normalised once more in float64."""
    vector = local.vector.detach().cpu().numpy().astype(np.float64)
    result: Float32 = (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)
    return result
