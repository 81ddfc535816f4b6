"""Nothing that was captured on its way is of use: not twice, not after a restart, not at another server, not later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, DIMENSION, KillableServer, RunningServer, SyntheticDevice, kind
from tests.integration.numpy_devices import federation_of, make_store, pages
from uvsdk import enroll
from uvsdk.arrays import Float32
from uvsdk.bundle import shipped
from uvsdk.errors import SealError, UnapprovedConfigError
from uvsdk.federation.messages import Admission, TemplateUpload
from uvsdk.records.codec import pack
from uvsdk.templates.template import Template
from uvsdk_device.connection import Connection
from uvsdk_device.deployment import Deployment
from uvsdk_server import clocks


@dataclass
class Captured:
    """A request with its signature, as somebody between a device and its server sees it."""

    method: str
    target: str
    body: bytes
    headers: dict[str, str]

    def send(self, server: RunningServer) -> httpx.Response:
        if not server.clients:
            server.open_client()
        return server.clients[0].request(self.method, server.url + self.target, content=self.body, headers=self.headers)


def captured(device: SyntheticDevice, method: str, target: str, body: bytes = b"", **how: str) -> Captured:
    return Captured(method, target, body, device.signed(method, target, body, **how))


def admission(device: SyntheticDevice, number: int | None = None) -> bytes:
    version = str(device.deployment()["model_version"])
    message = pack(Admission(device.user, version, 5, 0.8 * device.direction(0)))
    return device.sealed("admission", message, version, number=number)


def template(device: SyntheticDevice, vector: Float32, number: int | None = None) -> bytes:
    version = str(device.deployment()["model_version"])
    packed = Template(vector, version, CONFIG.modality, 3, None, {}).to_plain_bytes()
    return device.sealed("template", pack(TemplateUpload(device.user, version, packed)), version, number=number)


def axis(index: int) -> Float32:
    vector = np.zeros(DIMENSION, np.float32)
    vector[index] = 1.0
    return vector


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with harness.serving(tmp_path_factory.mktemp("fresh"), settings={"signature_window_s": 300}) as running:
        yield running


@pytest.fixture(scope="module")
def members(server: RunningServer) -> list[SyntheticDevice]:
    return harness.devices_of(server, 3)


def test_every_signed_request_is_taken_once(server: RunningServer, members: list[SyntheticDevice]) -> None:
    device = members[0]
    header = device.wait()
    assert header is not None
    update = device.update(header)
    own = f"/v1/users/{device.user}"
    requests: list[tuple[str, str, bytes]] = [
        ("GET", "/v1/rounds/current", b""),
        ("GET", "/v1/models/current", b""),
        ("GET", f"/v1/rounds/{header.round_id}/task", b""),
        ("GET", f"/v1/rounds/{header.round_id}/invitation", b""),
        ("PUT", f"{own}/admission", admission(device)),
        ("PUT", f"{own}/template", template(device, axis(0))),
        ("PUT", f"/v1/rounds/{header.round_id}/update", update),
        ("DELETE", own, b""),
    ]
    for method, target, body in requests:
        seen = captured(device, method, target, body)
        first = seen.send(server)
        assert first.status_code not in (401, 403), (method, target, first.text)
        if method == "DELETE":  # the device that is gone with its user comes back
            device.join(server.token("enrol"))
        again = seen.send(server)
        assert (again.status_code, kind(again)) == (401, "replayed-request"), (method, target)
    # The device itself repeats what it wants to repeat: signed anew, each is taken.
    assert device.request("DELETE", own).status_code == 204


def test_a_registration_is_taken_once(server: RunningServer) -> None:
    device = SyntheticDevice(server, 10)
    body = device.registration(server.token("enrol"))
    seen = captured(device, "POST", "/v1/devices", body, key_id="new")
    seen.headers["Content-Type"] = "application/json"
    assert seen.send(server).status_code == 201
    again = seen.send(server)
    assert (again.status_code, kind(again)) == (401, "replayed-request")


def test_a_request_that_was_held_back_loses_its_worth(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"signature_window_s": 0.2}) as running:
        (device,) = harness.devices_of(running, 1)
        seen = captured(device, "DELETE", f"/v1/users/{device.user}")
        time.sleep(0.5)
        answer = seen.send(running)
        assert (answer.status_code, kind(answer)) == (401, "stale-challenge")
        assert device.request("GET", "/v1/models/current").status_code == 200


def test_a_restart_opens_no_window(tmp_path: Path) -> None:
    server = KillableServer(tmp_path, settings={"start_after_users": 100})
    server.start()
    try:
        (device,) = harness.devices_of(server, 1)
        received = captured(device, "GET", "/v1/models/current")
        assert received.send(server).status_code == 200
        held_back = captured(device, "DELETE", f"/v1/users/{device.user}")
        authority = server.url.removeprefix("http://")
        assert server.process is not None
        server.process.kill()
        assert server.restart_if_dead()
        for seen in (received, held_back):
            seen.headers["Host"] = authority  # the port is another one, the request is for the former
            answer = seen.send(server)
            assert (answer.status_code, kind(answer)) == (401, "stale-challenge")
        # The device notices, and signs anew by itself.
        assert device.request("GET", "/v1/models/current").status_code == 200
    finally:
        server.stop()


def test_one_device_cannot_fill_the_memory() -> None:
    from uvsdk.privacy.request_signing import Claim
    from uvsdk.rest.problems import Problem
    from uvsdk_server.freshness import Freshness

    now = [0.0]
    freshness = Freshness(10.0, per_device=3, in_all=5, steady=lambda: now[0])

    def ask(device: str, number: int, challenge: str) -> None:
        freshness.spend(Claim("device", f"{challenge}.{number}", challenge, 0), device)

    first = freshness.challenge
    for number in range(3):
        ask("a", number, first)
    with pytest.raises(Problem, match="one device may send 3") as greedy:
        ask("a", 3, first)
    assert (greedy.value.status, greedy.value.headers) == (429, {"Retry-After": "11"})
    ask("b", 0, first)
    assert freshness.challenge == first
    ask("b", 1, first)  # the fifth: replaced early
    second = freshness.challenge
    assert second != first
    with pytest.raises(Problem, match="received before"):
        ask("b", 1, first)
    ask("b", 2, first)  # the one before is still accepted
    now[0] = 10.0
    assert freshness.challenge not in (first, second)
    with pytest.raises(Problem, match="not signed over a challenge"):
        ask("b", 9, first)
    ask("b", 1, second)
    now[0] = 1000.0  # a server that nobody asked for a while
    with pytest.raises(Problem, match="not signed over a challenge"):
        ask("b", 9, second)


def test_a_signature_is_for_one_server(server: RunningServer) -> None:
    """Who passes a device's request on is called by another name than the server."""
    device = SyntheticDevice(server, 11)
    device.join(server.token("enrol"))
    relayed = captured(device, "GET", "/v1/models/current", authority="mallory.example")
    answer = relayed.send(server)
    assert (answer.status_code, kind(answer)) == (401, "bad-signature")
    relayed = captured(device, "GET", "/v1/models/current", authority="mallory.example")
    relayed.headers["Host"] = "mallory.example"
    answer = relayed.send(server)
    assert (answer.status_code, kind(answer)) == (421, "wrong-authority")


