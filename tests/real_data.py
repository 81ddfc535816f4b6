"""Where the real recordings and faces for tests lie, and a clear reason to skip where they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def folder() -> Path:
    """The folder named by ``UVSDK_DATA``, else ``../shared/data`` beside the repository; skips where absent."""
    named = os.environ.get("UVSDK_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"real data is not at {path}; set UVSDK_DATA to a folder that has it")
    return path


def file(name: str) -> Path:
    """One file or folder of the real data; skips where absent."""
    path = folder() / name
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path
