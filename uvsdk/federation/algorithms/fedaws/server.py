"""The server's half of FedAwS: write the rows that came back, then push all rows apart (SPEC 2.1)."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation import classes, spreadout
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings, Task
from uvsdk.federation.classes import ClassMatrix
from uvsdk.federation.strategy import Contribution, ServerAlgorithm


def _task(state: ClassMatrix, user: str, settings: Settings) -> Task:
    return Task(classes.vector_for(state, user).astype(np.float32))


def _step(
    state: ClassMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> ClassMatrix:
    """One round. Rows are replaced, not averaged (S0 Alg 1 line 13), unless one user has several devices."""
    written = classes.write(
        state, classes.by_user((item.user, item.samples, item.payload.vector) for item in contributions)
    )
    rows = written.indices(item.user for item in contributions)
    for _ in range(settings.spread_steps):
        pairs = _pairs(written, rows, settings, rng)
        moved = rows if settings.moved == "participants" else None
        spread = spreadout.step(written.vectors, settings.spreadout(), rng, pairs=pairs, moved=moved)
        written = classes.with_vectors(written, spread.vectors)
    return written


def _pairs(state: ClassMatrix, rows: Int64, settings: Settings, rng: np.random.Generator) -> spreadout.Pairs:
    """All pairs, or those between the participants (C_t) and a random subset of the classes (C')."""
    count = len(state.users)
    if settings.candidates == 0 or settings.candidates >= count:
        return spreadout.Pairs()
    return spreadout.Pairs(anchors=rows, candidates=rng.choice(count, settings.candidates, replace=False))


SERVER = ServerAlgorithm(
    state=ClassMatrix,
    settings=Settings,
    payload=Payload,
    needs_mean=classes.needs_mean,
    empty=classes.empty,
    admit=classes.admit,
    remove=classes.remove,
    start=classes.start,
    task=_task,
    check=classes.check_row,
    step=_step,
    class_matrix=classes.matrix,
)
