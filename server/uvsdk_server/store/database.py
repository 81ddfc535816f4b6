"""The database: migrations at start-up, and two kinds of transaction.

SQLite runs in WAL mode with ``synchronous=FULL``: what was committed survives a power cut. Writers take the write
lock at once (``BEGIN IMMEDIATE``), so that a transaction never fails half way because another one upgraded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from uvsdk.errors import StoreError

_BUSY_MS = 15_000
"""How long another process (``uvsdk token``) may hold SQLite's write lock before a request is answered 503."""
_PURGE_BUSY_MS = 100
"""How long one try to empty the log holds up writers; there are more tries."""

_CONNECTIONS = 16
"""Of the pool: one for the writer, the others for those who read."""


class Database:
    """One engine. ``read`` and ``write`` give a connection inside a transaction."""

    def __init__(self, url: str) -> None:
        """``url`` is SQLAlchemy's, with an asynchronous driver: ``sqlite+aiosqlite`` or ``postgresql+asyncpg``."""
        self._sqlite = make_url(url).get_backend_name() == "sqlite"
        # One writer at a time in this process: SQLite allows no more, and PostgreSQL then needs no retries.
        self._writing = asyncio.Lock()
        # So that the pool always has a connection left: waiting in a line has an end, waiting for the pool an error,
        # and with enough requests that error would meet whoever moves the rounds on.
        self._reading = asyncio.Semaphore(_CONNECTIONS - 1)
        self.engine: AsyncEngine = create_async_engine(
            url,
            poolclass=AsyncAdaptedQueuePool,
            pool_size=_CONNECTIONS // 2,
            max_overflow=_CONNECTIONS // 2,
            connect_args={"timeout": _BUSY_MS / 1000} if self._sqlite else {},
            hide_parameters=True,  # they are ids and sealed rows, and an error's text ends in a log
        )
        if self._sqlite:
            event.listen(self.engine.sync_engine, "connect", _configure_sqlite)

    async def migrate(self) -> None:
        """Bring the tables to this version's revision: all of it, or where the process is killed nothing.

        PostgreSQL's migrations are transactions by themselves. SQLite's are made one here, with foreign keys off:
        a table that is made anew is dropped in between, and its rows' children would go with it.
        """
        async with self._writing, self.engine.connect() as connection:
            if not self._sqlite:
                await connection.run_sync(_upgrade)
                await connection.commit()
                return
            await connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                await connection.run_sync(_upgrade)
                broken = (await connection.exec_driver_sql("PRAGMA foreign_key_check")).first()
                if broken is not None:
                    raise StoreError(f"a row of the table {broken[0]} names another one that is not there")
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise
            finally:
                await connection.exec_driver_sql("PRAGMA foreign_keys=ON")
                await connection.rollback()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads. None is begun inside another."""
        async with self._reading, self.engine.connect() as connection:
            if self._sqlite:
                await connection.exec_driver_sql("BEGIN")
            try:
                yield connection
            finally:
                await connection.rollback()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is durable when the block is left, or undone where it raises."""
        async with self._writing, self.engine.connect() as connection:
            if self._sqlite:
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    async def purge(self) -> bool:
        """Empty SQLite's write-ahead log, which holds former pages; false where somebody still reads them.

        Pages themselves are overwritten on delete. PostgreSQL's log is the operator's (``docs/operations.md``).
        """
        if not self._sqlite:
            return True
        async with self._writing, self.engine.connect() as connection:
            await connection.exec_driver_sql(f"PRAGMA busy_timeout={_PURGE_BUSY_MS}")
            try:
                answer = await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                busy = answer.one()[0]
            finally:
                await connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY_MS}")
                await connection.rollback()
        return not busy

    async def rewrite(self) -> None:
        """Write SQLite's file anew, without what rows left behind when their pages were split or merged."""
        if self._sqlite:
            async with self._writing, self.engine.connect() as connection:
                await connection.exec_driver_sql("VACUUM")
                await connection.rollback()

    @property
    def files(self) -> tuple[Path, ...]:
        """SQLite's files, the log among them; none where the database is elsewhere."""
        name = self.engine.url.database
        return tuple(Path(f"{name}{end}") for end in ("", "-wal", "-shm")) if self._sqlite and name else ()

    async def ping(self) -> None:
        """Write and undo, to show that the database takes writes."""
        async with self._writing, self.engine.connect() as connection:
            if self._sqlite:
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.execute(text("UPDATE deployment SET id = id"))
            await connection.rollback()

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


def _configure_sqlite(connection: Any, _record: object) -> None:
    # With the driver's own transaction control off, BEGIN is ours to write.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.close()


def migrations() -> alembic.config.Config:
    """Where Alembic finds the migrations."""
    config = alembic.config.Config()
    config.set_main_option("script_location", str(files("uvsdk_server.store") / "migrations").replace("%", "%%"))
    return config


def newest_revision() -> str | None:
    """The revision of this version's tables."""
    return ScriptDirectory.from_config(migrations()).get_current_head()


def _upgrade(connection: Connection) -> None:
    config = migrations()
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")
