"""Folder and database of different deployments, keys that are missing: refused before anything is touched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from sqlalchemy import text

from tests.integration import harness
from tests.integration.harness import RunningServer, command
from uvsdk.errors import SettingsError, StoreError
from uvsdk_server import Settings, monitoring
from uvsdk_server.deployment import Deployment
from uvsdk_server.freshness import Freshness
from uvsdk_server.keys import KeyFolder
from uvsdk_server.monitoring import Metrics
from uvsdk_server.observer import Unobserved
from uvsdk_server.store.database import Database, migrations
from uvsdk_server.store.pairing import FILE, Pair, look
from uvsdk_server.store.quarantine import Quarantine

DAY_S = 86_400.0


@dataclass
class Made:
    """A deployment that has started once and trained a round, and stopped."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def database(self) -> Path:
        return self.data / "server.sqlite3"

    def settings(self, **changes: object) -> Settings:
        values = {"data": self.data, "model": self.folder / "model.uvb", "training": self.folder / "training.json"}
        return Settings.model_validate({**values, "log_level": "error", **changes})

    def copy(self, folder: Path) -> Made:
        shutil.copytree(self.folder, folder)
        return Made(folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("original")
    with harness.serving(folder, settings={"start_after_users": 1000}) as server:
        (device,) = harness.devices_of(server, 1)
        assert device.leave_template().status_code == 204
    return Made(folder)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    return original.copy(tmp_path / "one")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("stranger")
    with harness.serving(folder):
        pass
    return Made(folder)


def contents(*folders: Path) -> dict[str, bytes | None]:
    """Every file and folder, but for the lock, which says nothing."""
    found = [path for folder in folders for path in folder.rglob("*") if path.name != "lock"]
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def start(settings: Settings) -> None:
    """Start a server and stop it again."""

    async def run() -> None:
        log = monitoring.logger("error")
        freshness = Freshness(settings.signature_window_s)
        await (await Deployment.open(settings, Unobserved(), Metrics(), log, freshness=freshness)).close()

    asyncio.run(run())


def refused(settings: Settings, *folders: Path) -> str:
    """Why a start is refused, having seen that it changes nothing in ``folders``."""
    before = contents(*folders)
    with pytest.raises((StoreError, SettingsError)) as caught:
        start(settings)
    assert contents(*folders) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


def database_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def test_a_database_that_is_not_there_destroys_nothing(made: Made, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.sqlite3"
    message = refused(made.settings(database_url=database_url(elsewhere)), made.data)
    assert "the database holds no deployment" in message
    assert "restore that from a backup" in message
    assert not elsewhere.exists()


def test_a_database_that_was_restored_empty_destroys_nothing(made: Made) -> None:
    made.database.unlink()
    assert "the database holds no deployment" in refused(made.settings(), made.data)
    sqlite3.connect(made.database).close()
    assert "the database holds no deployment" in refused(made.settings(), made.data)

    async def migrate() -> None:
        database = Database(database_url(made.database))
        await database.migrate()
        await database.close()

    asyncio.run(migrate())
    assert "the database holds no deployment" in refused(made.settings(), made.data)


def test_another_deployments_database(made: Made, stranger: Made) -> None:
    message = refused(made.settings(database_url=database_url(stranger.database)), made.data, stranger.data)
    own, other = Pair.read(made.data), Pair.read(stranger.data)
    assert own is not None
    assert other is not None
    assert own.deployment_id[:8] in message
    assert other.deployment_id[:8] in message


def test_an_empty_folder_beside_a_database_in_use(made: Made, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    settings = made.settings(data=empty, database_url=database_url(made.database))
    assert "has none of its keys" in refused(settings, made.data, tmp_path)
    assert not empty.exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "is not a database"),
        (lambda path: run_sql(path, "UPDATE alembic_version SET version_num = '9999'"), "newer uvsdk, or of another"),
        (lambda path: run_sql(path, "DROP TABLE alembic_version"), "that this server did not make"),
    ],
)
def test_what_is_no_database_of_ours(made: Made, spoil: Callable[[Path], None], words: str) -> None:
    spoil(made.database)
    assert words in refused(made.settings(), made.data)


