"""The server's side of the softmax oracle: hand out all of W, add up what comes back."""

from __future__ import annotations

import numpy as np

from uvsdk.federation.algorithms.softmax.payload import Payload, Settings, Task
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.sampled_softmax.server import class_columns, own_among, vectors_at


def _task(state: Columns, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    places = np.argsort(state.ids)
    return Task(
        classes=state.ids[places],
        own=own_among(state, user, places),
        vectors=vectors_at(state, places),
        label_space=len(places),
    )


def _restricted(settings: Settings) -> str:
    return (
        "softmax sends everybody's class vector, a usable template, to every device; it is the reference that the "
        "other methods are compared with, for laboratories"
    )


SERVER = class_columns(Settings, Payload, task=_task, restricted=_restricted)
