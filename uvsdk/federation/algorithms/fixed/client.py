"""The device's half of training towards a fixed class vector: the trunk moves, the vector does not."""

from __future__ import annotations

import numpy as np

from uvsdk.federation import positive
from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task
from uvsdk.federation.positive import OwnVector
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> OwnVector:
    return positive.own_vector(task.vector)


def _finish(
    local: OwnVector, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    return Payload(), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=positive.parameters,
    rate=positive.rate,
    loss=positive.loss,
    constrain=positive.constrain,
    finish=_finish,
)
