"""The server's half of positives-only training: write the rows that came back, nothing else."""

from __future__ import annotations

import numpy as np

from uvsdk.federation.algorithms.positive_only.payload import Payload, Settings, Task
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.strategy import Contribution, ServerAlgorithm


def _task(state: ClassMatrix, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    return Task(matrix.vector_for(state, user).astype(np.float32))


def _step(
    state: ClassMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> ClassMatrix:
    return matrix.write(state, matrix.by_user((item.user, item.samples, item.payload.vector) for item in contributions))


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
    check=matrix.check_row,
    step=_step,
    class_matrix=matrix.class_matrix,
)
