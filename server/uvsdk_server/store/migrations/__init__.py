"""Alembic migrations, shipped with the package and run at start-up."""
