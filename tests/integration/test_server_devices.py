"""Whose device a device is: who may register whom, who vouches, what a lost device can do, and new keys."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.integration import harness
from tests.integration.harness import CONFIG, PEPPER, ROOT, KillableServer, RunningServer, SyntheticDevice, kind
from tests.integration.numpy_devices import federation_of, make_store, pages, token_of
from uvsdk import cli, enroll
from uvsdk.bundle import shipped
from uvsdk.errors import PendingDeviceError, ServerRefusedError
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.privacy.key_rotation import Rotation

WAITING = 1000  # no round opens before so many have joined


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with harness.serving(tmp_path_factory.mktemp("devices"), settings={"start_after_users": WAITING}) as running:
        yield running


def posing_as(victim: SyntheticDevice, number: int) -> SyntheticDevice:
    """Another device with keys of its own that claims to be the victim's."""
    other = SyntheticDevice(victim.server, number)
    other.user = victim.user
    return other


def states(server: RunningServer, user: str) -> dict[str, str]:
    listed = server.ask("GET", f"/v1/devices?user={user}").json()["devices"]
    return {item["device_id"]: item["state"] for item in listed}


def refused(answer: httpx.Response, status: int, name: str) -> None:
    assert (answer.status_code, kind(answer)) == (status, name), answer.text


def template_of(server: RunningServer, user: str) -> bytes | None:
    rows = server.rows(f"SELECT sealed FROM templates WHERE user = '{user}' ORDER BY received DESC")
    return rows[0][0] if rows else None


def test_a_token_is_for_one_person(server: RunningServer) -> None:
    owner, other = SyntheticDevice(server, 1), SyntheticDevice(server, 2)
    token = server.token("enrol", user=owner.user)
    refused(other.register(token), 403, "wrong-user")
    refused(posing_as(other, 1).register(token), 403, "wrong-user")
    answer = owner.register(token)
    assert (answer.status_code, answer.json()["state"]) == (201, "active")
    refused(posing_as(owner, 3).register(token), 403, "token-spent")


def test_who_registers_a_victims_id_first_never_becomes_the_victim(server: RunningServer) -> None:
    """The attacker has the pepper, which every device holds, and an enrolment token for anybody."""
    victim = SyntheticDevice(server, 10)
    attacker = posing_as(victim, 11)
    answer = attacker.register(server.token("enrol"))
    assert (answer.status_code, answer.json()["state"]) == (201, "unconfirmed")
    refused(attacker.leave_template(), 403, "unconfirmed-device")
    body = {"user": victim.user, "sample": base64.b64encode(b"x").decode()}
    refused(server.ask("POST", "/v1/verify", json=body), 404, "unknown-user")
    refused(attacker.request("POST", f"/v1/devices/{attacker.device_id}/approval"), 403, "unconfirmed-device")
    accomplice = posing_as(victim, 12)
    assert accomplice.register(server.token("enrol")).json()["state"] == "pending"
    refused(attacker.request("POST", f"/v1/devices/{accomplice.device_id}/approval"), 403, "unconfirmed-device")
    assert states(server, victim.user) == {attacker.device_id: "unconfirmed", accomplice.device_id: "pending"}

    # The operator's word, a token for this very person, ends what was only claimed.
    assert victim.register(server.token("enrol", user=victim.user)).json()["state"] == "active"
    assert victim.admit().status_code == 204
    assert victim.leave_template().status_code == 204
    kept = template_of(server, victim.user)
    assert states(server, victim.user) == {
        attacker.device_id: "pending",
        accomplice.device_id: "pending",
        victim.device_id: "active",
    }
    for thief in (attacker, accomplice):
        for answer in (
            thief.leave_template(),
            thief.admit(),
            thief.request("GET", "/v1/rounds/current"),
            thief.request("GET", "/v1/models/current"),
            thief.request("DELETE", f"/v1/users/{victim.user}"),
            thief.request("POST", f"/v1/devices/{thief.device_id}/approval"),
            thief.request("DELETE", f"/v1/devices/{victim.device_id}"),
        ):
            refused(answer, 403, "pending-device")
    assert template_of(server, victim.user) == kept
    assert states(server, victim.user)[victim.device_id] == "active"


