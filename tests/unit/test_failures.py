"""Which failures of disk and database are "full", which are "busy", and which are neither."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from sqlalchemy import exc, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from uvsdk.errors import StoreError
from uvsdk_server import problems
from uvsdk_server.store.database import Database
from uvsdk_server.store.failures import trouble


def failure(tmp_path: Path, work: Callable[[Database], Coroutine[None, None, None]]) -> Exception:
    """What ``work`` raises on a database of its own."""

    async def run() -> Exception:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/d.sqlite3")
        try:
            async with database.write() as connection:
                await connection.execute(text("CREATE TABLE t (x BLOB)"))
            await work(database)
        except (SQLAlchemyError, OSError) as error:
            return error
        finally:
            await database.close()
        raise AssertionError("it did not fail")

    return asyncio.run(run())


async def grow(database: Database) -> None:
    async with database.write() as connection:
        await connection.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))


def test_a_full_sqlite_is_full(tmp_path: Path) -> None:
    async def limited(database: Database) -> None:
        async with database.write() as connection:
            await connection.execute(text("PRAGMA max_page_count = 4"))
            await connection.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))

    error = failure(tmp_path, limited)
    assert trouble(error) == "full"
    problem = problems.of(error)
    assert (problem.status, problem.kind) == (507, "storage-full")


def test_a_limit_on_files_is_full_for_sqlite_too() -> None:
    """In a process of its own, since the limit is the process's."""
    code = (
        "import pathlib, resource, sys, tempfile\n"
        "from tests.unit.test_failures import failure, grow\n"
        "from uvsdk_server.store.failures import trouble\n"
        "async def limited(database):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "    await grow(database)\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    print(trouble(failure(pathlib.Path(folder), limited)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["full"], done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


def test_a_locked_sqlite_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvsdk_server.store.database._BUSY_MS", 50)

    async def locked(database: Database) -> None:
        other = sqlite3.connect(tmp_path / "d.sqlite3", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            await grow(database)
        finally:
            other.close()

    error = failure(tmp_path, locked)
    assert trouble(error) == "busy"
    assert (problems.of(error).status, problems.of(error).headers["Retry-After"]) == (503, "1")


def test_a_mistake_in_a_query_is_neither(tmp_path: Path) -> None:
    async def mistaken(database: Database) -> None:
        async with database.read() as connection:
            await connection.execute(text("SELECT nonsense"))

    error = failure(tmp_path, mistaken)
    assert trouble(error) is None
    assert problems.of(error).status == 500


class PostgresError(Exception):
    """What asyncpg's adapter gives: SQLSTATE under that name."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__()
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "full"),
        (OSError(errno.EDQUOT, ""), "full"),
        (OSError(errno.EFBIG, ""), "full"),
        (PermissionError(errno.EACCES, ""), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "busy"),
        (exc.TimeoutError("QueuePool limit reached"), "busy"),
        (DBAPIError("", {}, PostgresError("53100")), "full"),  # disk_full
        (DBAPIError("", {}, PostgresError("57P01")), "busy"),  # admin_shutdown
        (DBAPIError("", {}, PostgresError("40P01")), "busy"),  # deadlock_detected
        (DBAPIError("", {}, PostgresError("23505")), None),  # unique_violation
        (DBAPIError("", {}, PostgresError(""), connection_invalidated=True), "busy"),
        (StoreError("damaged"), None),
        (ValueError(), None),
    ],
)
def test_by_kind(error: Exception, expected: str | None) -> None:
    assert trouble(error) == expected
