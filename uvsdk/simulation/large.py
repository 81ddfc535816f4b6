"""One local step of many devices as one large batch.

With one step every device differentiates the same trunk, so sum_i p_i Delta_i = -eta grad sum_i p_i l_i: one forward
and one backward pass over all views give the round's mean delta. Each device's own tensors take the gradient of its
own loss, which is that of p_i l_i divided by p_i. Equal to the loop up to float32 rounding, where no layer mixes the
examples of a batch (:class:`uvsdk.training.backbones.Backbone`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import UpdateRejectedError, WireError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import AnyClientAlgorithm
from uvsdk.simulation.groups import Group, constrain, groups_of, losses_of
from uvsdk.simulation.jobs import Chunk, DeviceJob, InseparableError, algorithm_of, begin_all, finish
from uvsdk.training import backbones
from uvsdk.training.loop import to_training, unit


def obstacle(config: TrainingConfig) -> str:
    """Why the rounds of ``config`` cannot be one large batch, in words; empty where they can."""
    if config.local_steps > 1:
        return f"local_steps is {config.local_steps}: after the first step every device has a trunk of its own"
    if config.gradient_clip:
        return "gradient_clip shortens each device's own gradient"
    if config.clipping != "off":
        return f"clipping is {config.clipping}: it shortens each device's own delta"
    if config.control_variates:
        return "control_variates are made of each device's own delta"
    return ""


def train(module: nn.Module, jobs: Sequence[DeviceJob]) -> Chunk:
    """Train all of ``jobs`` at once.

    Raises:
        InseparableError: the algorithm embeds with the trained trunk when it finishes, or a device fails whose share
            of the sum cannot be taken out again; the caller trains them in another way.
    """
    algorithm, settings = algorithm_of(jobs[0].config)
    backbones.unflatten(module, jobs[0].theta)
    module.eval()
    members, failed = begin_all(jobs, algorithm, settings, module)
    drawn = [member.views() for member in members]
    total, losses = np.zeros_like(jobs[0].theta), np.empty(0)
    while members:
        groups = groups_of(members, drawn, algorithm, settings)
        losses = _backward(module, groups, algorithm, settings)
        finite = np.isfinite(losses)
        if finite.all():
            total = _delta(module, jobs[0].config)
            _move_own(groups, algorithm, settings)
            break
        failed += [member.job.user for member, good in zip(members, finite, strict=True) if not good]
        members = [member for member, good in zip(members, finite, strict=True) if good]
        drawn = [views for views, good in zip(drawn, finite, strict=True) if good]
    module.eval()
    sent = []
    for member, loss in zip(members, losses.tolist(), strict=True):
        try:
            sent.append(finish(member, algorithm, settings, _no_trunk, loss))
        except (UpdateRejectedError, WireError) as error:
            raise InseparableError("a device could not finish, and its gradient is in the sum already") from error
    return Chunk(total, tuple(sent), tuple(failed))


def _backward(module: nn.Module, groups: Sequence[Group], algorithm: AnyClientAlgorithm, settings: object) -> Float64:
    """Losses by device, float64 (K,), and, where all are finite, the gradients of their weighted sum."""
    for value in module.parameters():
        value.requires_grad_()
        value.grad = None
    torch.manual_seed(groups[0].members[0].seed)
    to_training(module)
    losses, objective = np.empty(sum(len(group.members) for group in groups)), torch.zeros(())
    for group in groups:
        for name in group.trained:
            group.fields[name].requires_grad_()
        count, size = group.views.shape[:2]
        embeddings = unit(module(group.views.flatten(0, 1))).view(count, size, -1)
        found = losses_of(algorithm, group.members[0].local, settings)(embeddings, group.places, group.fields)
        losses[list(group.order)] = found.detach().numpy()
        objective = objective + (found * group.weights()).sum()
    if np.isfinite(losses).all():
        objective.backward()  # type: ignore[no-untyped-call]
    return losses


@torch.no_grad()
def _delta(module: nn.Module, config: TrainingConfig) -> Float32:
    """-eta x gradient, float32 (P,)."""
    flat = [(torch.zeros_like(value) if value.grad is None else value.grad).ravel() for value in module.parameters()]
    delta: Float32 = torch.cat(flat).mul_(-config.learning_rate).numpy()
    if not np.isfinite(delta).all():
        raise InseparableError("the gradient of a large batch is not finite, and whose share is not cannot be seen")
    return delta


@torch.no_grad()
def _move_own(groups: Sequence[Group], algorithm: AnyClientAlgorithm, settings: object) -> None:
    """One step of each device's own tensors, which then lie in its ``local``."""
    for group in groups:
        rate = group.members[0].job.config.learning_rate * algorithm.rate(settings)
        for name in group.trained:
            value = group.fields[name].detach()
            gradient = group.fields[name].grad
            if gradient is not None:
                shape = (-1, *([1] * (value.ndim - 1)))
                value = value - rate * (gradient / group.weights().view(shape))
            group.fields[name] = value
        constrain(group, algorithm, settings)
        group.hand_back()


def _no_trunk(views: Tensor) -> NoReturn:
    raise InseparableError("this algorithm embeds with the trained trunk, of which a large batch has none per device")
