"""The device's half of FedSS: train the trunk and the columns asked for, send both changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uvsdk.federation.algorithms.fedss.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedss.request import KEY, ROUNDS
from uvsdk.federation.sampled_softmax import client
from uvsdk.federation.sampled_softmax.client import LocalColumns
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


@dataclass(frozen=True, slots=True)
class Local(LocalColumns):
    """The columns, and what the device keeps of its choices, handed on as it is.

    Tensors all of them, so that devices of different classes and keys are trained together.

    Args:
        key: uint8 (32,), (0,) where there is none.
        rounds: int64 (1,), (0,) where none is counted.
    """

    key: Tensor
    rounds: Tensor


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> Local:
    received = client.local_columns(task, settings)
    return Local(
        received.rows,
        received.received,
        received.own,
        received.positive,
        received.shift,
        received.classes,
        key=torch.tensor(np.array(memory.get(KEY, np.empty(0, np.uint8)))),
        rounds=torch.tensor(np.array(memory.get(ROUNDS, np.empty(0, np.int64)))),
    )


def _finish(
    local: Local, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    kept = {KEY: local.key.numpy(), ROUNDS: local.rounds.numpy()}
    payload = Payload(local.classes.numpy(), client.changes(local))
    return payload, {name: value for name, value in kept.items() if len(value)}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=client.parameters,
    rate=client.rate,
    loss=client.loss,
    constrain=client.constrain,
    finish=_finish,
)
