"""The server's half of the softmax oracle: hand out all of W, add up what comes back."""

from __future__ import annotations

import numpy as np

from uvsdk.federation.algorithms.softmax.payload import Payload, Settings, Task
from uvsdk.federation.sampled_softmax import columns, server
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.strategy import MEAN, ServerAlgorithm


def _needs(settings: Settings) -> frozenset[str]:
    return frozenset() if settings.initialisation == "random" else frozenset({MEAN})


def _task(state: Columns, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    places = np.argsort(state.ids)
    return Task(
        classes=state.ids[places],
        own=server.own_among(state, user, places),
        vectors=server.vectors_at(state, places),
        label_space=len(places),
    )


def _restricted(settings: Settings) -> str:
    return (
        "softmax sends everybody's class vector, a usable template, to every device; it is the reference that the "
        "other methods are compared with, for laboratories"
    )


SERVER = ServerAlgorithm(
    state=Columns,
    settings=Settings,
    payload=Payload,
    needs=_needs,
    empty=columns.empty,
    admit=columns.admit,
    remove=columns.remove,
    start=columns.start,
    users=columns.users,
    task=_task,
    check=server.check,
    step=server.step,
    class_matrix=columns.class_matrix,
    restricted=_restricted,
)
