"""The device's side of FedSS: train the trunk and the columns asked for, send both changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from uvsdk.federation.algorithms.fedss.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedss.request import KEY, ROUNDS
from uvsdk.federation.sampled_softmax.client import LocalColumns, changes, local_columns, sampled_softmax
from uvsdk.federation.strategy import Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> LocalColumns:
    kept = {name: torch.tensor(np.array(memory[name])) for name in (KEY, ROUNDS) if name in memory}
    return replace(local_columns(task, settings), **kept)


def _finish(
    local: LocalColumns, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    kept = {KEY: local.key.numpy(), ROUNDS: local.rounds.numpy()}
    payload = Payload(local.classes.numpy(), changes(local))
    return payload, {name: value for name, value in kept.items() if len(value)}


CLIENT = replace(sampled_softmax(Settings, Task, Payload), begin=_begin, finish=_finish)
