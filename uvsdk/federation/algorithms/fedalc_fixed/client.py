"""The device's side of FedALC-fixed: keep the class vector that came once, train the trunk towards it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedalc_fixed.request import KEPT
from uvsdk.federation.classes.client import OwnVector, own_vector, positive_hinge
from uvsdk.federation.strategy import Embed, Memory, Secret


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> OwnVector:
    if task.vector.size:
        return own_vector(task.vector)
    kept = memory.get(KEPT)
    if kept is None:
        raise UpdateRejectedError(
            "the server sent no class vector and none is kept here; ask for it: a request without a hash"
        )
    return own_vector(kept.astype(np.float32))


def _finish(
    local: OwnVector, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    # As it came, without normalising again, or its hash would not be the server's.
    return Payload(), {KEPT: np.array(local.vector.detach().cpu().numpy(), np.float32)}


CLIENT = replace(positive_hinge(Settings, Task, lambda vector: Payload()), begin=_begin, finish=_finish)
