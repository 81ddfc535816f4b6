"""Doctests import every module, and Alembic's environment script can only be run by Alembic."""

collect_ignore = ["uvsdk_server/store/migrations/env.py"]
