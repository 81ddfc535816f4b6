"""Every route and every kind of caller: who gets in, and what the others are told.

The routes are those of the applications. A route that the tables below do not know fails the test, and so does an
anonymous one beyond those named.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fastapi.routing import APIRoute
from starlette.routing import Route

from tests.builders import on_loopback
from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, SyntheticDevice, kind
from tests.integration.numpy_devices import make_store, pages
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.privacy.key_rotation import Rotation
from uvsdk_device import agent
from uvsdk_device.membership import forget_here
from uvsdk_device.runtime import Runtime
from uvsdk_server import Settings, create_app

PASSES = "passes"
"""The caller is let in; what the handler then makes of the request is another matter."""

REFUSALS = frozenset(
    {
        *("unauthorized", "forbidden", "bad-signature", "unknown-device", "wrong-authority", "no-such-device"),
        *("stale-challenge", "replayed-request", "pending-device", "revoked-device", "unconfirmed-device"),
    }
)

OPERATORS = ("operator", "operator+all")
VERIFIERS = ("verify", "verify+scores", "verify+embeddings", "verify+scores+embeddings")
VALID_BEARERS = (*OPERATORS, *VERIFIERS, "audit", "enrol")
INVALID_BEARERS = ("garbage", "empty bearer", "basic", "revoked token", "expired token")
MEMBERS = ("owner", "other", "unconfirmed", "pending", "revoked")
BAD_SIGNATURES: Mapping[str, str] = {
    "nobody": "bad-signature",
    "stranger": "unknown-device",
    "newcomer": "unknown-device",
    "replayed": "replayed-request",
    "stale": "stale-challenge",
    "for another server": "bad-signature",
    "by another name": "wrong-authority",
    "another body": "bad-signature",
    "another's key": "bad-signature",
}
CALLERS = (*VALID_BEARERS, *INVALID_BEARERS, *MEMBERS, *BAD_SIGNATURES)

Outcomes = Mapping[str, str]


def to_bearers(*scopes: str) -> Outcomes:
    """Valid tokens of these, and nobody else; a signature is no token."""
    invalid = dict.fromkeys((*INVALID_BEARERS, *MEMBERS, *BAD_SIGNATURES), "unauthorized")
    return {**invalid, **dict.fromkeys(VALID_BEARERS, "forbidden"), **dict.fromkeys(scopes, PASSES)}


def to_devices(**members: str) -> Outcomes:
    """Signed requests of these; a token is no signature."""
    tokens = dict.fromkeys((*VALID_BEARERS, *INVALID_BEARERS), "bad-signature")
    states = {"pending": "pending-device", "revoked": "revoked-device"}
    return {**tokens, **BAD_SIGNATURES, **states, **members}


def to_either(bearers: Outcomes, devices: Outcomes) -> Outcomes:
    """A token where there is an Authorization header, else a signature."""
    tokens = {name: bearers[name] for name in (*VALID_BEARERS, *INVALID_BEARERS)}
    return {**devices, **tokens}


ANYBODY: Outcomes = dict.fromkeys(CALLERS, PASSES)
OPERATOR = to_bearers(*OPERATORS)
AUDITOR = to_bearers(*OPERATORS, "audit")
VERIFIER = to_bearers(*OPERATORS, *VERIFIERS)
MEMBER = to_devices(owner=PASSES, other=PASSES, unconfirmed=PASSES)
READER = to_either(to_bearers(*OPERATORS, *VERIFIERS, "audit"), MEMBER)
OWN = to_devices(owner=PASSES, other="forbidden", unconfirmed=PASSES)
OWN_AND_VOUCHED = to_devices(owner=PASSES, other="forbidden", unconfirmed="unconfirmed-device")
OWNER_OR_OPERATOR = to_either(OPERATOR, OWN)
LISTED = to_either(OPERATOR, to_devices(owner=PASSES, other=PASSES, unconfirmed=PASSES, pending=PASSES))
APPROVER = to_either(OPERATOR, to_devices(owner=PASSES, other="no-such-device", unconfirmed="unconfirmed-device"))
REVOKER = to_either(
    OPERATOR,
    to_devices(owner=PASSES, other="no-such-device", unconfirmed=PASSES, pending="pending-device"),
)
ITSELF = to_devices(owner=PASSES, other="forbidden", unconfirmed=PASSES, pending="forbidden")
NEWCOMER: Outcomes = {
    **dict.fromkeys(CALLERS, "bad-signature"),
    "newcomer": PASSES,
    "stale": "stale-challenge",
}

SERVER: Mapping[tuple[str, str], Outcomes] = {
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/v1/deployment"): ANYBODY,
    ("POST", "/v1/devices"): NEWCOMER,
    ("GET", "/v1/devices"): LISTED,
    ("POST", "/v1/devices/{device_id}/approval"): APPROVER,
    ("PUT", "/v1/devices/{device_id}/keys"): ITSELF,
    ("DELETE", "/v1/devices/{device_id}"): REVOKER,
    ("POST", "/v1/enrolment-tokens"): OPERATOR,
    ("PUT", "/v1/users/{user}/admission"): OWN,
    ("PUT", "/v1/users/{user}/template"): OWN_AND_VOUCHED,
    ("DELETE", "/v1/users/{user}"): OWNER_OR_OPERATOR,
    ("GET", "/v1/deletions/{deletion_id}"): OPERATOR,  # of an id that is not known; whoever knows one may ask
    ("GET", "/v1/rounds/current"): MEMBER,
    ("GET", "/v1/rounds/{round_id}/task"): MEMBER,
    ("GET", "/v1/rounds/{round_id}/invitation"): MEMBER,
    ("POST", "/v1/rounds/{round_id}/task"): MEMBER,
    ("PUT", "/v1/rounds/{round_id}/update"): {**MEMBER, "another body": PASSES},  # checked once the body has come
    ("GET", "/v1/evaluations/current"): MEMBER,
    ("GET", "/v1/evaluations/{evaluation_id}/task"): MEMBER,
    ("PUT", "/v1/evaluations/{evaluation_id}/report"): {**MEMBER, "another body": PASSES},  # as of an update
    ("GET", "/v1/evaluations"): AUDITOR,
    ("POST", "/v1/evaluations"): OPERATOR,
    ("POST", "/v1/training/resume"): OPERATOR,
    ("GET", "/v1/models/current"): READER,
    ("GET", "/v1/models/candidate"): READER,
    ("GET", "/v1/models/{version}/bundle"): READER,
    ("GET", "/v1/models/{version}/theta"): READER,
    ("GET", "/v1/models/{version}/control"): READER,
    ("PUT", "/v1/models/{version}/calibration"): OPERATOR,
    ("GET", "/v1/releases"): READER,
    ("POST", "/v1/releases"): OPERATOR,
    ("GET", "/v1/releases/current"): READER,
    ("GET", "/v1/releases/candidate"): AUDITOR,
    ("POST", "/v1/releases/roll-back"): OPERATOR,
    ("PUT", "/v1/releases/policy"): OPERATOR,
    ("GET", "/v1/releases/{number}"): READER,
    ("GET", "/v1/releases/{number}/bundle"): READER,
    ("POST", "/v1/releases/{number}/refusal"): MEMBER,
    ("POST", "/v1/verify"): VERIFIER,
    ("GET", "/v1/attempts"): OPERATOR,
    ("DELETE", "/v1/attempts/{whose}/{name}"): OPERATOR,
    ("GET", "/v1/tokens"): OPERATOR,
    ("GET", "/v1/tokens/{token_id}/users"): OPERATOR,
    ("PUT", "/v1/tokens/{token_id}/users/{user}"): OPERATOR,
    ("DELETE", "/v1/tokens/{token_id}/users/{user}"): OPERATOR,
    ("GET", "/v1/audit"): AUDITOR,
    ("GET", "/v1/audit/head"): AUDITOR,
    ("GET", "/v1/rounds"): AUDITOR,
    ("GET", "/v1/training"): AUDITOR,
    ("GET", "/metrics"): AUDITOR,
}

CHANGES: Mapping[tuple[str, str], str] = {
    ("DELETE", "/v1/users/{user}"): "unknown-device",
    ("DELETE", "/v1/devices/{device_id}"): "replayed-request",
    ("PUT", "/v1/devices/{device_id}/keys"): "bad-signature",
}
"""Routes after which a household is no longer what it was, and how a repetition of the owner's request ends there."""

