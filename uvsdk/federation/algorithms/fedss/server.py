"""The server's side of FedSS: hand out the columns that a device asks for, add up what comes back (S4 Alg 1)."""

from __future__ import annotations

import numpy as np

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedss.payload import Payload, Request, Settings, Task
from uvsdk.federation.sampled_softmax import columns
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.sampled_softmax.server import class_columns, own_among, vectors_at
from uvsdk.records.codec import Scalar


def _task(state: Columns, user: str, request: Request | None, settings: Settings, rng: np.random.Generator) -> Task:
    """The sub-network that was asked for. Raises :class:`UpdateRejectedError` for anything but a fair request."""
    if request is None:
        raise UpdateRejectedError("a device names the classes it wants before it is sent any; ask for them first")
    places = columns.check_ids(state, request.classes, user, settings)
    label_space = len(columns.label_space(state, user, settings))
    allowed = settings.size(label_space, columns.most_held(state))
    if len(places) > allowed:
        raise UpdateRejectedError(f"{len(places)} classes were asked for, at most {allowed} are sent in a round")
    return Task(
        classes=request.classes,
        vectors=vectors_at(state, places),
        own=own_among(state, user, places),
        label_space=label_space,
    )


def _restricted(settings: Settings) -> str:
    if settings.pool != "users":
        return ""
    return (
        "pool = users sends people's class vectors, which are usable templates, to other people's devices and lets "
        "those devices move them; everyone concerned must have agreed to that"
    )


def _report(state: Columns, settings: Settings) -> dict[str, Scalar]:
    anchors = int((state.kinds == columns.ANCHOR).sum())
    listed = int((state.kinds == columns.LISTED).sum())
    return {
        "classes": len(state.names),
        "anchors": anchors,
        "listed_classes": listed,
        "most_classes_of_a_user": columns.most_held(state),
        "refused_columns": state.rows.refused,
    }


SERVER = class_columns(Settings, Payload, task=_task, restricted=_restricted, report=_report)
