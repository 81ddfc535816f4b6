"""One device's part in an evaluation: what it says of a model by its own stored enrolment, in place of training.

Nothing of it is learned from, and nothing but what can be summed leaves the device (:mod:`uvsdk.release.report`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, UnapprovedConfigError, UpdateRejectedError, WireError
from uvsdk.federation.messages import EvaluationHeader
from uvsdk.federation.round import Method
from uvsdk.federation.statements import verify_statement
from uvsdk.privacy.sealing import CHUNK_BYTES, seal_and_digest
from uvsdk.records.codec import pack, unpack
from uvsdk.release.acceptance import objection
from uvsdk.release.cohort import check_rows
from uvsdk.release.report import EvaluationReport, EvaluationTask, Impostors, ModelReport, report_on
from uvsdk.scoring.cells import cells_of, cells_of_enrolment, names
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import UNKNOWN, Conditions
from uvsdk.scoring.plausibility import check_centre
from uvsdk_device.connection import Object
from uvsdk_device.deployment import key_bytes, number, signature_bytes, text, validity_of
from uvsdk_device.membership import Membership
from uvsdk_device.queue import QueueItem, UploadQueue
from uvsdk_device.reembedding import embeddings, is_learnt
from uvsdk_device.rounds import positive
from uvsdk_device.tasks import TASK_LIMIT, Named, open_sealed

NOT_TRIED, DECLINES, ACCEPTS = -1, 0, 1


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """What became of one evaluation on this device.

    Args:
        evaluation_id: the evaluation.
        candidate: model version that was evaluated.
        state: ``uploaded`` (the server has the report), ``refused`` (by the server, or by a guard here) or ``queued``
            (kept until the server answers).
        samples: enrolment samples behind the report, 0 where none was made.
        seconds: of embedding and counting.
        detail: in words, why not ``uploaded``.
    """

    evaluation_id: int
    candidate: str
    state: Literal["uploaded", "refused", "queued"]
    samples: int = 0
    seconds: float = 0.0
    detail: str = ""


def read_evaluation(values: Object, signing_key: Ed25519PublicKey, *, now: float) -> EvaluationHeader:
    """The JSON of ``GET /v1/evaluations/current``, at the time ``now``.

    Raises:
        WireError: not an evaluation's header.
        SealError: the server that owns ``signing_key`` never said so, or too long ago.
    """
    header = EvaluationHeader(
        deployment=text(values, "deployment"),
        algorithm=text(values, "algorithm"),
        evaluation_id=positive(values, "evaluation_id"),
        candidate=text(values, "candidate"),
        released=text(values, "released"),
        impostors=text(values, "impostors"),
        config_digest=text(values, "config_digest"),
        deadline_unix_s=number(values, "deadline_unix_s"),
        server_key_id=text(values, "server_key_id"),
        server_public_key=key_bytes(values, "server_public_key"),
        asked=positive(values, "asked"),
    )
    verify_statement(header, validity_of(values), signature_bytes(values), signing_key, now=now)
    return header


def check_evaluation(header: EvaluationHeader, member: Membership) -> Impostors:
    """Refuse an evaluation that is not what the owner of this device agreed to; gives where impostors come from.

    Raises:
        UnapprovedConfigError: another deployment, algorithm or configuration, or a kind of report that the approved
            configuration does not name.
    """
    config = member.deployment.config
    agreed = (member.deployment.name, config.algorithm, config.digest())
    if (header.deployment, header.algorithm, header.config_digest) != agreed:
        raise UnapprovedConfigError(
            f"evaluation {header.evaluation_id} is of {header.algorithm} under the configuration "
            f"{header.config_digest[:16]}, approved is {config.algorithm} under {agreed[2][:16]}"
        )
    approved = Method.of(config).impostors
    if approved == "off" or header.impostors != approved:
        raise UnapprovedConfigError(
            f"evaluation {header.evaluation_id} asks for a report by {header.impostors!r}; under the approved "
            f"configuration that is {approved!r}"
        )
    return approved


def fetch_evaluation_task(member: Membership, header: EvaluationHeader) -> EvaluationTask:
    """What this device is asked, proven to be the server's and of this evaluation.

    Raises:
        SealError: not signed by the server this device knows, for another device or evaluation, or altered.
        WireError: not a task.
        UnapprovedConfigError: a second report is asked for, which the approved configuration does not have.
    """
    answer = member.connection.get(f"/v1/evaluations/{header.evaluation_id}/task", limit=TASK_LIMIT)
    wanted = Named("evaluation-task", header.algorithm, header.candidate, header.evaluation_id, "evaluation")
    task = unpack(EvaluationTask, open_sealed(answer.body, member, wanted))
    named = (task.evaluation_id, task.candidate, task.released, task.impostors)
    if named != (header.evaluation_id, header.candidate, header.released, header.impostors):
        raise WireError("the task inside the seal is of another evaluation than the seal")
    if len(task.centre) and member.deployment.config.centring != "measured":
        raise UnapprovedConfigError(
            f"evaluation {header.evaluation_id} asks for a second report, without a centre; the approved configuration "
            "has none (centring)"
        )
    return task


@dataclass(frozen=True, slots=True)
class Answer:
    """A report, and the seconds it took."""

    report: EvaluationReport
    seconds: float


def answer(
    task: EvaluationTask,
    impostors: Impostors,
    *,
    features: Sequence[Array],
    candidate: Bundle,
    released: Bundle,
    conditions: Conditions = UNKNOWN,
    each: Sequence[Conditions] = (),
    fmr: float | None = None,
    trained: Array | None = None,
) -> Answer:
    """Embed the stored enrolment under both models, and count.

    Args:
        task: what the server asks.
        impostors: where they come from, checked against what was agreed.
        features: what the store kept of the enrolment.
        candidate: the model under evaluation.
        released: what verifies now; the same where only that is evaluated.
        conditions: of the enrolment, as its template tells them.
        each: of each of its samples; empty where the store has none, and the averages stand for all.
        fmr: the owner's false match rate, for the acceptance test; ``None`` for the model's default.
        trained: float32 (d,), unit, what an algorithm trained the owner towards
            (:data:`uvsdk.federation.strategy.TEMPLATE`), which is verified against in place of the mean once a model
            has learnt it. Which of the two it will be depends on the threshold that comes of this, so it counts as
            learnt here only where the owner's samples lie above every stranger of the cohort: against a vector that
            nobody is verified by, strangers' scores would be far too low.

    Raises:
        UpdateRejectedError: a model gives what is no embedding, or a cohort or a centre was sent that is none.
    """
    start = time.perf_counter()
    rows = _rows(features, candidate)
    divisions = modality.get(candidate.manifest.modality).cells
    if len(each) == len(features):
        places = [cells_of(item, divisions) for item in each]
    else:
        places = [cells_of_enrolment(conditions, len(features), divisions)] * len(features)
    own = _Own(trained, len(names(divisions)), places)
    of_candidate = _report(rows, task, impostors, candidate.version, task.cohort, own)
    accepts = NOT_TRIED
    if candidate.calibration is not None:
        accepts = DECLINES if objection(rows, task.cohort, candidate.calibration, fmr=fmr) else ACCEPTS
    others: tuple[ModelReport, ...] = ()
    strangers = task.cohort
    if task.released != task.candidate:
        rows, strangers = _rows(features, released), task.released_cohort
        others = (_report(rows, task, impostors, released.version, strangers, own),)
    centred: tuple[ModelReport, ...] = ()
    if len(task.centre):
        centring = _centring(task.centre, rows.shape[1])
        centred = (_report(rows, task, impostors, released.version, strangers, own, centring),)
    report = EvaluationReport(task.evaluation_id, of_candidate, others, len(features), accepts, centred)
    return Answer(report, time.perf_counter() - start)


def _rows(features: Sequence[Array], bundle: Bundle) -> Float32:
    rows = embeddings(features, bundle)
    if not (np.isfinite(rows).all() and np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)):
        raise UpdateRejectedError(f"the model {bundle.version[:12]} gives what is no embedding; nothing is sent")
    return rows


@dataclass(frozen=True, slots=True)
class _Own:
    """What is the same under either model: what the owner was trained towards, how many cells of conditions there are,
    and in which each sample lies."""

    trained: Array | None
    cells: int
    cells_of: Sequence[tuple[int, ...]]


def _centring(centre: Float32, dimension: int) -> Compensation:
    """Of what the server sent; refused where it cannot be a mean of embeddings."""
    try:
        check_centre(centre)
    except BundleError as error:
        raise UpdateRejectedError(f"the server's centre is refused: {error}") from error
    if len(centre) != dimension:
        raise UpdateRejectedError(f"the server sent a centre of shape {centre.shape}, the model gives {dimension}")
    return Compensation.centring(centre)


def _report(
    rows: Float32,
    task: EvaluationTask,
    impostors: Impostors,
    version: str,
    strangers: Float32,
    own: _Own,
    centring: Compensation | None = None,
) -> ModelReport:
    template = None
    if impostors == "cohort":
        _check_cohort(strangers, rows.shape[1])
        if own.trained is not None and own.trained.shape == rows.shape[1:]:
            vector = own.trained.astype(np.float32)
            if is_learnt(vector, rows, float((strangers @ vector).max())):
                template = vector.astype(np.float64)
    return report_on(
        rows,
        model_version=version,
        impostors=impostors,
        evaluates=task.evaluates,
        strangers=strangers,
        cells=own.cells,
        cells_of=own.cells_of,
        template=template,
        centring=centring,
    )


def _check_cohort(strangers: Float32, dimension: int) -> None:
    try:
        check_rows(strangers)
    except BundleError as error:
        raise UpdateRejectedError(f"the server's cohort is refused: {error}") from error
    if strangers.shape[1] != dimension:
        raise UpdateRejectedError(f"the server sent a cohort of shape {strangers.shape}, the model gives {dimension}")


def enqueue_report(
    queue: UploadQueue, member: Membership, *, header: EvaluationHeader, report: EvaluationReport
) -> QueueItem:
    """Seal a report to the evaluation's server key and queue it; there is nothing to keep once it has arrived."""
    binding = member.binding(
        "evaluation-report",
        round_id=header.evaluation_id,
        model_version=header.candidate,
        algorithm=header.algorithm,
        key_id=header.server_key_id,
    )
    recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
    message = memoryview(pack(report))
    chunks = [message[start : start + CHUNK_BYTES] for start in range(0, len(message), CHUNK_BYTES)]
    envelope, sha256 = seal_and_digest(chunks, binding, recipient=recipient, signing_key=member.device.signing_key)
    return queue.put(endpoint_of(header), envelope, sha256=sha256)


def endpoint_of(header: EvaluationHeader) -> str:
    """Where the report of an evaluation goes."""
    return f"/v1/evaluations/{header.evaluation_id}/report"
