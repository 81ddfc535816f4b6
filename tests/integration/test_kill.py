"""``kill -9`` at every point of a round: nothing is lost or counted twice, and the model comes out bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, KillableServer, SyntheticDevice
from tests.integration.outcome import Outcome, outcome
from tests.integration.serve import AGGREGATION_HALFWAY
from uvsdk.bundle import shipped
from uvsdk_server import observer

ROUNDS, DEVICES = 2, 5
Answer = TypeVar("Answer")


class Fleet:
    """Devices that go on after the server died: the same sealed bytes again, as a device's queue would send."""

    def __init__(self, folder: Path, *, kill_at: str = "", kill_times: int = 1) -> None:
        self.server = KillableServer(folder, config=replace(CONFIG, rounds=ROUNDS))
        self.server.settings = {"start_after_users": str(DEVICES), "embedding_probes": "true"}
        self.server.start(kill_at=kill_at, kill_times=kill_times)
        self.devices = harness.devices_of(self.server, DEVICES)
        self.kills = 0

    def persist(self, call: Callable[[], Answer]) -> Answer:
        """``call()``, again after a restart where the server died under it."""
        while True:
            try:
                return call()
            except httpx.TransportError:
                assert self.server.restart_if_dead(), self.server.log()
                self.kills += 1

    def train(self) -> Outcome:
        """Every round with every device; whether an answer was 201 or 200 depends on when the server died.

        Somebody is verified all the while, by the release that no round touches.
        """
        assert self.devices[0].leave_template().status_code == 204
        for round_id in range(1, ROUNDS + 1):
            for device in self.devices:
                self._take_part(device, round_id)
        harness.eventually(lambda: self.persist(self.server.candidate)["round_id"] == ROUNDS)
        harness.eventually(lambda: self.persist(lambda: self._training(self.devices[0])) == "finished")
        self.server.stop()
        return outcome(self.server.data)

    def _take_part(self, device: SyntheticDevice, round_id: int) -> None:
        header = self.persist(lambda: device.wait(after=round_id - 1))
        assert header is not None
        assert header.round_id == round_id
        body = device.update(header)
        answer = self.persist(lambda: device.upload(header, body))
        assert answer.status_code in (200, 201), answer.text
        assert self.persist(self._verified).json()["accepted"]

    def _verified(self) -> httpx.Response:
        embedding = [float(value) for value in self.devices[0].direction(0)]
        body = {"user": self.devices[0].user, "embedding": embedding, "model_version": shipped().version}
        return self.server.ask("POST", "/v1/verify", json=body)

    @staticmethod
    def _training(device: SyntheticDevice) -> str:
        return device.request("GET", "/v1/rounds/current").headers.get("uvsdk-training", "collecting")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    fleet = Fleet(tmp_path_factory.mktemp("undisturbed"))
    result = fleet.train()
    assert fleet.kills == 0
    assert result.rounds == tuple((round_id, "committed", DEVICES) for round_id in range(1, ROUNDS + 1))
    assert np.isfinite(np.frombuffer(result.theta, "<f4")).all()
    return result


@pytest.mark.parametrize("point", [*observer.POINTS, AGGREGATION_HALFWAY])
def test_a_killed_server_ends_with_the_same_model(point: str, tmp_path: Path, undisturbed: Outcome) -> None:
    # the third upload, or the first aggregation
    fleet = Fleet(tmp_path, kill_at=point, kill_times=3 if point.startswith("upload") else 1)
    result = fleet.train()
    assert fleet.kills == 1
    assert result == undisturbed
