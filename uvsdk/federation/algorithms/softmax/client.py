"""The device's half of the softmax oracle: train the trunk and all columns, send both changes."""

from __future__ import annotations

import numpy as np

from uvsdk.federation.algorithms.softmax.payload import Payload, Settings, Task
from uvsdk.federation.sampled_softmax import client
from uvsdk.federation.sampled_softmax.client import LocalColumns
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> LocalColumns:
    return client.local_columns(task, settings)


def _finish(
    local: LocalColumns, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    return Payload(local.classes.numpy(), client.changes(local)), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=client.parameters,
    rate=client.rate,
    loss=client.loss,
    constrain=client.constrain,
    finish=_finish,
)
