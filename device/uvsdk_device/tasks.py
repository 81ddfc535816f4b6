"""What the server hands one device for one round: the algorithm's task, after a request where the device chooses.

A device decides what to ask for once in a round and keeps the decision before it is sent: the server holds it to the
first, and an interrupted round goes on with the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from uvsdk.arrays import Float32
from uvsdk.errors import SealError, WireError
from uvsdk.federation import streams
from uvsdk.federation.messages import Invitation, Request, RoundHeader, Task
from uvsdk.federation.round import Method, choose
from uvsdk.federation.strategy import Memory, Secret
from uvsdk.privacy.sealing import Envelope, seal
from uvsdk.records.codec import pack, unpack
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import Membership
from uvsdk_device.memory import MemoryRecord, RequestRecord, keep_memory, keep_request, read_memory, read_request

TASK_LIMIT = 64 << 20
"""Largest sealed task that is downloaded."""

_Message = TypeVar("_Message", Task, Invitation)


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """What the training of one round starts from, beside the model.

    Args:
        task: the algorithm's, packed.
        memory: what it kept on this device.
        control: float32 (P,), SCAFFOLD's c; ``None`` without control variates.
    """

    task: bytes
    memory: Memory
    control: Float32 | None = None


def fetch_task(member: Membership, header: RoundHeader, *, store: EncryptedStore, secret: Secret) -> TrainingStart:
    """This device's task, proven to be the server's and for this round, and the memory that goes with it.

    Raises:
        SealError: not signed by the server this device knows, for another device or round, or altered.
        WireError: not a task.
        UpdateRejectedError: an invitation that a device must not accept.
    """
    method = Method.of(member.deployment.config)
    path = f"/v1/rounds/{header.round_id}/task"
    if method.request is None:
        answer = member.connection.get(path, limit=TASK_LIMIT)
    else:
        request = _request(method, member, header, store, secret)
        answer = member.connection.post(path, _sealed(member, header, request), limit=TASK_LIMIT)
    task = _opened("task", Task, answer.body, member, header)
    return TrainingStart(task, read_memory(store, member.user_id, member.deployment))


def _request(method: Method, member: Membership, header: RoundHeader, store: EncryptedStore, secret: Secret) -> bytes:
    """What this device asks for in this round, packed; decided and kept the first time."""
    user_id, deployment = member.user_id, member.deployment
    decided = read_request(store, user_id, deployment, header.round_id)
    if decided is not None:
        return decided
    answer = member.connection.get(f"/v1/rounds/{header.round_id}/invitation", limit=TASK_LIMIT)
    invitation = _opened("invitation", Invitation, answer.body, member, header)
    rng, seed = np.random.default_rng(), method.config.seed
    if seed is not None:
        rng = streams.request_stream(seed, member.user, header.round_id)
    memory = read_memory(store, user_id, deployment)
    body, memory = choose(method, invitation, memory, rng=rng, secret=secret)
    # The memory goes first: asked again without the request, an algorithm chooses under the same key.
    keep_memory(store, user_id, deployment, MemoryRecord(header.round_id, dict(memory)))
    keep_request(store, user_id, deployment, RequestRecord(header.round_id, body))
    return body


def _sealed(member: Membership, header: RoundHeader, body: bytes) -> bytes:
    """A request, sealed to the round's server key."""
    binding = member.round_binding("request", header)
    recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
    message = pack(Request(header.round_id, header.algorithm, body))
    return seal([message], binding, recipient=recipient, signing_key=member.device.signing_key)


def _opened(message_type: str, kind: type[_Message], body: bytes, member: Membership, header: RoundHeader) -> bytes:
    """The algorithm's part of a message that the server sealed to this device for this round."""
    plain = open_sealed(body, member, Named(message_type, header.algorithm, header.model_version, header.round_id))
    message: Task | Invitation = unpack(kind, plain)
    if (message.round_id, message.algorithm) != (header.round_id, header.algorithm):
        raise WireError(f"the {message_type} inside the seal is of another round than the seal")
    return message.body


@dataclass(frozen=True, slots=True)
class Named:
    """What a sealed message must say of itself.

    Args:
        message_type: e.g. ``"task"``.
        algorithm: of the deployment.
        model_version: of the round, or under evaluation.
        number: of the round, or of the evaluation.
        place: which of the two, in words.
    """

    message_type: str
    algorithm: str
    model_version: str
    number: int
    place: str = "round"


def open_sealed(body: bytes, member: Membership, named: Named) -> bytes:
    """What the server sealed to this device, for exactly this purpose.

    Raises:
        SealError: not signed by the server this device knows, for another device or purpose, or altered.
    """
    envelope = Envelope.parse(body)
    envelope.verify(member.deployment.server_signing_key)
    binding = envelope.binding
    found = (binding.deployment, binding.direction, binding.message_type, binding.algorithm, binding.model_version)
    expected = (member.deployment.name, "down", named.message_type, named.algorithm, named.model_version)
    if found != expected or binding.round_id != named.number:
        raise SealError(
            f"the sealed message is a {binding.message_type} of {named.place} {binding.round_id}, not the "
            f"{named.message_type} of {named.place} {named.number}"
        )
    return b"".join(envelope.open(member.device.sealing_key))
