"""The server's half of FedALC-fixed: optimise the class vectors before training, send each once, never move them."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation.algorithms.fedalc_fixed import codebook
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload, Request, Settings, Task
from uvsdk.federation.algorithms.fedalc_fixed.request import digest
from uvsdk.federation.classes import labels, matrix
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import Contribution, ServerAlgorithm
from uvsdk.records.codec import Scalar


def _admit(state: LabelMatrix, admission: Admission, settings: Settings, rng: np.random.Generator) -> LabelMatrix:
    """Once training has started only the newcomer's row is optimised: the others' were sent and are frozen."""
    known = admission.user in state.users
    joined = labels.admit(state, admission, settings, rng)
    if not joined.started or known:
        return joined
    return _optimised(joined, settings, rng, moved=joined.indices([admission.user]))


def _start(state: LabelMatrix, settings: Settings, rng: np.random.Generator) -> LabelMatrix:
    if state.started:
        return state
    started = labels.start(state, settings, rng)
    counts = started.correlation(settings.smallest_shared)
    codebook.warn_of_inseparable(counts, started.linked(counts))
    return _optimised(started, settings, rng) if started.users else started


def _optimised(
    state: LabelMatrix, settings: Settings, rng: np.random.Generator, *, moved: Int64 | None = None
) -> LabelMatrix:
    target = codebook.objective(state.correlation(settings.smallest_shared), settings)
    return labels.with_vectors(state, codebook.optimised(state.vectors, target, settings, rng, moved=moved))


def _task(state: LabelMatrix, user: str, request: Request, settings: Settings, rng: np.random.Generator) -> Task:
    vector = matrix.vector_for(state, user).astype(np.float32)
    return Task(np.empty(0, np.float32) if request.held == digest(vector) else vector)


def _check(payload: Payload, state: LabelMatrix, user: str, settings: Settings) -> None:
    state.row(user)


def _step(
    state: LabelMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> LabelMatrix:
    took_part = [item.user for item in contributions]
    return labels.changed(state, lambda rows: matrix.write(rows, {}, took_part=took_part))


def _report(state: LabelMatrix, settings: Settings) -> dict[str, Scalar]:
    if not state.started:
        return {}
    counts = state.correlation(settings.smallest_shared)
    return {
        "instances": counts.instances,
        "correlated_pairs": len(counts.rows),
        "linked_pairs": state.linked(counts),
        "inseparable_pairs": int(counts.inseparable().sum()),
    }


SERVER = ServerAlgorithm(
    state=LabelMatrix,
    settings=Settings,
    payload=Payload,
    needs=labels.needs,
    empty=labels.empty,
    admit=_admit,
    remove=labels.remove,
    start=_start,
    users=matrix.users,
    task=_task,
    check=_check,
    step=_step,
    class_matrix=matrix.class_matrix,
    report=_report,
)