def test_what_an_impostor_taught_is_forgotten(tmp_path: Path) -> None:
    """Under FedAwS the server holds a class vector of each user: the impostor's does not outlive the claim."""
    with harness.serving(tmp_path, config=replace(CONFIG, rounds=9)) as running:
        honest = harness.devices_of(running, 3)
        victim = SyntheticDevice(running, 10)
        attacker = posing_as(victim, 11)
        assert attacker.register(running.token("enrol")).json()["state"] == "unconfirmed"
        assert attacker.admit().status_code == 204
        after = harness.play_round(honest, 0)
        after = harness.play_round([*honest, attacker], after)
        header = attacker.wait(after=after)
        assert header is not None
        taught = attacker.task(header).vector
        assert running.ask("DELETE", f"/v1/devices/{attacker.device_id}").status_code == 204
        assert victim.register(running.token("enrol", user=victim.user)).json()["state"] == "active"
        assert victim.admit().status_code == 204
        after = harness.play_round(honest, after)
        header = victim.wait(after=after)
        assert header is not None
        # A newcomer's class vector starts as the own normalised mean.
        own = victim.task(header).vector
        assert float(own @ victim.direction(0)) > 0.999
        assert abs(float(own @ taught)) < 0.9


def test_a_victim_who_comes_second_hears_of_it(server: RunningServer) -> None:
    victim = SyntheticDevice(server, 15)
    attacker = posing_as(victim, 16)
    token = server.token("enrol")
    assert attacker.register(token).json()["state"] == "unconfirmed"
    assert victim.register(token).json()["state"] == "pending"
    refused(victim.admit(), 403, "pending-device")
    assert server.ask("POST", f"/v1/devices/{victim.device_id}/approval").status_code == 204
    assert states(server, victim.user) == {victim.device_id: "active", attacker.device_id: "pending"}
    assert victim.request("DELETE", f"/v1/devices/{attacker.device_id}").status_code == 204
    refused(attacker.request("GET", "/v1/rounds/current"), 403, "revoked-device")
    refused(attacker.register(token), 403, "revoked-device")


def test_a_second_device_is_approved_by_the_first_or_by_the_operator(server: RunningServer) -> None:
    first, stranger = SyntheticDevice(server, 20), SyntheticDevice(server, 21)
    first.join(server.token("enrol", user=first.user))
    stranger.join(server.token("enrol", user=stranger.user))
    second, third = posing_as(first, 22), posing_as(first, 23)
    token = server.token("enrol", user=first.user, uses=2)
    for waiting in (second, third):
        assert waiting.register(token).json()["state"] == "pending"  # the token alone is not enough now
        refused(waiting.admit(), 403, "pending-device")
        target = f"/v1/devices/{waiting.device_id}/approval"
        refused(waiting.request("POST", target), 403, "pending-device")
        refused(stranger.request("POST", target), 404, "no-such-device")
        refused(server.ask("POST", target, token=server.token("verify")), 403, "forbidden")
    assert first.request("POST", f"/v1/devices/{second.device_id}/approval").status_code == 204
    assert server.ask("POST", f"/v1/devices/{third.device_id}/approval").status_code == 204
    for approved in (second, third):
        assert approved.request("POST", f"/v1/devices/{second.device_id}/approval").status_code == 204  # again: fine
        assert approved.leave_template().status_code == 204
        listed = approved.request("GET", "/v1/devices").json()["devices"]
        assert {item["device_id"] for item in listed} == {first.device_id, second.device_id, third.device_id}
    refused(first.request("GET", f"/v1/devices?user={stranger.user}"), 403, "forbidden")
    refused(first.request("DELETE", f"/v1/devices/{stranger.device_id}"), 404, "no-such-device")
    assert states(server, stranger.user) == {stranger.device_id: "active"}


def test_a_lost_device_is_replaced_and_its_user_stays(server: RunningServer) -> None:
    lost = SyntheticDevice(server, 30)
    lost.join(server.token("enrol", user=lost.user))
    assert lost.leave_template().status_code == 204
    kept = template_of(server, lost.user)
    assert server.ask("DELETE", f"/v1/devices/{lost.device_id}").status_code == 204
    assert server.ask("DELETE", f"/v1/devices/{lost.device_id}").status_code == 204
    for answer in (
        lost.request("GET", "/v1/models/current"),
        lost.request("GET", "/v1/devices"),
        lost.request("DELETE", f"/v1/users/{lost.user}"),
        lost.leave_template(),
        lost.register(server.token("enrol", user=lost.user)),
    ):
        refused(answer, 403, "revoked-device")
    assert template_of(server, lost.user) == kept
    refused(server.ask("POST", f"/v1/devices/{lost.device_id}/approval"), 403, "revoked-device")
    # Nobody's claim takes the place that is free now.
    assert posing_as(lost, 31).register(server.token("enrol")).json()["state"] == "pending"
    replacement = posing_as(lost, 32)
    assert replacement.register(server.token("enrol", user=lost.user)).json()["state"] == "active"
    assert template_of(server, lost.user) == kept
    assert replacement.request("GET", "/v1/models/current").status_code == 200


