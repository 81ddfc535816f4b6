"""A real coordination server on loopback, ``uvsdk serve`` as a process of its own, and what it is asked over HTTP."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from uvsdk.federation.messages import TrainingConfig

START_TIMEOUT_S = 120.0

LABORATORY = {
    "QUALITY": "off",
    "FACES": "largest",
    "PRESENTATION_DETECTOR": "false",  # every probe here is a recording that is played back
    "DEFAULT_FMR": "0.01",
    "FAILURES_BEFORE_DELAY": "1000000",
    "FAILURES_BEFORE_DISABLED": "1000000",
    **{
        f"{whose}_FAILURES_PER_{window}": "1000000"
        for whose in ("PAIR", "PERSON", "CALLER")
        for window in ("HOUR", "DAY")
    },
}
"""``UVSDK_SERVER_*`` of a laboratory, which tries every stranger on everybody (docs/operations.md)."""


@dataclass(slots=True)
class Coordination:
    """One server, of SQLite and a folder, with the tokens that its operator hands out."""

    url: str
    data: Path
    operator: str
    integrator: str
    _process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, model: Path, config: TrainingConfig, *, people: int) -> Self:
        """Start it, and wait until it is ready; its first evaluation waits for so many people."""
        folder.mkdir(parents=True)
        training, data, port = folder / "training.json", folder / "data", _free_port()
        training.write_text(config.to_json(), encoding="utf-8")
        words = ["serve", "--data", data, "--model", model, "--training", training, "--port", port]
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "uvsdk", *map(str, words), "--start-after", str(people)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **{f"UVSDK_SERVER_{name}": value for name, value in LABORATORY.items()}},
            )
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process, data / "operator-token", folder / "server.log")
        operator = (data / "operator-token").read_text(encoding="utf-8").strip()
        served = cls(url, data, operator, "", process)
        (served.integrator,) = served.tokens("verify", "--scope", "scores")
        return served

    def tokens(self, scope: str, *arguments: str) -> list[str]:
        """New ones, one for each user that is named."""
        return self.command("token", "create", "--scope", scope, *arguments).split()

    def command(self, name: str, *arguments: str) -> str:
        """What an operator's command prints."""
        words = [sys.executable, "-m", "uvsdk", name, "--data", str(self.data), *arguments]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def newest_evaluation(self) -> dict[str, Any]:
        """As ``GET /v1/evaluations`` tells it; empty before the first."""
        found: list[dict[str, Any]] = self._get("/v1/evaluations")["evaluations"]
        return found[0] if found else {}

    def calibration(self) -> str:
        """Digest of the calibration of the release in force."""
        return str(self._get("/v1/releases/current")["calibration"])

    def request_evaluation(self) -> None:
        """As an operator asks for one."""
        httpx.post(f"{self.url}/v1/evaluations", headers=_bearer(self.operator), timeout=60).raise_for_status()

    def settled(self, *, timeout_s: float) -> dict[str, Any]:
        """The newest evaluation, once it is closed or has failed."""
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            found = self.newest_evaluation()
            if found.get("state") in ("closed", "failed"):
                return found
            time.sleep(0.2)
        raise RuntimeError(f"no evaluation ended within {timeout_s:.0f} s: {self.newest_evaluation()}")

    def verify(self, user: str, sample: bytes, *, fmr: float) -> dict[str, Any]:
        """What an integrator does: a hashed user id and a recording or photograph, and back comes the decision."""
        body = {"user": user, "sample": base64.b64encode(sample).decode(), "fmr": fmr}
        answer = httpx.post(f"{self.url}/v1/verify", json=body, headers=_bearer(self.integrator), timeout=60)
        document: dict[str, Any] = answer.raise_for_status().json()
        return document

    def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _get(self, path: str) -> dict[str, Any]:
        answer = httpx.get(self.url + path, headers=_bearer(self.operator), timeout=60)
        values: dict[str, Any] = answer.raise_for_status().json()
        return values


def enrolment_tokens(server: Coordination, users: Sequence[str]) -> list[str]:
    """One for each hashed id, in that order."""
    return server.tokens("enrol", *(argument for user in users for argument in ("--user", user)))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], token: Path, log: Path) -> None:
    ends = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200 and token.exists():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"the server did not get ready: {log.read_text(errors='replace')}")
