"""What a device does when things go wrong between it and a real server. Training is a stand-in without torch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy.exc

from tests.integration.harness import CONFIG, PEPPER, RunningServer, serving
from tests.integration.numpy_devices import FixedTrainer, federation_of, make_store, pages
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.errors import ServerRefusedError, ServerUnreachableError, StillRegisteredError, UnapprovedConfigError
from uvsdk_device import Federation, RoundReport
from uvsdk_device.connection import Connection
from uvsdk_device.membership import forget_here
from uvsdk_server.people import People
from uvsdk_server.store.database import Database

PEOPLE = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    config = replace(CONFIG, rounds=2, deadline_s=30.0)
    with serving(tmp_path / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as running:
        yield running


def test_an_enrolment_without_a_server_works_and_waits(tmp_path: Path) -> None:
    store = make_store(tmp_path, 0)
    away = Federation("http://127.0.0.1:9", pepper=PEPPER, trainer=FixedTrainer(), patience_s=0.0)
    result = enroll("person 0", pages(0), model=shipped(), store=store, federation=away)
    assert result.participation is not None
    assert result.participation.state == "queued"
    assert store.users() == ("person 0",)
    with pytest.raises(ServerUnreachableError):
        away.participate("person 0", store)
    away.forget("person 0", store)  # no server ever heard of this user
    assert store.users() == ()


def test_a_lost_answer_and_a_dead_device_cost_no_update(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Person 0's upload arrives and its answer does not; a new process sends it again, unchanged."""
    token = server.token("enrol", uses=PEOPLE)
    stores = [make_store(tmp_path, person) for person in range(PEOPLE)]
    for person, store in enumerate(stores):
        federation = federation_of(server, token)
        result = enroll(f"person {person}", pages(person), model=shipped(), store=store, federation=federation)
        assert result.participation is not None
        assert result.participation.state in ("joined", "trained"), result.participation.detail
    reports: dict[int, tuple[RoundReport, ...]] = {}

    def take_part(person: int) -> None:
        reports[person] = federation_of(server).participate(f"person {person}", stores[person])

    put, uploads = Connection.put, list[bytes]()

    def deaf_once(self: Connection, path: str, body: bytes, **more: bytes) -> object:
        answer = put(self, path, body, **more)
        if path.endswith("/update") and threading.current_thread().name == "person 0":
            uploads.append(body)
            if len(uploads) == 1:
                raise ServerUnreachableError("the answer was lost")
        return answer

    monkeypatch.setattr(Connection, "put", deaf_once)
    threads = [threading.Thread(target=take_part, args=(person,), name=f"person {person}") for person in range(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(reports) == [0, 1, 2]
    last = [report.state for report in reports[1]]
    assert set(last) <= {"uploaded"}
    assert [row[0] for row in server.rows("select state from rounds order by round_id")] == ["committed", "committed"]
    if uploads:
        assert uploads[0] == uploads[1]
    # The template follows what is released, and nothing was.
    versions = {store.template(f"person {person}").model_version for person, store in enumerate(stores)}
    assert versions == {shipped().version}


def test_a_configuration_that_was_not_approved_is_refused(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=shipped(), store=store)
    token = server.token("enrol", uses=1)
    with pytest.raises(UnapprovedConfigError, match="approve the new digest"):
        federation_of(server, token, approve="0" * 64).refresh_template("person 0", store)
    assert server.rows("select count(*) from devices") == [(0,)]
    with pytest.raises(ServerRefusedError):
        federation_of(server, "not a token").refresh_template("person 0", store)
    federation_of(server, token, approve=replace(CONFIG, rounds=2, deadline_s=30.0).digest()).refresh_template(
        "person 0", store
    )
    assert server.rows("select count(*) from devices") == [(1,)]


def test_a_deletion_whose_answer_was_lost_is_done_when_it_is_asked_for_again(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=shipped(), store=store)
    federation = federation_of(server, server.token("enrol", uses=1))
    federation.refresh_template("person 0", store)
    assert server.rows("select count(*) from devices") == [(1,)]
    # Without the server nothing is deleted: the keys that could ask it to forget would be gone.
    with pytest.raises(StillRegisteredError, match="--server"):
        forget_here("person 0", store)
    delete = Connection.delete

    def deaf(self: Connection, path: str) -> object:
        delete(self, path)
        raise ServerUnreachableError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "delete", deaf)
        with pytest.raises(ServerUnreachableError):
            federation.forget("person 0", store)
    assert store.users() == ("person 0",)
    assert server.rows("select count(*) from users") == [(0,)]
    federation.forget("PERSON 0", store)
    assert store.users() == ()


def test_a_server_that_fails_for_a_while_costs_a_device_nothing(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is locked for too long, a full disk: each request is answered 5xx once before it passes."""
    token = server.token("enrol", uses=PEOPLE)
    put, read = People.register, Database.read
    refused = set[str]()

    async def register(self: People, *arguments: object) -> bool:
        if "register" not in refused:
            refused.add("register")
            raise sqlalchemy.exc.TimeoutError("no connection became free")
        return await put(self, *arguments)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def flaky(self: Database) -> AsyncIterator[object]:
        name = str(asyncio.current_task().get_coro())  # type: ignore[union-attr]
        # A registration reads before it writes: its own failure comes first, so that both kinds do.
        if "RequestResponseCycle" in name and "register" in refused and len(refused) < 8:
            refused.add(f"read {len(refused)}")
            raise RuntimeError("the server failed")
        async with read(self) as connection:
            yield connection

    monkeypatch.setattr(People, "register", register)
    monkeypatch.setattr(Database, "read", flaky)
    reports: dict[int, tuple[RoundReport, ...]] = {}

    def take_part(person: int) -> None:
        store = make_store(tmp_path, person)
        enroll(f"person {person}", pages(person), model=shipped(), store=store)
        reports[person] = federation_of(server, token).participate(f"person {person}", store)

    threads = [threading.Thread(target=take_part, args=(person,)) for person in range(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 8
    assert {tuple(report.state for report in found) for found in reports.values()} == {("uploaded", "uploaded")}
    assert sorted(reports) == list(range(PEOPLE))