AGENT: Mapping[tuple[str, str], bool] = {
    ("GET", "/healthz"): True,
    ("POST", "/v1/verify"): False,
    ("DELETE", "/v1/users/{user:path}"): False,
}
"""Whether anybody gets in; else whoever shows the content of ``agent-token``."""


@dataclass
class Household:
    """One person's devices in every state, and an unconfirmed device of somebody else."""

    owner: SyntheticDevice
    pending: SyntheticDevice
    revoked: SyntheticDevice
    unconfirmed: SyntheticDevice

    @classmethod
    def move_in(cls, world: World) -> Household:
        server = world.server
        owner, pending, revoked, unconfirmed = (SyntheticDevice(server, world.number()) for _ in range(4))
        answer = server.ask("POST", "/v1/enrolment-tokens", json={"user": owner.user, "uses": 3})
        for device in (owner, pending, revoked):
            device.user = owner.user
            assert device.register(answer.json()["token"]).status_code == 201
        assert server.ask("DELETE", f"/v1/devices/{revoked.device_id}").status_code == 204
        assert unconfirmed.register(world.tokens["enrol"]).json()["state"] == "unconfirmed"
        return cls(owner, pending, revoked, unconfirmed)


@dataclass
class World:
    """A server, tokens of every kind, and devices."""

    server: RunningServer
    tokens: dict[str, str]
    other: SyntheticDevice
    _count: int = field(default=100)

    def number(self) -> int:
        self._count += 1
        return self._count


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {"start_after_users": 1000, "registrations_per_minute": 100_000}
    with harness.serving(tmp_path_factory.mktemp("matrix"), settings=settings) as server:
        every = ("scores", "embeddings")
        tokens = {
            "operator": server.operator,
            "operator+all": server.token("operator", "verify", *every),
            "verify": server.token("verify"),
            "verify+scores": server.token("verify", "scores"),
            "verify+embeddings": server.token("verify", "embeddings"),
            "verify+scores+embeddings": server.token("verify", *every),
            "audit": server.token("audit"),
            "enrol": server.token("enrol"),
            "garbage": "nonsense",
            "empty bearer": "",
            "expired token": server.token("operator", lifetime_s=1e-3),
            "revoked token": server.token("operator"),
        }
        token_id = tokens["revoked token"].split("_")[1]
        with_writer(server, f"UPDATE tokens SET revoked = 1 WHERE token_id = '{token_id}'")
        other = SyntheticDevice(server, 1)
        other.join(tokens["enrol"])
        yield World(server, tokens, other)


