"""One client that holds on to the server, or many: an honest device's round is over in bounded time all the same."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import pkgutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, SyntheticDevice, kind
from uvsdk.federation.algorithms.fedaws import server as fedaws_server
from uvsdk.federation.messages import RoundHeader
from uvsdk_server import routes
from uvsdk_server.limits import SMALL_BYTES, Bounds, Gate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.store import ledger
from uvsdk_server.store.database import Database

DEADLINE_S = 600.0
SOON_S = 20.0
"""Of the deadline's ten minutes; the limits below are 1 s."""

IMPATIENT = {
    "headers_timeout_s": 1.0,
    "stall_timeout_s": 1.0,
    "slowest_bytes_per_s": 50_000.0,
    "concurrent_uploads": 4,
}


def signed_head(device: SyntheticDevice, method: str, path: str, body: bytes) -> bytes:
    """The head of a request as bytes, so that what follows it is ours to send, or not."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {httpx.URL(device.server.url).netloc.decode()}"]
    lines += [f"{name}: {value}" for name, value in device.signed(method, path, body).items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode()


@dataclass
class Wire:
    """Sockets to one server, closed at the end."""

    url: httpx.URL
    stack: contextlib.ExitStack

    def open(self, data: bytes = b"") -> socket.socket:
        assert self.url.host
        assert self.url.port
        sock = self.stack.enter_context(socket.create_connection((self.url.host, self.url.port), timeout=30))
        if data:
            sock.sendall(data)
        return sock

    def drip(self, sock: socket.socket, data: bytes, *, every_s: float = 0.2) -> None:
        """Send one byte after another until the server has had enough, or the test is over."""
        over = threading.Event()

        def send() -> None:
            with contextlib.suppress(OSError):
                for place in range(len(data)):
                    if over.wait(every_s):
                        return
                    sock.sendall(data[place : place + 1])

        thread = threading.Thread(target=send, daemon=True)
        thread.start()

        def stop() -> None:
            over.set()
            thread.join(timeout=30)

        self.stack.callback(stop)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with contextlib.ExitStack() as stack:
        yield Wire(httpx.URL("http://127.0.0.1"), stack)


def answer_of(sock: socket.socket) -> tuple[int, str]:
    """Status and body of what the server says; status 0 where it closes without a word."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            received += piece
    if not received:
        return 0, ""
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode()


@contextlib.contextmanager
def collecting(
    folder: Path, wire: Wire, count: int = 4, **settings: object
) -> Iterator[tuple[RunningServer, list[SyntheticDevice], RoundHeader]]:
    config = replace(CONFIG, deadline_s=DEADLINE_S, rounds=3, optimiser="sgd")
    values = {**IMPATIENT, "start_after_users": count, **settings}
    with harness.serving(folder, config=config, settings=values) as server:
        wire.url = httpx.URL(server.url)
        devices = harness.devices_of(server, count)
        header = devices[0].wait()
        assert header is not None
        yield server, devices, header
        wire.stack.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[SyntheticDevice]]]:
    """For what needs no server of its own."""
    config = replace(CONFIG, deadline_s=DEADLINE_S, rounds=1000, optimiser="sgd")
    settings = {**IMPATIENT, "start_after_users": 4, "connections": 60}
    with harness.serving(tmp_path_factory.mktemp("stalling"), config=config, settings=settings) as server:
        yield server, harness.devices_of(server, 4)


@pytest.fixture
def open_round(
    shared: tuple[RunningServer, list[SyntheticDevice]], wire: Wire
) -> tuple[RunningServer, list[SyntheticDevice], RoundHeader]:
    server, devices = shared
    wire.url = httpx.URL(server.url)
    header = devices[0].wait(after=server.candidate()["round_id"])
    assert header is not None
    return server, devices, header


OpenRound = tuple[RunningServer, list[SyntheticDevice], RoundHeader]


def take_part(server: RunningServer, devices: list[SyntheticDevice], header: RoundHeader) -> float:
    """Upload, and wait for the commit; gives the seconds that took."""
    start = time.monotonic()
    for device in devices:
        while (answer := device.upload(header, device.update(header))).status_code == 429:
            assert time.monotonic() - start < SOON_S
            time.sleep(0.2)
        assert answer.status_code == 201, answer.text
    harness.eventually(lambda: server.candidate()["round_id"] == header.round_id, timeout_s=SOON_S)
    return time.monotonic() - start


