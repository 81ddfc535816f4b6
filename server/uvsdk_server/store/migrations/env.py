"""Runs the migrations on the connection that :mod:`uvsdk_server.store.database` hands over."""

from __future__ import annotations

from alembic import context

from uvsdk_server.store.schema import metadata

# batch mode: SQLite cannot alter most columns in place
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
