"""Registration, tokens, admission and leaving, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, DIMENSION, RunningServer, SyntheticDevice, kind
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.records.codec import unpack
from uvsdk_server.keys import KeyFolder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with harness.serving(tmp_path_factory.mktemp("people"), settings={"start_after_users": 1000}) as running:
        yield running


def class_matrix(server: RunningServer) -> ClassMatrix:
    keys = KeyFolder(server.data / "keys")
    ((name,),) = server.rows("SELECT algorithm_blob FROM deployment")
    return unpack(ClassMatrix, keys.open_state((server.data / "blobs" / name).read_bytes()))


def test_registering_again_gives_the_same_device(server: RunningServer) -> None:
    token = server.token("enrol", uses=1)
    device = SyntheticDevice(server, 1)
    first, second = device.register(token), device.register(token)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json() == {"device_id": device.device_id, "state": "unconfirmed"}


def test_an_enrolment_token_is_used_up(server: RunningServer) -> None:
    token = server.token("enrol", uses=1)
    assert SyntheticDevice(server, 2).register(token).status_code == 201
    answer = SyntheticDevice(server, 3).register(token)
    assert (answer.status_code, kind(answer)) == (403, "token-spent")


def test_a_token_that_is_not_valid(server: RunningServer) -> None:
    device = SyntheticDevice(server, 4)
    good = server.token("enrol")
    expired = server.token("enrol", lifetime_s=1e-3)
    for token in ("", "nonsense", "uvsdk_000000000000_x", good[:-1] + ("a" if good[-1] != "a" else "b"), expired):
        answer = device.register(token)
        assert (answer.status_code, kind(answer)) == (401, "unauthorized")
    for scope in ("operator", "verify"):
        answer = device.register(server.token(scope))
        assert (answer.status_code, kind(answer)) == (403, "forbidden")


def test_only_digests_of_tokens_are_stored(server: RunningServer) -> None:
    token = server.token("enrol")
    secret = token.split("_", 2)[2].encode()  # may hold underscores of its own
    for path in server.data.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()


def test_a_second_device_cannot_take_over_a_user(server: RunningServer) -> None:
    token = server.token("enrol")
    first, second = SyntheticDevice(server, 5), SyntheticDevice(server, 6)
    assert first.register(token).status_code == 201
    answer = second.register(token, user=first.user)
    assert (answer.status_code, answer.json()["state"]) == (201, "pending")
    second.user = first.user
    answer = second.admit()
    assert (answer.status_code, kind(answer)) == (403, "pending-device")


def test_a_signing_key_belongs_to_one_user(server: RunningServer) -> None:
    token = server.token("enrol")
    device = SyntheticDevice(server, 7)
    assert device.register(token).status_code == 201
    answer = device.register(token, user="a" * 64)
    assert (answer.status_code, kind(answer)) == (409, "device-exists")


@pytest.mark.parametrize(
    "change",
    [{"user": "ana"}, {"user": "A" * 64}, {"signing_key": "AAAA"}, {"sealing_key": "?"}, {"more": "leaked value"}],
)
def test_a_malformed_registration(server: RunningServer, change: dict[str, str]) -> None:
    answer = SyntheticDevice(server, 8).register(server.token("enrol"), **change)
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    assert change[next(iter(change))] not in answer.json()["detail"]


def test_a_registration_signed_by_another_key(server: RunningServer) -> None:
    device, other = SyntheticDevice(server, 9), SyntheticDevice(server, 10)
    key = harness.base64.b64encode(other.signing.public_key().public_bytes_raw()).decode()
    answer = device.register(server.token("enrol"), signing_key=key)
    assert (answer.status_code, kind(answer)) == (401, "bad-signature")


def test_a_device_admits_its_own_user_only(server: RunningServer) -> None:
    device = SyntheticDevice(server, 11)
    assert device.register(server.token("enrol")).status_code == 201
    answer = device.admit(user="b" * 64)
    assert (answer.status_code, kind(answer)) == (403, "forbidden")
    answer = device.request("PUT", f"/v1/users/{'b' * 64}/admission", b"x")
    assert (answer.status_code, kind(answer)) == (403, "forbidden")


@pytest.mark.parametrize(
    "change",
    [
        {"mean": np.zeros(DIMENSION - 1, np.float32)},
        {"mean": np.full(DIMENSION, np.nan, np.float32)},
        {"mean": np.empty(0, np.float32)},
        {"mean": np.ones(DIMENSION, np.float32)},
        {"samples": 0},
    ],
)
def test_an_admission_that_cannot_be_used(server: RunningServer, change: dict[str, object]) -> None:
    device = SyntheticDevice(server, 12)
    assert device.register(server.token("enrol")).status_code in (200, 201)
    answer = device.admit(**change)
    assert (answer.status_code, kind(answer)) == (422, "invalid-update")


def test_biometrics_are_not_stored_in_clear(server: RunningServer) -> None:
    device = SyntheticDevice(server, 13)
    device.join(server.token("enrol"))
    assert device.leave_template().status_code == 204
    for secret in (device.direction(0), 0.8 * device.direction(0)):
        for path in server.data.rglob("*"):
            if path.is_file():
                assert secret.tobytes() not in path.read_bytes()


def test_who_may_delete(server: RunningServer) -> None:
    token = server.token("enrol")
    owner, other = SyntheticDevice(server, 14), SyntheticDevice(server, 15)
    owner.join(token)
    other.join(token)
    target = f"/v1/users/{owner.user}"
    assert kind(other.request("DELETE", target)) == "forbidden"
    assert kind(server.ask("DELETE", target, token="")) == "bad-signature"
    assert kind(server.ask("DELETE", target, token=server.token("verify"))) == "forbidden"
    assert owner.request("DELETE", target).status_code == 204
    assert kind(owner.request("DELETE", target)) == "unknown-device"
    assert server.ask("DELETE", target).status_code == 204


def test_a_user_who_leaves_in_an_open_round_is_gone(tmp_path: Path) -> None:
    """Row, upload, template, admission and devices; the others finish the round, and the user may come back."""
    config = replace(CONFIG, rounds=2, optimiser="sgd")
    with harness.serving(tmp_path, config=config, settings={"start_after_users": 5}) as server:
        devices = harness.devices_of(server, 5)
        header = devices[0].wait()
        assert header is not None
        leaver, others = devices[0], devices[1:]
        body = leaver.update(header)
        assert leaver.upload(header, body).status_code == 201
        assert leaver.leave_template().status_code == 204
        assert leaver.user in class_matrix(server).users
        blob = harness.hashlib.sha256(body).hexdigest()
        assert (server.data / "blobs" / blob).exists()

        assert leaver.request("DELETE", f"/v1/users/{leaver.user}").status_code == 204
        assert leaver.user not in class_matrix(server).users
        assert not (server.data / "blobs" / blob).exists()
        for table in ("users", "devices", "uploads", "cohort"):
            assert server.rows(f"SELECT count(*) FROM {table} WHERE user = '{leaver.user}'") == [(0,)]
        for path in server.data.rglob("*"):
            if path.is_file():
                assert leaver.user.encode() not in path.read_bytes(), path.name

        for device in others:
            assert device.upload(header, device.update(header)).status_code == 201
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        assert server.rows("SELECT accepted FROM rounds WHERE round_id = 1") == [(4,)]

        leaver.join(server.token("enrol"))
        for device in others:
            again = device.wait(after=1)
            assert again is not None
            assert device.upload(again, device.update(again)).status_code == 201


def test_a_newcomer_joins_the_next_round(tmp_path: Path) -> None:
    with harness.serving(tmp_path) as server:
        devices = harness.devices_of(server, 3)
        header = devices[0].wait()
        assert header is not None
        (late,) = harness.devices_of(server, 1, first=9)
        assert late.wait(wait_s=0) is None
        answer = late.upload(header, late.update(header))
        assert (answer.status_code, kind(answer)) == (403, "not-selected")
        harness.play_round(devices, 0)
        second = late.wait(after=1)
        assert second is not None
        assert second.cohort == 4
        assert late.task(second).vector.shape == (DIMENSION,)
