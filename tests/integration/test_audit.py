"""The audit log of a server: what is told, what is not, and that nobody changes it unseen."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DBAPIError

from tests.integration import harness
from tests.integration.harness import RunningServer, SyntheticDevice, kind
from uvsdk.cli import main
from uvsdk_server.keys import KeyFolder
from uvsdk_server.store import audit, schema
from uvsdk_server.store.database import Database


def entries_of(server: RunningServer, query: str = "") -> list[dict[str, object]]:
    answer = server.ask("GET", f"/v1/audit{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()["entries"]
    return found


def actions(server: RunningServer, query: str = "") -> list[tuple[object, object]]:
    return [(entry["action"], str(entry["actor"]).split(":")[0]) for entry in entries_of(server, query)]


def test_what_is_administered_is_told_and_by_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        data = ["--data", str(server.data)]
        assert actions(server)[:2] == [("key-made", "server"), ("release-made", "server")]
        before = len(entries_of(server))
        device = SyntheticDevice(server, 1)
        token = server.ask("POST", "/v1/enrolment-tokens", json={"user": device.user, "uses": 2}).json()["token"]
        assert device.register(token).status_code == 201
        second = SyntheticDevice(server, 2)
        second.user = device.user
        assert second.register(token).json()["state"] == "pending"
        assert device.request("POST", f"/v1/devices/{second.device_id}/approval").status_code == 204
        assert main(["devices", *data, "revoke", second.device_id]) == 0
        assert main(["token", *data, "create", "--scope", "verify"]) == 0
        shown = capsys.readouterr().out.strip().split("_")[1]
        assert main(["token", *data, "revoke", shown]) == 0
        assert server.ask("PUT", "/v1/releases/policy", json={"policy": "frozen"}).status_code == 200
        assert server.ask("POST", "/v1/evaluations").status_code in (202, 409)
        told = [item for item in actions(server, f"?after={before}") if item[0] != "evaluation-requested"]
        assert told == [
            ("token-created", "token"),
            ("device-registered", "device"),
            ("device-registered", "device"),
            ("device-approved", "device"),
            ("device-revoked", "command"),
            ("token-created", "command"),
            ("token-revoked", "command"),
            ("release-policy", "token"),
        ]
        with subtests.test("of one person, and of nobody"):
            mine = actions(server, f"?user={device.user}")
            assert [name for name, _ in mine] == [
                "device-registered",
                "device-registered",
                "device-approved",
                "device-revoked",
            ]
            assert entries_of(server, f"?user={'0' * 64}") == []
            assert [name for name, _ in actions(server, "?action=release-policy")] == ["release-policy"]
        with subtests.test("pages"):
            answer = server.ask("GET", "/v1/audit?limit=2").json()
            rest = entries_of(server, f"?after={answer['next_after']}&limit=500")
            assert [*answer["entries"], *rest] == entries_of(server, "?limit=500")
            assert server.ask("GET", "/v1/audit?limit=500").json()["next_after"] is None
        with subtests.test("a signed head"):
            head = server.ask("GET", "/v1/audit/head").json()
            last = entries_of(server, "?limit=500")[-1]
            assert (head["number"], head["digest"]) == (last["number"], last["digest"])
            key = base64.b64decode(server.ask("GET", "/v1/deployment").json()["server_signing_key"])
            message = f"uvsdk audit head/1\n{head['deployment']}\n{head['number']}\n{head['digest']}\n".encode()
            Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(head["signature"]), message)
        with subtests.test("bad questions"):
            for query in ("?after=-1", "?limit=0", "?limit=501", "?user=ab", "?action=A%20B", f"?after={1 << 60}"):
                assert server.ask("GET", f"/v1/audit{query}").status_code == 422, query
        with subtests.test("no id of a person or of a device, as text or raw"):
            stored = json.dumps(server.rows("SELECT * FROM audit"))
            for item in (device, second):
                assert item.user not in stored
                assert item.device_id not in stored


def test_of_whoever_has_left_nobody_can_tell_what_was_about_them(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        device, other = SyntheticDevice(server, 1), SyntheticDevice(server, 2)
        for item in (device, other):
            token = server.ask("POST", "/v1/enrolment-tokens", json={"user": item.user}).json()["token"]
            assert item.register(token).status_code == 201
        mark = KeyFolder(server.data / "keys").mark(device.user)
        assert {entry["subject"] for entry in entries_of(server, f"?user={device.user}")} == {mark}
        assert device.request("DELETE", f"/v1/users/{device.user}").status_code == 204
        told = [entry["action"] for entry in entries_of(server) if entry["subject"] == mark]
        assert told == ["device-registered", "user-left"]  # the log stays whole
        assert entries_of(server)[-1]["action"] == "user-deleted"
        assert entries_of(server, f"?user={device.user}") == []
        assert KeyFolder(server.data / "keys").mark(device.user) == ""
        # Whoever registers anew under the same id is another subject.
        again = SyntheticDevice(server, 3)
        again.user = device.user
        token = server.ask("POST", "/v1/enrolment-tokens", json={"user": device.user}).json()["token"]
        assert again.register(token).status_code == 201
        assert KeyFolder(server.data / "keys").mark(device.user) not in ("", mark)
        assert len(entries_of(server, f"?user={other.user}")) == 1


def test_an_auditor_reads_and_changes_nothing(tmp_path: Path) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        token = server.token("audit")
        for path in ("audit", "audit/head", "rounds", "training", "evaluations", "releases", "releases/candidate"):
            assert server.ask("GET", f"/v1/{path}", token=token).status_code == 200, path
        assert server.ask("GET", "/metrics", token=token).status_code == 200
        for path in ("devices", "attempts"):  # they name people
            assert kind(server.ask("GET", f"/v1/{path}", token=token)) == "forbidden", path
        answer = server.ask("PUT", "/v1/releases/policy", token=token, json={"policy": "frozen"})
        assert kind(answer) == "forbidden"


def test_the_command_lists_exports_and_finds_what_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    with harness.serving(tmp_path / "server", settings={"start_after_users": 1000}) as server:
        data = ["--data", str(server.data)]
        server.token("verify")
        first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
        assert main(["audit", *data, "export", str(first)]) == 0
        server.token("verify")
        assert main(["audit", *data, "export", str(second)]) == 0
        capsys.readouterr()
        assert main(["audit", *data, "list", "--limit", "2"]) == 0
        header, *rows = capsys.readouterr().out.splitlines()
        assert header.split() == ["number", "when", "by", "action", "person", "detail"]
        assert [row.split()[4] for row in rows] == ["token-created", "token-created"]
        assert main(["audit", *data, "list", "--of", "release-made"]) == 0
        assert "cause=founding" in capsys.readouterr().out
        assert main(["audit", *data, "verify"]) == 0
        assert main(["audit", "verify", str(second), "--kept", str(first)]) == 0
        assert main(["audit", *data, "verify", "--kept", str(second)]) == 0
        assert "none changed or removed" in capsys.readouterr().out
        for wrong, match in [
            (["audit", *data, "export", str(first)], "exists"),
            (["audit", "verify", str(tmp_path / "none")], "cannot read"),
            (["audit", "verify", str(first), "--kept", str(second)], "cut or written anew"),
            (["audit", *data, "list", "--user", "0" * 64], "nobody of that id"),
            (["audit", *data, "list", "--limit", "0"], "--limit"),
        ]:
            with subtests.test(match):
                assert main(wrong) == 1
                assert match in capsys.readouterr().err
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        assert main(["audit", "verify", str(tmp_path / "binary")]) == 1
        assert "no export" in capsys.readouterr().err
        # Somebody with the database's file: the triggers can be dropped, the chain cannot be made to fit.
        path = server.data / "server.sqlite3"
        with contextlib.closing(sqlite3.connect(path, timeout=15)) as database, database:
            with pytest.raises(sqlite3.DatabaseError, match="only added to"):
                database.execute("DELETE FROM audit WHERE number = 2")
            database.execute("DROP TRIGGER audit_refuses_update")
            database.execute("UPDATE audit SET actor = 'server' WHERE actor = 'command'")
        assert main(["audit", *data, "verify"]) == 1
        assert "not what was written" in capsys.readouterr().err


def test_the_database_refuses_to_change_or_delete_an_entry(url: str) -> None:
    async def check() -> None:
        database = Database(url)
        try:
            await database.migrate()
            async with database.write() as connection:
                await audit.append(connection, 1.5, audit.SERVER, "server-started", version="0")
            for statement in (update(schema.audit).values(actor="nobody"), delete(schema.audit)):
                with pytest.raises(DBAPIError, match="only added to"):
                    async with database.write() as connection:
                        await connection.execute(statement)
            if connection.dialect.name == "postgresql":
                with pytest.raises(DBAPIError, match="only added to"):
                    async with database.write() as connection:
                        await connection.execute(text("TRUNCATE audit"))
            async with database.read() as connection:
                (entry,) = await audit.listed(connection)
            assert (entry.number, entry.at_ms, entry.actor) == (1, 1500, "server")
        finally:
            await database.close()

    asyncio.run(check())


def test_an_entry_is_there_with_what_it_tells_of_or_not_at_all(url: str) -> None:
    async def check() -> None:
        database = Database(url)
        try:
            await database.migrate()

            async def fail() -> None:
                async with database.write() as connection:
                    await audit.append(connection, 0.0, audit.SERVER, "server-started")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            async with database.read() as connection:
                assert await audit.head(connection) == audit.Head()
        finally:
            await database.close()

    asyncio.run(check())


def test_several_processes_write_one_chain(url: str) -> None:
    """Each thread has an engine of its own, as a command beside the server has."""

    async def write_some(name: int) -> None:
        database = Database(url)
        try:
            for _ in range(15):
                async with database.write() as connection:
                    await audit.append(connection, time.time(), audit.COMMAND, "training-resumed", writer=name)
        finally:
            await database.close()

    async def look() -> list[audit.Entry]:
        database = Database(url)
        try:
            async with database.read() as connection:
                return await audit.listed(connection)
        finally:
            await database.close()

    async def prepare() -> None:
        database = Database(url)
        await database.migrate()
        await database.close()

    asyncio.run(prepare())
    threads = [threading.Thread(target=lambda name=name: asyncio.run(write_some(name))) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = asyncio.run(look())
    assert audit.verify_chain(entries).number == 45
    assert {entry.detail["writer"] for entry in entries} == {0, 1, 2}
