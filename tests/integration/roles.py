"""What a process of the tests can be: one person's device, or the server. Both are the real ones."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI

from tests.builders import open_store
from tests.integration.harness import PEPPER
from tests.integration.serve import Killer
from uvsdk import enroll
from uvsdk.bundle import Bundle
from uvsdk.federation import algorithms
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.simulation import Engine, Frozen, Prepared, Simulation
from uvsdk.simulation.population import Identity, Population
from uvsdk.simulation.seeds import SeededSecret
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob, TrainingResult
from uvsdk_device import EncryptedStore, Federation
from uvsdk_device.connection import Answer, Connection
from uvsdk_device.queue import Backoff
from uvsdk_server import Settings, create_app
from uvsdk_server.commands import Server

PASSPHRASE = "only a test"


def prepare(name: str, dimension: int) -> None:
    """Load what every role of a method would load first; a code takes seconds to build."""
    half = algorithms.server(name)
    half.empty(dimension, algorithms.settings(name, {}))
    algorithms.client(name)


def store_of(folder: Path, user_id: str) -> EncryptedStore:
    """The store of one person's device."""
    return open_store(folder / f"store {user_id}", PASSPHRASE)


def user_of(user_id: str, deployment: str) -> str:
    """The hashed id of a person of the tests."""
    return hash_user_id(user_id, deployment=deployment, pepper=PEPPER)


@dataclass
class Seeded:
    """The trainer of a device whose secrets are those of a simulation, and which may die in the middle of a round."""

    user: str
    seed: int
    dies_in: int = 0

    def train(self, job: TrainingJob, rng: np.random.Generator) -> TrainingResult:
        result = LocalTrainer(secret=SeededSecret(self.seed, self.user, job.round_id)).train(job, rng)
        if job.round_id == self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def federation_of(url: str, user_id: str, *, token: str = "", **values: Any) -> Federation:
    """The part of one person's device in training."""
    return Federation(
        url,
        enrolment_token=token,
        pepper=PEPPER,
        person_id=user_id,
        patience_s=120.0,
        backoff=Backoff(0.1, 0.5),
        **values,
    )


def device(
    url: str,
    folder: str,
    user_id: str,
    *,
    token: str,
    deployment: str,
    seed: int,
    samples: str,
    model: str,
    dies_in: int = 0,
) -> None:
    """Enrol where that has not been done, take part until training rests, and copy every sealed message sent."""
    place = Path(folder)
    store, bundle = store_of(place, user_id), Bundle.open(model)
    sent = place / f"sent {user_id}"
    sent.mkdir(exist_ok=True)
    _copy_what_is_sent(sent)
    if user_id not in store.users():
        # Two people share a page in some methods, which nobody could tell from a stranger's.
        enroll(user_id, list(np.load(samples)), model=bundle, store=store, outliers="keep")
    user = user_of(user_id, deployment)
    # A key behind requests is made in the first round; training draws from streams of its own.
    secret = SeededSecret(seed, user, 1)
    federation = federation_of(url, user_id, token=token, trainer=Seeded(user, seed, dies_in), secret=secret)
    reports = federation.participate(user_id, store, model=bundle)
    told = [[report.round_id, report.state, report.detail] for report in reports]
    (place / f"told {user_id}.json").write_text(json.dumps(told))


def server(settings: dict[str, object], up: str, *, kill_at: str = "", kill_times: int = 1) -> None:
    """Serve until killed; the file ``up`` then says on which port."""
    found = Settings.model_validate(settings)
    app = create_app(found, observer=Killer(kill_at, kill_times))
    Announced(app, found.port, Path(up)).run()


class Announced(Server):
    """A server that writes its port to a file."""

    def __init__(self, app: FastAPI, port: int, up: Path) -> None:
        super().__init__(app, host="127.0.0.1", port=port, announce=False)
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        if not self.should_exit:
            draft = self._up.with_suffix(".new")
            draft.write_text(str(self.servers[0].sockets[0].getsockname()[1]))
            draft.rename(self._up)


def simulation(
    config: str, model: str, features: str, identities: dict[str, list[str]], failure_rate: float, result: str
) -> None:
    """What a simulation makes of the same people: its theta, and how many took part in each round, to a file."""
    training, bundle = TrainingConfig.from_json(config), Bundle.open(model)
    backbone = backbones.get(training.backbone, training.train).random()
    trunk = backbone.rest if isinstance(backbone, Partial) else backbone
    backbones.unflatten(trunk, bundle.theta)
    with np.load(features) as pages:
        prepared = {user: tuple(pages[user]) for user in pages.files}
    known = {
        user: Identity(np.frombuffer(bytes.fromhex("".join(hashes)), np.uint8).reshape(-1, 32), person)
        for user, (person, *hashes) in identities.items()
    }
    population: Population = Prepared(prepared, bundle.manifest, known)
    if training.train != "all":
        population = Frozen.of(prepared, bundle, known)
    run = Simulation(training, trunk, population, engine=Engine(failure_rate=failure_rate))
    records = run.run()
    np.savez(result, theta=run.theta, participants=[record.participants for record in records])


def _copy_what_is_sent(folder: Path) -> None:
    put, post = Connection.put, Connection.post

    def keep(path: str, body: bytes) -> None:
        number = len(list(folder.iterdir()))
        (folder / f"{number:03} {path.replace('/', ' ').strip()}").write_bytes(body)

    def put_kept(self: Connection, path: str, body: bytes, *, sha256: bytes | None = None) -> Answer:
        keep(path, body)
        return put(self, path, body, sha256=sha256)

    def post_kept(self: Connection, path: str, body: bytes, *, limit: int) -> Answer:
        keep(path, body)
        return post(self, path, body, limit=limit)

    Connection.put, Connection.post = put_kept, post_kept  # type: ignore[method-assign]
