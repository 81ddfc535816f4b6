"""What differs between methods on the wire: requests, what an admission holds, who verifies, who may run what."""

from __future__ import annotations

import argparse
import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, SyntheticDevice, kind
from uvsdk.errors import SettingsError
from uvsdk.federation import messages
from uvsdk.federation.algorithms.fedss import payload as fedss
from uvsdk.federation.algorithms.fedss.request import REQUEST
from uvsdk.federation.messages import RoundHeader, TrainingConfig
from uvsdk.privacy.sealing import Envelope, seal
from uvsdk.records.codec import pack, unpack
from uvsdk_server import Settings
from uvsdk_server.commands import COMMANDS
from uvsdk_server.deployment import Deployment
from uvsdk_server.freshness import Freshness
from uvsdk_server.monitoring import Metrics, logger
from uvsdk_server.observer import Unobserved

NOTHING = np.empty(0, np.float32)
SAMPLED = replace(CONFIG, algorithm="fedss", algorithm_settings={"anchors": 20, "negatives": 5})


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[SyntheticDevice]]]:
    """A server of FedSS in its first round, and its devices."""
    folder = tmp_path_factory.mktemp("sampled")
    with harness.serving(folder, config=SAMPLED, settings={"start_after_users": 3}) as server:
        yield server, harness.devices_of(server, 3)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config = replace(CONFIG, algorithm="fedmetric")
    with harness.serving(tmp_path_factory.mktemp("edge"), config=config, settings={"start_after_users": 99}) as server:
        yield server


def opened(device: SyntheticDevice, answer: httpx.Response, outer: Any, inner: Any) -> Any:
    """The algorithm's message in a sealed answer, proven to be the server's."""
    assert answer.status_code == 200, answer.text
    envelope = Envelope.parse(answer.content)
    envelope.verify(device.server_signing_key())
    (chunk,) = envelope.open(device.sealing)
    return unpack(inner, unpack(outer, chunk).body)


def invited(device: SyntheticDevice, header: RoundHeader) -> fedss.Invitation:
    answer = device.request("GET", f"/v1/rounds/{header.round_id}/invitation")
    found = opened(device, answer, messages.Invitation, fedss.Invitation)
    assert isinstance(found, fedss.Invitation)
    return found


def ask(
    device: SyntheticDevice, header: RoundHeader, request: object, *, inside: int = 0, **changes: object
) -> httpx.Response:
    """POST a request; ``inside`` is another round inside the seal, ``changes`` are of the binding."""
    packed = pack(request)  # type: ignore[arg-type]
    message = pack(messages.Request(inside or header.round_id, header.algorithm, packed))
    binding = replace(device.binding(header), **{"message_type": "request", **changes})  # type: ignore[arg-type]
    recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
    body = seal([message], binding, recipient=recipient, signing_key=device.signing)
    return device.request("POST", f"/v1/rounds/{header.round_id}/task", body)


def choose(invitation: fedss.Invitation, seed: int) -> fedss.Request:
    settings = fedss.Settings(anchors=20, negatives=5)
    found, _ = REQUEST.choose(invitation, {}, settings, np.random.default_rng(seed), bytes)
    assert isinstance(found, fedss.Request)
    return found


def test_a_device_is_sent_what_it_asks_for_and_the_same_again(
    sampled: tuple[RunningServer, list[SyntheticDevice]],
) -> None:
    server, (device, *_) = sampled
    header = device.wait()
    assert header is not None
    answer = device.request("GET", f"/v1/rounds/{header.round_id}/task")
    assert (answer.status_code, kind(answer)) == (409, "request-needed")
    invitation = invited(device, header)
    wanted = choose(invitation, 1)
    tasks = []
    for _ in range(2):
        task = opened(device, ask(device, header, wanted), messages.Task, fedss.Task)
        np.testing.assert_array_equal(task.classes, wanted.classes)
        tasks.append(pack(task))
    assert tasks[0] == tasks[1]
    # It asks once: what it was sent, and no more, is what it trains on. A server that starts again still knows.
    other = choose(invitation, 2)
    assert other.classes.tolist() != wanted.classes.tolist()
    answer = ask(device, header, other)
    assert (answer.status_code, kind(answer)) == (409, "already-requested")
    server.stop()
    server.start()
    for known in sampled[1]:
        known._client = server.open_client()
    answer = ask(device, header, other)
    assert (answer.status_code, kind(answer)) == (409, "already-requested")
    assert ask(device, header, wanted).status_code == 200
    assert b"request" not in device.request("GET", "/v1/rounds/current").content