def test_idle_puts_of_one_device_take_one_slot_and_hold_up_nobody(open_round: OpenRound, wire: Wire) -> None:
    server, devices, header = open_round
    path = f"/v1/rounds/{header.round_id}/update"
    body = devices[3].update(header)
    idle = [wire.open(signed_head(devices[3], "PUT", path, body)) for _ in range(20)]
    # Three others are a quorum; the idle one is not waited for.
    assert take_part(server, devices[:3], header) < SOON_S
    statuses = [answer_of(sock)[0] for sock in idle]
    assert set(statuses) <= {408, 410, 429}
    assert statuses.count(429) >= 18


def test_idle_puts_of_as_many_devices_as_there_are_slots_give_way(tmp_path: Path, wire: Wire) -> None:
    with collecting(tmp_path, wire, count=9, stall_timeout_s=6.0) as (server, devices, header):
        path = f"/v1/rounds/{header.round_id}/update"
        idle = [wire.open(signed_head(each, "PUT", path, each.update(header))) for each in devices[:4]]
        time.sleep(1.5)  # they have had their head start
        start = time.monotonic()
        assert devices[4].upload(header, devices[4].update(header)).status_code == 201
        assert time.monotonic() - start < 4.0  # without a wait for the stall to be over
        assert take_part(server, devices[5:], header) < SOON_S
        assert sorted(answer_of(sock)[0] for sock in idle) == [408] * 4


def test_a_byte_now_and_then_is_no_upload(open_round: OpenRound, wire: Wire) -> None:
    server, devices, header = open_round
    path = f"/v1/rounds/{header.round_id}/update"
    body = devices[3].update(header)
    slow = wire.open(signed_head(devices[3], "PUT", path, body))
    wire.drip(slow, body)
    assert take_part(server, devices[:3], header) < SOON_S
    status, text = answer_of(slow)
    assert status == 408
    assert "too-slow" in text


def test_a_stalled_upload_may_come_again(open_round: OpenRound, wire: Wire) -> None:
    server, devices, header = open_round
    path = f"/v1/rounds/{header.round_id}/update"
    slow = wire.open(signed_head(devices[0], "PUT", path, devices[0].update(header)))
    assert answer_of(slow)[0] == 408
    assert devices[0].wait(after=header.round_id - 1, wait_s=0) is not None  # it is asked still
    assert take_part(server, devices, header) < SOON_S
    assert server.rows(f"select accepted from rounds where round_id = {header.round_id}") == [(4,)]


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "])
def test_connections_that_say_nothing_or_half_of_it(open_round: OpenRound, wire: Wire, sent: bytes) -> None:
    server, devices, header = open_round
    silent = [wire.open(sent) for _ in range(200)]
    assert take_part(server, devices, header) < SOON_S
    harness.eventually(lambda: all(is_closed(sock) for sock in silent), timeout_s=SOON_S)


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_headers_that_trickle(open_round: OpenRound, wire: Wire) -> None:
    server, devices, header = open_round
    slow = wire.open()
    wire.drip(slow, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 200)
    start = time.monotonic()
    assert answer_of(slow)[0] == 0
    assert time.monotonic() - start < 10
    assert take_part(server, devices, header) < SOON_S


