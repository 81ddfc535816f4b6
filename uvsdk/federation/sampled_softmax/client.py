"""The device's side that FedSS and the softmax oracle share: cross-entropy over the columns that the server sent.

o_j = scale g . w_j / |w_j|, without bias (S4 A.2). Positives are in the sample with probability 1 and each other class
with q = m / (n - |P|), so o'_j = o_j for positives and o'_j = o_j - log q for negatives: the expectation of
sum_S exp o' is then sum_[n] exp o (Horvitz and Thompson), and m = n - |P| gives the full softmax. The paper corrects
every column by log(m q_j) without saying what that is for positives (SPEC 5.2). Needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Float32, Int64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.guards import UNIT_TOLERANCE
from uvsdk.federation.sampled_softmax.columns import ColumnSettings
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret

_SMALLEST_NORM = 1e-12


class SampledSettings(ColumnSettings, Protocol):
    """Settings that the device's side reads."""

    @property
    def loss(self) -> str:
        """``sampled``, ``full``, ``negatives`` (S4 Eq 7) or ``positives`` (S4 Eq 8)."""
        ...

    @property
    def correction(self) -> str:
        """``ht`` or ``none``."""
        ...


class ColumnTask(Protocol):
    """What the server sends."""

    @property
    def classes(self) -> Int64:
        """int64 (s,), ids, ascending."""
        ...

    @property
    def vectors(self) -> Float32:
        """float32 (s, d), unit rows."""
        ...

    @property
    def own(self) -> Int64:
        """int64 (P,), where in ``classes`` the device's own classes stand, in order of their names."""
        ...

    @property
    def label_space(self) -> int:
        """n."""
        ...


@dataclass(frozen=True, slots=True)
class LocalColumns:
    """The sub-network's last layer on the device.

    Args:
        rows: (s, d), unit, trained.
        received: (s, d), as the server sent them.
        own: int64 (P,), place of each own class.
        positive: bool (s,), whether a column is one of the own classes.
        shift: (s,), what is taken off the logits: log q for negatives, 0 for positives.
        classes: int64 (s,), the columns' ids.
        key: uint8 (32,), and
        rounds: int64 (1,), what a device of FedSS keeps of its choices, handed on as it is; (0,) for nothing.

    Tensors all of them, so that devices with different ones are trained together.
    """

    rows: Tensor
    received: Tensor
    own: Tensor
    positive: Tensor
    shift: Tensor
    classes: Tensor
    key: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    rounds: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


def local_columns(task: ColumnTask, settings: SampledSettings) -> LocalColumns:
    """Make the local state from what the server sent.

    Raises:
        UpdateRejectedError: columns that are not finite unit rows, ids that repeat, own classes that are not among
            them, or more columns than classes.
    """
    count = len(task.classes)
    _check_task(task, count)
    positive = np.zeros(count, np.bool_)
    positive[task.own] = True
    negatives, others = count - len(task.own), task.label_space - len(task.own)
    shift = np.zeros(count, np.float32)
    if settings.correction == "ht" and negatives:
        shift[~positive] = math.log(negatives / others)
    vectors = torch.tensor(np.array(task.vectors, np.float32))  # a copy: what came off the wire is read-only
    return LocalColumns(
        rows=vectors,
        received=vectors.clone(),
        own=torch.tensor(np.array(task.own)),
        positive=torch.tensor(positive),
        shift=torch.tensor(shift),
        classes=torch.tensor(np.array(task.classes)),
    )


def parameters(local: LocalColumns, settings: SampledSettings) -> tuple[Tensor, ...]:
    """The columns, or nothing where they are frozen."""
    return (local.rows,) if settings.vector_rate > 0 else ()


def rate(settings: SampledSettings) -> float:
    """The columns' learning rate as a multiple of the trunk's."""
    return settings.vector_rate