def with_writer(server: RunningServer, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(server.data / "server.sqlite3", timeout=15)) as database, database:
        database.execute(statement)


@dataclass
class Call:
    """One request, before anybody has signed it."""

    method: str
    target: str
    body: bytes
    headers: dict[str, str]


def subject_of(caller: str, household: Household) -> SyntheticDevice:
    """Whose user and device the address names: the caller's own, or the owner's."""
    return household.unconfirmed if caller == "unconfirmed" else household.owner


def call_of(route: tuple[str, str], subject: SyntheticDevice, signer: SyntheticDevice, world: World) -> Call:
    """A request to ``route`` about ``subject`` that is well formed, so that nothing but the caller is in question."""
    method, path = route
    fills = {
        "user": subject.user,
        "device_id": subject.device_id,
        "round_id": "1",
        "evaluation_id": "1",
        "number": "1",
        "deletion_id": "0" * 32,
        "version": "current",
        "token_id": "0" * 12,
        "whose": "person",
        "name": subject.user,
    }
    target = path.format(**fills)
    headers = {"Content-Type": "application/json"}
    values: dict[str, object] = {}
    if route == ("POST", "/v1/devices"):
        return Call(method, target, signer.registration(world.tokens["enrol"]), headers)
    if path.endswith("/keys"):
        signing, sealing = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        raw = [key.public_key().public_bytes_raw() for key in (signer.signing, signing, sealing)]
        rotation = Rotation(CONFIG.deployment, subject.device_id, *raw)
        texts = [base64.b64encode(item).decode() for item in (raw[1], raw[2], rotation.prove(signing))]
        values = dict(zip(("signing_key", "sealing_key", "proof"), texts, strict=True))
    elif path == "/v1/enrolment-tokens":
        values = {"user": subject.user}
    elif path == "/v1/verify":
        values = {"user": subject.user, "sample": base64.b64encode(b"no picture").decode()}
    elif method in ("PUT", "POST"):
        return Call(method, target, b"not sealed", {"UVSDK-Source": "nobody"})
    return Call(method, target, json.dumps(values).encode() if values else b"", headers if values else {})


