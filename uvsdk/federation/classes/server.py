"""The server's side that the methods with a class matrix share; what is left to each is its step.

The twin of :func:`uvsdk.federation.classes.client.positive_hinge`: devices are sent their own row each round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.federation.classes import labels, matrix
from uvsdk.federation.classes.labels import LabelMatrix, LabelSettings
from uvsdk.federation.classes.matrix import ClassMatrix, RowSettings
from uvsdk.federation.strategy import Contribution, ServerAlgorithm, nothing_to_report
from uvsdk.records.codec import Scalar

Settings = TypeVar("Settings", bound=RowSettings)
Labelled = TypeVar("Labelled", bound=LabelSettings)
Task = TypeVar("Task")
Payload = TypeVar("Payload")


def class_rows(
    settings: type[Settings],
    task: Callable[[Float32], Task],
    payload: type[Payload],
    *,
    check: Callable[[Payload, ClassMatrix, str, Settings], None],
    step: Callable[[ClassMatrix, tuple[Contribution[Payload], ...], Settings, np.random.Generator], ClassMatrix],
    report: Callable[[ClassMatrix, Settings], Mapping[str, Scalar]] = nothing_to_report,
) -> ServerAlgorithm[ClassMatrix, Settings, Task, Payload]:
    """The server's side of an algorithm that keeps a class matrix and nothing beside it.

    Args:
        settings: its settings.
        task: makes what a device is sent of its row, float32 (d,).
        payload: what a device sends.
        check: of what a device sent, :func:`matrix.check_row` where it is the row.
        step: of a round.
        report: what an operator should know.
    """
    return ServerAlgorithm(
        state=ClassMatrix,
        settings=settings,
        payload=payload,
        needs=matrix.needs,
        empty=matrix.empty,
        admit=matrix.admit,
        remove=matrix.remove,
        start=matrix.start,
        users=lambda state: state.users,
        task=lambda state, user, request, settings, rng: task(matrix.vector_for(state, user).astype(np.float32)),
        check=check,
        step=step,
        class_matrix=matrix.class_matrix,
        report=report,
    )


def labelled_rows(
    settings: type[Labelled],
    task: Callable[[Float32], Task],
    payload: type[Payload],
    *,
    check: Callable[[Payload, ClassMatrix, str, Labelled], None],
    step: Callable[[LabelMatrix, tuple[Contribution[Payload], ...], Labelled, np.random.Generator], LabelMatrix],
    report: Callable[[LabelMatrix, Labelled], Mapping[str, Scalar]],
) -> ServerAlgorithm[LabelMatrix, Labelled, Task, Payload]:
    """:func:`class_rows` for an algorithm that keeps label sets beside the rows; arguments as there."""
    return ServerAlgorithm(
        state=LabelMatrix,
        settings=settings,
        payload=payload,
        needs=labels.needs,
        empty=labels.empty,
        admit=labels.admit,
        remove=labels.remove,
        start=labels.start,
        users=lambda state: state.rows.users,
        task=lambda state, user, request, settings, rng: task(matrix.vector_for(state.rows, user).astype(np.float32)),
        check=lambda payload, state, user, settings: check(payload, state.rows, user, settings),
        step=step,
        class_matrix=lambda state: matrix.class_matrix(state.rows),
        report=report,
    )
