"""The server's half of training towards fixed class vectors: draw them once."""

from __future__ import annotations

import numpy as np

from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.strategy import Contribution, ServerAlgorithm


def _task(state: ClassMatrix, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    return Task(matrix.vector_for(state, user).astype(np.float32))


def _check(payload: Payload, state: ClassMatrix, user: str, settings: Settings) -> None:
    state.row(user)


def _step(
    state: ClassMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> ClassMatrix:
    return matrix.write(state, {}, took_part=[item.user for item in contributions])


SERVER = ServerAlgorithm(
    state=ClassMatrix,
    settings=Settings,
    payload=Payload,
    needs=matrix.needs,
    empty=matrix.empty,
    admit=matrix.admit,
    remove=matrix.remove,
    start=matrix.start,
    users=matrix.users,
    task=_task,
    check=_check,
    step=_step,
    class_matrix=matrix.class_matrix,
)
