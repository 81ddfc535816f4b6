"""What an operator sees: health, metrics, logs, limits, permissions, commands, shutdown."""

from __future__ import annotations

import json
import re
import signal
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, KillableServer, RunningServer, SyntheticDevice, command, kind
from uvsdk.errors import SettingsError, StoreError
from uvsdk_server.deployment import read_training


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"start_after_users": 1000, "body_limit_bytes": 100_000}
    with harness.serving(tmp_path_factory.mktemp("operations"), settings=settings) as running:
        yield running


def test_health_needs_no_token(server: RunningServer) -> None:
    for path in ("/healthz", "/readyz", "/v1/deployment"):
        assert server.ask("GET", path, token="").status_code == 200


def test_everything_else_needs_one(server: RunningServer) -> None:
    """Every operation of the OpenAPI description but four refuses a stranger."""
    paths = server.ask("GET", "/openapi.json", token="").json()["paths"]
    open_to_all = {"/healthz", "/readyz", "/v1/deployment"}
    for path, operations in paths.items():
        target = (
            path.replace("{user}", "a" * 64)
            .replace("{deletion_id}", "0" * 32)
            .replace("{round_id}", "1")
            .replace("{version}", "current")
        )
        target = target.replace("{device_id}", "a" * 32)
        for method in operations:
            if path in open_to_all:
                continue
            body = {"json": VALID_BODIES[path]} if path in VALID_BODIES and method != "get" else {}
            headers = {"UVSDK-Source": "x"}
            answer = server.ask(method.upper(), target, token="", headers=headers, **body)
            assert answer.status_code == 401, (method, path, answer.text)
            kind(answer)


_KEY = harness.base64.b64encode(bytes(32)).decode()
VALID_BODIES = {
    "/v1/devices": {"token": "t", "user": "a" * 64, "signing_key": _KEY, "sealing_key": _KEY},
    "/v1/devices/{device_id}/keys": {"signing_key": _KEY, "sealing_key": _KEY, "proof": ""},
    "/v1/enrolment-tokens": {"user": "a" * 64},
    "/v1/verify": {"user": "a" * 64, "embedding": [1.0], "model_version": "m"},
}


def test_the_description_lists_the_problems(server: RunningServer) -> None:
    description = server.ask("GET", "/openapi.json", token="").json()
    assert "ProblemDocument" in description["components"]["schemas"]
    update = description["paths"]["/v1/rounds/{round_id}/update"]["put"]["responses"]
    assert {"200", "201", "400", "401", "403", "409", "410", "413", "422", "429"} <= set(update)
    assert "application/problem+json" in update["409"]["content"]


def test_metrics_are_for_operators(server: RunningServer) -> None:
    assert server.ask("GET", "/metrics", token=server.token("verify")).status_code == 403
    text = server.ask("GET", "/metrics").text
    assert 'uvsdk_requests_total{method="GET",status="200"}' in text
    assert "uvsdk_uploads_total" in text


def test_unknown_addresses_and_methods_are_problems(server: RunningServer) -> None:
    assert kind(server.ask("GET", "/nowhere")) == "not-found"
    answer = server.ask("DELETE", "/healthz")
    assert (answer.status_code, kind(answer)) == (405, "method-not-allowed")
    answer = server.ask("GET", "/v1/models/..%2f..%2fkeys/theta")
    assert 400 <= answer.status_code < 500
    answer = server.ask("DELETE", "/v1/users/ana")
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    assert "ana" not in answer.json()["detail"]


def test_bodies_are_limited(server: RunningServer) -> None:
    answer = server.ask("POST", "/v1/verify", content=b"x" * 100_001)
    assert (answer.status_code, kind(answer)) == (413, "too-large")

    def pieces() -> Iterator[bytes]:  # no Content-Length, so only counting helps
        for _ in range(11):
            yield b"x" * 10_000

    answer = server.ask("POST", "/v1/verify", content=pieces(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, kind(answer)) == (413, "too-large")


def test_registrations_are_limited(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"registrations_per_minute": 2}) as server:
        token = server.token("enrol")
        answers = [SyntheticDevice(server, number).register(token) for number in range(4)]
        assert [answer.status_code for answer in answers] == [201, 201, 429, 429]
        assert kind(answers[2]) == "too-many-requests"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 60


