"""What commands beside a server have in common: its settings, its database, tables."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SettingsError, StoreError
from uvsdk_server.deployment import check_pair, open_database
from uvsdk_server.settings import Settings
from uvsdk_server.store.failures import trouble

Answer = TypeVar("Answer")


def settings_of(**values: Any) -> Settings:
    """The settings of the environment and those named; ``None`` is not named. Raises :class:`SettingsError`."""
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        raise SettingsError("; ".join(problems)) from error


def in_database(data: Path | None, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
    """Do something in one transaction of the server's database, started or not.

    Raises :class:`SettingsError`, :class:`StoreError`.
    """
    settings = settings_of(data=data)

    async def run() -> Answer:
        await check_pair(settings)
        database = open_database(settings)
        try:
            async with database.write() as connection:
                return await work(connection)
        finally:
            await database.close()

    with storage_errors():
        return asyncio.run(run())


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Say in one line what a database or disk cannot."""
    try:
        yield
    except (OverflowError, UnicodeEncodeError) as error:
        raise SettingsError("a number or a text that no database can keep") from error
    except (SQLAlchemyError, OSError, ModuleNotFoundError) as error:
        kind = trouble(error)
        if kind == "busy":
            raise StoreError(
                "the server's database is locked or cannot be reached; nothing was changed, try again"
            ) from error
        if kind == "full":
            raise StoreError("no space is left for the server's data; nothing was changed, free some") from error
        if not isinstance(error, SQLAlchemyError):
            raise
        # A database's own words; SQLAlchemy's would repeat the statement.
        reason = getattr(error, "orig", None) or error
        raise StoreError(f"the server's database cannot be used: {reason}") from error


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows under a header, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def date(unix_s: float | None) -> str:
    """By the clock of this machine, ``-`` for none."""
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
