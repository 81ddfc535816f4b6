"""One device's part in one round, from the header to the queue.

Nothing here decides whether to take part: :mod:`uvsdk_device.federation` does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, UnapprovedConfigError, UpdateRejectedError, WireError
from uvsdk.federation import controls, streams
from uvsdk.federation.messages import RoundHeader, UpdateHead
from uvsdk.federation.statements import verify_statement
from uvsdk.privacy.sealing import CHUNK_BYTES, seal_and_digest
from uvsdk.records.codec import pack, unpack
from uvsdk.training.participation import Trainer, TrainingJob, TrainingResult
from uvsdk_device.connection import Object
from uvsdk_device.deployment import key_bytes, number, signature_bytes, text, validity_of
from uvsdk_device.frozen_views import frozen_views
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import Membership
from uvsdk_device.memory import MemoryRecord, keep_memory, read_memory
from uvsdk_device.queue import QueueItem, UploadQueue
from uvsdk_device.tasks import TrainingStart
from uvsdk_device.trained import note_trained


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What became of one round on this device.

    Args:
        round_id: the round.
        model_version: the model it started from.
        state: ``uploaded`` (the server has the update), ``refused`` (by the server, or by a guard here) or
            ``queued`` (kept until the server answers).
        samples: enrolment samples behind the update, 0 where none was made.
        loss: of the last local step, NaN where none was made.
        train_s: seconds of training.
        detail: in words, why not ``uploaded``.
    """

    round_id: int
    model_version: str
    state: Literal["uploaded", "refused", "queued"]
    samples: int = 0
    loss: float = float("nan")
    train_s: float = 0.0
    detail: str = ""


def read_header(values: Object, signing_key: Ed25519PublicKey, *, now: float) -> RoundHeader:
    """The JSON of ``GET /v1/rounds/current``, at the time ``now``.

    Raises:
        WireError: not a round's header.
        SealError: the server that owns ``signing_key`` never said so, or too long ago.
    """
    header = RoundHeader(
        deployment=text(values, "deployment"),
        algorithm=text(values, "algorithm"),
        round_id=positive(values, "round_id"),
        model_version=text(values, "model_version"),
        config_digest=text(values, "config_digest"),
        deadline_unix_s=number(values, "deadline_unix_s"),
        server_key_id=text(values, "server_key_id"),
        server_public_key=key_bytes(values, "server_public_key"),
        cohort=positive(values, "cohort"),
        clip_norm=number(values, "clip_norm"),
    )
    verify_statement(header, validity_of(values), signature_bytes(values), signing_key, now=now)
    if not header.clip_norm > 0:
        raise WireError(f"the round announces {header.clip_norm:g} as the longest update that counts; it is positive")
    return header


