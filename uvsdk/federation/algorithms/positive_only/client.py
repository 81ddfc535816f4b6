"""The device's half of positives-only training: train the trunk and the own class vector, send both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from uvsdk.federation import positive
from uvsdk.federation.algorithms.positive_only.payload import Payload, Settings, Task
from uvsdk.federation.positive import OwnVector
from uvsdk.federation.strategy import ClientAlgorithm, Memory


def _begin(
    task: Task, memory: Memory, embed: Callable[[], Tensor], settings: Settings, rng: np.random.Generator
) -> OwnVector:
    return positive.own_vector(task.vector, rate=settings.vector_rate)


def _finish(local: OwnVector, embed: Callable[[], Tensor]) -> tuple[Payload, Memory]:
    return Payload(positive.trained_vector(local)), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=positive.parameters,
    loss=positive.loss,
    constrain=positive.constrain,
    finish=_finish,
)