def test_what_is_not_offered_is_404_and_nobody_learns_which(
    sampled: tuple[RunningServer, list[SyntheticDevice]],
) -> None:
    _, (_, device, other) = sampled
    header = device.wait()
    assert header is not None
    invitation = invited(device, header)
    good = choose(invitation, 1)
    strangers = [12345678901, int(invited(other, header).own[0])]
    for stranger in strangers:
        bad = fedss.Request(np.sort(np.append(good.classes[good.classes != invitation.own[0]][1:], stranger)))
        with_own = fedss.Request(np.sort(np.append(bad.classes, invitation.own)))
        for request in (bad, with_own):
            answer = ask(device, header, request)
            assert (answer.status_code, kind(answer)) == (404, "unknown-request")
            assert str(stranger) not in answer.text
    twice = fedss.Request(np.append(good.classes, good.classes[-1]))
    assert kind(ask(device, header, twice)) == "unknown-request"
    assert ask(device, header, good).status_code == 200  # a bad one binds nobody


def test_a_request_that_belongs_elsewhere(sampled: tuple[RunningServer, list[SyntheticDevice]]) -> None:
    _, (_, _, device) = sampled
    header = device.wait()
    assert header is not None
    wanted = choose(invited(device, header), 1)
    for changes, expected in (
        ({"round_id": header.round_id + 1}, (409, "wrong-round")),
        ({"message_type": "update"}, (400, "malformed")),
        ({"algorithm": "fedaws"}, (409, "wrong-algorithm")),
        ({"sender": "0" * 32}, (403, "wrong-sender")),
        ({"recipient_key_id": "0" * 32}, (409, "wrong-key")),
    ):
        answer = ask(device, header, wanted, **changes)
        assert (answer.status_code, kind(answer)) == expected
    answer = ask(device, header, wanted, inside=header.round_id + 1)
    assert (answer.status_code, kind(answer)) == (409, "wrong-round")
    answer = ask(device, header, fedss.Invitation(wanted.classes, wanted.classes, 1))
    assert (answer.status_code, kind(answer)) == (400, "malformed")
    closed = replace(header, round_id=7)
    for target in ("invitation", "task"):
        answer = device.request("GET", f"/v1/rounds/{closed.round_id}/{target}")
        assert (answer.status_code, kind(answer)) == (409, "wrong-round")


def test_where_nothing_is_chosen_nothing_is_asked_for(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 3}) as server:
        device, *_ = harness.devices_of(server, 3)
        header = device.wait()
        assert header is not None
        answer = device.request("GET", f"/v1/rounds/{header.round_id}/invitation")
        assert (answer.status_code, kind(answer)) == (409, "nothing-to-request")
        answer = ask(device, header, fedss.Request(np.arange(3)))
        assert (answer.status_code, kind(answer)) == (409, "nothing-to-request")
        answer = server.ask("GET", "/v1/models/candidate/control")
        assert (answer.status_code, kind(answer)) == (404, "no-control")
        assert server.ask("GET", "/v1/models/candidate/control", token="").status_code == 401
        told = server.ask("GET", "/v1/training").json()
        assert (told["algorithm"], told["users"], told["report"]) == ("fedaws", 3, {})
        assert told["mean_offdiagonal_cosine"] < 1
        assert server.ask("GET", "/v1/training", token=server.token("verify")).status_code == 403