def test_uploads_at_once_are_limited(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"concurrent_uploads": 1, "slowest_bytes_per_s": 1}) as server:
        devices = harness.devices_of(server, 3)
        header = devices[0].wait()
        assert header is not None
        body = devices[0].update(header)
        sent, go_on = threading.Event(), threading.Event()

        def slowly() -> Iterator[bytes]:
            yield body[:100]
            sent.set()
            go_on.wait(timeout=20)
            yield body[100:]

        signed = devices[0].signed("PUT", "/v1/rounds/1/update", body)
        slow_client, answers = server.open_client(), []
        url = f"{server.url}/v1/rounds/1/update"
        thread = threading.Thread(target=lambda: answers.append(slow_client.put(url, content=slowly(), headers=signed)))
        thread.start()
        assert sent.wait(timeout=20)
        other = devices[1].update(header)
        # The server receives the first one from when it has a file for it.
        harness.eventually(lambda: any((server.data / "blobs").glob(".tmp-*")))
        answer = devices[1].upload(header, other)
        assert (answer.status_code, kind(answer)) == (429, "too-many-uploads")
        go_on.set()
        thread.join(timeout=20)
        assert answers[0].status_code == 201
        assert devices[1].upload(header, other).status_code == 201


def test_the_folder_is_for_its_owner_alone(server: RunningServer) -> None:
    for folder in (server.data, server.data / "keys", server.data / "blobs", server.data / "bundles"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for key in (server.data / "keys").iterdir():
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_one_folder_one_server(server: RunningServer) -> None:
    with pytest.raises(StoreError, match="in use by another server"):
        command("serve", "--data", str(server.data), "--port", "0")


def test_tokens_are_managed_beside_a_running_server(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(server.data))
    assert command("token", *data, "create", "--scope", "verify", "--label", "gate 7") == 0
    token = capsys.readouterr().out.strip()
    assert server.ask("GET", "/v1/models/current", token=token).status_code == 200
    assert command("token", *data, "list") == 0
    listing = capsys.readouterr().out
    token_id = token.split("_")[1]
    assert "gate 7" in listing
    assert token_id in listing
    assert token.split("_", 2)[2] not in listing
    assert command("token", *data, "create", "--scope", "scores", "--scope", "verify", "--label", "research") == 0
    capsys.readouterr()
    assert command("token", *data, "list") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("research")]
    assert "  verify scores  " in line
    assert command("token", *data, "revoke", token_id) == 0
    assert server.ask("GET", "/v1/models/current", token=token).status_code == 401
    with pytest.raises(SettingsError):
        command("token", *data, "revoke", "nothing")
    with pytest.raises(SettingsError):
        command("token", *data, "create", "--scope", "verify", "--uses", "3")
    with pytest.raises(SettingsError, match="add verify"):
        command("token", *data, "create", "--scope", "scores")
    with pytest.raises(StoreError):
        command("token", "--data", str(server.data / "absent"), "list")


def test_rounds_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness.serving(tmp_path, config=replace(CONFIG, rounds=1)) as server:
        devices = harness.devices_of(server, 3)
        harness.play_round(devices, 0)
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        assert command("rounds", "--data", str(server.data), "list") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["round", "state", "cohort", "accepted", "quorum", "opened", "model", "reason"]
        assert lines[1].split()[:5] == ["1", "committed", "3", "3", "3"]


def test_rounds_are_paged_for_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness.serving(tmp_path, config=replace(CONFIG, rounds=2)) as server:
        assert server.ask("GET", "/v1/rounds").json() == {"rounds": [], "next_before": None}
        devices = harness.devices_of(server, 3)
        harness.play_round(devices, 0)
        header = devices[0].wait(after=1)
        assert header is not None
        assert devices[0].upload(header, devices[0].update(header)).status_code == 201
        page = server.ask("GET", "/v1/rounds").json()
        assert page["next_before"] is None
        second, first = page["rounds"]
        assert (first["round_id"], first["state"], first["cohort"], first["accepted"]) == (1, "committed", 3, 3)
        assert (second["round_id"], second["state"], second["accepted"]) == (2, "collecting", 1)
        assert first["result_version"] == second["model_version"] == header.model_version
        assert second["deadline"] == header.deadline_unix_s
        assert (first["reason"], second["closed"]) == (None, None)
        newest = server.ask("GET", "/v1/rounds?limit=1").json()
        assert newest == {"rounds": [second], "next_before": 2}
        assert server.ask("GET", "/v1/rounds?limit=1&before=2").json() == {"rounds": [first], "next_before": None}
        for query in ("limit=0", "limit=501", "before=0", "before=x"):
            answer = server.ask("GET", f"/v1/rounds?{query}")
            assert (answer.status_code, kind(answer)) == (422, "invalid-request")
        assert server.ask("GET", "/v1/rounds", token=server.token("verify")).status_code == 403
        assert command("rounds", "--data", str(server.data), "list", "--limit", "1", "--before", "2") == 0
        _, line = capsys.readouterr().out.splitlines()
        assert line.split()[:4] == ["1", "committed", "3", "3"]


