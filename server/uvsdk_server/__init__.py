"""The coordination server: registers devices, runs rounds, keeps model versions, verifies over REST."""

from __future__ import annotations

from uvsdk_server.app import create_app
from uvsdk_server.observer import Observer
from uvsdk_server.settings import Settings

__all__ = ["Observer", "Settings", "create_app"]
