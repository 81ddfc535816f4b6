"""The device's half of FedALC-fixed: keep the class vector that came once, train the trunk towards it."""

from __future__ import annotations

import numpy as np

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation import positive
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedalc_fixed.request import KEPT
from uvsdk.federation.positive import OwnVector
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> OwnVector:
    if task.vector.size:
        return positive.own_vector(task.vector)
    kept = memory.get(KEPT)
    if kept is None:
        raise UpdateRejectedError(
            "the server sent no class vector and none is kept here; ask for it: a request without a hash"
        )
    return positive.own_vector(kept.astype(np.float32))


def _finish(
    local: OwnVector, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    # As it came, without normalising again, or its hash would not be the server's.
    return Payload(), {KEPT: np.array(local.vector.detach().cpu().numpy(), np.float32)}


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=positive.parameters,
    rate=positive.rate,
    loss=positive.loss,
    constrain=positive.constrain,
    finish=_finish,
)
