"""A real server on loopback, and devices that talk to it with numpy alone: no torch, no training."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from sqlalchemy import make_url, text

from tests.builders import run_command
from tests.integration.prefork import Forked, preforked
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.federation.algorithms.fedaws import payload as fedaws
from uvsdk.federation.messages import (
    Admission,
    Numbered,
    RoundHeader,
    Task,
    TemplateUpload,
    TrainingConfig,
    UpdateHead,
)
from uvsdk.federation.statements import Validity, verify_statement
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.privacy.request_signing import CHALLENGE_HEADER, Requested, sign_request
from uvsdk.privacy.sealing import CHUNK_BYTES, Binding, Envelope, new_nonce, seal
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring import Threshold
from uvsdk.templates.template import Template
from uvsdk_server import Settings, create_app, tokens
from uvsdk_server.commands import COMMANDS, Server
from uvsdk_server.deployment import open_database
from uvsdk_server.store import audit

ROOT = Path(__file__).resolve().parents[2]
PEPPER = b"integration tests"

P = shipped().manifest.size
"""Parameters of the shipped model, on which the devices pretend to have trained."""

_TLS = ssl.create_default_context()
"""Made once, for every client loads all certificates otherwise, and none is needed on loopback."""

DIMENSION = shipped().manifest.dimension

CONFIG = TrainingConfig(
    deployment="integration",
    modality="handwriting",
    backbone="digits-cnn",
    algorithm="fedaws",
    rounds=3,
    deadline_s=60.0,
    optimiser="momentum",
    evaluation_share=0.0,  # so that everybody trains
    seed=7,
)


@dataclass
class RunningServer:
    """A server on loopback with a data folder of its own, in a thread of this process.

    It listens on a real socket and keeps a real database; only the process is shared.
    """

    folder: Path
    config: TrainingConfig = CONFIG
    model: Bundle | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    url: str = ""
    operator: str = ""
    integrator: str = ""
    challenge: str = ""
    clients: list[httpx.Client] = field(default_factory=list)
    _made: tuple[dict[str, object], Settings] | None = None
    _server: Server | None = None
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        # Off on a server by default; most tests verify by embeddings, which they can place as they like.
        self.settings = {"embedding_probes": True, **self.settings}
        if self.config.seed is not None:  # tests know who only evaluates
            self.settings = {"role_seed": self.config.seed, **self.settings}

    def start(self) -> None:
        self.prepare()
        server = Server(create_app(self._settings()), host="127.0.0.1", port=0, announce=False)
        self._server, self._thread = server, threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        eventually(lambda: server.started or not self._thread.is_alive())  # type: ignore[union-attr]
        assert server.started, "the server did not start"
        self.url = "http://{}:{}".format(*server.servers[0].sockets[0].getsockname()[:2])
        self.operator = self.operator or self.token("operator")

    def stop(self) -> None:
        """Ask it to stop and wait until it has."""
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        self.close_clients()

    def _settings(self) -> Settings:
        files = {"data": self.data, "model": self.model_file, "training": self.training_file}
        values = {**files, "log_level": "error", **self.settings}
        if self._made is None or self._made[0] != values:  # every token asks, and making them looks for 60 variables
            self._made = values, Settings.model_validate(values)
        return self._made[1]

    def prepare(self) -> None:
        """Write the model and the configuration that the first start needs."""
        self._made = None
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.model_file.exists():
            (self.model or shipped()).save(self.model_file)
        self.training_file.write_text(self.config.to_json())

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def model_file(self) -> Path:
        return self.folder / "model.uvb"

    @property
    def training_file(self) -> Path:
        return self.folder / "training.json"

    def open_client(self) -> httpx.Client:
        """A client that is closed with the server."""
        self.clients.append(httpx.Client(timeout=60, verify=_TLS))
        return self.clients[-1]

    def close_clients(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()

    def ask(self, method: str, target: str, *, token: str | None = None, **values: Any) -> httpx.Response:
        """Send one request with another token, or (empty) none; left out, with the operator's.

        Whoever asks for a decision has a token that may everything an integrator may: send embeddings, be told scores.
        """
        headers = dict(values.pop("headers", {}))
        if token is None and target == "/v1/verify":
            self.integrator = self.integrator or self.token("verify", "scores", "embeddings")
        text = (self.integrator if target == "/v1/verify" else self.operator) if token is None else token
        if text:
            headers["Authorization"] = f"Bearer {text}"
        if not self.clients:
            self.open_client()
        return self.clients[0].request(method, self.url + target, headers=headers, **values)

    def candidate(self) -> dict[str, Any]:
        """The model version that training goes on from, and its round."""
        answer: dict[str, Any] = self.ask("GET", "/v1/models/candidate").json()
        return answer

    def released(self) -> dict[str, Any]:
        """The release that verifies."""
        answer: dict[str, Any] = self.ask("GET", "/v1/releases/current").json()
        return answer

    def promote(self, version: str = "candidate", scores: Float32 | None = None) -> dict[str, Any]:
        """Release a model, calibrated with these impostor scores where some are given."""
        if scores is not None:
            body = np.asarray(scores, "<f4").tobytes()
            target = f"/v1/models/{version}/calibration"
            answer = self.ask("PUT", target, content=body, headers={"UVSDK-Source": "synthetic"})
            assert answer.status_code == 204, answer.text
        answer = self.ask("POST", "/v1/releases", json={"model_version": version})
        assert answer.status_code == 201, answer.text
        released: dict[str, Any] = answer.json()
        return released

    def token(
        self, *scopes: str, uses: int | None = None, lifetime_s: float | None = None, user: str | None = None
    ) -> str:
        """A new token, made beside the running server as ``uvsdk token create`` does; an enrolment token for ``user``,
        or for as many of anybody's devices as a test may have.
        """
        unbound = scopes == ("enrol",) and user is None

        async def make() -> str:
            database = open_database(self._settings())
            try:
                async with database.write() as connection:
                    return await tokens.create(
                        connection,
                        scopes,
                        label="test",
                        now=time.time(),
                        by=audit.COMMAND,
                        max_uses=10_000 if unbound and uses is None else uses,
                        lifetime_s=lifetime_s,
                        user=user,
                        unbound=unbound,
                    )
            finally:
                await database.close()

        return asyncio.run(make())

    def change(self, statement: str, *values: object) -> None:
        """Change the database behind the server's back, as an older version left it."""
        with contextlib.closing(sqlite3.connect(self.data / "server.sqlite3", timeout=15)) as database:
            database.execute(statement, values)
            database.commit()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Look into the database."""
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/server.sqlite3?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()


@dataclass
class KillableServer(RunningServer):
    """``serve.py`` in a process of its own; :meth:`restart_if_dead` brings it back on another port."""

    process: Forked | None = None

    def start(self, *, kill_at: str = "", kill_times: int = 1, fill_at: str = "") -> None:
        self.prepare()
        command = ["--data", str(self.data), "--model", str(self.model_file), "--training", str(self.training_file)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        command += ["--kill-at", kill_at, "--kill-times", str(kill_times), "--fill-at", fill_at]
        printed = self.folder / "printed"
        printed.write_text("")
        process = self.process = preforked().fork(command, printed=printed, log=self.folder / "log")
        eventually(lambda: self._is_up(printed.read_text()) or process.poll() is not None)
        assert self._is_up(printed.read_text()), f"the server did not start:\n{self.log()}"

    def _is_up(self, printed: str) -> bool:
        """Whether it has said where it listens, and, the first time, where the operator's token is."""
        listens = False
        for line in printed.split("\n")[:-1]:  # the last one may still be on its way
            if line.startswith("listening on "):
                self.url, listens = line.removeprefix("listening on ").strip(), True
            elif line.startswith("operator token"):
                self.operator = Path(line.split(" written to ")[1].strip()).read_text().strip()
        return listens and bool(self.operator)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def restart_if_dead(self) -> bool:
        """Start again where the process was killed; true if it had been."""
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=60)
        if self.process.poll() is None:
            return False
        self.start()
        return True

    def stop(self) -> None:
        """Ask it to stop, as an operator would."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=120)
        self.close_clients()


@contextlib.contextmanager
def serving(folder: Path, **values: Any) -> Iterator[RunningServer]:
    """A running server, stopped at the end."""
    server = RunningServer(folder, **values)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class SyntheticDevice:
    """One device with keys of its own, made from its number so that two runs have the same devices."""

    def __init__(self, server: RunningServer, number: int) -> None:
        self.server = server
        self.number = number
        self.signing = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"signing %d" % number).digest())
        self.sealing = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"sealing %d" % number).digest())
        self.user = hash_user_id(f"user {number}", deployment=server.config.deployment, pepper=PEPPER)
        self.device_id = hashlib.sha256(self.signing.public_key().public_bytes_raw()).hexdigest()[:32]
        self._client = server.open_client()

    def request(
        self, method: str, target: str, body: bytes = b"", *, key_id: str | None = None, **headers: str
    ) -> httpx.Response:
        """Send one signed request; again where the server has another challenge by now, as devices do."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for _ in range(2):
            signed = self.signed(method, target, body, key_id=key_id)
            answer = self._client.request(method, self.server.url + target, content=body, headers={**signed, **named})
            self.server.challenge = answer.headers[CHALLENGE_HEADER]
            if not (answer.status_code == 401 and kind(answer) == "stale-challenge"):
                break
        return answer

    def signed(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        key_id: str | None = None,
        challenge: str | None = None,
        authority: str | None = None,
    ) -> dict[str, str]:
        """The headers that sign one request, over the newest challenge unless one is given."""
        if not self.server.challenge:
            self.server.challenge = self._client.get(f"{self.server.url}/healthz").headers[CHALLENGE_HEADER]
        own = self.server.url.removeprefix("http://")
        return sign_request(
            Requested(method, authority or own, target, hashlib.sha256(body).digest()),
            self.signing,
            key_id=key_id or self.device_id,
            challenge=self.server.challenge if challenge is None else challenge,
            created=int(time.time()),
        )

    def deployment(self) -> dict[str, object]:
        answer: dict[str, object] = self._client.get(f"{self.server.url}/v1/deployment").json()
        return answer

    def registration(self, token: str, **changes: str) -> bytes:
        """The body of a registration."""
        values = {
            "token": token,
            "user": self.user,
            "signing_key": base64.b64encode(self.signing.public_key().public_bytes_raw()).decode(),
            "sealing_key": base64.b64encode(self.sealing.public_key().public_bytes_raw()).decode(),
        }
        return json.dumps(values | changes).encode()

    def register(self, token: str, **changes: str) -> httpx.Response:
        body = self.registration(token, **changes)
        return self.request("POST", "/v1/devices", body, key_id="new", Content_Type="application/json")

    def admit(self, **changes: object) -> httpx.Response:
        """Send an admission whose mean is a fixed direction of this device, shrunk as means are."""
        version = str(self.deployment()["model_version"])
        admission = Admission(self.user, version, 5, 0.8 * self.direction(0))
        return self._send("admission", pack(replace(admission, **changes)), version)  # type: ignore[arg-type]

    def leave_template(
        self,
        embedding: Float32 | None = None,
        version: str | None = None,
        *,
        threshold: Threshold | None = None,
        conditions: Mapping[str, float] | None = None,
    ) -> httpx.Response:
        version = version or str(self.server.released()["model_version"])
        vector = self.direction(0) if embedding is None else embedding
        return self.hand_over(
            Template(vector, version, self.server.config.modality, 3, threshold, dict(conditions or {}))
        )

    def hand_over(self, template: Template) -> httpx.Response:
        """Leave a template that a device made."""
        version = template.model_version
        return self._send("template", pack(TemplateUpload(self.user, version, template.to_plain_bytes())), version)

    def join(self, token: str) -> None:
        """Register, have the operator vouch for this device where nobody has, and be admitted."""
        registered = self.register(token)
        assert registered.status_code in (200, 201), registered.text
        if registered.json()["state"] != "active":
            approved = self.server.ask("POST", f"/v1/devices/{self.device_id}/approval")
            assert approved.status_code == 204, approved.text
        admitted = self.admit()
        assert admitted.status_code == 204, admitted.text

    def wait(self, *, after: int = 0, wait_s: float = 20.0) -> RoundHeader | None:
        """The header of a round that asks this device; ``None`` where there is none."""
        answer = self.request("GET", f"/v1/rounds/current?after={after}&wait_s={wait_s}")
        assert answer.status_code in (200, 204), answer.text
        if answer.status_code == 204:
            return None
        values = answer.json()
        values["server_public_key"] = base64.b64decode(values["server_public_key"])
        signature = base64.b64decode(values.pop("signature"))
        validity = Validity(values.pop("issued_unix_s"), values.pop("expires_unix_s"))
        header = RoundHeader(**values)
        verify_statement(header, validity, signature, self.server_signing_key(), now=time.time())
        return header

    def server_signing_key(self) -> Ed25519PublicKey:
        """What the server signs tasks and headers with."""
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(str(self.deployment()["server_signing_key"])))

    def task(self, header: RoundHeader) -> fedaws.Task:
        """Fetch and open this device's task, proven to be the server's."""
        answer = self.request("GET", f"/v1/rounds/{header.round_id}/task")
        assert answer.status_code == 200, answer.text
        envelope = Envelope.parse(answer.content)
        envelope.verify(self.server_signing_key())
        (chunk,) = envelope.open(self.sealing)
        return unpack(fedaws.Task, unpack(Task, chunk).body)

    def direction(self, round_id: int) -> Float32:
        """A unit vector, float32 (d,), that depends on this device and the round only."""
        vector = np.random.default_rng((1, self.number, round_id)).standard_normal(DIMENSION).astype(np.float32)
        unit: Float32 = vector / np.linalg.norm(vector)
        return unit

    def delta(self, round_id: int, parameters: int) -> Float32:
        """A delta of norm 0.1 that depends on this device and the round only."""
        values = np.random.default_rng((2, self.number, round_id)).standard_normal(parameters).astype(np.float32)
        small: Float32 = 0.1 * values / np.linalg.norm(values)
        return small

    def head(self, header: RoundHeader, parameters: int) -> UpdateHead:
        payload = pack(fedaws.Payload(self.direction(header.round_id)))
        return UpdateHead(header.round_id, header.algorithm, header.model_version, 3 + self.number, parameters, payload)

    def binding(self, header: RoundHeader) -> Binding:
        return Binding(
            deployment=header.deployment,
            direction="up",
            message_type="update",
            algorithm=header.algorithm,
            round_id=header.round_id,
            model_version=header.model_version,
            sender=self.device_id,
            recipient_key_id=header.server_key_id,
            nonce=new_nonce(),
        )

    def update(
        self,
        header: RoundHeader,
        *,
        parameters: int = P,
        delta: Float32 | None = None,
        head: UpdateHead | bytes | None = None,
        binding: Binding | None = None,
        chunks: list[bytes] | None = None,
    ) -> bytes:
        """A sealed update; every part can be replaced by a wrong one."""
        values = self.delta(header.round_id, parameters) if delta is None else delta
        raw = memoryview(np.ascontiguousarray(values, "<f4")).cast("B")
        first = head if isinstance(head, bytes) else pack(head or self.head(header, parameters))
        slices = chunks or [raw[start : start + CHUNK_BYTES] for start in range(0, len(raw), CHUNK_BYTES)]
        recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
        return seal([first, *slices], binding or self.binding(header), recipient=recipient, signing_key=self.signing)

    def upload(self, header: RoundHeader, body: bytes) -> httpx.Response:
        return self.request("PUT", f"/v1/rounds/{header.round_id}/update", body)

    def _send(self, message_type: str, message: bytes, version: str) -> httpx.Response:
        body = self.sealed(message_type, message, version)
        return self.request("PUT", f"/v1/users/{self.user}/{message_type}", body)

    def sealed(self, message_type: str, message: bytes, version: str, *, number: int | None = None) -> bytes:
        """What this device says of its user, by default as the newest that it has said."""
        known = self.deployment()
        binding = Binding(
            deployment=self.server.config.deployment,
            direction="up",
            message_type=message_type,
            algorithm=self.server.config.algorithm,
            round_id=0,
            model_version=version,
            sender=self.device_id,
            recipient_key_id=str(known["server_key_id"]),
            nonce=new_nonce(),
        )
        recipient = X25519PublicKey.from_public_bytes(base64.b64decode(str(known["server_public_key"])))
        number = time.time_ns() // 1000 if number is None else number
        message = pack(Numbered(number, message))
        return seal([message], binding, recipient=recipient, signing_key=self.signing)


