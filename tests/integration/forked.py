"""A server that is a process of a crew (``crew.py``), for tests that kill it often and cheaply."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration import harness
from tests.integration.crew import is_alive, read
from tests.integration.harness import ROOT, RunningServer

PATIENCE_S = 240.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition()`` is true; long, for two processors may be shared by many."""
    harness.eventually(condition, timeout_s=PATIENCE_S)


class Crew:
    """The process that all devices and servers are forks of."""

    def __init__(self, log: Path) -> None:
        self._log = log
        path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.integration.crew"]
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment,
            )
        assert self._answer() == "ready", read(log)

    def fork(self, role: str, log: Path, **arguments: Any) -> int:
        """Start a process of that role; gives its id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"role": role, "log": str(log), "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def dismiss(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=120)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass
class ForkedServer(RunningServer):
    """A server that is a process of the crew's."""

    crew: Crew | None = None
    pid: int = 0

    def start(self, *, kill_at: str = "", kill_times: int = 1) -> None:
        """Start, or start again at the same address."""
        assert self.crew is not None
        self.prepare()
        up = self.folder / "up"
        up.unlink(missing_ok=True)
        settings = self._settings().model_dump(mode="json") | {"port": int(self.url.rpartition(":")[2] or 0)}
        self.pid = self.crew.fork(
            "server", self.folder / "log", settings=settings, up=str(up), kill_at=kill_at, kill_times=kill_times
        )
        eventually(lambda: up.exists() or not is_alive(self.pid))
        assert up.exists(), read(self.folder / "log")
        self.url = f"http://127.0.0.1:{up.read_text()}"
        self.operator = self.operator or self.token("operator")

    def stop(self) -> None:
        """Ask it to stop and wait until it has."""
        self.close_clients()
        if is_alive(self.pid):
            os.kill(self.pid, signal.SIGTERM)
            eventually(lambda: not is_alive(self.pid))

    def pass_the_deadline(self) -> None:
        """While the server is down: as if it had been down until the round's deadline."""
        with closing(sqlite3.connect(self.data / "server.sqlite3")) as database, database:
            database.execute("UPDATE rounds SET deadline = ? WHERE state = 'collecting'", (time.time() - 1.0,))
