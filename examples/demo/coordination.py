"""A real coordination server as a process of its own, and what the demonstration asks of it over HTTP."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import leash
from people import FMR, MOST_FAILURES

from uvsdk import Bundle
from uvsdk.federation.messages import TrainingConfig

START_TIMEOUT_S = 60.0

_ENVIRONMENT = {
    "UVSDK_SERVER_DEFAULT_FMR": str(FMR),
    # Nobody goes away here; on a machine with other work everybody is late.
    "UVSDK_SERVER_ABSENT_AFTER": "1",
    **{
        f"UVSDK_SERVER_{name}": str(MOST_FAILURES)
        for name in (
            "FAILURES_BEFORE_DELAY",
            "FAILURES_BEFORE_DISABLED",
            "PAIR_FAILURES_PER_HOUR",
            "PAIR_FAILURES_PER_DAY",
            "PERSON_FAILURES_PER_HOUR",
            "PERSON_FAILURES_PER_DAY",
            "CALLER_FAILURES_PER_HOUR",
            "CALLER_FAILURES_PER_DAY",
        )
    },
}


@dataclass(slots=True)
class Coordination:
    """One ``uvsdk serve`` process on loopback, started for one training configuration."""

    url: str
    folder: Path
    operator_token: str
    enrolment_tokens: tuple[str, ...]
    verify_token: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, model: Path, config: TrainingConfig, users: Sequence[str]) -> Coordination:
        """Start the server, wait until it is ready, and make the tokens an operator would hand out.

        ``users`` are hashed ids; each gets an enrolment token of their own.
        """
        folder.mkdir(parents=True)
        training = folder / "training.json"
        training.write_text(config.to_json(), encoding="utf-8")
        data = folder / "data"
        port = _free_port()
        arguments = ["serve", "--data", data, "--model", model, "--training", training, "--port", port]
        with (folder / "server.log").open("wb") as log:
            process = leash.start(
                "uvsdk",
                [*map(str, arguments), "--start-after", str(len(users))],
                log=log,
                # Who only evaluates is the same in every run.
                environment={**_ENVIRONMENT, "UVSDK_SERVER_ROLE_SEED": str(config.seed)},
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, folder / "server.log", data / "operator-token")
            operator = (data / "operator-token").read_text(encoding="utf-8").strip()
            enrol = tuple(_enrolment_token(url, operator, user) for user in users)
            return cls(url, folder, operator, enrol, _verification_token(data), process)
        except BaseException:
            leash.stop(process)
            raise

    @property
    def log(self) -> str:
        """The last lines the server wrote, for when something went wrong."""
        return "\n".join((self.folder / "server.log").read_text(errors="replace").splitlines()[-20:])

    def newest_round(self) -> int:
        """The round that made the current model, 0 before the first commit; aborted rounds count too."""
        return int(self._get("/v1/models/candidate").json()["round_id"])

    def mean_offdiagonal_cosine(self) -> float:
        """The server's own collapse monitor of its class matrix, from its metrics."""
        text = self._get("/metrics").text
        found = re.search(r"^uvsdk_class_vectors_mean_offdiagonal_cosine (\S+)$", text, re.MULTILINE)
        if found is None:
            raise RuntimeError("the server's metrics lack the collapse monitor")
        return float(found.group(1))

    def bundle(self) -> Bundle:
        """The newest model."""
        return Bundle.from_bytes(self._get("/v1/models/candidate/bundle").content)

    def evaluators(self) -> int:
        """How many users only evaluate."""
        return int(self._get("/v1/training").json()["evaluators"])

    def releases(self) -> list[dict[str, Any]]:
        """Every release, oldest first, as the server tells of it."""
        found: list[dict[str, Any]] = self._get("/v1/releases").json()["releases"]
        return sorted(found, key=lambda item: int(item["number"]))

    def release_bundle(self, number: int) -> Bundle:
        """The bundle of a release, with its calibration."""
        return Bundle.from_bytes(self._get(f"/v1/releases/{number}/bundle").content)

    def promote(self) -> httpx.Response:
        """Release the candidate at an operator's word."""
        return self._post("/v1/releases", {"model_version": "candidate"})

    def roll_back(self) -> httpx.Response:
        """Go back to what the release in force took the place of, as an operator does."""
        return self._post("/v1/releases/roll-back", {})

    def evaluations(self) -> tuple[str, ...]:
        """What each evaluation said of its candidate, a line each, oldest first."""
        lines = []
        rows = self._get("/v1/evaluations").json()["evaluations"]
        for row in sorted(rows, key=lambda item: int(item["evaluation_id"])):
            found = row["summary"] or {}
            before, after = (found.get(name) for name in ("released", "candidate"))
            words = f"evaluation {row['evaluation_id']} ({row['cause']}): {row['outcome']}"
            if before and after:
                words += (
                    f", FNMR {before['fnmr']:.1%} released and {after['fnmr']:.1%} candidate at FMR {after['fmr']:g}, "
                    f"threshold {after['threshold']:.3f}, {after['people']} people"
                )
            lines.append("; ".join([words, *row["reasons"]]))
        return tuple(lines)

    def verify(self, user: str, sample: bytes) -> httpx.Response:
        """What an integrator does: a hashed user id and a recording or image over REST."""
        body = {"user": user, "sample": base64.b64encode(sample).decode()}
        return httpx.post(f"{self.url}/v1/verify", json=body, headers=_bearer(self.verify_token), timeout=60)

    def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        leash.stop(self.process)

    def _post(self, path: str, body: dict[str, str]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=_bearer(self.operator_token), timeout=60)

    def _get(self, path: str) -> httpx.Response:
        answer = httpx.get(self.url + path, headers=_bearer(self.operator_token), timeout=60)
        return answer.raise_for_status()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, token: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}:\n{log.read_text(errors='replace')}")
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200 and token.exists():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {START_TIMEOUT_S:.0f} s:\n{log.read_text(errors='replace')}")


def _enrolment_token(url: str, operator: str, user: str) -> str:
    """For one person, as the operator's own program would ask for it."""
    answer = httpx.post(f"{url}/v1/enrolment-tokens", json={"user": user}, headers=_bearer(operator), timeout=60)
    return str(answer.raise_for_status().json()["token"])


def _verification_token(data: Path) -> str:
    """With scores, for the report shows by how much each was accepted."""
    command = [sys.executable, "-m", "uvsdk", "token", "--data", str(data), "create"]
    command += ["--scope", "verify", "--scope", "scores"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
