"""Local steps of many devices at once, each on a trunk of its own: parameters stacked, one vectorised gradient.

The same arithmetic as :func:`uvsdk.training.loop.train_once`, device by device, up to float32 rounding.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError, WireError
from uvsdk.federation import clipping, controls
from uvsdk.federation.strategy import AnyClientAlgorithm
from uvsdk.simulation.allocation import keep_freed_memory
from uvsdk.simulation.groups import Group, constrain, groups_of
from uvsdk.simulation.jobs import Chunk, DeviceJob, Member, Sent, algorithm_of, begin_all, finish
from uvsdk.training import backbones
from uvsdk.training.loop import cut, proximal_term, to_training, unit

Stack = dict[str, Tensor]
"""Parameter name -> (K, *shape)."""

Gradients = Callable[[Stack, Stack, Stack, Tensor, Tensor], tuple[tuple[Stack, Stack], tuple[Tensor, Tensor]]]
"""(trunks, own tensors, fixed tensors, views (K, B, ...), classes (K, B)) -> (gradients of trunks and own tensors,
(objectives (K,), losses (K,) without the proximal term))."""


def gains(module: nn.Module) -> bool:
    """Whether stacking makes devices faster: the kernels of recurrent layers know no stack and would run in turn."""
    return not any(isinstance(layer, nn.RNNBase) for layer in module.modules())


def train(module: nn.Module, jobs: Sequence[DeviceJob]) -> Chunk:
    """Train all of ``jobs`` side by side, those with tensors of equal shapes together."""
    keep_freed_memory()
    algorithm, settings = algorithm_of(jobs[0].config)
    backbones.unflatten(module, jobs[0].theta)
    module.eval()
    members, failed = begin_all(jobs, algorithm, settings, module)
    groups = groups_of(members, [member.views() for member in members], algorithm, settings)
    total = torch.zeros(len(jobs[0].theta))
    found: dict[int, Sent] = {}
    for group in groups:
        stack, losses = _steps(module, group, algorithm, settings)
        group.hand_back()
        finite = torch.isfinite(losses) & torch.stack([_are_finite(rows) for rows in stack.values()]).all(0)
        for place in finite.nonzero().ravel().tolist():
            sent = _finished(module, stack, group.members[place], place, float(losses[place]), algorithm, settings)
            if sent is not None:
                found[group.order[place]] = sent
        norms = _clip_deltas(module, stack, group.members[0].job.clip_norm)
        _add(total, module, stack, group, torch.tensor([place in found for place in group.order]))
        for place, member in enumerate(group.members):
            if (number := group.order[place]) not in found:
                continue
            sent = dataclasses.replace(found[number], norm=norms[place])
            if member.variate is not None:
                delta: Float32 = torch.cat([rows[place].ravel() for rows in stack.values()]).numpy()
                sent = dataclasses.replace(sent, memory=controls.join(sent.memory, member.variate, delta, member.job))
            found[number] = sent
    module.eval()
    failed += [member.job.user for place, member in enumerate(members) if place not in found]
    return Chunk(total.numpy(), tuple(found[place] for place in sorted(found)), tuple(failed))


def _steps(module: nn.Module, group: Group, algorithm: AnyClientAlgorithm, settings: object) -> tuple[Stack, Tensor]:
    """E steps of SGD of all members: their trunks, and the losses of the last step, (K,); the group's fields move.

    A loss that was no number once stays so: that device sends nothing.
    """
    config = group.members[0].job.config
    stack: Stack = {name: value.detach() for name, value in module.named_parameters()}
    shifts = _shifts(module, group)
    torch.manual_seed(group.members[0].seed)
    to_training(module)
    losses = torch.zeros(len(group.members))
    for step in range(config.local_steps):
        if step:
            drawn = [member.views() for member in group.members]
            group.views = torch.stack([views for views, _ in drawn])
            group.places = torch.stack([places for _, places in drawn])
        own = {name: group.fields[name] for name in group.trained}
        fixed = {name: value for name, value in group.fields.items() if name not in own}
        gradients = _gradients(module, group, algorithm, settings, shared=step == 0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # what gains() says
            (of_trunk, of_own), (_, now) = gradients(stack, own, fixed, group.views, group.places)
        losses = torch.where(torch.isfinite(losses), now, losses)
        if config.gradient_clip:
            _clip(of_trunk, config.gradient_clip)
        for name, gradient in of_trunk.items():
            if shifts:
                gradient.add_(shifts[name])
            # All trunks are the global one before the first step, which gives each device its own.
            moved = None if step == 0 else stack[name]
            stack[name] = torch.add(stack[name], gradient, alpha=-config.learning_rate, out=moved)
        for name, gradient in of_own.items():
            group.fields[name] = own[name] - config.learning_rate * algorithm.rate(settings) * gradient
        constrain(group, algorithm, settings)
    return stack, losses


def _gradients(
    module: nn.Module, group: Group, algorithm: AnyClientAlgorithm, settings: object, *, shared: bool
) -> Gradients:
    """The gradient of all members at once; ``shared``: their trunks are one still, not stacked."""
    config, local = group.members[0].job.config, group.members[0].local
    anchors = [value.detach().clone() for value in module.parameters()]

    def objective(trunk: Stack, own: Stack, fixed: Stack, views: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = unit(torch.func.functional_call(module, trunk, (views,)))
        loss = algorithm.loss(embeddings, places, dataclasses.replace(local, **own, **fixed), settings)
        if config.proximal:
            return loss + proximal_term(list(trunk.values()), anchors, config.proximal), loss
        return loss, loss

    of_one = torch.func.grad_and_value(objective, argnums=(0, 1), has_aux=True)
    in_dims = (None if shared else 0, 0, 0, 0, 0)
    of_all: Gradients = torch.func.vmap(of_one, in_dims=in_dims, randomness="different")
    return of_all


def _shifts(module: nn.Module, group: Group) -> Stack:
    """SCAFFOLD's c - c_i, stacked; empty without control variates."""
    variates = [member.variate for member in group.members if member.variate is not None]
    if not variates:
        return {}
    trunk = list(module.parameters())
    rows = [cut(variate, trunk) for variate in variates]
    return {
        name: torch.stack([row[place] for row in rows]) for place, (name, _) in enumerate(module.named_parameters())
    }


