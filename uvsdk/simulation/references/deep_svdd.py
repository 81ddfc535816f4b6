"""The other end from pooling: every device for itself, one-class classification by Deep SVDD (Ruff et al. 2018).

l = mean over the batch of |z - c|^2, where c is the mean of the embeddings before training and stays fixed (Ruff et
al. 2018, Eq 4; S3 Eq 1 quotes it). Embeddings are not normalised: on the sphere the distance is bounded and the
objective another. A constant would minimise l, so the network must not be able to make one: no biases, no bounded
activations (Ruff et al. 2018, Prop 2 and 3). Nothing is shared and nothing pretrained; the authors start from an
autoencoder. Needs torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32
from uvsdk.errors import EnrolmentError, SettingsError, UpdateRejectedError

_EMBED_BATCH = 1024
# Ruff et al.'s code: a coordinate of c near 0 is matched by weights of 0 alone.
_SMALLEST_COORDINATE = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """How one device trains.

    Args:
        steps: of Adam.
        batch_size: examples in a step, 200 in Ruff et al., drawn without repetition within a pass.
        learning_rate: 1e-4 in Ruff et al.
        cooldown: the share of the steps, the last ones, over which the rate is a tenth (theirs drops once, late).
        weight_decay: 1e-6 in Ruff et al., as an L2 term.
        seed: of the batches.
    """

    steps: int = 1000
    batch_size: int = 200
    learning_rate: float = 1e-4
    cooldown: float = 1 / 3
    weight_decay: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise SettingsError(f"steps {self.steps} and batch_size {self.batch_size} must be at least 1")
        if not 0 < self.learning_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise SettingsError("learning_rate must be positive and finite, weight_decay finite and not negative")
        if not 0 <= self.cooldown <= 1:
            raise SettingsError(f"cooldown is {self.cooldown}; it is a share of the steps, 0 to 1")


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What a training gives beside the trunk, which is trained in place.

    Args:
        centre: float32 (d,), c.
        losses: the loss of every step.
        seconds: wall-clock time of all steps.
    """

    centre: Float32
    losses: tuple[float, ...]
    seconds: float


def check_trunk(trunk: nn.Module) -> None:
    """Raise :class:`SettingsError` where ``trunk`` has biases, with which it could answer a constant."""
    biases = [name for name, _ in trunk.named_parameters() if name.split(".")[-1].startswith("bias")]
    if biases:
        raise SettingsError(
            f"the trunk has biases ({', '.join(biases[:3])}{', ...' if len(biases) > 3 else ''}) and could learn a "
            "constant; build it with bias=False, and normalisation layers with affine=False"
        )


def train(
    trunk: nn.Module,
    features: Tensor,
    settings: Settings,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> TrainingOutcome:
    """Train ``trunk`` in place on one device's samples; it is left in eval mode.

    Args:
        trunk: views (B, ...) to embeddings (B, d), without biases.
        features: (n, ...), n >= 1, of one class.
        on_step: called after each step with its number, from 0, and its loss.

    Raises:
        SettingsError: the trunk has biases.
        EnrolmentError: no sample.
        UpdateRejectedError: the loss is no longer a number.
    """
    check_trunk(trunk)
    if len(features) == 0:
        raise EnrolmentError("training needs at least one sample, there is none")
    centre = initial_centre(trunk, features)
    optimiser = torch.optim.Adam(trunk.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rng = np.random.default_rng(settings.seed)
    size, waiting = min(settings.batch_size, len(features)), np.empty(0, np.int64)
    losses, started = [], time.perf_counter()
    trunk.train()
    for step in range(settings.steps):
        late = step >= settings.steps * (1.0 - settings.cooldown)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * (0.1 if late else 1.0)
        if len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(len(features))])
        batch, waiting = torch.from_numpy(waiting[:size]), waiting[size:]
        loss = (trunk(features[batch]) - centre).square().sum(dim=1).mean()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise UpdateRejectedError(f"the loss of step {step} is {losses[-1]}; lower the learning rate")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if on_step is not None:
            on_step(step, losses[-1])
    trunk.eval()
    return TrainingOutcome(centre.numpy(), tuple(losses), time.perf_counter() - started)


def initial_centre(trunk: nn.Module, features: Tensor) -> Tensor:
    """c, (d,): the mean of the embeddings as the trunk now is, no coordinate nearer to 0 than 0.1."""
    total = _embedded(trunk, features).mean(dim=0)
    sign = torch.where(total < 0, -1.0, 1.0)
    return torch.where(total.abs() < _SMALLEST_COORDINATE, sign * _SMALLEST_COORDINATE, total)


def scores(trunk: nn.Module, features: Tensor, *, centre: Float32) -> Float32:
    """-|z - c|, float32 (n,): high for samples that look like those of training."""
    distances = torch.linalg.vector_norm(_embedded(trunk, features) - torch.from_numpy(centre), dim=1)
    result: Float32 = -distances.numpy()
    return result


@torch.no_grad()
def _embedded(trunk: nn.Module, features: Tensor) -> Tensor:
    trunk.eval()
    return torch.cat([trunk(part) for part in torch.split(features, _EMBED_BATCH)])
