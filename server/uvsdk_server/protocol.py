"""What the server tells devices of a round, hands them sealed and signed, and takes of those who join."""

from __future__ import annotations

import numpy as np

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.messages import Admission, EvaluationHeader, Invitation, RoundHeader, Task
from uvsdk.federation.round import assign, invite
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON
from uvsdk.privacy.sealing import CHUNK_BYTES, Binding, new_nonce, seal
from uvsdk.records.codec import pack
from uvsdk.release.report import EvaluationTask
from uvsdk_server.keys import KeyRing
from uvsdk_server.people import Device
from uvsdk_server.store.rows import EvaluationRow, Round
from uvsdk_server.training import Training

SERVER_SENDER = "server"
"""The server's name for itself in what it seals."""

_HASH_BYTES = 32
_MOST_INSTANCES, _MOST_CLASSES, _LONGEST_NAME = 10_000, 1_000, 200
"""What one admission may hold: each class is a row that the server keeps and every device may be sent."""


def header(training: Training, row: Round, keys: KeyRing) -> RoundHeader:
    """What devices are told of a round that collects."""
    assert row.deadline is not None  # since it collects
    return RoundHeader(
        deployment=training.config.deployment,
        algorithm=training.config.algorithm,
        round_id=row.round_id,
        model_version=row.model_version,
        config_digest=row.config_digest,
        deadline_unix_s=row.deadline,
        server_key_id=row.server_key_id,
        server_public_key=keys.public(row.server_key_id),
        cohort=row.cohort,
        clip_norm=training.clip_norm(row.clip_norm),
    )


def invitation(training: Training, device: Device, row: Round, keys: KeyRing) -> bytes:
    """What one device may choose from, sealed to it; only where the algorithm has requests."""
    body = invite(training.method, training.state, device.user)
    assert body is not None
    message = Invitation(row.round_id, training.config.algorithm, body)
    return _sealed("invitation", pack(message), training, device, row, keys)


def task(training: Training, device: Device, row: Round, keys: KeyRing, *, request: bytes | None) -> bytes:
    """The algorithm's task for one device, sealed to it.

    The same request in the same round gives the same task: its random numbers are a function of round and user.

    Args:
        training: its state.
        device: whose.
        row: the round.
        keys: the server's.
        request: what the device asks for, packed by its algorithm; ``None`` where it asks for nothing.

    Raises:
        UpdateRejectedError, UnknownNameError: the algorithm refuses it; of a request it may say what was asked for.
        WireError: the request is none of this algorithm's.
    """
    body = assign(training.method, training.state, device.user, request=request, seed=int(row.seed))
    message = Task(row.round_id, training.config.algorithm, body)
    return _sealed("task", pack(message), training, device, row, keys)


def evaluation_header(training: Training, row: EvaluationRow, keys: KeyRing) -> EvaluationHeader:
    """What devices are told of an evaluation that collects."""
    assert row.deadline is not None  # since it collects
    return EvaluationHeader(
        deployment=training.config.deployment,
        algorithm=training.config.algorithm,
        evaluation_id=row.evaluation_id,
        candidate=row.candidate,
        released=row.released,
        impostors=row.impostors,
        config_digest=row.config_digest,
        deadline_unix_s=row.deadline,
        server_key_id=row.server_key_id,
        server_public_key=keys.public(row.server_key_id),
        asked=row.asked,
    )


def evaluation_task(
    training: Training, device: Device, row: EvaluationRow, keys: KeyRing, task: EvaluationTask
) -> bytes:
    """What one device is asked in an evaluation, sealed to it."""
    message = memoryview(pack(task))
    chunks = [message[start : start + CHUNK_BYTES] for start in range(0, len(message), CHUNK_BYTES)]
    place = (row.evaluation_id, row.candidate)
    binding = _binding("evaluation-task", training, device, *place)
    return seal(chunks, binding, recipient=device.sealing_key, signing_key=keys.signing)


def check_admission(training: Training, admission: Admission) -> None:
    """Raise ``UpdateRejectedError`` unless the algorithm takes that admission; the state stays as it is.

    What was not asked for is refused rather than dropped, so that a device which sends too much hears of it.
    """
    needs = training.needs
    unasked = [
        name
        for name, sent, wanted in (
            ("mean", admission.mean.size > 0, MEAN in needs),
            ("instances", admission.instances.size > 0, INSTANCES in needs or EMBEDDED in needs),
            ("person", bool(admission.person), PERSON in needs),
        )
        if sent and not wanted
    ]
    if unasked:
        raise UpdateRejectedError(f"this deployment asks for no {' or '.join(unasked)}; send none")
    if len(admission.person) > _LONGEST_NAME or len(admission.instances) > _MOST_INSTANCES:
        raise UpdateRejectedError(
            f"a link of at most {_LONGEST_NAME} characters and {_MOST_INSTANCES} instances are taken of one device"
        )
    if len(admission.classes) > _MOST_CLASSES or any(len(name) > _LONGEST_NAME for name in admission.classes):
        raise UpdateRejectedError(
            f"at most {_MOST_CLASSES} classes with names of at most {_LONGEST_NAME} characters are taken"
        )
    if admission.instances.ndim != 2 or admission.instances.shape[1] != _HASH_BYTES:
        raise UpdateRejectedError(
            f"instances have shape {admission.instances.shape}, expected rows of {_HASH_BYTES} bytes"
        )
    training.method.server.admit(training.state, admission, training.method.settings, np.random.default_rng(0))


def _sealed(message_type: str, message: bytes, training: Training, device: Device, row: Round, keys: KeyRing) -> bytes:
    binding = _binding(message_type, training, device, row.round_id, row.model_version)
    return seal([message], binding, recipient=device.sealing_key, signing_key=keys.signing)


def _binding(message_type: str, training: Training, device: Device, round_id: int, model_version: str) -> Binding:
    return Binding(
        deployment=training.config.deployment,
        direction="down",
        message_type=message_type,
        algorithm=training.config.algorithm,
        round_id=round_id,
        model_version=model_version,
        sender=SERVER_SENDER,
        recipient_key_id=device.device_id,
        nonce=new_nonce(),
    )
