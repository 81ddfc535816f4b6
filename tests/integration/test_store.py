"""The tables under SQLite and a real PostgreSQL: migrations, transactions, a whole server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, delete, select, text
from sqlalchemy.exc import IntegrityError

from tests.integration import harness
from tests.integration.harness import CONFIG
from uvsdk.errors import SettingsError, StoreError
from uvsdk.rest.problems import Problem
from uvsdk.templates.attempts import Attempts, Recent
from uvsdk_server import tokens
from uvsdk_server.keys import AtRest
from uvsdk_server.store import audit, counts, ledger, roster, rows, schema
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database


@contextlib.asynccontextmanager
async def migrated(url: str) -> Any:
    database = Database(url)
    try:
        await database.migrate()
        yield database
    finally:
        await database.close()


def test_the_migrations_make_the_tables_of_the_schema(url: str) -> None:
    def differences(connection: Connection) -> list[Any]:
        return list(compare_metadata(MigrationContext.configure(connection), schema.metadata))

    async def check() -> None:
        async with migrated(url) as database:
            await database.migrate()  # again: nothing to do
            async with database.engine.connect() as connection:
                assert await connection.run_sync(differences) == []

    asyncio.run(check())


def upgrade(revision: str, connection: Connection) -> None:
    """Bring the tables to the state that an older version left them in."""
    config = alembic.config.Config()
    config.set_main_option("script_location", str(files("uvsdk_server.store") / "migrations"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, revision)


def test_a_token_of_one_scope_survives_the_upgrade(url: str) -> None:
    """What an older version wrote: a column ``scope`` with one word."""
    text_of_token = f"uvsdk_{'a' * 12}_secret"
    digest = hashlib.sha256(text_of_token.encode()).hexdigest()

    async def check() -> None:
        database = Database(url)
        async with database.engine.connect() as connection:
            await connection.run_sync(partial(upgrade, "0003"))
            await connection.execute(
                text(
                    "INSERT INTO tokens (token_id, digest, scope, label, created, uses, revoked) "
                    f"VALUES ('{'a' * 12}', '{digest}', 'verify', '', 0, 0, false)"
                )
            )
            await connection.commit()
        await database.close()
        async with migrated(url) as database, database.read() as connection:
            shown = await tokens.bearer_of(connection, text_of_token, 1.0)
            assert shown.scopes == {"verify"}

    asyncio.run(check())


def test_failures_that_were_counted_before_there_were_windows_fill_them(url: str) -> None:
    async def check() -> None:
        database = Database(url)
        async with database.engine.connect() as connection:
            await connection.run_sync(partial(upgrade, "0006"))
            for row in (f"'person', '{'a' * 64}', 7, 3, 1000.0", "'caller', '0123456789ab', 40, 0, 2000.0"):
                await connection.execute(
                    text(f"INSERT INTO attempts (whose, subject, failures, unusable, since_s) VALUES ({row})")
                )
            await connection.commit()
        await database.close()
        async with migrated(url) as database, database.read() as connection:
            found = dict(await counts.list_counts(connection, 10))
        assert found == {
            counts.Subject(user="a" * 64): Attempts(7, 3, 1000.0, Recent(7.0, 7.0, 1000.0)),
            counts.Subject("0123456789ab"): Attempts(40, 0, 2000.0, Recent(40.0, 40.0, 2000.0)),
        }

    asyncio.run(check())


def test_a_template_of_before_releases_moves_over(url: str) -> None:
    """As it is sealed, under the model it is of; whoever had left none has none."""

    async def check() -> None:
        database = Database(url)
        async with database.engine.connect() as connection:
            await connection.run_sync(partial(upgrade, "0010"))
            for user, sealed, version in (("a" * 64, b"sealed", "v" * 64), ("b" * 64, None, None)):
                await connection.execute(
                    text(
                        'INSERT INTO users ("user", created, admitted, template_sealed, template_version) '
                        "VALUES (:user, 7, true, :sealed, :version)"
                    ),
                    {"user": user, "sealed": sealed, "version": version},
                )
            await connection.commit()
        await database.close()
        async with migrated(url) as database, database.read() as connection:
            moved = await rows.every(connection, rows.TemplateRow, select(schema.templates))
            assert moved == [rows.TemplateRow("a" * 64, "v" * 64, "", b"sealed", 7.0)]
            assert len((await connection.execute(select(schema.users))).all()) == 2

    asyncio.run(check())


def test_what_an_older_version_wrote_of_tokens_and_devices(url: str) -> None:
    """Operators' tokens expire from now on, and devices stay what they were."""

    async def check() -> None:
        database = Database(url)
        user = "a" * 64
        async with database.engine.connect() as connection:
            await connection.run_sync(partial(upgrade, "0005"))
            for token_id, scopes, expires in (
                ("1", "operator verify", "NULL"),
                ("2", "operator", "7"),
                ("3", "verify", "NULL"),
            ):
                await connection.execute(
                    text(
                        "INSERT INTO tokens (token_id, digest, scopes, label, created, expires, uses, revoked) "
                        f"VALUES ('{token_id}', 'x', '{scopes}', '', 0, {expires}, 0, false)"
                    )
                )
            await connection.execute(
                text(f"INSERT INTO users (\"user\", created, admitted, samples) VALUES ('{user}', 0, true, 3)")
            )
            await connection.execute(
                text(
                    'INSERT INTO devices (device_id, "user", signing_key, sealing_key, created) '
                    f"VALUES ('{'b' * 32}', '{user}', :key, :key, 0)"
                ),
                {"key": bytes(32)},
            )
            await connection.commit()
        await database.close()
        async with migrated(url) as database, database.read() as connection:
            rows = (await connection.execute(select(schema.tokens).order_by(schema.tokens.c.token_id))).all()
            assert rows[0].expires == pytest.approx(time.time() + 90 * 86_400, abs=600)
            assert [row.expires for row in rows[1:]] == [7.0, None]
            (device,) = await roster.list_devices(connection)
            assert (device.state, device.former_signing_key, device.last_number) == ("active", None, 0)
            (known,) = (await connection.execute(select(schema.users))).all()
            assert (known.vouched, known.anew) == (True, False)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("scopes", "match"),
    [
        ([], "got none"),
        (["boss"], "got boss"),
        (["scores"], "add verify"),
        (["operator", "embeddings"], "add verify"),
        (["enrol", "verify"], "second token"),
    ],
)
def test_scopes_that_do_not_go_together(tmp_path: Path, scopes: list[str], match: str) -> None:
    async def check() -> None:
        url = f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"
        async with migrated(url) as database, database.write() as connection:
            with pytest.raises(SettingsError, match=match):
                await tokens.create(connection, scopes, label="", now=0.0, by=audit.SERVER)

    asyncio.run(check())