def run_sql(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize("name", ["signing.key", "at-rest.key", "hpke-*.key", FILE])
def test_a_missing_key_is_named_and_never_made_anew(made: Made, name: str) -> None:
    (file,) = (made.data if name == FILE else made.data / "keys").glob(name)
    kept = file.read_bytes()
    file.unlink()
    assert file.name in refused(made.settings(), made.data)
    assert not file.exists()
    file.write_bytes(kept)
    start(made.settings())


@pytest.mark.parametrize("name", ["signing.key", "at-rest.key", "hpke-*.key"])
def test_a_key_of_another_server_is_refused(made: Made, stranger: Made, name: str) -> None:
    (file,), (other,) = ((one.data / "keys").glob(name) for one in (made, stranger))
    file.write_bytes(other.read_bytes())
    message = refused(made.settings(), made.data)
    assert file.name in message or "at-rest.key" in message


def test_a_missing_key_of_a_user_is_named(made: Made) -> None:
    (file,) = (made.data / "keys").glob("user-*.key")
    file.unlink()
    server = RunningServer(made.folder, settings={"start_after_users": 1000})
    server.start()
    try:
        device = harness.SyntheticDevice(server, 0)
        assert device.leave_template().status_code == 500
        assert not file.exists()
    finally:
        server.stop()


def test_a_database_of_postgres_that_is_empty(made: Made, postgres: str) -> None:
    url = harness.fresh_database(postgres)
    assert "the database holds no deployment" in refused(made.settings(database_url=url), made.data)
    assert asyncio.run(look(url)).revision is None

    async def occupy() -> None:
        database = Database(url)
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE users (name text)"))
        await database.close()

    asyncio.run(occupy())
    assert "did not make" in refused(made.settings(database_url=url), made.data)
    unreachable = made.settings(database_url="postgresql+asyncpg://nobody@127.0.0.1:9/none")
    assert "cannot be read" in refused(unreachable, made.data)


@pytest.mark.parametrize("called", [("token", "list"), ("rounds", "list"), ("lockouts", "list")])
def test_commands_beside_the_server_make_nothing(tmp_path: Path, made: Made, called: tuple[str, str]) -> None:
    name, action = called
    absent, empty, foreign = tmp_path / "absent", tmp_path / "empty", tmp_path / "foreign"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear Ada")
    half = made.copy(tmp_path / "half")
    half.database.unlink()
    before = contents(tmp_path)
    for folder in (absent, empty, foreign, half.data):
        with pytest.raises(StoreError):
            command(name, "--data", str(folder), action)
    assert contents(tmp_path) == before


def test_a_first_start_without_a_model_makes_nothing(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "typo", log_level="error")
    assert "--model, --training" in refused(settings, tmp_path)
    assert not (tmp_path / "typo").exists()


def test_a_first_start_killed_on_its_way_goes_on() -> None:
    path = os.pathsep.join(str(harness.ROOT / part) for part in (".", "server", "device"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.first_start", "4"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=harness.ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40  # steps that change the disk


def test_what_no_row_names_is_put_aside(made: Made) -> None:
    keys, blobs = made.data / "keys", made.data / "blobs"
    strays = {
        keys / "hpke-00112233445566778899aabbccddeeff.key": bytes(32),
        keys / "state-00112233445566778899aabbccddeeff.key": bytes(60),
        blobs / ("a" * 64): b"an acknowledged upload that this database does not know",
    }
    for path, body in strays.items():
        path.write_bytes(body)
    (blobs / ".tmp-half").write_bytes(b"half an upload")
    start(made.settings())
    (day,) = (made.data / "quarantine").iterdir()
    for path, body in strays.items():
        assert not path.exists()
        assert (day / path.parent.name / path.name).read_bytes() == body
    assert not list(blobs.glob(".tmp-*"))
    start(made.settings())
    assert len(list(day.rglob("*"))) == 2 + len(strays)


def test_an_older_copy_of_the_database_loses_no_newer_file(tmp_path: Path) -> None:
    """Put in place of the newer one, it knows neither the newer key nor the newer uploads: they are put aside."""
    with harness.serving(tmp_path, settings={"key_rounds": 1}) as server:
        harness.devices_of(server, 1)
    made = Made(tmp_path)
    older = made.database.read_bytes()
    with harness.serving(tmp_path, settings={"key_rounds": 1}) as server:
        devices = harness.devices_of(server, 3)
        header = devices[0].wait()
        assert header is not None
        body = devices[0].update(header)
        assert devices[0].upload(header, body).status_code == 201
    upload = harness.hashlib.sha256(body).hexdigest()
    assert (made.data / "blobs" / upload).exists()
    newer = made.database.read_bytes()
    made.database.write_bytes(older)
    with contextlib.suppress(StoreError):  # where its own files are gone, it is refused
        start(made.settings())
    aside = list(made.data.rglob(upload))
    assert [path.read_bytes() for path in aside] == [body]
    for path in (made.data / "quarantine").rglob("*"):
        if path.is_file():
            path.rename(made.data / path.parent.name / path.name)
    made.database.write_bytes(newer)
    with harness.serving(tmp_path) as server:
        again = harness.SyntheticDevice(server, 0)
        assert again.upload(header, body).status_code == 200  # still known, and still there


def test_a_removal_that_was_ordered_is_carried_out(made: Made) -> None:
    blobs, keys = made.data / "blobs", made.data / "keys"
    spent = "b" * 64
    (blobs / spent).write_bytes(b"an upload of a closed round")
    run_sql(
        made.database,
        f"INSERT INTO removals VALUES ('blobs/{spent}')",
        "INSERT INTO removals VALUES ('keys/at-rest.key')",
        "INSERT INTO removals VALUES ('blobs/../keys/signing.key')",
        "INSERT INTO removals SELECT 'blobs/' || base_blob FROM deployment",
    )
    start(made.settings())
    assert not (blobs / spent).exists()
    assert not (made.data / "quarantine").exists()
    assert (keys / "at-rest.key").exists()
    assert (keys / "signing.key").exists()
    start(made.settings())  # the base model, which a row still names, is there


def test_quarantine_ends_after_its_days(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path, days=30)
    (tmp_path / "blobs").mkdir()
    for day in (0, 0, 20):
        (tmp_path / "blobs" / "a").write_bytes(b"%d" % day)
        assert quarantine.take([tmp_path / "blobs" / "a"], day * DAY_S) == 1
    assert sorted(path.name for path in (tmp_path / "quarantine").rglob("a*")) == ["a", "a", "a.1"]
    (tmp_path / "quarantine" / "notes").mkdir()
    assert quarantine.expire(30 * DAY_S) == 0
    assert quarantine.expire(31 * DAY_S) == 2
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == ["1970-01-21", "notes"]


def old_folder(made: Made) -> None:
    """What a version before 0005 left: no ids, and everything sealed under ``at-rest.key``."""
    keys = KeyFolder(made.data / "keys")
    with contextlib.closing(sqlite3.connect(made.database)) as database, database:
        (name,) = database.execute("SELECT algorithm_blob FROM deployment").fetchone()
        sealed = keys.at_rest.seal(keys.open_state((made.data / "blobs" / name).read_bytes()), "algorithm-state")
        digest = harness.hashlib.sha256(sealed).hexdigest()
        (made.data / "blobs" / name).unlink()
        (made.data / "blobs" / digest).write_bytes(sealed)
        database.execute("UPDATE deployment SET algorithm_blob = ?", (digest,))
        rows = database.execute("SELECT user, sealed, model_version FROM templates").fetchall()
        for user, template, version in rows:
            purpose = f"template/{user}/{version}"
            former = keys.at_rest.seal(keys.user(user).open(template, purpose), purpose)
            database.execute("UPDATE templates SET sealed = ? WHERE user = ?", (former, user))
    for path in [*(made.data / "keys").glob("user-*"), *(made.data / "keys").glob("state-*"), made.data / FILE]:
        path.unlink()

    def downgrade(connection: Any) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        alembic.command.downgrade(config, "0003")

    async def run() -> None:
        database = Database(database_url(made.database))
        async with database.engine.connect() as connection:
            await connection.run_sync(downgrade)
            await connection.commit()
        await database.close()

    asyncio.run(run())


def test_a_folder_of_an_earlier_version_is_taken_over(made: Made) -> None:
    old_folder(made)
    with pytest.raises(StoreError, match="start `uvsdk serve`"):
        command("token", "--data", str(made.data), "list")
    with harness.serving(made.folder, settings={"start_after_users": 1000}) as server:
        pair = Pair.read(made.data)
        assert pair is not None
        assert pair.complete
        assert server.rows("SELECT deployment_id FROM deployment") == [(pair.deployment_id,)]
        device = harness.SyntheticDevice(server, 0)
        body = {
            "user": device.user,
            "embedding": device.direction(0).tolist(),
            "model_version": server.candidate()["model_version"],
        }
        answer = server.ask("POST", "/v1/verify", json=body)
        assert answer.status_code == 200, answer.text  # its template still opens
        assert device.leave_template().status_code == 204
    assert command("token", "--data", str(made.data), "list") == 0
    start(made.settings())


@pytest.mark.parametrize("spoiled", ["hpke", "at-rest"])
def test_a_folder_of_an_earlier_version_with_other_keys_is_not(made: Made, stranger: Made, spoiled: str) -> None:
    old_folder(made)
    (file,), (other,) = ((one.data / "keys").glob(f"{spoiled}*.key") for one in (made, stranger))
    file.write_bytes(other.read_bytes())
    assert file.name in refused(made.settings(), made.data)
    assert not (made.data / FILE).exists()


def test_a_takeover_that_was_killed_goes_on(made: Made) -> None:
    """Killed after the file was written and before the row was."""
    old_folder(made)
    pair = Pair("0" * 32, complete=True)
    pair.write(made.data)
    start(made.settings())
    assert asyncio.run(look(database_url(made.database))).deployment_id == pair.deployment_id


def test_a_damaged_id_is_told(made: Made) -> None:
    for body in (b"", b"[]", b'{"deployment_id": "../..", "complete": true}', json.dumps({"complete": 1}).encode()):
        (made.data / FILE).write_bytes(body)
        assert "damaged" in refused(made.settings(), made.data)
