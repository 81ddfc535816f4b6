"""Devices whose tensors have the same shapes, stacked, so that one call of an algorithm serves them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uvsdk.federation.strategy import AnyClientAlgorithm
from uvsdk.simulation.jobs import Member

Losses = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]
"""(embeddings (K, B, d), classes (K, B), fields (K, ...)) -> losses (K,)."""


@dataclass(slots=True)
class Group:
    """Members that can be stacked.

    Args:
        members: K of them.
        order: their places among all members.
        views: (K, B, ...), of one step.
        places: int64 (K, B), places of the views' classes.
        fields: the Tensor fields of their locals, (K, ...) each.
        trained: names of those fields that are trained.
    """

    members: tuple[Member, ...]
    order: tuple[int, ...]
    views: Tensor
    places: Tensor
    fields: dict[str, Tensor]
    trained: tuple[str, ...]

    def weights(self) -> Tensor:
        """p_i, float32 (K,)."""
        return torch.tensor([member.job.weight for member in self.members], dtype=torch.float32)

    def hand_back(self) -> None:
        """Put each member's own rows of the trained fields into its local."""
        for place, member in enumerate(self.members):
            rows = {name: self.fields[name][place] for name in self.trained}
            member.local = dataclasses.replace(member.local, **rows)


def groups_of(
    members: Sequence[Member], drawn: Sequence[tuple[Tensor, Tensor]], algorithm: AnyClientAlgorithm, settings: object
) -> list[Group]:
    """``members`` with the views that they drew, in as few groups as their shapes allow."""
    places: dict[object, list[int]] = {}
    for place, (member, (views, _)) in enumerate(zip(members, drawn, strict=True)):
        places.setdefault(_shapes(member.local, views), []).append(place)
    groups = []
    for order in places.values():
        chosen = tuple(members[place] for place in order)
        fields = [tensors_of(member.local) for member in chosen]
        groups.append(
            Group(
                chosen,
                tuple(order),
                torch.stack([drawn[place][0] for place in order]),
                torch.stack([drawn[place][1] for place in order]),
                {name: torch.stack([item[name].detach() for item in fields]) for name in fields[0]},
                trained_fields(chosen[0].local, algorithm, settings),
            )
        )
    return groups


def tensors_of(local: Any) -> dict[str, Tensor]:
    """The Tensor fields of an algorithm's ``Local``."""
    values = {field.name: getattr(local, field.name) for field in dataclasses.fields(local)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def trained_fields(local: Any, algorithm: AnyClientAlgorithm, settings: object) -> tuple[str, ...]:
    """Names of the fields that ``algorithm.parameters`` gives. Raises ``TypeError`` for a tensor that is none."""
    own = algorithm.parameters(local, settings)
    names = tuple(name for name, value in tensors_of(local).items() if any(value is item for item in own))
    if len(names) != len(own):
        raise TypeError(
            f"{type(local).__name__} trains a tensor that is no field of it; see ClientAlgorithm.parameters"
        )
    return names


def losses_of(algorithm: AnyClientAlgorithm, local: Any, settings: object) -> Losses:
    """``algorithm.loss`` of stacked devices; ``local`` gives what is no tensor, and is the same for all of them."""

    def loss(embeddings: Tensor, places: Tensor, fields: dict[str, Tensor]) -> Tensor:
        return algorithm.loss(embeddings, places, dataclasses.replace(local, **fields), settings)

    vectorised: Losses = torch.func.vmap(loss, randomness="different")
    return vectorised


@torch.no_grad()
def constrain(group: Group, algorithm: AnyClientAlgorithm, settings: object) -> None:
    """``algorithm.constrain`` of all members: the trained fields of ``group`` are replaced."""
    local = group.members[0].local

    def one(trained: dict[str, Tensor], fixed: dict[str, Tensor]) -> dict[str, Tensor]:
        moved = dataclasses.replace(local, **trained, **fixed)
        algorithm.constrain(moved, settings)
        return {name: getattr(moved, name) for name in trained}

    if group.trained:
        trained = {name: group.fields[name].clone() for name in group.trained}
        fixed = {name: value for name, value in group.fields.items() if name not in trained}
        group.fields.update(torch.func.vmap(one)(trained, fixed))


def _shapes(local: Any, views: Tensor) -> object:
    """What two devices must have in common to be stacked: shapes of tensors, and whatever is no tensor."""
    key: list[object] = [type(local), tuple(views.shape)]
    for field in dataclasses.fields(local):
        value = getattr(local, field.name)
        key.append((tuple(value.shape), value.dtype) if isinstance(value, Tensor) else _identity(value))
    return tuple(key)


def _identity(value: object) -> object:
    """Equal for equal values; what cannot be compared is equal to itself only."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value