def test_a_proxy_may_rewrite_the_host(tmp_path: Path) -> None:
    settings = {"authorities": "Clinic.example,clinic.example:8443"}
    with harness.serving(tmp_path, settings=settings) as running:
        device = SyntheticDevice(running, 0)
        assert device.deployment()["authorities"] == ["clinic.example", "clinic.example:8443"]
        body = device.registration(running.token("enrol"))
        for authority, status in (("clinic.example", 201), ("clinic.example:8443", 200), ("clinic.example:1", 401)):
            headers = device.signed("POST", "/v1/devices", body, key_id="new", authority=authority)
            answer = running.clients[0].post(
                f"{running.url}/v1/devices", content=body, headers={**headers, "Content-Type": "application/json"}
            )
            assert answer.status_code == status
        # Not by its address, for the operator has said what it is called.
        assert kind(device.request("GET", "/v1/models/current")) == "bad-signature"
        with Connection(running.url) as connection:
            _, values = connection.get_json("/v1/deployment")
            with pytest.raises(UnapprovedConfigError, match=r"uvsdk serve --authority 127\.0\.0\.1:"):
                Deployment.from_json(values, authority=connection.authority, now=time.time())


def test_a_captured_template_does_not_come_back(server: RunningServer) -> None:
    """Even a device's own key cannot put an older message about its user in place of a newer one."""
    device = SyntheticDevice(server, 12)
    device.join(server.token("enrol"))
    target = f"/v1/users/{device.user}"
    old, new = template(device, axis(0)), template(device, axis(1))
    old_admission = admission(device)
    version = str(device.deployment()["model_version"])
    joined = "users LEFT JOIN templates ON users.user = templates.user"
    query = f"SELECT sealed, admission_sealed FROM {joined} WHERE users.user = '{device.user}'"
    assert device.request("PUT", f"{target}/template", old).status_code == 204
    assert device.request("PUT", f"{target}/template", template(device, axis(2))).status_code == 204
    kept = server.rows(query)
    for path, body in (("template", old), ("template", new), ("admission", old_admission)):
        answer = device.request("PUT", f"{target}/{path}", body)
        assert (answer.status_code, kind(answer)) == (409, "out-of-order")
    assert server.rows(query) == kept
    assert device.leave_template(axis(3), version).status_code == 204
    assert server.rows(query) != kept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``clock(seconds)`` sets the wall clock of this process, server and devices, ahead or back."""
    real, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])

    def by(seconds: float) -> None:
        offset[0] = seconds

    return by


YEAR = 366 * 86_400.0


@pytest.mark.parametrize("jumps", [(-YEAR,), (YEAR, 0.0), (YEAR, -YEAR)], ids=str)
def test_rounds_go_on_whatever_becomes_of_the_clock(
    tmp_path: Path, clock: Callable[[float], None], jumps: tuple[float, ...]
) -> None:
    config = replace(CONFIG, rounds=len(jumps) + 1)
    with harness.serving(tmp_path, config=config, settings={"round_pause_s": 0.3}) as running:
        devices = harness.devices_of(running, 3)
        after = harness.play_round(devices, 0)
        for jump in jumps:
            clock(jump)
            after = harness.play_round(devices, after)
        harness.eventually(lambda: running.candidate()["round_id"] == len(jumps) + 1)


def test_a_round_ends_although_the_clock_was_set_back(tmp_path: Path, clock: Callable[[float], None]) -> None:
    config = replace(CONFIG, deadline_s=1.0, min_clients=3)
    with harness.serving(tmp_path, config=config) as running:
        devices = harness.devices_of(running, 4)
        header = devices[0].wait()
        assert header is not None
        for device in devices[:3]:  # the fourth is never heard of
            assert device.upload(header, device.update(header)).status_code == 201
        clock(-YEAR)
        harness.eventually(lambda: running.candidate()["round_id"] == 1, timeout_s=10)


def test_a_server_that_was_started_again_under_an_earlier_clock_goes_on(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    config = replace(CONFIG, rounds=2)
    running = RunningServer(tmp_path, config=config, settings={"round_pause_s": 0.3})
    clock(YEAR)
    running.start()
    devices = harness.devices_of(running, 3)
    harness.play_round(devices, 0)
    harness.eventually(lambda: running.candidate()["round_id"] == 1)
    former = {row[0] for row in running.rows("SELECT key_id FROM server_keys")}
    running.stop()
    clock(0.0)
    running.start()
    try:
        running.operator, running.challenge = running.token("operator"), ""
        again = [SyntheticDevice(running, device.number) for device in devices]
        assert harness.play_round(again, 1) == 2
        harness.eventually(lambda: running.candidate()["round_id"] == 2)
        # A key that seems to come from the future is as old as can be, and none lives for ever by that.
        assert {row[0] for row in running.rows("SELECT key_id FROM server_keys WHERE retired IS NULL")}.isdisjoint(
            former
        )
    finally:
        running.stop()


def test_the_key_is_replaced_while_training_rests(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"key_lifetime_s": 0.2, "start_after_users": 1000}) as running:
        first = running.ask("GET", "/v1/deployment", token="").json()["server_key_id"]
        harness.eventually(lambda: running.rows(f"SELECT 1 FROM server_keys WHERE key_id = '{first}' AND retired > 0"))
        harness.eventually(lambda: not (running.data / "keys" / f"hpke-{first}.key").exists())
        assert running.ask("GET", "/v1/deployment", token="").json()["server_key_id"] != first
        # What was sealed to the retired key is refused, and the device seals anew.
        device = SyntheticDevice(running, 0)
        device.register(running.token("enrol"))
        harness.eventually(lambda: device.admit().status_code == 204)


def test_a_token_does_not_come_back_to_life(tmp_path: Path, clock: Callable[[float], None]) -> None:
    with harness.serving(tmp_path) as running:
        token = running.token("verify", lifetime_s=0.5)
        harness.eventually(lambda: running.ask("GET", "/v1/models/current", token=token).status_code == 401)
        clock(-YEAR)
        assert kind(running.ask("GET", "/v1/models/current", token=token)) == "unauthorized"


@pytest.mark.parametrize("path", ["/v1/deployment", "/v1/rounds/current"])
def test_an_old_statement_is_of_no_use(
    tmp_path: Path, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """What the server said two hours ago is shown to the device again."""
    with harness.serving(tmp_path / "server", settings={"start_after_users": 1}) as running:
        others = harness.devices_of(running, 2)
        store = make_store(tmp_path, 0)
        federation = federation_of(running, running.token("enrol"), clock=lambda: time.time())
        enroll("person 0", pages(0), model=shipped(), store=store)
        federation.newest_model("person 0", store)
        asked, old = Connection.get_json, {}
        assert others[0].wait() is not None

        def repeated(self: Connection, target: str, **query: object) -> object:
            answer = asked(self, target, **query)  # type: ignore[arg-type]
            if target != path or (target not in old and not answer[1]):
                return answer
            return old.setdefault(target, answer)

        monkeypatch.setattr(Connection, "get_json", repeated)
        federation.take_part("person 0", model=shipped(), store=store)
        assert path in old
        clock(7200.0)
        with pytest.raises(SealError, match="clock"):
            federation.take_part("person 0", model=shipped(), store=store)


def test_the_age_of_what_was_made_under_another_clock() -> None:
    wall, steady = [1000.0], [0.0]
    age = clocks.Ageing(400.0, lambda: wall[0], lambda: steady[0])
    assert age.age_s() == 600.0
    wall[0], steady[0] = 0.0, 10.0
    assert age.age_s() == 610.0
