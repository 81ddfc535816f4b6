"""Two rounds of a method between three real devices and a real server on loopback, every message sealed and signed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.behaviour import values
from tests.integration import roles
from tests.integration.crew import is_alive, read
from tests.integration.forked import Crew, ForkedServer, eventually
from tests.integration.method_run import CHANGES, model_of, samples_of
from tests.integration.outcome import state_of
from uvsdk.federation import algorithms
from uvsdk.federation.messages import Admission, Numbered, Request, TrainingConfig, UpdateHead
from uvsdk.privacy.sealing import Envelope
from uvsdk.records.codec import unpack

ROUNDS, SEED = 2, 5
PERSONS = ("person 0", "person 1", "person 2")


def configured(name: str) -> TrainingConfig:
    return TrainingConfig(
        "behaviour",
        "handwriting",
        algorithm=name,
        rounds=ROUNDS,
        local_steps=2,
        batch_size=4,
        optimiser="momentum",
        deadline_s=300.0,
        seed=SEED,
        **{"backbone": "digits-cnn", "learning_rate": 0.003, **CHANGES.get(name, {})},
    )


def federated(name: str, folder: Path, crew: Crew) -> dict[str, Any]:
    """What the server is left with, and what one device sent it."""
    config = configured(name)
    model = model_of(config.backbone)
    with _trained(config, folder, crew) as server:
        theta = np.frombuffer(server.ask("GET", "/v1/models/candidate/theta").content, np.dtype("<f4"))
        rounds = server.rows("SELECT round_id, state, accepted FROM rounds ORDER BY round_id")
    return {
        "theta": values.of_array(theta),
        "moved": float(np.linalg.norm(theta.astype(np.float64) - model.theta)),
        "state": values.of_record(state_of(server.data)),
        "rounds": [list(row) for row in rounds],
        "sent": _sent(name, folder, server),
    }


@contextmanager
def _trained(config: TrainingConfig, folder: Path, crew: Crew) -> Iterator[ForkedServer]:
    """A server whose training rests; it still runs inside the block."""
    model = model_of(config.backbone)
    crew.fork("prepare", folder / "log", name=config.algorithm, dimension=model.manifest.dimension)
    settings = {"start_after_users": str(len(PERSONS)), "allow_restricted": config.algorithm}
    server = ForkedServer(folder / "server", config=config, model=model, settings=settings, crew=crew)
    server.start()
    devices = []
    try:
        for person in PERSONS:
            np.save(folder / f"{person}.npy", samples_of(person)[:9])
            devices.append(
                crew.fork(
                    "device",
                    folder / f"log {person}",
                    url=server.url,
                    folder=str(folder),
                    user_id=person,
                    token=server.token("enrol", user=roles.user_of(person, config.deployment)),
                    deployment=config.deployment,
                    seed=SEED,
                    samples=str(folder / f"{person}.npy"),
                    model=str(server.model_file),
                )
            )
        eventually(lambda: not any(map(is_alive, devices)))
        for person in PERSONS:
            assert (folder / f"told {person}.json").exists(), read(folder / f"log {person}")
        yield server
    finally:
        for pid in devices:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        server.stop()


def _sent(name: str, folder: Path, server: ForkedServer) -> list[dict[str, Any]]:
    """Every message of the first device: the bytes that travelled, and what the server finds in them."""
    found = []
    for path in sorted((folder / f"sent {PERSONS[0]}").iterdir()):
        envelope = Envelope.parse(path.read_bytes())
        key = server.data / "keys" / f"hpke-{envelope.binding.recipient_key_id}.key"
        chunks = envelope.open(X25519PrivateKey.from_private_bytes(key.read_bytes()))
        message = envelope.binding.message_type
        size, held = path.stat().st_size, values.of_record(_opened(name, message, chunks))
        found.append({"message": message, "bytes": size, "holds": held})
    return found


def _opened(name: str, message: str, chunks: list[bytes]) -> list[Any]:
    first, *rest = chunks
    if message == "admission":
        # A model's version is a hash of a file, which another torch writes otherwise.
        return [replace(unpack(Admission, bytes(unpack(Numbered, first).body)), model_version="")]
    if message == "request":
        request = algorithms.request(name)
        assert request is not None
        return [unpack(request.request, bytes(unpack(Request, first).body))]
    assert message == "update", message
    head = unpack(UpdateHead, first)
    payload = unpack(algorithms.server(name).payload, bytes(head.payload))
    return [head.round_id, head.samples, head.parameters, payload, np.frombuffer(b"".join(rest), "<f4")]