def test_a_failed_transaction_leaves_nothing(url: str) -> None:
    async def check() -> None:
        async with migrated(url) as database:

            async def twice() -> None:
                async with database.write() as connection:
                    for _ in range(2):
                        await connection.execute(
                            schema.users.insert().values(user="a" * 64, created=0.0, admitted=False)
                        )

            with pytest.raises(IntegrityError):
                await twice()
            async with database.read() as connection:
                assert (await connection.execute(select(schema.users))).all() == []

    asyncio.run(check())


def test_writers_take_turns(url: str) -> None:
    """Twenty tasks add one use each: none is lost."""

    async def check() -> None:
        async with migrated(url) as database:
            async with database.write() as connection:
                token = await tokens.create(
                    connection, ["enrol"], label="", now=0.0, by=audit.SERVER, max_uses=20, unbound=True
                )

            async def use() -> None:
                async with database.write() as connection:
                    await tokens.spend(connection, token, "a" * 64, 1.0)

            await asyncio.gather(*(use() for _ in range(20)))
            with pytest.raises(Problem, match="no uses left"):
                await use()

    asyncio.run(check())


def test_a_round_from_admission_to_receipt(url: str) -> None:
    receipts = [
        rows.Receipt(1, f"{number:032x}", f"{9 - number:064x}", "0" * 32, "d" * 64, float(number), 3, b"h", "b", number)
        for number in range(4)
    ]

    async def check() -> None:
        async with migrated(url) as database:
            async with database.write() as connection:
                for receipt in receipts:
                    await connection.execute(
                        schema.users.insert().values(
                            user=receipt.user, created=0.0, admitted=True, admission_sealed=b"x"
                        )
                    )
                    await connection.execute(
                        schema.devices.insert().values(
                            device_id=receipt.device_id,
                            user=receipt.user,
                            signing_key=bytes(32),
                            sealing_key=bytes(32),
                            created=0.0,
                        )
                    )
                await ledger.insert_round(
                    connection,
                    round_id=1,
                    state="collecting",
                    model_version="m",
                    config_digest="c",
                    server_key_id="k",
                    seed=str(2**128),
                    cohort=4,
                    quorum=3,
                    opened=0.0,
                    accepted=0,
                )
                assert await ledger.eligible_devices(connection, settled=True) == []
                for pending in await ledger.pending_admissions(connection):
                    await ledger.settle_admission(connection, pending, accepted=True)
                members = await ledger.eligible_devices(connection, settled=True)
                await ledger.insert_cohort(connection, 1, members)
                for receipt in receipts[:3]:
                    await ledger.insert_receipt(connection, receipt)
            async with database.write() as connection:
                assert await ledger.outstanding(connection, 1) == {receipts[3].device_id}
                summed = await ledger.receipts_of(connection, 1)
                assert [item.user for item in summed] == sorted(item.user for item in receipts[:3])
                assert await ledger.norm_medians(connection, 20) == []
                await ledger.forget_user(connection, receipts[0].user)
                assert await ledger.receipt(connection, 1, receipts[0].device_id) is None
                assert await ledger.strip_uploads(connection) == ()
                await ledger.change_round(connection, 1, "aborted", closed=1.0)
                assert await ledger.strip_uploads(connection) == ("b", "b")
                assert await ledger.wanted_blobs(connection) == set()
                for round_id, state, median in (
                    (2, "committed", 2.0),
                    (3, "aborted", 9.0),
                    (4, "committed", None),
                    (5, "committed", 3.0),
                ):
                    await ledger.insert_round(
                        connection,
                        round_id=round_id,
                        state=state,
                        model_version="m",
                        config_digest="c",
                        server_key_id="k",
                        seed="1",
                        cohort=3,
                        quorum=3,
                        opened=0.0,
                        accepted=3,
                        clip_norm=1.0,
                        norm_median=median,
                    )
                assert await ledger.norm_medians(connection, 20) == [2.0, 3.0]
                assert await ledger.norm_medians(connection, 1) == [3.0]
                await connection.execute(delete(schema.rounds))  # takes cohort and uploads with it
                assert await ledger.cohort_of(connection, 1) == frozenset()

    asyncio.run(check())


