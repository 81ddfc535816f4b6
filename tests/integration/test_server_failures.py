"""What the server does when its own parts fail: an algorithm with a bug, a database that is locked or away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, kind
from uvsdk.federation.algorithms.fedaws import server as fedaws_server
from uvsdk_server import driver
from uvsdk_server.rounds import Rounds
from uvsdk_server.store import ledger, rows

SECRET = "a message that may quote anybody's data"


class Buggy:
    """fedaws, of which one function raises as long as ``broken`` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        self.broken = True
        self.calls = 0
        real = getattr(fedaws_server.SERVER, function)

        def raising(*arguments: Any) -> Any:
            if self.broken:
                self.calls += 1
                raise ZeroDivisionError(SECRET)
            return real(*arguments)

        record: Any = replace(fedaws_server.SERVER, **{function: raising})  # type: ignore[arg-type]
        monkeypatch.setattr(fedaws_server, "SERVER", record)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again soon."""
    monkeypatch.setattr(driver, "_RETRY_S", 0.3)
    monkeypatch.setattr(driver, "_AFTER_ABORT_S", 0.3)


@contextlib.contextmanager
def three_devices(folder: Path) -> Iterator[tuple[RunningServer, list[harness.SyntheticDevice]]]:
    with harness.serving(folder, config=replace(CONFIG, rounds=1)) as server:
        yield server, harness.devices_of(server, 3)


def test_a_step_that_raises_aborts_its_round_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: None
) -> None:
    bug = Buggy(monkeypatch, "step")
    with three_devices(tmp_path) as (server, devices):
        before = server.candidate()
        assert harness.play_round(devices, 0) == 1
        header = devices[0].wait(after=1)
        assert header is not None
        assert header.round_id == 2
        ((state, accepted, reason),) = server.rows("select state, accepted, reason from rounds where round_id = 1")
        assert (state, accepted) == ("aborted", 3)
        assert reason.startswith("ZeroDivisionError in the algorithm fedaws")
        assert SECRET not in reason
        assert server.candidate() == before
        assert server.ask("GET", "/readyz").status_code == 200
        assert bug.calls == 1
        bug.broken = False
        assert harness.play_round(devices, 1) == 2
        harness.eventually(lambda: server.candidate()["round_id"] == 2)


def test_aborted_rounds_come_at_growing_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: None) -> None:
    bug = Buggy(monkeypatch, "start")
    with three_devices(tmp_path) as (server, devices):
        harness.eventually(lambda: bug.calls >= 4)
        opened = [row[0] for row in server.rows("select opened from rounds order by round_id limit 4")]
        pauses = [after - before for before, after in itertools.pairwise(opened)]
        # 0.3 s, doubled each time, on top of the round itself
        assert all(pause >= 0.3 * 2**place for place, pause in enumerate(pauses))
        bug.broken = False
        harness.eventually(lambda: devices[0].wait(wait_s=5) is not None)
        states = [row[0] for row in server.rows("select state from rounds order by round_id")]
        assert states == ["aborted"] * (len(states) - 1) + ["collecting"]


def test_rounds_go_on_after_a_failure_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: None
) -> None:
    newest, failures, broken = ledger.newest_round, list[float](), threading.Event()

    async def failing(connection: Any) -> Any:
        if broken.is_set():
            failures.append(time.monotonic())
            raise RuntimeError(SECRET)
        return await newest(connection)

    with harness.serving(tmp_path, config=replace(CONFIG, rounds=1)) as server:
        broken.set()
        monkeypatch.setattr(ledger, "newest_round", failing)
        token = server.token("enrol", uses=3)
        devices = [harness.SyntheticDevice(server, number) for number in range(3)]
        devices[0].join(token)  # wakes the rounds
        harness.eventually(lambda: server.ask("GET", "/readyz").status_code == 503)
        assert kind(server.ask("GET", "/readyz")) == "not-ready"
        for device in devices[1:]:
            device.join(token)
        harness.eventually(lambda: len(failures) >= 3)
        # The admissions woke the rounds meanwhile, and still no pause was shorter.
        assert all(after - before >= 0.3 for before, after in itertools.pairwise(failures))
        broken.clear()
        harness.play_round(devices, 0)
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        assert server.ask("GET", "/readyz").status_code == 200


def test_a_locked_database_is_busy_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvsdk_server.store.database._BUSY_MS", 200)
    with three_devices(tmp_path) as (server, devices):
        header = devices[0].wait()
        assert header is not None
        body = devices[0].update(header)
        with contextlib.closing(sqlite3.connect(server.data / "server.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = devices[0].upload(header, body)
            assert (answer.status_code, kind(answer)) == (503, "busy")
            assert answer.headers["retry-after"] == "1"
            assert server.ask("GET", "/v1/rounds").status_code == 200  # readers are never held up
            other.execute("ROLLBACK")
        assert devices[0].upload(header, body).status_code == 201


def test_a_round_that_is_not_yet_announced_again_has_its_tasks(tmp_path: Path) -> None:
    """A device that has seen the header asks a server that was just started for the task."""
    server = RunningServer(tmp_path, config=replace(CONFIG, rounds=1))
    server.start()
    devices = harness.devices_of(server, 3)
    header = devices[0].wait()
    assert header is not None
    server.stop()
    held = threading.Event()

    async def silent(self: object, notice: object) -> None:
        held.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvsdk_server.board.Board.post", silent)
        server.start()
        assert held.wait(10)
        again = harness.SyntheticDevice(server, 0)
        assert again.wait(wait_s=0) is None
        assert len(again.task(header).vector) == harness.DIMENSION
        assert again.upload(header, again.update(header)).status_code == 201
        server.stop()


@pytest.mark.parametrize(
    "error", [OSError("the answer to the commit was lost"), asyncio.CancelledError()], ids=["lost", "cancelled"]
)
def test_an_update_that_was_recorded_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Whatever comes between the commit and the answer: the device tries again, and the round has its update."""
    record, lost = Rounds.record, [error]

    async def recording(self: Rounds, new: rows.Receipt) -> rows.Receipt | None:
        former = await record(self, new)
        if lost:
            raise lost.pop()
        return former

    monkeypatch.setattr(Rounds, "record", recording)
    with three_devices(tmp_path) as (server, devices):
        header = devices[0].wait()
        assert header is not None
        body = devices[0].update(header)
        with contextlib.suppress(harness.httpx.TransportError, KeyError):  # uvicorn's own 500 carries no challenge
            assert devices[0].upload(header, body).status_code == 500
        assert (server.data / "blobs" / harness.hashlib.sha256(body).hexdigest()).exists()
        assert devices[0].upload(header, body).status_code == 200
        for device in devices[1:]:
            assert device.upload(header, device.update(header)).status_code == 201
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        assert server.rows("SELECT accepted FROM rounds WHERE round_id = 1") == [(3,)]


def test_an_update_that_was_not_recorded_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(connection: Any, new: rows.Receipt) -> None:
        raise OSError("no row was written")

    with three_devices(tmp_path) as (server, devices):
        header = devices[0].wait()
        assert header is not None
        body = devices[0].update(header)
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "insert_receipt", failing)
            assert devices[0].upload(header, body).status_code == 500
        assert not (server.data / "blobs" / harness.hashlib.sha256(body).hexdigest()).exists()
        assert devices[0].upload(header, body).status_code == 201