def devices_of(server: RunningServer, count: int, *, first: int = 0) -> list[SyntheticDevice]:
    """``count`` devices that have joined."""
    token = server.token("enrol", uses=count)
    devices = [SyntheticDevice(server, first + number) for number in range(count)]
    for device in devices:
        device.join(token)
    return devices


def play_round(devices: list[SyntheticDevice], after: int, *, parameters: int = P) -> int:
    """Every device takes part in the next round; gives its id."""
    round_id = 0
    for device in devices:
        header = device.wait(after=after)
        assert header is not None
        answer = device.upload(header, device.update(header, parameters=parameters))
        assert answer.status_code == 201, answer.text
        round_id = header.round_id
    return round_id


def kind(answer: httpx.Response) -> str:
    """The kind of a problem document, checked to be one."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = answer.json()
    assert document["status"] == answer.status_code
    assert set(document) - {"measured"} == {"type", "title", "status", "detail"}
    prefix, _, name = str(document["type"]).rpartition(":")
    assert prefix == "urn:uvsdk:problem"
    return name


def eventually(condition: object, *, timeout_s: float = 60.0) -> None:
    """Wait until ``condition()`` is true."""
    assert callable(condition)
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "timed out"
        time.sleep(0.02)


def fresh_database(server: str) -> str:
    """The URL of a new, empty database of that server."""
    name = f"test_{time.monotonic_ns()}"
    base = make_url(server).set(drivername="postgresql+asyncpg")

    async def create() -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(base, isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
        await engine.dispose()

    asyncio.run(create())
    return base.set(database=name).render_as_string(hide_password=False)


def command(name: str, *arguments: str) -> int:
    """Run one of the server's commands in this process."""
    (found,) = [item for item in COMMANDS if item.name == name]
    return run_command(found, *arguments)