def send(world: World, call: Call, headers: Mapping[str, str]) -> httpx.Response:
    client = world.server.clients[0]
    url = world.server.url + call.target
    return client.request(call.method, url, content=call.body, headers={**call.headers, **headers})


def ask(world: World, household: Household, route: tuple[str, str], caller: str) -> httpx.Response:
    """The answer that ``caller`` gets."""
    subject = subject_of(caller, household)
    if caller in (*VALID_BEARERS, *INVALID_BEARERS):
        call = call_of(route, subject, subject, world)
        scheme = "Basic b3A6b3A=" if caller == "basic" else f"Bearer {world.tokens[caller]}"
        return send(world, call, {"Authorization": scheme.strip()})
    signers: Mapping[str, SyntheticDevice] = {
        "other": world.other,
        "unconfirmed": household.unconfirmed,
        "pending": household.pending,
        "revoked": household.revoked,
    }
    signer = signers.get(caller, household.owner)
    if caller in ("stranger", "newcomer"):
        signer = SyntheticDevice(world.server, world.number())
    call = call_of(route, subject, signer, world)
    if caller == "nobody":
        return send(world, call, {})
    how: dict[str, str] = {}
    if caller == "newcomer":
        how = {"key_id": "new"}
    elif caller == "stale":
        how = {"challenge": "0" * 32}
    elif caller in ("for another server", "by another name"):
        how = {"authority": "mallory.example"}
    elif caller == "another's key":
        how, signer = {"key_id": signer.device_id}, world.other
    signed_body = call.body + b"!" if caller == "another body" else call.body
    headers = signer.signed(call.method, call.target, signed_body, **how)
    if caller == "by another name":
        headers["Host"] = "mallory.example"
    if caller == "replayed":
        send(world, call, headers)
    return send(world, call, headers)


def outcome_of(answer: httpx.Response) -> str:
    """What an answer says of the caller."""
    if answer.status_code < 400 or not answer.headers["content-type"].startswith("application/problem+json"):
        return PASSES
    return kind(answer) if kind(answer) in REFUSALS else PASSES


def routes_of(app: object) -> set[tuple[str, str]]:
    """Method and path of everything an application, or a router in it, answers."""
    found = set()
    for route in app.routes:  # type: ignore[attr-defined]
        if hasattr(route, "original_router"):  # what newer versions of FastAPI make of include_router()
            found |= routes_of(route.original_router)
            continue
        assert isinstance(route, Route | APIRoute), route
        found |= {(method, route.path) for method in (route.methods or ()) if method != "HEAD"}
    return found


def test_no_route_is_left_out(tmp_path: Path) -> None:
    assert routes_of(create_app(Settings(data=tmp_path / "never opened"))) == set(SERVER)
    anonymous = {route for route, outcomes in SERVER.items() if outcomes["nobody"] == PASSES}
    assert {path for _, path in anonymous} == {"/healthz", "/readyz", "/openapi.json", "/v1/deployment"}
    assert all(set(outcomes) == set(CALLERS) for outcomes in SERVER.values())


