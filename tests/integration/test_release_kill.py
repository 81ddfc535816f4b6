"""``kill -9`` around a release: what verified before, or the new one, verifies afterwards; never anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.harness import KillableServer, SyntheticDevice
from uvsdk.bundle import Bundle, shipped
from uvsdk_server import observer

SCORES = np.linspace(-1, 0.6, 2000, dtype=np.float32)

Change = Callable[["House"], httpx.Response]


@dataclass
class House:
    """A server that may die, and somebody who is verified."""

    server: KillableServer
    device: SyntheticDevice

    @classmethod
    def build(cls, folder: Path, *, kill_at: str = "", kill_times: int = 1) -> House:
        server = KillableServer(folder)
        server.settings = {"embedding_probes": "true", "default_fmr": "0.01", "start_after_users": "1"}
        server.start(kill_at=kill_at, kill_times=kill_times)
        device = SyntheticDevice(server, 0)
        device.register(server.token("enrol", user=device.user))
        assert device.leave_template().status_code == 204
        return cls(server, device)

    def accepted(self) -> bool:
        body = {"user": self.device.user, "embedding": [float(value) for value in self.device.direction(0)]}
        answer = self.server.ask("POST", "/v1/verify", json={**body, "model_version": shipped().version})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["accepted"])

    def causes(self) -> list[str]:
        return [item["cause"] for item in self.server.ask("GET", "/v1/releases").json()["releases"]]

    def killed_by(self, change: Change, *, then: str = "", times: int = 1) -> None:
        """Ask for a change under which the server dies, and start it again."""
        assert self.accepted()
        with pytest.raises(httpx.TransportError):
            change(self)
        assert self.server.process is not None
        self.server.process.wait(timeout=120)
        self.server.stop()
        self.server.start(kill_at=then, kill_times=times)
        assert self.accepted()
        released = self.server.released()
        bundle = Bundle.from_bytes(self.server.ask("GET", "/v1/models/current/bundle").content)
        assert bundle.digest == released["bundle"]


def calibrate(house: House) -> httpx.Response:
    target, source = "/v1/models/current/calibration", {"UVSDK-Source": "synthetic"}
    return house.server.ask("PUT", target, content=SCORES.tobytes(), headers=source)


def roll_back(house: House) -> httpx.Response:
    return house.server.ask("POST", "/v1/releases/roll-back", json={"number": 1})


@pytest.mark.parametrize("point", observer.RELEASE_POINTS)
def test_a_release_is_whole_or_not_there(tmp_path: Path, point: str) -> None:
    """Killed in a calibration and in a roll-back; asked for again, as one does after no answer, each is made once."""
    made = point == observer.RELEASE_COMMITTED
    house = House.build(tmp_path, kill_at=point, kill_times=2)  # release 1 passes first
    try:
        house.killed_by(calibrate, then=point, times=2)
        assert house.causes() == ["calibration"] * made + ["founding"]
        assert calibrate(house).is_success
        assert house.causes() == ["calibration", "founding"]
        house.killed_by(roll_back)
        assert house.causes() == ["roll-back"] * made + ["calibration", "founding"]
        assert roll_back(house).is_success
        assert house.causes() == ["roll-back", "calibration", "founding"]
        assert house.accepted()
    finally:
        house.server.stop()


def test_a_first_start_that_is_killed_before_its_release_goes_on(tmp_path: Path) -> None:
    server = KillableServer(tmp_path)
    with pytest.raises(AssertionError, match="did not start"):
        server.start(kill_at=observer.RELEASE_STORED)
    server.stop()
    assert server.rows("SELECT released FROM deployment") == [(None,)]
    house = House.build(tmp_path)
    try:
        assert house.causes() == ["founding"]
        assert house.accepted()
    finally:
        house.server.stop()