def test_a_person_has_so_many_devices(server: RunningServer) -> None:
    first = SyntheticDevice(server, 40)
    first.join(server.token("enrol", user=first.user))
    token = server.token("enrol", user=first.user, uses=10)
    others = [posing_as(first, 41 + number) for number in range(5)]
    for other in others:
        assert other.register(token).json()["state"] == "pending"
    for other in others[:4]:
        assert first.request("POST", f"/v1/devices/{other.device_id}/approval").status_code == 204
    refused(first.request("POST", f"/v1/devices/{others[4].device_id}/approval"), 409, "too-many-devices")
    assert first.request("DELETE", f"/v1/devices/{others[0].device_id}").status_code == 204
    assert first.request("POST", f"/v1/devices/{others[4].device_id}/approval").status_code == 204
    # Claims do not pile up either.
    unbound = server.token("enrol")
    claims = [posing_as(first, 50 + number).register(unbound) for number in range(6)]
    assert [answer.status_code for answer in claims] == [201] * 5 + [409]


def test_nobody_waits_for_a_device_that_was_revoked(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=1)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": 4}) as running:
        devices = harness.devices_of(running, 4)
        header = devices[0].wait()
        assert header is not None
        assert running.ask("DELETE", f"/v1/devices/{devices[3].device_id}").status_code == 204
        refused(devices[3].upload(header, devices[3].update(header)), 403, "revoked-device")
        for device in devices[:3]:
            assert device.upload(header, device.update(header)).status_code == 201
        harness.eventually(lambda: running.candidate()["round_id"] == 1, timeout_s=20)  # its deadline is 60 s
        assert running.rows("SELECT accepted FROM rounds WHERE round_id = 1") == [(3,)]


def rotation_of(device: SyntheticDevice, signing: Ed25519PrivateKey, sealing: X25519PrivateKey) -> Rotation:
    return Rotation(
        deployment=CONFIG.deployment,
        device_id=device.device_id,
        former=device.signing.public_key().public_bytes_raw(),
        signing=signing.public_key().public_bytes_raw(),
        sealing=sealing.public_key().public_bytes_raw(),
    )


def hand_in(device: SyntheticDevice, rotation: Rotation, proof: bytes, *, of: str = "") -> httpx.Response:
    body = {
        "signing_key": base64.b64encode(rotation.signing).decode(),
        "sealing_key": base64.b64encode(rotation.sealing).decode(),
        "proof": base64.b64encode(proof).decode(),
    }
    target = f"/v1/devices/{of or device.device_id}/keys"
    return device.request("PUT", target, json.dumps(body).encode(), Content_Type="application/json")


def test_keys_rotate_and_what_was_sealed_before_still_arrives(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 3}) as running:
        devices = harness.devices_of(running, 3)
        device, other = devices[0], devices[1]
        header = device.wait()
        assert header is not None
        sealed = device.update(header)
        old, signing, sealing = device.signing, Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        rotation = rotation_of(device, signing, sealing)
        refused(hand_in(device, rotation, rotation.prove(other.signing)), 401, "bad-signature")
        refused(hand_in(device, rotation, rotation_of(other, signing, sealing).prove(signing)), 401, "bad-signature")
        refused(hand_in(other, rotation, rotation.prove(signing), of=device.device_id), 403, "forbidden")
        assert hand_in(device, rotation, rotation.prove(signing)).status_code == 204
        refused(device.request("GET", "/v1/models/current"), 401, "bad-signature")
        device.signing, device.sealing = signing, sealing
        assert device.task(header).vector.shape == (harness.DIMENSION,)  # sealed to the new key
        assert device.upload(header, sealed).status_code == 201
        answer = device.register(running.token("enrol"))
        assert answer.json()["device_id"] != device.device_id  # another device, by its key
        device.signing = old
        refused(device.register(running.token("enrol")), 409, "device-exists")


def test_the_operator_makes_tokens_over_rest(server: RunningServer) -> None:
    device = SyntheticDevice(server, 60)
    answer = server.ask("POST", "/v1/enrolment-tokens", json={"user": device.user})
    assert answer.status_code == 201
    token = answer.json()["token"]
    refused(SyntheticDevice(server, 61).register(token), 403, "wrong-user")
    assert device.register(token).json()["state"] == "active"
    for body in ({}, {"user": "ada"}, {"user": device.user, "uses": 0}, {"user": device.user, "unbound": True}):
        refused(server.ask("POST", "/v1/enrolment-tokens", json=body), 422, "invalid-request")
    refused(
        server.ask("POST", "/v1/enrolment-tokens", json={"user": device.user}, token=server.token("verify")),
        403,
        "forbidden",
    )