def test_a_whole_server_on_postgres(postgres: str, tmp_path: Path) -> None:
    url = harness.fresh_database(postgres)
    config = replace(CONFIG, rounds=2)
    outcomes = []
    for name, settings in (("sqlite", {}), ("postgres", {"database_url": url})):
        with harness.serving(tmp_path / name, config=config, settings=settings) as server:
            devices = harness.devices_of(server, 3)
            harness.play_round(devices, 0)
            harness.play_round(devices, 1)
            harness.eventually(lambda: server.candidate()["round_id"] == 2)
            assert server.ask("GET", "/readyz").status_code == 200
            assert server.ask("DELETE", f"/v1/users/{devices[0].user}").status_code == 204
            outcomes.append(server.candidate())
    assert outcomes[0] == outcomes[1]


def test_blobs_are_whole_or_absent(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    name = blobs.write_array(np.arange(3, dtype=np.float32))
    assert blobs.read_array(name).tolist() == [0.0, 1.0, 2.0]
    assert blobs.write_array(np.arange(3, dtype=np.float32)) == name
    blobs.temporary().write_bytes(b"cut off by a crash")
    other = blobs.write(b"named by no row")
    assert blobs.strays({name}) == [blobs.path(other)]
    assert {path.name for path in (tmp_path / "blobs").iterdir()} == {name, other}  # the cut off one is gone
    blobs.path(name).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="damaged"):
        blobs.read(name)
    blobs.remove(name, None, "absent")
    with pytest.raises(StoreError, match="missing"):
        blobs.read(name)


def test_what_is_sealed_at_rest_opens_for_its_purpose_only() -> None:
    at_rest = AtRest(bytes(32))
    sealed = at_rest.seal(b"embedding", "template/a")
    assert at_rest.open(sealed, "template/a") == b"embedding"
    for wrong in (
        lambda: at_rest.open(sealed, "template/b"),
        lambda: at_rest.open(sealed[:-1], "template/a"),
        lambda: at_rest.open(b"", "template/a"),
        lambda: AtRest(bytes(31) + b"x").open(sealed, "template/a"),
    ):
        with pytest.raises(StoreError):
            wrong()