def check_header(header: RoundHeader, member: Membership) -> None:
    """Refuse a round that is not what the owner of this device agreed to (SPEC Appendix A).

    Raises:
        UnapprovedConfigError: another deployment, algorithm or configuration, or a cohort below the quorum, whose
            aggregate would show single updates.
    """
    config = member.deployment.config
    agreed = (member.deployment.name, config.algorithm, config.digest())
    if (header.deployment, header.algorithm, header.config_digest) != agreed:
        raise UnapprovedConfigError(
            f"round {header.round_id} runs {header.algorithm} under the configuration {header.config_digest[:16]}, "
            f"approved is {config.algorithm} under {agreed[2][:16]}"
        )
    if header.cohort < config.quorum(header.cohort):
        raise UnapprovedConfigError(
            f"round {header.round_id} has a cohort of {header.cohort}, fewer than the {config.quorum(header.cohort)} "
            "whose updates may be averaged"
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """A result and the seconds it took."""

    result: TrainingResult
    train_s: float


def train(
    trainer: Trainer,
    member: Membership,
    *,
    header: RoundHeader,
    bundle: Bundle,
    assigned: TrainingStart,
    store: EncryptedStore,
) -> Trained:
    """Train on this device's features; reproducibly where the configuration has a seed.

    Of a model that is trained in part, what the frozen part makes of the features is kept, encrypted, between rounds.
    Before anything can leave, the store knows which samples the models to come were trained on.

    Raises:
        UpdateRejectedError: a result that is not finite or misfits.
        BundleError: of the model another part is trained than the approved configuration says.
    """
    config, manifest = member.deployment.config, bundle.manifest
    if manifest.train != config.train:
        raise BundleError(
            f"of the server's model {manifest.train!r} is trained, the approved configuration trains {config.train!r}; "
            "nothing is sent. The operator must serve the model that the configuration is for"
        )
    features = store.features(member.user_id)
    frozen = None
    if manifest.train != "all":
        frozen = frozen_views(store, member.user_id, deployment=member.deployment, features=features, bundle=bundle)
    job = TrainingJob(
        config=config,
        manifest=manifest,
        round_id=header.round_id,
        theta=bundle.theta,
        features=features,
        task=assigned.task,
        memory=assigned.memory,
        control=assigned.control,
        clip_norm=header.clip_norm,
        frozen=frozen,
    )
    seed = config.seed
    rng = np.random.default_rng() if seed is None else streams.device_stream(seed, member.user, header.round_id)
    start = time.perf_counter()
    result = trainer.train(job, rng)
    train_s = time.perf_counter() - start
    if result.delta.shape != bundle.theta.shape or result.delta.dtype != np.float32:
        raise UpdateRejectedError(
            f"training gave a delta {result.delta.dtype} {result.delta.shape}, expected float32 {bundle.theta.shape}"
        )
    if not np.isfinite(result.delta).all():
        raise UpdateRejectedError("training gave values that are not finite; nothing is sent. Lower the learning rate")
    note_trained(store, member.user_id, features, model_version=header.model_version)
    return Trained(result, train_s)


def enqueue(
    queue: UploadQueue, member: Membership, *, header: RoundHeader, result: TrainingResult, store: EncryptedStore
) -> QueueItem:
    """Seal the update to the round's server key and queue it; the new memory travels in its note.

    What the algorithm itself keeps is kept before anything leaves the device: a server that reads an update and then
    refuses it would otherwise make the device draw another secret for the next, and learn from the difference.
    """
    drawn = {key: value for key, value in result.memory.items() if key != controls.KEPT}
    former = read_memory(store, member.user_id, member.deployment)
    drawn |= {key: former[key] for key in (controls.KEPT,) if key in former}
    keep_memory(store, member.user_id, member.deployment, MemoryRecord(header.round_id, drawn))
    head = UpdateHead(
        header.round_id, header.algorithm, header.model_version, result.samples, len(result.delta), result.payload
    )
    binding = member.round_binding("update", header)
    recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
    chunks: list[bytes | memoryview] = [pack(head), *_slices(result.delta)]
    envelope, sha256 = seal_and_digest(chunks, binding, recipient=recipient, signing_key=member.device.signing_key)
    note = pack(MemoryRecord(header.round_id, dict(result.memory)))
    endpoint = f"/v1/rounds/{header.round_id}/update"
    return queue.put(endpoint, envelope, sha256=sha256, round_id=header.round_id, note=note)


def acknowledge(store: EncryptedStore, member: Membership, item: QueueItem) -> None:
    """Keep the memory of an update that the server has acknowledged; a report leaves nothing to keep."""
    if not item.note:
        return
    keep_memory(store, member.user_id, member.deployment, unpack(MemoryRecord, item.note))


def positive(values: Object, field: str) -> int:
    """A whole number above 0 of a header. Raises ``WireError``."""
    value = values.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WireError(f"the header lacks the positive whole number {field!r}")
    return value


def _slices(delta: Float32) -> list[memoryview]:
    data = np.ascontiguousarray(delta, np.dtype("<f4")).data.cast("B")
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
