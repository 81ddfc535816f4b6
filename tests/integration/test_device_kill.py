"""``kill -9`` of the server under real devices: they go on by themselves, and the model comes out bit for bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.integration.harness import CONFIG, KillableServer
from tests.integration.numpy_devices import federation_of, make_store, pages, token_of
from tests.integration.outcome import Outcome, outcome
from tests.integration.serve import AGGREGATION_HALFWAY
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk_device import RoundReport
from uvsdk_server import observer

ROUNDS, PEOPLE = 2, 3


class Fleet:
    """Devices in threads of this process; the server is a process that may die under them."""

    def __init__(self, folder: Path, *, kill_at: str = "", kill_times: int = 1) -> None:
        self.server = KillableServer(folder / "server", config=replace(CONFIG, rounds=ROUNDS))
        self.server.settings = {"start_after_users": str(PEOPLE)}
        self.server.start(kill_at=kill_at, kill_times=kill_times)
        # Devices know one address, so it must come back there.
        self.server.settings = {**self.server.settings, "port": str(urlsplit(self.server.url).port)}
        self.kills = 0
        self.reports: dict[int, tuple[RoundReport, ...]] = {}
        self._folder = folder
        self._tokens = [token_of(self.server, f"person {person}") for person in range(PEOPLE)]

    def train(self) -> Outcome:
        threads = [threading.Thread(target=self._take_part, args=(person,)) for person in range(PEOPLE)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert self.server.process is not None
            if self.server.process.poll() is not None:
                assert self.server.restart_if_dead()
                self.kills += 1
            threads[0].join(0.05)
            threads = [thread for thread in threads if thread.is_alive()] or threads[:1]
        self.server.stop()
        return outcome(self.server.data)

    def _take_part(self, person: int) -> None:
        store = make_store(self._folder, person)
        enroll(f"person {person}", pages(person), model=shipped(), store=store)
        federation = federation_of(self.server, self._tokens[person], server_verification=True)
        self.reports[person] = federation.participate(f"person {person}", store)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    fleet = Fleet(tmp_path_factory.mktemp("undisturbed"))
    result = fleet.train()
    assert fleet.kills == 0
    assert result.rounds == tuple((round_id, "committed", PEOPLE) for round_id in range(1, ROUNDS + 1))
    assert np.isfinite(np.frombuffer(result.theta, "<f4")).all()
    return result


@pytest.mark.parametrize(
    ("point", "times"),
    [
        (observer.UPLOAD_STORED, 1),
        (observer.UPLOAD_RECORDED, PEOPLE),  # the last of the round: stored, and no device hears of it
        (AGGREGATION_HALFWAY, 1),
        (observer.ROUND_COMMITTED, ROUNDS),  # the last of all
    ],
)
def test_devices_outlive_the_server(point: str, times: int, tmp_path: Path, undisturbed: Outcome) -> None:
    fleet = Fleet(tmp_path, kill_at=point, kill_times=times)
    result = fleet.train()
    assert fleet.kills == 1
    assert sorted(fleet.reports) == list(range(PEOPLE))
    for reports in fleet.reports.values():
        assert [report.round_id for report in reports] == list(range(1, ROUNDS + 1))
        assert {report.state for report in reports} <= {"uploaded", "queued"}  # queued: sent before the next round
    assert result == undisturbed
