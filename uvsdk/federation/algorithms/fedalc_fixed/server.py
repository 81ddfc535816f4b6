"""The server's side of FedALC-fixed: optimise the class vectors before training, send each once, never move them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation.algorithms.fedalc_fixed import codebook
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload, Request, Settings, Task
from uvsdk.federation.algorithms.fedalc_fixed.request import digest
from uvsdk.federation.classes import labels, matrix
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.classes.server import labelled_rows
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import Scalar


def _admit(state: LabelMatrix, admission: Admission, settings: Settings, rng: np.random.Generator) -> LabelMatrix:
    """Once training has started only the newcomer's row is optimised: the others' were sent and are frozen."""
    known = admission.user in state.rows.users
    joined = labels.admit(state, admission, settings, rng)
    if not joined.rows.started or known:
        return joined
    return _optimised(joined, settings, rng, moved=joined.rows.indices([admission.user]))


def _start(state: LabelMatrix, settings: Settings, rng: np.random.Generator) -> LabelMatrix:
    if state.rows.started:
        return state
    started = labels.start(state, settings, rng)
    counts = started.correlation(settings.smallest_shared)
    codebook.warn_of_inseparable(counts, started.count_linked(counts))
    return _optimised(started, settings, rng) if started.rows.users else started


def _optimised(
    state: LabelMatrix, settings: Settings, rng: np.random.Generator, *, moved: Int64 | None = None
) -> LabelMatrix:
    target = codebook.objective(state.correlation(settings.smallest_shared), settings)
    vectors = codebook.optimise(state.rows.vectors, target, settings=settings, rng=rng, moved=moved)
    return replace(state, rows=replace(state.rows, vectors=vectors))


def _task(state: LabelMatrix, user: str, request: Request, settings: Settings, rng: np.random.Generator) -> Task:
    vector = matrix.vector_for(state.rows, user).astype(np.float32)
    return Task(np.empty(0, np.float32) if request.held == digest(vector) else vector)


def _step(
    state: LabelMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> LabelMatrix:
    return replace(state, rows=matrix.count_round(state.rows, contributions, settings, rng))


def _report(state: LabelMatrix, settings: Settings) -> dict[str, Scalar]:
    if not state.rows.started:
        return {}
    counts = state.correlation(settings.smallest_shared)
    return {
        "instances": counts.instances,
        "correlated_pairs": len(counts.rows),
        "linked_pairs": state.count_linked(counts),
        "inseparable_pairs": int(counts.inseparable().sum()),
    }


SERVER = replace(
    labelled_rows(Settings, Task, Payload, check=matrix.check_user, step=_step, report=_report),
    admit=_admit,
    start=_start,
    task=_task,
)
