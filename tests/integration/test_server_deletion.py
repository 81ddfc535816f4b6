"""Who is deleted is gone from every byte, also while somebody reads, after a crash, and in copies made before."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.integration import harness
from tests.integration.harness import CONFIG, KillableServer, RunningServer, SyntheticDevice, kind
from uvsdk.enroll import enroll
from uvsdk.errors import StoreError
from uvsdk_device import EncryptedStore, Federation
from uvsdk_server import Settings, monitoring, observer
from uvsdk_server.deployment import Deployment
from uvsdk_server.freshness import Freshness
from uvsdk_server.keys import KeyFolder
from uvsdk_server.monitoring import Metrics
from uvsdk_server.shielding import to_its_end
from uvsdk_server.store import audit, ledger, schema
from uvsdk_server.store.database import Database
from uvsdk_server.store.traces import hold


def traces(server: RunningServer, user: str) -> tuple[bytes, ...]:
    """What must not be found after a deletion: the id, as text and raw, and the beginning of every sealed row."""
    rows = server.rows(f"SELECT admission_sealed, NULL FROM users WHERE user = '{user}'")
    rows += server.rows(f"SELECT sealed, NULL FROM templates WHERE user = '{user}'")
    rows += server.rows(f"SELECT head_sealed, NULL FROM uploads WHERE user = '{user}'")
    rows += server.rows(f"SELECT request_sealed, NULL FROM cohort WHERE user = '{user}'")
    sealed = [column[:24] for row in rows for column in row if column]
    return (user.encode(), bytes.fromhex(user), *sealed)


def found(server: RunningServer, wanted: tuple[bytes, ...]) -> list[str]:
    """Files of the data folder that hold any of it."""
    files = [path for path in server.data.rglob("*") if path.is_file()]
    return [path.name for path in files if any(item in path.read_bytes() for item in wanted)]


@contextlib.contextmanager
def reading(server: RunningServer) -> Iterator[None]:
    """Somebody reads the database as it is now for a long time, as a backup does."""
    with contextlib.closing(sqlite3.connect(server.data / "server.sqlite3", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM users").fetchone()
        yield
        reader.execute("ROLLBACK")


def test_a_deletion_waits_for_who_still_reads(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        devices = harness.devices_of(server, 4)
        for device in devices:
            assert device.leave_template().status_code == 204
        leaver = devices[1]
        wanted = traces(server, leaver.user)
        assert len(wanted) == 4
        target = f"/v1/users/{leaver.user}"
        with reading(server):
            assert leaver.leave_template().status_code == 204  # the log holds what the reader does not see
            begun = time.monotonic()
            answer = leaver.request("DELETE", target)
            assert time.monotonic() - begun < 6
            assert answer.status_code == 202, answer.text
            told = answer.json()
            assert (told["state"], told["completed"]) == ("pending", None)
            assert leaver.user not in answer.text
            assert found(server, wanted)
            status = answer.headers["location"]
            assert server.ask("GET", status, token="").json() == told
            again = server.ask("DELETE", target)
            assert (again.status_code, again.json()["deletion_id"]) == (202, told["deletion_id"])
            # Gone for everybody meanwhile, and others are not held up.
            assert kind(leaver.request("GET", "/v1/rounds/current")) == "unknown-device"
            assert devices[2].leave_template().status_code == 204
        harness.eventually(lambda: server.ask("GET", status, token="").json()["state"] == "complete")
        assert found(server, wanted) == []
        assert server.ask("DELETE", target).status_code == 204
        unknown = "/v1/deletions/" + "0" * 32
        assert kind(server.ask("GET", unknown, token="")) == "unauthorized"
        assert kind(server.ask("GET", unknown)) == "unknown-deletion"
        assert server.rows("SELECT sealed FROM deletions") == [(None,)]


@pytest.mark.parametrize(("patience_s", "outcome"), [(1.0, "pending"), (20.0, "complete")])
def test_a_device_that_forgets_hears_how_far_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float, outcome: str
) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = [image / 16 for image in digits.images[digits.target == 3][:5]]
    monkeypatch.setattr("uvsdk_device.federation._DELETION_WAIT_S", patience_s)
    closes = threading.Event()

    def sleep(seconds: float) -> None:
        if outcome == "complete":
            closes.set()
        time.sleep(seconds / 4)

    with harness.serving(tmp_path / "server", settings={"start_after_users": 1000}) as server:
        store = EncryptedStore.open(tmp_path / "store", passphrase="only a test")
        token = server.token("enrol")
        federation = Federation(server.url, pepper=harness.PEPPER, enrolment_token=token, sleep=sleep)
        reader = threading.Thread(target=_read_until, args=(server, closes))
        reader.start()
        try:
            enroll("ada", images, model=harness.shipped(), store=store)
            federation.refresh_template("ada", store)
            assert federation.forget("ada", store) == outcome
        finally:
            closes.set()
            reader.join()
        assert store.users() == ()
        harness.eventually(lambda: server.rows("SELECT completed IS NULL FROM deletions") == [(0,)])


def _read_until(server: RunningServer, closes: threading.Event) -> None:
    with reading(server):
        closes.wait(60)


def test_no_page_of_a_grown_database_holds_a_deleted_id(tmp_path: Path) -> None:
    """Pages that were split and merged leave copies of rows behind, which deleting a row does not overwrite."""
    users = [harness.hashlib.sha256(b"%d" % number).hexdigest() for number in range(1500)]
    server = RunningServer(tmp_path, settings={"start_after_users": 10_000})
    server.start()
    server.stop()
    path = server.data / "server.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA secure_delete=ON")
        for user in users:
            values = (user, b"a" * 400)
            database.execute(
                "INSERT INTO users (user, created, admitted, admission_sealed) VALUES (?, 0, 1, ?)", values
            )
            keys = "(device_id, user, signing_key, sealing_key, created)"
            database.execute(f"INSERT INTO devices {keys} VALUES (?,?,?,?,0)", (user[:32], user, b"k", b"k"))
            database.execute("INSERT INTO templates VALUES (?, 'v', '', zeroblob(900), 0)", (user,))
        database.execute("UPDATE users SET admission_sealed = NULL")
    server.start()
    try:
        leavers = users[::150]
        for user in leavers:
            assert server.ask("DELETE", f"/v1/users/{user}").status_code == 204
        assert found(server, tuple(user.encode() for user in leavers)) == []
        assert server.rows("SELECT count(*) FROM users") == [(len(users) - len(leavers),)]
    finally:
        server.stop()


@pytest.mark.parametrize("point", observer.DELETION_POINTS)
def test_a_deletion_survives_kill(tmp_path: Path, point: str) -> None:
    server = KillableServer(tmp_path)
    server.settings = {"start_after_users": "3"}
    server.start(kill_at=point)
    devices = harness.devices_of(server, 3)
    header = devices[0].wait()
    assert header is not None
    body = devices[0].update(header)
    assert devices[0].upload(header, body).status_code == 201
    assert devices[0].leave_template().status_code == 204
    wanted = traces(server, devices[0].user)
    assert len(wanted) == 4
    with pytest.raises(harness.httpx.TransportError):
        devices[0].request("DELETE", f"/v1/users/{devices[0].user}")
    assert server.restart_if_dead()
    try:
        harness.eventually(lambda: server.rows("SELECT completed IS NOT NULL FROM deletions") == [(1,)])
        assert found(server, (*wanted, body[:64])) == []
        assert len(list((server.data / "keys").glob("user-*"))) == 2
        assert len(list((server.data / "keys").glob("state-*"))) == 1
        assert server.ask("DELETE", f"/v1/users/{devices[0].user}").status_code == 204
        assert kind(devices[0].request("GET", "/v1/rounds/current")) == "unknown-device"
    finally:
        server.stop()


def test_copies_made_before_cannot_be_read_any_more(tmp_path: Path) -> None:
    """A backup of database and blobs, without the keys, is worth nothing for a user who has left since."""
    with harness.serving(tmp_path, config=replace(CONFIG, rounds=1), settings={"start_after_users": 3}) as server:
        devices = harness.devices_of(server, 3)
        assert devices[0].wait() is not None
        for device in devices:
            assert device.leave_template().status_code == 204
        backup = tmp_path / "backup"
        shutil.copytree(server.data / "blobs", backup)
        ((state,),) = server.rows("SELECT algorithm_blob FROM deployment")
        sealed = dict(server.rows("SELECT user, sealed FROM templates"))
        version = server.candidate()["model_version"]
        keys = KeyFolder(server.data / "keys")
        purpose = f"template/{devices[0].user}/{version}"
        assert keys.user(devices[0].user).open(sealed[devices[0].user], purpose)
        assert keys.open_state((backup / state).read_bytes())
        assert devices[0].request("DELETE", f"/v1/users/{devices[0].user}").status_code == 204
        with pytest.raises(StoreError, match="is missing"):
            keys.user(devices[0].user)
        with pytest.raises(StoreError):
            keys.at_rest.open(sealed[devices[0].user], purpose)
        with pytest.raises(StoreError, match="is missing"):
            keys.open_state((backup / state).read_bytes())
        assert keys.user(devices[1].user).open(sealed[devices[1].user], f"template/{devices[1].user}/{version}")


def test_whoever_comes_back_has_another_key(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        device = SyntheticDevice(server, 0)
        device.join(server.token("enrol"))
        file = server.data / "keys" / KeyFolder(server.data / "keys").user_file(device.user)
        former = file.read_bytes()
        with reading(server):
            assert device.leave_template().status_code == 204
            assert device.request("DELETE", f"/v1/users/{device.user}").status_code == 202
            device.join(server.token("enrol"))  # while the former deletion is pending
            assert file.read_bytes() != former
            assert device.leave_template().status_code == 204
        harness.eventually(lambda: server.rows("SELECT count(*) FROM deletions WHERE completed IS NULL") == [(0,)])
        assert device.leave_template().status_code == 204
        assert server.rows("SELECT path FROM removals WHERE path LIKE 'keys/%'") == []
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        assert file.exists()
        assert SyntheticDevice(server, 0).leave_template().status_code == 204


def test_a_deletion_on_postgres_destroys_the_keys(postgres: str, tmp_path: Path) -> None:
    settings = {"database_url": harness.fresh_database(postgres), "start_after_users": 1000}
    with harness.serving(tmp_path, settings=settings) as server:
        device = SyntheticDevice(server, 0)
        device.join(server.token("enrol"))
        assert len(list((server.data / "keys").glob("user-*"))) == 1
        assert device.request("DELETE", f"/v1/users/{device.user}").status_code == 204
        assert list((server.data / "keys").glob("user-*")) == []


def test_a_deletion_goes_on_without_its_caller(tmp_path: Path) -> None:
    """Cancelled after the commit: memory, files and database agree all the same."""
    harness.shipped().save(tmp_path / "model.uvb")
    (tmp_path / "training.json").write_text(CONFIG.to_json())
    user = "c" * 64

    class Canceller:
        task: asyncio.Task[object] | None = None

        async def reached(self, point: str) -> None:
            if point == observer.DELETION_RECORDED:
                assert self.task is not None
                self.task.cancel()

    async def run() -> None:
        canceller = Canceller()
        settings = Settings(
            data=tmp_path / "data", model=tmp_path / "model.uvb", training=tmp_path / "training.json", log_level="error"
        )
        served = await Deployment.open(
            settings, canceller, Metrics(), monitoring.logger("error"), freshness=Freshness(300.0)
        )
        try:
            served.keys.files.make_user(user)
            async with served.database.write() as connection:
                await connection.execute(insert(schema.users).values(user=user, created=0.0, admitted=False))
            former = served.keys.files.state_key_id
            canceller.task = asyncio.create_task(served.deletions.delete(user, by=audit.COMMAND))
            with pytest.raises(asyncio.CancelledError):
                await canceller.task
            assert served.keys.files.state_key_id != former
            with pytest.raises(StoreError):
                served.keys.files.user(user)
            assert (await served.deletions.delete(user, by=audit.COMMAND)).complete
        finally:
            await served.close()
        again = await Deployment.open(
            settings, canceller, Metrics(), monitoring.logger("error"), freshness=Freshness(300.0)
        )
        await again.close()

    asyncio.run(run())


def test_shielded_work_ends_before_its_caller_hears_of_the_cancellation() -> None:
    done: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0.05)
        done.append("work")
        return "answer"

    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise StoreError("nobody hears")

    async def run() -> None:
        assert await to_its_end(work()) == "answer"
        with pytest.raises(StoreError):
            await to_its_end(failing())
        for each in (work, failing):
            task = asyncio.create_task(to_its_end(each()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert done == ["work", "work"]

    asyncio.run(run())


_LOCKED = """
import fcntl, struct, sys
asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 128, 1, 0)  # SQLite's lock on the shared memory of a used database
with open(sys.argv[1], "r+b") as file:
    sys.exit(struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK)
"""


def test_looking_for_traces_lets_go_of_no_lock(tmp_path: Path) -> None:
    """Else the next process to connect truncates the memory that this one has mapped, and kills it."""

    async def check() -> None:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/d")
        await database.migrate()
        async with database.read() as connection:
            await ledger.deployment_row(connection)
            assert not hold(database.files, b"nobody's name")
            assert hold(database.files, b"CREATE TABLE")
            asked = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", _LOCKED, str(tmp_path / "d-shm")], check=False
            )
            assert asked.returncode == 0
        await database.close()

    asyncio.run(check())


def test_files_that_cannot_be_searched_are_an_error(tmp_path: Path) -> None:
    assert not hold((), b"x")
    assert not hold((tmp_path / "absent",), b"x")
    (tmp_path / "long").write_bytes(bytes((1 << 22) - 2) + b"name")  # across two pieces
    assert hold((tmp_path / "absent", tmp_path / "long"), b"name")
    with pytest.raises(OSError, match="cannot be searched"):
        hold((tmp_path,), b"x")