@pytest.mark.parametrize("route", SERVER, ids=" ".join)
def test_who_gets_in(world: World, route: tuple[str, str]) -> None:
    expected = dict(SERVER[route])
    if route in CHANGES and expected["replayed"] != PASSES:
        expected["replayed"] = CHANGES[route]
    household = Household.move_in(world)
    found = {}
    # Those who are let in come last, for they may change what is there.
    for caller in sorted(CALLERS, key=lambda name: expected[name] == PASSES or name == "replayed"):
        found[caller] = outcome_of(ask(world, household, route, caller))
        if route in CHANGES and (expected[caller] == PASSES or caller == "replayed"):
            household = Household.move_in(world)
    assert found == expected


def test_a_refusal_tells_nobody_who_is_known(world: World) -> None:
    """Whoever is not let in hears the same of a person who is here and of one who is not."""
    household = Household.move_in(world)
    absent = SyntheticDevice(world.server, world.number())
    for route, outcomes in SERVER.items():
        if "{user}" not in route[1] and "{device_id}" not in route[1] and route[1] != "/v1/verify":
            continue
        for caller in ("nobody", "garbage", "expired token", "enrol", "other", "stranger", "pending", "revoked"):
            if outcomes[caller] == PASSES:
                continue
            here, gone = (
                asked_about(world, household, route, caller, subject) for subject in (household.owner, absent)
            )
            assert (here.status_code, here.content) == (gone.status_code, gone.content), (route, caller)


def asked_about(
    world: World, household: Household, route: tuple[str, str], caller: str, subject: SyntheticDevice
) -> httpx.Response:
    signers = {"other": world.other, "pending": household.pending, "revoked": household.revoked}
    signer = signers.get(caller) or SyntheticDevice(world.server, 99)
    call = call_of(route, subject, signer, world)
    if caller == "nobody":
        return send(world, call, {})
    if caller in world.tokens:
        return send(world, call, {"Authorization": f"Bearer {world.tokens[caller]}"})
    return send(world, call, signer.signed(call.method, call.target, call.body))


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, object]]:
    """An agent on loopback: its address, its token and its application."""
    store = make_store(tmp_path_factory.mktemp("edge"), 0)
    enroll("person 0", pages(0), model=shipped(), store=store)
    token = agent.agent_token(store.folder)
    app = agent.create_app(Runtime(store, shipped()), token=token, forget=lambda user: forget_here(user, store))
    with on_loopback(app) as url:
        yield url, token, app


def test_the_agents_routes(edge: tuple[str, str, object]) -> None:
    url, token, app = edge
    assert routes_of(app) == set(AGENT)
    wrong: Mapping[str, Callable[[], dict[str, str]]] = {
        "nobody": dict,
        "garbage": lambda: {"Authorization": "Bearer nonsense"},
        "empty": lambda: {"Authorization": "Bearer"},
        "basic": lambda: {"Authorization": f"Basic {token}"},
        "longer": lambda: {"Authorization": f"Bearer {token}x"},
        "hashed": lambda: {"Authorization": f"Bearer {hashlib.sha256(token.encode()).hexdigest()}"},
        "beyond ASCII": lambda: {"Authorization": "Bearer é"},
    }
    with httpx.Client() as client:
        for (method, path), anonymous in AGENT.items():
            body = json.dumps({"user": "nobody", "sample": ""}).encode() if method == "POST" else b""
            for user in ("person 0", "nobody"):
                target = url + path.replace("{user:path}", user)
                answers = {
                    name: client.request(
                        method,
                        target,
                        content=body,
                        headers={key: value.encode() for key, value in headers().items()},  # type: ignore[misc]
                    )
                    for name, headers in wrong.items()
                }
                for name, answer in answers.items():
                    assert (answer.status_code == 401) is not anonymous, (method, path, name)
                    assert answer.content == answers["nobody"].content
        headers = {"Authorization": f"Bearer {token}"}
        assert client.delete(f"{url}/v1/users/nobody", headers=headers).status_code == 404
        assert client.post(f"{url}/v1/verify", headers=headers, content=b"{").status_code == 400