def test_configurations_are_read_from_json_and_toml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(CONFIG.to_json())
    (tmp_path / "a.toml").write_text(
        'deployment = "d"\nmodality = "voice"\nbackbone = "ge2e"\nalgorithm = "fedaws"\n'
        "[algorithm_settings]\nstep = 1.0\n"
    )
    assert read_training(tmp_path / "a.json") == CONFIG
    assert read_training(tmp_path / "a.toml").algorithm_settings == {"step": 1.0}


def test_keys_are_rotated_and_old_ones_destroyed(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"key_rounds": 1}) as server:
        devices = harness.devices_of(server, 3)
        header = devices[0].wait()
        assert header is not None
        harness.play_round(devices, 0)
        second = devices[0].wait(after=1)
        assert second is not None
        assert second.server_key_id != header.server_key_id
        left = {path.name for path in (server.data / "keys").glob("hpke-*")}
        assert left == {f"hpke-{second.server_key_id}.key"}


def test_a_waiting_device_does_not_hold_up_the_shutdown(tmp_path: Path) -> None:
    server = KillableServer(tmp_path, settings={"start_after_users": 9})
    server.start()
    devices = harness.devices_of(server, 1)
    started: list[object] = []
    thread = threading.Thread(target=lambda: started.append(devices[0].wait(wait_s=25)))
    thread.start()
    time.sleep(1)
    begun = time.monotonic()
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=120)
    assert time.monotonic() - begun < 10
    thread.join()
    assert started == [None]
    server.stop()


def test_logs_are_json_without_anyone_in_them(tmp_path: Path) -> None:
    server = KillableServer(tmp_path, config=replace(CONFIG, rounds=1))
    server.start()
    devices = harness.devices_of(server, 3)
    harness.play_round(devices, 0)
    harness.eventually(lambda: server.candidate()["round_id"] == 1)
    harness.eventually(lambda: "no evaluation" in server.log())
    server.stop()
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert {line["event"] for line in lines} >= {"round collecting", "round committed"}
    for device in devices:
        for secret in (device.user, device.device_id, server.operator):
            assert secret not in server.log()
    said = next(line for line in lines if line["event"] == "training")
    assert (said["algorithm"], said["report"]) == ("fedaws", {})
    assert np.all([isinstance(line["round_id"], int) for line in lines if line["event"].startswith("round")])
    refused = next(line for line in lines if line["event"] == "no evaluation")
    assert refused["reason"].startswith("0 of 3 people here only evaluate")


def test_a_request_has_an_id_in_its_answer_and_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the message stays here")

    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        own = server.ask("GET", "/healthz", headers={"X-Request-ID": "order-4711"})
        assert own.headers["x-request-id"] == "order-4711"
        for given in ("", "two words", "x" * 65, "a\u00e9"):
            answer = server.ask("GET", "/healthz", headers={"X-Request-ID": given.encode("latin-1")})
            assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
        refused = server.ask("GET", "/v1/nothing", headers={"X-Request-ID": "lost"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (404, "lost")
        monkeypatch.setattr("uvsdk_server.routes.operations.ledger.list_rounds", broken)
        failed = server.ask("GET", "/v1/rounds", headers={"X-Request-ID": "bad-luck"})
        assert (failed.status_code, failed.headers["x-request-id"]) == (500, "bad-luck")
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
        (logged,) = [line for line in lines if line["event"] == "request failed"]
        assert logged["request"] == "bad-luck"
        assert "the message" not in json.dumps(logged)