def test_devices_are_listed_in_pages(server: RunningServer) -> None:
    for number in range(70, 73):
        assert SyntheticDevice(server, number).register(server.token("enrol")).status_code == 201
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = server.ask("GET", f"/v1/devices?limit=2&state=unconfirmed&after={after}").json()
        assert {item["state"] for item in page["devices"]} == {"unconfirmed"}
        seen += [item["device_id"] for item in page["devices"]]
        after = page["next_after"]
    assert seen == sorted(set(seen))
    assert {SyntheticDevice(server, number).device_id for number in range(70, 73)} <= set(seen)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
    command = [sys.executable, "-m", "uvsdk", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_operators_token_is_in_a_file_and_nowhere_else(tmp_path: Path) -> None:
    server = KillableServer(tmp_path, settings={"start_after_users": WAITING})
    server.start()
    try:
        path = server.data / "operator-token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.operator == path.read_text().strip()
        assert server.ask("GET", "/v1/devices").status_code == 200
        assert server.operator not in server.log()
        ((expires, created),) = server.rows("SELECT expires, created FROM tokens")
        assert expires == pytest.approx(created + 90 * 86_400)
    finally:
        server.stop()


def test_the_operators_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pepper").write_bytes(PEPPER)
    with harness.serving(tmp_path / "server", settings={"start_after_users": WAITING}) as running:

        def command(*arguments: object, status: int = 0) -> str:
            assert cli.main([str(argument) for argument in arguments]) == status
            printed = capsys.readouterr()
            return printed.out if status == 0 else printed.err

        data = ("--data", running.data)
        create = ("token", *data, "create", "--scope")
        path = Path(command(*create, "operator").strip())
        text = path.read_text().strip()
        assert path.parent == running.data
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert running.ask("GET", "/v1/devices", token=text).status_code == 200
        out = tmp_path / "other"
        assert command(*create, "operator", "--output", out, "--days", "1").strip() == str(out)
        assert "exists" in command(*create, "operator", "--output", out, status=1)
        assert "366 days" in command(*create, "operator", "--days", "400", status=1)
        assert "for one person" in command(*create, "enrol", status=1)
        assert "for one person" in command(*create, "enrol", "--user", "a" * 64, "--unbound", "--uses", 1, status=1)
        assert "say how many" in command(*create, "enrol", "--unbound", status=1)
        assert "64 hexadecimal" in command(*create, "enrol", "--user", "ada", status=1)
        assert "only an enrolment token" in command(*create, "verify", "--user", "a" * 64, status=1)

        first, second = SyntheticDevice(running, 0), SyntheticDevice(running, 1)
        named = ("--user", "user 0", "--user", "user 1", "--pepper-file", tmp_path / "pepper")
        tokens = command(*create, "enrol", *named).split()
        refused(second.register(tokens[0]), 403, "wrong-user")
        assert first.register(tokens[0]).json()["state"] == "active"
        third = SyntheticDevice(running, 2)
        (anybodys,) = command(*create, "enrol", "--unbound", "--uses", 1).split()
        assert third.register(anybodys).json()["state"] == "unconfirmed"
        assert [line.split()[2] for line in command("token", *data, "list").splitlines() if " enrol " in line] == [
            *(device.user[:12] for device in (first, second)),
            "anybody",
        ]
        listed = command("devices", *data, "list", "--state", "unconfirmed")
        assert third.device_id in listed
        assert first.device_id not in listed
        command("devices", *data, "approve", third.device_id)
        assert third.leave_template().status_code == 204
        command("devices", *data, "revoke", first.device_id)
        refused(first.request("GET", "/v1/models/current"), 403, "revoked-device")
        assert "stays so" in command("devices", *data, "approve", first.device_id, status=1)
        assert "no device" in command("devices", *data, "approve", "0" * 32, status=1)


def enrolled(tmp_path: Path, name: str) -> Any:
    """A device of person 0, which has a store of its own."""
    store = make_store(tmp_path / name, 0)
    enroll("person 0", pages(0), model=shipped(), store=store)
    return store


def test_a_person_approves_the_second_device_on_the_first(server: RunningServer, tmp_path: Path) -> None:
    first, second = enrolled(tmp_path, "phone"), enrolled(tmp_path, "tablet")
    user = hash_user_id("person 0", deployment=CONFIG.deployment, pepper=PEPPER)
    federation = federation_of(server, server.token("enrol", user=user, uses=2), server_verification=True)
    assert federation.take_part("person 0", model=shipped(), store=first).state == "joined"
    waiting = federation.take_part("person 0", model=shipped(), store=second)
    assert waiting.state == "pending"
    with pytest.raises(PendingDeviceError, match="device approve"):
        federation.participate("person 0", second, until_finished=False)
    (shown,) = federation.devices("person 0", second)
    assert (shown.state, shown.here) == ("pending", True)
    assert shown.device_id in waiting.detail
    with pytest.raises(ServerRefusedError, match="pending-device"):
        federation.approve_device("person 0", second, shown.device_id)
    federation.approve_device("person 0", first, shown.device_id)
    assert federation.take_part("person 0", model=shipped(), store=second).state == "joined"
    assert {device.state for device in federation.devices("person 0", second)} == {"active"}
    # The phone is lost: the tablet takes its rights, and the person stays.
    (phone,) = [device for device in federation.devices("person 0", second) if not device.here]
    federation.revoke_device("person 0", second, phone.device_id)
    with pytest.raises(ServerRefusedError, match="revoked-device"):
        federation.participate("person 0", first, until_finished=False)
    assert template_of(server, user) is not None
    # A lost device that is found again can be emptied, and takes nobody with it.
    federation.forget("person 0", first)
    assert first.users() == ()
    assert template_of(server, user) is not None
    federation.withdraw("person 0", second)
    assert server.rows(f"SELECT 1 FROM users WHERE user = '{user}'") == []


def test_a_device_that_nobody_vouches_for_trains_and_leaves_no_template(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    enroll("person 1", pages(1), model=shipped(), store=store)
    federation = federation_of(server, server.token("enrol"), server_verification=True)
    assert federation.take_part("person 1", model=shipped(), store=store).state == "joined"
    user = hash_user_id("person 1", deployment=CONFIG.deployment, pepper=PEPPER)
    assert template_of(server, user) is None
    (device,) = federation.devices("person 1", store)
    assert device.state == "unconfirmed"
    assert server.ask("POST", f"/v1/devices/{device.device_id}/approval").status_code == 204
    federation.refresh_template("person 1", store)
    assert template_of(server, user) is not None


def test_a_device_that_waits_takes_itself_back(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    enroll("person 2", pages(2), model=shipped(), store=store)
    owner = SyntheticDevice(server, 80)
    owner.user = hash_user_id("person 2", deployment=CONFIG.deployment, pepper=PEPPER)
    owner.join(server.token("enrol", user=owner.user))
    federation = federation_of(server, server.token("enrol"))
    assert federation.take_part("person 2", model=shipped(), store=store).state == "pending"
    (shown,) = federation.devices("person 2", store)
    federation.forget("person 2", store)
    assert store.users() == ()
    assert states(server, owner.user) == {owner.device_id: "active", shown.device_id: "revoked"}


def test_new_keys_and_a_device_killed_at_every_moment_of_it(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 3)
    enroll("person 3", pages(3), model=shipped(), store=store)
    federation = federation_of(server, token_of(server, "person 3"))
    federation.take_part("person 3", model=shipped(), store=store)
    (before,) = federation.devices("person 3", store)
    query = f"SELECT signing_key, sealing_key FROM devices WHERE device_id = '{before.device_id}'"
    keys = server.rows(query)
    process = Path(__file__).with_name("rotation_process.py")
    path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
    done = subprocess.run(
        [sys.executable, str(process), server.url, str(store.folder), "person 3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] >= 10
    assert told["told"] == [["active", before.device_id]] * (told["kills"] + 1)
    assert server.rows(query) != keys
    assert [device.state for device in federation.devices("person 3", make_store(tmp_path, 3))] == ["active"]


def test_old_keys_are_replaced_while_a_device_takes_part(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 4)
    enroll("person 4", pages(4), model=shipped(), store=store)
    federation = federation_of(server, token_of(server, "person 4"))
    federation.participate("person 4", store, until_finished=False)
    (device,) = federation.devices("person 4", store)
    query = f"SELECT signing_key FROM devices WHERE device_id = '{device.device_id}'"
    keys = server.rows(query)
    federation.participate("person 4", store, until_finished=False)
    assert server.rows(query) == keys
    replace(federation, rotate_after_s=0.0).participate("person 4", store, until_finished=False)
    assert server.rows(query) != keys
    federation.participate("person 4", store, until_finished=False)
