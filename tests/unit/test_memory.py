"""What an algorithm keeps on a device: when it is written, and that it goes when the server forgets the user."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.builders import open_store
from uvsdk.bundle import shipped
from uvsdk.federation import controls
from uvsdk.federation.messages import RoundHeader, TrainingConfig
from uvsdk.templates.template import Template
from uvsdk.training.participation import TrainingResult
from uvsdk_device import EncryptedStore
from uvsdk_device.connection import Connection
from uvsdk_device.deployment import Deployment
from uvsdk_device.membership import Device, Membership, resign
from uvsdk_device.memory import (
    MemoryRecord,
    RequestRecord,
    keep_memory,
    keep_request,
    read_memory,
    read_request,
)
from uvsdk_device.queue import UploadQueue
from uvsdk_device.rounds import acknowledge, enqueue

USER = "ada"
SERVER = X25519PrivateKey.generate()


@pytest.fixture
def store(tmp_path: Path) -> EncryptedStore:
    found = open_store(tmp_path)
    vector = np.eye(shipped().manifest.dimension, dtype=np.float32)[0]
    found.save_enrolment(
        USER, Template(vector, shipped().version, "handwriting", 3), [np.zeros((8, 8), np.float32)] * 3
    )
    return found


@pytest.fixture
def member() -> Membership:
    deployment = Deployment(
        name="clinic",
        config=TrainingConfig("clinic", "handwriting", "digits-cnn", "fedmetric"),
        server_key_id="k" * 32,
        server_public_key=SERVER.public_key(),
        server_signing_key=Ed25519PrivateKey.generate().public_key(),
        model_version="m" * 64,
        modality="handwriting",
        needs=("person",),
        edge_only=True,
    )
    device = Device(Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), True, True)
    connection: Any = SimpleNamespace()
    assert not isinstance(connection, Connection)
    return Membership(USER, "a" * 64, device, deployment, connection)


def header(round_id: int) -> RoundHeader:
    key = SERVER.public_key().public_bytes_raw()
    return RoundHeader("clinic", "fedmetric", round_id, "m" * 64, "c" * 64, 0.0, "k" * 32, key, 3, 1.0)


def record(round_id: int, **values: float) -> MemoryRecord:
    return MemoryRecord(round_id, {key: np.array([value]) for key, value in values.items()})


def test_an_older_round_never_replaces_a_newer(store: EncryptedStore, member: Membership) -> None:
    deployment = member.deployment
    assert read_memory(store, USER, deployment) == {}
    keep_memory(store, USER, deployment, record(3, offset=3.0))
    keep_memory(store, USER, deployment, record(2, offset=2.0))
    assert read_memory(store, USER, deployment)["offset"].tolist() == [3.0]
    keep_memory(store, USER, deployment, record(3, offset=4.0))
    assert read_memory(store, USER, deployment)["offset"].tolist() == [4.0]


def test_a_request_is_of_one_round(store: EncryptedStore, member: Membership) -> None:
    keep_request(store, USER, member.deployment, RequestRecord(5, b"wanted"))
    assert read_request(store, USER, member.deployment, 5) == b"wanted"
    assert read_request(store, USER, member.deployment, 6) is None


def test_a_secret_is_kept_before_the_update_leaves_and_c_i_after(store: EncryptedStore, member: Membership) -> None:
    """The server that refuses an update has read it: another secret for the next would show the difference."""
    keep_memory(store, USER, member.deployment, record(1, **{controls.KEPT: 1.0}))
    queue = UploadQueue(store, USER, server="s", rng=np.random.default_rng(0), clock=lambda: 0.0)
    memory = {"offset": np.array([7.0]), controls.KEPT: np.array([2.0])}
    result = TrainingResult(np.zeros(4, np.float32), 3, b"payload", memory, 0.5)
    item = enqueue(queue, member, header=header(2), result=result, store=store)
    kept = read_memory(store, USER, member.deployment)
    assert (kept["offset"].tolist(), kept[controls.KEPT].tolist()) == ([7.0], [1.0])
    acknowledge(store, member, item)
    kept = read_memory(store, USER, member.deployment)
    assert (kept["offset"].tolist(), kept[controls.KEPT].tolist()) == ([7.0], [2.0])


def test_it_goes_when_the_server_has_forgotten_the_user(store: EncryptedStore, member: Membership) -> None:
    keep_memory(store, USER, member.deployment, record(1, offset=1.0))
    keep_request(store, USER, member.deployment, RequestRecord(1, b"wanted"))
    resign(store, member)
    assert read_memory(store, USER, member.deployment) == {}
    assert read_request(store, USER, member.deployment, 1) is None