def _clip(gradients: Stack, longest: float) -> None:
    """Shorten each device's gradient of the trunk to ``longest``, its direction kept."""
    squares = torch.stack([value.double().square().flatten(1).sum(1) for value in gradients.values()]).sum(0)
    norms = squares.sqrt()
    scale = torch.where(norms > longest, longest / norms, 1.0).to(torch.float32)
    for value in gradients.values():
        value.mul_(scale.view(-1, *([1] * (value.ndim - 1))))


def _clip_deltas(module: nn.Module, stack: Stack, clip_norm: float) -> list[float]:
    """Make ``stack`` the members' deltas, none longer than ``clip_norm``; gives their norms."""
    for name, value in module.named_parameters():
        stack[name].sub_(value.detach())
    lengths = torch.stack(
        [torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64) for value in stack.values()]
    )
    norms = torch.linalg.vector_norm(lengths, dim=0).tolist()
    scales = torch.tensor([clipping.scale_of(norm, clip_norm) for norm in norms])
    if bool((scales != 1.0).any()):
        for rows in stack.values():
            rows.mul_(scales.view(-1, *([1] * (rows.ndim - 1))))
    return [min(norm, clip_norm) for norm in norms]


def _add(total: Tensor, module: nn.Module, stack: Stack, group: Group, kept: Tensor) -> None:
    """Add sum_i p_i Delta_i over those that are ``kept`` to ``total``; ``stack`` holds the deltas."""
    weights, start = group.weights(), 0
    for name, _ in module.named_parameters():
        rows = stack[name].flatten(1)
        good = rows if bool(kept.all()) else rows[kept]  # the others may hold anything
        total[start : start + rows.shape[1]] += weights[kept] @ good
        start += rows.shape[1]


def _are_finite(values: Tensor) -> Tensor:
    """bool (K,). A finite sum proves finite numbers; only where it is not are they looked at one by one."""
    rows = values.flatten(1)
    quick = torch.isfinite(rows.sum(1))
    return quick if bool(quick.all()) else torch.isfinite(rows).all(1)


def _finished(
    module: nn.Module,
    stack: Stack,
    member: Member,
    place: int,
    loss: float,
    algorithm: AnyClientAlgorithm,
    settings: object,
) -> Sent | None:
    """What one member sends; ``None`` where it cannot finish."""

    def forward(views: Tensor) -> Tensor:
        module.eval()
        trunk = {name: value[place] for name, value in stack.items()}
        embeddings: Tensor = torch.func.functional_call(module, trunk, (views,))
        return embeddings

    try:
        return finish(member, algorithm, settings, forward, loss)
    except (UpdateRejectedError, WireError):
        return None