def test_a_body_that_goes_on_after_its_answer(open_round: OpenRound, wire: Wire) -> None:
    # Refused by its size and closed; and refused for want of a signature, and then trickling on.
    huge = wire.open(b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n{")
    assert answer_of(huge)[0] == 413
    unsigned = wire.open(b"PUT /v1/rounds/1/update HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
    wire.drip(unsigned, bytes(100000))
    start = time.monotonic()
    assert answer_of(unsigned)[0] == 401
    assert time.monotonic() - start < 15


def test_an_answer_that_nobody_takes(open_round: OpenRound, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvsdk_server.connections._WRITE_LOOK_S", 0.5)
    server, devices, header = open_round
    request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    deaf = wire.open()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with contextlib.suppress(OSError):
        deaf.sendall(request * 400)  # some 20 MB of answers, pipelined
    assert take_part(server, devices, header) < SOON_S

    def is_cut() -> bool:
        try:
            deaf.sendall(request)
        except OSError:
            return True
        return False

    harness.eventually(is_cut, timeout_s=SOON_S)


def test_nobody_parses_what_a_stranger_sends(open_round: OpenRound) -> None:
    server, devices, header = open_round
    big = json.dumps({"user": "a" * 64, "sample": "A" * (7 << 20)}).encode()
    for headers in ({}, {"Authorization": "Bearer uvsdk_no_such"}, {"Signature": "x", "Signature-Input": "y"}):
        answer = server.ask(
            "POST", "/v1/verify", token="", content=big, headers={"Content-Type": "application/json", **headers}
        )
        assert answer.status_code == 401, answer.text
        # Not JSON at all, and the token comes first still.
        answer = server.ask("POST", "/v1/verify", token="", content=b"{" * (1 << 20), headers=headers)
        assert answer.status_code == 401
    for path in ("/v1/devices", "/v1/attempts", "/v1/nowhere"):
        answer = server.ask("POST", path, token="", content=big, headers={"Content-Type": "application/json"})
        assert (answer.status_code, kind(answer)) == (413, "too-large")
    assert take_part(server, devices, header) < SOON_S


def test_a_body_of_more_than_a_little_is_read_only_behind_a_token_or_a_signature() -> None:
    """Of every route: FastAPI parses a declared body before it asks the dependencies."""
    bounds = Bounds(body_bytes=8 << 20, stall_s=10.0, bytes_per_s=8192.0, handler_s=300.0)
    modules = [
        importlib.import_module(f"{routes.__name__}.{item.name}") for item in pkgutil.iter_modules(routes.__path__)
    ]
    found = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    declared = [route for route in found if route.body_field is not None]
    assert {route.path for route in declared} >= {"/v1/devices", "/v1/verify"}
    for route in declared:
        path = route.path.replace("{user}", "a" * 64).replace("{round_id}", "1").replace("{version}", "current")
        behind = type(route).__name__ == "BearerFirst"
        assert behind or bounds.of_path(path) <= SMALL_BYTES, route.path


def test_anonymous_registrations_take_nothing_from_those_with_a_token(tmp_path: Path) -> None:
    settings = {"registrations_per_minute": 3, "wrong_tokens_per_minute": 5}
    with harness.serving(tmp_path, settings=settings) as server:
        token = server.token("enrol", uses=3)
        strangers = [SyntheticDevice(server, 100 + number) for number in range(30)]
        statuses = [device.register("uvsdk_wrong_token").status_code for device in strangers]
        assert statuses[:5] == [401] * 5
        assert set(statuses[5:]) <= {401, 429}
        assert 429 in statuses
        devices = [SyntheticDevice(server, number) for number in range(3)]
        assert [device.register(token).status_code for device in devices] == [201] * 3
        # Of those that are known already nothing is counted, and a further one is one too many in this minute.
        assert [device.register(token).status_code for device in devices] == [200] * 3
        late = SyntheticDevice(server, 9).register(server.token("enrol", uses=1))
        assert (late.status_code, kind(late)) == (429, "too-many-requests")


def test_whoever_asks_whether_the_server_is_ready_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    ping = Database.ping

    async def counted(self: Database) -> None:
        looks.append(time.monotonic())
        await ping(self)

    monkeypatch.setattr(Database, "ping", counted)
    with harness.serving(tmp_path) as server:
        start, before = time.monotonic(), len(looks)
        answers = [server.ask("GET", "/readyz", token="").status_code for _ in range(100)]
        assert answers == [200] * 100
        # By itself and every two seconds, however many ask.
        assert len(looks) - before <= (time.monotonic() - start) / 2 + 1


def test_a_device_waits_for_a_round_once(tmp_path: Path, wire: Wire) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 100}) as server:
        wire.url = httpx.URL(server.url)
        device = SyntheticDevice(server, 0)
        assert device.register(server.token("enrol", uses=1)).status_code == 201
        path = "/v1/rounds/current?after=0&wait_s=30"
        waits = []
        for _ in range(6):
            waits.append(wire.open(signed_head(device, "GET", path, b"")))
            time.sleep(0.1)
        # All but the last are sent home at once.
        for sock in waits[:-1]:
            sock.settimeout(5)
            assert sock.recv(65536).startswith(b"HTTP/1.1 204")
        assert not is_closed(waits[-1])
        wire.stack.close()


def test_a_member_whose_task_is_refused_is_not_waited_for(open_round: OpenRound) -> None:
    server, devices, header = open_round
    answer = devices[3].request("POST", f"/v1/rounds/{header.round_id}/task", b"no envelope")
    assert 400 <= answer.status_code < 500
    assert take_part(server, devices[:3], header) < SOON_S


def test_a_refused_update_of_any_kind_is_not_waited_for(open_round: OpenRound) -> None:
    server, devices, header = open_round
    wrong = devices[3].update(header, binding=replace(devices[3].binding(header), model_version="0" * 64))
    assert devices[3].upload(header, wrong).status_code == 409
    assert take_part(server, devices[:3], header) < SOON_S


def test_a_round_with_its_quorum_does_not_wait_for_who_never_came(tmp_path: Path, wire: Wire) -> None:
    with collecting(tmp_path, wire, absent_after=2.0 / DEADLINE_S) as (server, devices, header):
        assert take_part(server, devices[:3], header) < SOON_S


def test_one_admission_that_an_algorithm_chokes_on_stops_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fedaws_server.SERVER.admit
    choking: list[str] = []

    def admit(state: object, admission: object, settings: object, rng: np.random.Generator) -> object:
        if getattr(admission, "user", "") in choking:
            raise ZeroDivisionError("what nobody foresaw")
        return real(state, admission, settings, rng)  # type: ignore[arg-type]

    monkeypatch.setattr(fedaws_server, "SERVER", replace(fedaws_server.SERVER, admit=admit))  # type: ignore[arg-type]
    with harness.serving(tmp_path, config=replace(CONFIG, rounds=1), settings={"start_after_users": 4}) as server:
        token = server.token("enrol", uses=4)
        devices = [SyntheticDevice(server, number) for number in range(4)]
        for device in devices[:3]:
            device.join(token)
        assert devices[3].register(token).status_code == 201
        assert devices[3].admit().status_code == 204  # it passes alone, and fails when the round opens
        choking.append(devices[3].user)
        harness.play_round(devices[:3], 0)
        harness.eventually(lambda: server.candidate()["round_id"] == 1)


def test_requests_without_number_leave_the_database_to_the_rounds(tmp_path: Path) -> None:
    """They wait in a line: nobody is told that the pool is empty, which would stall the rounds for 5 s."""

    async def check() -> None:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/server.sqlite3")
        await database.migrate()
        database.engine.sync_engine.pool._timeout = 0.1  # type: ignore[attr-defined]

        async def read() -> None:
            async with database.read() as connection:
                await ledger.deployment_row(connection)
                await asyncio.sleep(0.02)

        async def write() -> None:
            async with database.write() as connection:
                await ledger.deployment_row(connection)

        await asyncio.gather(*(read() for _ in range(200)), *(write() for _ in range(20)))
        await database.close()

    asyncio.run(check())


def test_a_handler_that_hangs_is_given_up() -> None:
    bounds = Bounds(body_bytes=1 << 20, stall_s=1.0, bytes_per_s=100.0, handler_s=1.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hangs":
            await asyncio.sleep(60)
        if scope["path"] == "/left":
            raise ClientDisconnect
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(1.2)  # an answer under way is not cut
        await send({"type": "http.response.body", "body": body})

    async def check() -> None:
        async def slowly() -> AsyncIterator[bytes]:
            for _ in range(5):
                await asyncio.sleep(0.25)  # longer in all than a pause may be, and 400 bytes a second
                yield b"x" * 100

        gate = Gate(app, bounds=bounds, metrics=Metrics())
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get("/hangs")
            assert (answer.status_code, kind(answer)) == (503, "timed-out")
            answer = await client.post("/v1/verify", content=slowly())
            assert (answer.status_code, answer.content) == (200, b"x" * 500)

            def nothing(*_: object) -> None:
                raise AssertionError("nobody is there to be answered")

            await gate({"type": "http", "path": "/left", "method": "PUT", "headers": []}, nothing, nothing)  # type: ignore[arg-type]

    asyncio.run(check())
