"""The server's half of FedAwS: write the rows that came back, then push all rows apart (SPEC 2.1)."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation.algorithms.fedaws import state as kept
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedaws.state import SpreadMatrix
from uvsdk.federation.classes import matrix, neighbours, spreadout
from uvsdk.federation.strategy import Contribution, ServerAlgorithm
from uvsdk.records.codec import Scalar


def _task(state: SpreadMatrix, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    return Task(matrix.vector_for(state, user).astype(np.float32))


def _step(
    state: SpreadMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> SpreadMatrix:
    """One round. Rows are replaced, not averaged (S0 Alg 1 line 13), unless one user has several devices."""
    written = matrix.write(
        state, matrix.by_user((item.user, item.samples, item.payload.vector) for item in contributions)
    )
    rows = written.indices(item.user for item in contributions)
    lists = state.lists
    if settings.neighbours_index == "exact":
        lists = None
    elif lists is None:
        lists = neighbours.empty(len(written.users))
    options = settings.spreadout()
    for _ in range(settings.spread_steps):
        pairs = _pairs(len(written.users), rows, settings, rng)
        moved = rows if settings.moved == "participants" else None
        spread = spreadout.step(written.vectors, options, rng, pairs=pairs, moved=moved, lists=lists)
        written, lists = matrix.with_vectors(written, spread.vectors), spread.lists
    return kept.with_lists(written, lists)


def _pairs(count: int, rows: Int64, settings: Settings, rng: np.random.Generator) -> spreadout.Pairs:
    """All pairs, or those between the participants (C_t) and all classes or a random subset of them (C')."""
    if 0 < settings.candidates < count:
        return spreadout.Pairs(anchors=rows, candidates=rng.choice(count, settings.candidates, replace=False))
    return spreadout.Pairs(anchors=rows) if count > settings.exact_limit else spreadout.Pairs()


def _report(state: SpreadMatrix, settings: Settings) -> dict[str, Scalar]:
    """What the approximate search knows of itself; nothing where neighbours are sought exactly."""
    if state.lists is None:
        return {}
    return {"neighbours_recall": state.recall, "neighbours_searched": state.share}


SERVER = ServerAlgorithm(
    state=SpreadMatrix,
    settings=Settings,
    payload=Payload,
    needs=matrix.needs,
    empty=kept.empty,
    admit=kept.admit,
    remove=kept.remove,
    start=kept.start,
    users=matrix.users,
    task=_task,
    check=matrix.check_row,
    step=_step,
    class_matrix=matrix.class_matrix,
    report=_report,
)
