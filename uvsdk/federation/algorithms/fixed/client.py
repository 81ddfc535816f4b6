"""The device's half of training towards a fixed class vector: the trunk moves, the vector does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from uvsdk.federation import positive
from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task
from uvsdk.federation.positive import OwnVector
from uvsdk.federation.strategy import ClientAlgorithm, Memory


def _begin(
    task: Task, memory: Memory, embed: Callable[[], Tensor], settings: Settings, rng: np.random.Generator
) -> OwnVector:
    return positive.own_vector(task.vector, rate=0.0)


def _finish(local: OwnVector, embed: Callable[[], Tensor]) -> tuple[Payload, Memory]:
    return Payload(), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=positive.parameters,
    loss=positive.loss,
    constrain=positive.constrain,
    finish=_finish,
)
