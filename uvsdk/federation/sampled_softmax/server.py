"""One round of the class columns at the server: what a device is sent, what may come back and what it changes.

D_j = sum_k p_k Delta_kj with 0 where device k lacked column j (``zero_fill``, S4 Alg 1 line 12), then v_j = b v_j + D_j
and w_j = normalise(w_j + a v_j), for the columns touched in this round only: on the others v neither acts nor decays.
The paper's own update has the wrong sign for its definition of Delta (SPEC 15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.classes import matrix
from uvsdk.federation.sampled_softmax import columns
from uvsdk.federation.sampled_softmax.columns import Columns, ColumnSettings, check_ids, places_of
from uvsdk.federation.strategy import Contribution, ServerAlgorithm, nothing_to_report
from uvsdk.records.codec import Scalar

_LONGEST_DELTA = 2.0 + 1e-3
_SMALLEST_COLUMN = 1e-3


class ColumnPayload(Protocol):
    """What a device sends of the columns it had."""

    @property
    def classes(self) -> Int64:
        """int64 (s,), ids of classes, ascending and distinct."""
        ...

    @property
    def deltas(self) -> Float32:
        """float32 (s, d), trained minus received."""
        ...


SomeSettings = TypeVar("SomeSettings", bound=ColumnSettings)
SomePayload = TypeVar("SomePayload", bound=ColumnPayload)
Task = TypeVar("Task")


def class_columns(
    settings: type[SomeSettings],
    payload: type[SomePayload],
    *,
    task: Callable[[Columns, str, Any, SomeSettings, np.random.Generator], Task],
    restricted: Callable[[SomeSettings], str],
    report: Callable[[Columns, SomeSettings], Mapping[str, Scalar]] = nothing_to_report,
) -> ServerAlgorithm[Columns, SomeSettings, Task, SomePayload]:
    """The server's side of a softmax over all columns or a sample: all but which of them a device is sent."""
    return ServerAlgorithm(
        state=Columns,
        settings=settings,
        payload=payload,
        needs=matrix.needs,
        empty=columns.empty,
        admit=columns.admit,
        remove=columns.remove,
        start=columns.start,
        users=lambda state: state.users,
        task=task,
        check=check,
        step=step,
        class_matrix=columns.class_matrix,
        restricted=restricted,
        report=report,
    )


def vectors_at(state: Columns, places: Int64) -> Float32:
    """The columns at ``places``, float32 (s, d). Raises :class:`UpdateRejectedError` before they are drawn."""
    if not state.rows.started:
        raise UpdateRejectedError("the class vectors have not been drawn yet; start the algorithm first")
    return state.rows.vectors[places].astype(np.float32)


def own_among(state: Columns, user: str, places: Int64) -> Int64:
    """Where in ``places`` each class of ``user`` stands, in order of class name; all of them must be there."""
    order = np.argsort(places)
    found: Int64 = order[np.searchsorted(places, state.own(user), sorter=order)]
    return found


def check(payload: ColumnPayload, state: Columns, user: str, settings: ColumnSettings) -> None:
    """Raise :class:`UpdateRejectedError` unless ``payload`` holds finite, plausible changes of classes of that user's
    label space. A change joins two points of the sphere, so it is at most 2 long.
    """
    check_ids(state, payload.classes, user, settings)
    expected = (len(payload.classes), state.rows.dimension)
    if payload.deltas.shape != expected:
        raise UpdateRejectedError(f"changes of {expected[0]} columns have shape {expected}, got {payload.deltas.shape}")
    if not np.issubdtype(payload.deltas.dtype, np.floating) or not bool(np.isfinite(payload.deltas).all()):
        raise UpdateRejectedError("the changes of the columns hold NaN or infinity, expected finite numbers")
    if bool((np.linalg.norm(payload.deltas.astype(np.float64), axis=1) > _LONGEST_DELTA).any()):
        raise UpdateRejectedError("a column moved by more than 2, the diameter of the sphere it lives on")


def step(
    state: Columns,
    contributions: Sequence[Contribution[SomePayload]],
    settings: ColumnSettings,
    rng: np.random.Generator,
) -> Columns:
    """One round: the mean change of every column that came back, momentum on those alone, then the sphere again.

    A contribution that :func:`check` would refuse is left out and counted, and so are classes that left meanwhile.
    """
    mean, weight, refused = mean_change(state, contributions, settings)
    touched, rows = np.flatnonzero(weight > 0), state.rows
    momentum, vectors, last_round = state.momentum.copy(), rows.vectors.copy(), rows.last_round.copy()
    momentum[touched] = settings.momentum * momentum[touched] + mean[touched]
    moved = vectors[touched] + settings.server_rate * momentum[touched]
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    usable = lengths[:, 0] >= _SMALLEST_COLUMN
    vectors[touched[usable]] = moved[usable] / lengths[usable]
    last_round[touched] = rows.rounds
    refused += rows.refused + int((~usable).sum())
    written = replace(rows, vectors=vectors, last_round=last_round, rounds=rows.rounds + 1, refused=refused)
    return replace(state, rows=written, momentum=momentum)


def mean_change(
    state: Columns, contributions: Sequence[Contribution[SomePayload]], settings: ColumnSettings
) -> tuple[Float64, Float64, int]:
    """(D (n, d), weight of the devices that had each column (n,), contributions refused).

    Weights p_k are n_k over their sum, n_k at most ``samples_cap``. Changes of columns that are not the device's own
    are shortened to ``foreign_cap`` first: nobody may push another's column far (SPEC 5.4).
    """
    total, weight = np.zeros_like(state.rows.vectors), np.zeros(len(state.names))
    counts = np.array([min(item.samples, settings.samples_cap) for item in contributions], np.float64)
    refused = 0
    for item, share in zip(contributions, counts / max(counts.sum(), 1.0), strict=True):
        changes = item.payload.deltas.astype(np.float64)
        if item.user not in state.users:
            continue
        if changes.shape != (len(item.payload.classes), state.rows.dimension) or not bool(np.isfinite(changes).all()):
            refused += 1
            continue
        places = places_of(state, item.payload.classes)
        here = places >= 0
        places, changes = places[here], changes[here]
        if settings.foreign_cap:
            foreign = np.ones(len(state.names), np.bool_)
            foreign[state.own(item.user)] = False
            changes = _capped(changes, foreign[places], settings.foreign_cap)
        total[places] += share * changes
        weight[places] += share
    if settings.divide_by_holders:
        total /= np.where(weight > 0, weight, 1.0)[:, None]
    return total, weight, refused


def _capped(changes: Float64, foreign: Bool, longest: float) -> Float64:
    lengths = np.linalg.norm(changes, axis=1)
    scale = np.where(foreign, np.minimum(1.0, longest / np.maximum(lengths, 1e-12)), 1.0)
    capped: Float64 = changes * scale[:, None]
    return capped
