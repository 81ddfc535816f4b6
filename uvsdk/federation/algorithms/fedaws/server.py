"""The server's side of FedAwS: write the rows that came back, then push all rows apart (SPEC 2.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings, Task
from uvsdk.federation.classes import matrix, neighbours, spreadout
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.classes.server import class_rows
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import Scalar


def _step(
    state: ClassMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> ClassMatrix:
    """One round. Rows are replaced, not averaged (S0 Alg 1 line 13), unless one user has several devices."""
    written = matrix.write_sent(state, contributions, settings, rng)
    rows, count = written.indices(item.user for item in contributions), len(written.users)
    lists = (state.lists or neighbours.empty(count)) if settings.neighbours_index == "approximate" and count else None
    options = settings.spreadout()
    for _ in range(settings.spread_steps):
        pairs = _pairs(count, rows, settings, rng)
        moved = rows if settings.moved == "participants" else None
        spread = spreadout.step(written.vectors, options, rng, pairs=pairs, moved=moved, lists=lists)
        written, lists = replace(written, vectors=spread.vectors), spread.lists
    return replace(written, lists=lists)


def _pairs(count: int, rows: Int64, settings: Settings, rng: np.random.Generator) -> spreadout.Pairs:
    """All pairs, or those between the participants (C_t) and all classes or a random subset of them (C')."""
    if 0 < settings.candidates < count:
        return spreadout.Pairs(anchors=rows, candidates=rng.choice(count, settings.candidates, replace=False))
    return spreadout.Pairs(anchors=rows) if count > settings.exact_limit else spreadout.Pairs()


def _report(state: ClassMatrix, settings: Settings) -> dict[str, Scalar]:
    """What the approximate search knows of itself; nothing where neighbours are sought exactly."""
    if state.lists is None:
        return {}
    return {"neighbours_recall": state.lists.recall, "neighbours_searched": state.lists.share}


SERVER = class_rows(Settings, Task, Payload, check=matrix.check_row, step=_step, report=_report)