def logits(embeddings: Tensor, local: LocalColumns, settings: SampledSettings) -> Tensor:
    """o', (B, s), of unit rows (B, d): scaled cosines with the negatives' inclusion probability taken off."""
    norms = torch.linalg.vector_norm(local.rows, dim=1, keepdim=True).clamp_min(_SMALLEST_NORM)
    result: Tensor = settings.scale * (embeddings @ (local.rows / norms).T) - local.shift
    return result


def loss(embeddings: Tensor, classes: Tensor, local: LocalColumns, settings: SampledSettings) -> Tensor:
    """Mean over the batch of -o'_t + log sum_j exp o'_j (S4 Eq 5), a scalar of at least 0.

    j runs over the columns of S; under ``negatives`` not over the device's other classes (S4 Eq 7), under ``positives``
    over the own ones only (S4 Eq 8), which is 0, and teaches nothing, on a device of one class.
    """
    values = logits(embeddings, local, settings)
    target = local.own[classes]
    if settings.loss == "positives":
        values = values.masked_fill(~local.positive, -math.inf)
    elif settings.loss == "negatives":
        places = torch.arange(values.shape[1], device=values.device)
        values = values.masked_fill(local.positive & (places != target[:, None]), -math.inf)
    picked = torch.gather(values, 1, target[:, None])[:, 0]
    result: Tensor = (torch.logsumexp(values, dim=1) - picked).mean()
    return result


def constrain(local: LocalColumns, settings: SampledSettings) -> None:
    """Put the columns back on the sphere, in place."""
    if settings.vector_rate > 0:
        with torch.no_grad():
            local.rows.div_(torch.linalg.vector_norm(local.rows, dim=1, keepdim=True).clamp_min(_SMALLEST_NORM))


def changes(local: LocalColumns) -> Float32:
    """Trained minus received, float32 (s, d)."""
    difference: Float32 = (local.rows.detach() - local.received).cpu().numpy()
    return difference


SomeSettings = TypeVar("SomeSettings", bound=SampledSettings)
SomeTask = TypeVar("SomeTask", bound=ColumnTask)
SomePayload = TypeVar("SomePayload")


def sampled_softmax(
    settings: type[SomeSettings], task: type[SomeTask], payload: Callable[[Int64, Float32], SomePayload]
) -> ClientAlgorithm[SomeSettings, SomeTask, SomePayload, LocalColumns]:
    """The device's side of an algorithm that has this loss and keeps nothing on the device.

    Args:
        settings: its settings.
        task: what its server sends.
        payload: makes what the device sends of the columns' ids, int64 (s,), and their changes, float32 (s, d).
    """

    def begin(
        task: SomeTask, memory: Memory, embed: Embed, settings: SomeSettings, rng: np.random.Generator, secret: Secret
    ) -> LocalColumns:
        return local_columns(task, settings)

    def finish(
        local: LocalColumns, embed: Embed, settings: SomeSettings, rng: np.random.Generator, secret: Secret
    ) -> tuple[SomePayload, Memory]:
        return payload(local.classes.numpy(), changes(local)), {}

    return ClientAlgorithm(
        task=task,
        begin=begin,
        parameters=parameters,
        rate=rate,
        loss=loss,
        constrain=constrain,
        finish=finish,
    )


def _check_task(task: ColumnTask, count: int) -> None:
    lengths = np.linalg.norm(task.vectors.astype(np.float64), axis=-1)
    if task.vectors.ndim != 2 or lengths.shape != (count,) or not bool((abs(lengths - 1.0) <= UNIT_TOLERANCE).all()):
        raise UpdateRejectedError(
            f"the server sent {count} classes with vectors of shape {task.vectors.shape}, not all of them unit"
        )
    if len(np.unique(task.classes)) != count or task.label_space < count:
        raise UpdateRejectedError(f"the server sent {count} classes of {task.label_space}, some of them twice")
    own = task.own
    if len(own) == 0 or len(np.unique(own)) != len(own) or own.min() < 0 or own.max() >= count:
        raise UpdateRejectedError("the server did not send the columns of the device's own classes")
