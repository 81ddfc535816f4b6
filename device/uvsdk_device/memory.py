"""What an algorithm keeps on this device between rounds, encrypted: a secret, a frozen offset, SCAFFOLD's c_i.

It is kept for each user and each server apart. What an algorithm keeps is written before the request or the update it
belongs to is sent, so that a secret outlives interruptions and refusals; c_i once the server has acknowledged the
update, for the server's c counts accepted updates only.
"""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Array
from uvsdk.federation.strategy import Memory
from uvsdk.records.codec import pack, unpack
from uvsdk_device.deployment import Deployment
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.trained import MEMORY as _MEMORY

_REQUEST = "request"


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """What the algorithm keeps on this device, and since which round."""

    round_id: int
    arrays: dict[str, Array]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What this device asks for in one round: the algorithm's request, packed."""

    round_id: int
    body: bytes


def read_memory(store: EncryptedStore, user_id: str, deployment: Deployment) -> Memory:
    """What was kept last; empty the first time."""
    record = _memory(store, user_id, deployment)
    return {} if record is None else record.arrays


def keep_memory(store: EncryptedStore, user_id: str, deployment: Deployment, record: MemoryRecord) -> None:
    """Keep what a round left; an older round never replaces a newer."""
    with store.lock():
        kept = _memory(store, user_id, deployment)
        if kept is None or kept.round_id <= record.round_id:
            store.put(_MEMORY, [pack(record)], name=deployment.identity, user=user_id)


def read_request(store: EncryptedStore, user_id: str, deployment: Deployment, round_id: int) -> bytes | None:
    """What this device has decided to ask for in that round, ``None`` where it has not decided yet."""
    try:
        (data,) = store.get(_REQUEST, name=deployment.identity, user=user_id)
    except KeyError:
        return None
    record = unpack(RequestRecord, data)
    return record.body if record.round_id == round_id else None


def keep_request(store: EncryptedStore, user_id: str, deployment: Deployment, record: RequestRecord) -> None:
    """Keep the newest request; an interrupted round asks for the same again."""
    store.put(_REQUEST, [pack(record)], name=deployment.identity, user=user_id)


def forget_memory(store: EncryptedStore, user_id: str, deployment: Deployment) -> None:
    """Drop all of it."""
    for purpose in (_REQUEST, _MEMORY):
        store.drop(purpose, name=deployment.identity, user=user_id)


def _memory(store: EncryptedStore, user_id: str, deployment: Deployment) -> MemoryRecord | None:
    try:
        (data,) = store.get(_MEMORY, name=deployment.identity, user=user_id)
    except KeyError:
        return None
    return unpack(MemoryRecord, data)