def test_an_admission_holds_what_is_needed_and_nothing_else(edge: RunningServer) -> None:
    assert SyntheticDevice(edge, 1).deployment()["needs"] == ["person"]
    device = SyntheticDevice(edge, 1)
    assert device.register(edge.token("enrol")).status_code == 201
    for unasked in ({}, {"mean": NOTHING, "instances": np.zeros((2, 32), np.uint8)}):
        answer = device.admit(**unasked)
        assert (answer.status_code, kind(answer)) == (422, "invalid-update")
        assert "asks for no" in answer.json()["detail"]
    assert device.admit(mean=NOTHING, person="a" * 64).status_code == 204


def test_hashes_of_another_size_are_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, algorithm="fedalc")
    with harness.serving(tmp_path, config=config, settings={"start_after_users": 99}) as server:
        device = SyntheticDevice(server, 1)
        assert device.deployment()["needs"] == ["instances", "mean", "person"]
        assert device.register(server.token("enrol")).status_code == 201
        for wrong in (np.zeros((2, 31), np.uint8), np.zeros(32, np.uint8), np.zeros((1, 2, 32), np.uint8)):
            answer = device.admit(instances=wrong)
            assert (answer.status_code, kind(answer)) == (422, "invalid-update")
        good = np.arange(64, dtype=np.uint8).reshape(2, 32)
        assert device.admit(instances=good, person="a" * 64).status_code == 204


def test_where_no_template_leaves_the_device_the_server_takes_none(edge: RunningServer) -> None:
    device = SyntheticDevice(edge, 2)
    assert device.register(edge.token("enrol", user=device.user)).status_code == 201
    answer = device.leave_template()
    assert (answer.status_code, kind(answer)) == (403, "edge-only")
    assert "verify on the device" in answer.json()["detail"]
    body = {"user": device.user, "sample": base64.b64encode(b"x").decode()}
    answer = edge.ask("POST", "/v1/verify", json=body)
    assert (answer.status_code, kind(answer)) == (403, "edge-only")


class TestRestricted:
    """Settings that an algorithm advises against run only where the operator has named the algorithm."""

    @staticmethod
    def open(folder: Path, config: TrainingConfig, *allowed: str) -> None:
        """Start and stop a server there."""
        server = RunningServer(folder, config=config)
        server.prepare()
        settings = Settings(
            data=server.data, model=server.model_file, training=server.training_file, allow_restricted=allowed
        )

        async def run() -> None:
            freshness = Freshness(settings.signature_window_s)
            found = await Deployment.open(settings, Unobserved(), Metrics(), logger("error"), freshness=freshness)
            await found.close()

        asyncio.run(run())

    def test_a_first_start(self, tmp_path: Path) -> None:
        config = replace(CONFIG, algorithm="softmax")
        for allowed in ((), ("fedss",)):
            with pytest.raises(SettingsError, match=r"everybody's class vector.*--allow softmax"):
                self.open(tmp_path, config, *allowed)
        self.open(tmp_path, config, "softmax")
        self.open(tmp_path, config)  # what was accepted stays accepted

    def test_a_change(self, tmp_path: Path) -> None:
        self.open(tmp_path, SAMPLED)
        changed = replace(SAMPLED, algorithm_settings={"pool": "users"})
        with pytest.raises(SettingsError, match="--allow fedss"):
            self.open(tmp_path, changed)
        self.open(tmp_path, SAMPLED)  # nothing was changed
        self.open(tmp_path, changed, "fedss")

    def test_how_they_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UVSDK_SERVER_ALLOW_RESTRICTED", "fedss, softmax")
        assert Settings(data=tmp_path).allow_restricted == ("fedss", "softmax")
        parser = argparse.ArgumentParser()
        next(command for command in COMMANDS if command.name == "serve").configure(parser)
        assert parser.parse_args(["--allow", "fedss", "--allow", "softmax"]).allow == ["fedss", "softmax"]
