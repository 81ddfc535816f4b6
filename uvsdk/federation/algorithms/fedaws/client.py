"""The device's half of FedAwS: train the trunk and the own class vector, send both."""

from __future__ import annotations

import numpy as np

from uvsdk.federation import positive
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings, Task
from uvsdk.federation.positive import OwnVector
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> OwnVector:
    return positive.own_vector(task.vector)


def _finish(
    local: OwnVector, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    return Payload(positive.trained_vector(local)), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=positive.parameters,
    rate=positive.rate,
    loss=positive.loss,
    constrain=positive.constrain,
    finish=_finish,
)
