"""The device's half of the softmax oracle: train the trunk and all columns, send both changes."""

from __future__ import annotations

import numpy as np

from uvsdk.federation import sampled_loss
from uvsdk.federation.algorithms.softmax.payload import Payload, Settings, Task
from uvsdk.federation.sampled_loss import LocalColumns
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> LocalColumns:
    return sampled_loss.local_columns(task, settings)


def _finish(
    local: LocalColumns, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    return Payload(local.classes.numpy(), sampled_loss.changes(local)), {}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=sampled_loss.parameters,
    rate=sampled_loss.rate,
    loss=sampled_loss.loss,
    constrain=sampled_loss.constrain,
    finish=_finish,
)
