"""A real coordination server as a process of its own, and what the demonstration asks of it over HTTP."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from people import FMR

from uvsdk import Bundle
from uvsdk.federation.messages import TrainingConfig
from uvsdk.scoring.record import calibration_bytes

START_TIMEOUT_S = 60.0


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
            process = subprocess.Popen(
                [sys.executable, "-m", "uvsdk", *map(str, arguments), "--start-after", str(len(users))],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "UVSDK_SERVER_DEFAULT_FMR": str(FMR),
                    "UVSDK_SERVER_ROLE_SEED": str(config.seed),  # who only evaluates is the same in every run
                },
            )
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process, folder / "server.log", data / "operator-token")
        operator = (data / "operator-token").read_text(encoding="utf-8").strip()
        named = [argument for user in users for argument in ("--user", user)]
        # With scores, for the report shows by how much each was accepted.
        (verify,) = _tokens(data, "verify", "--scope", "scores")
        return cls(url, folder, operator, _tokens(data, "enrol", *named), verify, process)

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

    def released_is_calibrated(self) -> bool:
        """Whether what verifies has a threshold."""
        return bool(self._get("/v1/releases/current").json()["calibration"])

    def life(self) -> tuple[str, ...]:
        """What each evaluation said of its candidate, and every release, a line each, oldest first."""
        lines = []
        evaluations = self._get("/v1/evaluations").json()["evaluations"]
        for row in sorted(evaluations, key=lambda item: int(item["evaluation_id"])):
            found = row["summary"] or {}
            rates = [found.get(name) for name in ("released", "candidate")]
            words = f"evaluation {row['evaluation_id']} ({row['cause']}): {row['outcome']}"
            if all(rates):
                before, after = rates
                words += (
                    f", FNMR {before['fnmr']:.1%} released and {after['fnmr']:.1%} candidate at FMR {after['fmr']:g}, "
                    f"threshold {after['threshold']:.3f}, {after['people']} people"
                )
            lines.append("; ".join([words, *row["reasons"]]))
        releases = self._get("/v1/releases").json()
        for row in sorted(releases["releases"], key=lambda item: int(item["number"])):
            force = ", in force" if row["number"] == releases["in_force"] else ""
            lines.append(f"release {row['number']}: the model of round {row['round_id']}, {row['cause']}{force}")
        return tuple(lines)

    def calibrate(self, bundle: Bundle) -> None:
        """Hand the server the impostor scores that its thresholds are read from."""
        assert bundle.calibration is not None
        answer = httpx.put(
            f"{self.url}/v1/models/{bundle.version}/calibration",
            content=calibration_bytes(bundle.calibration),
            headers={**_bearer(self.operator_token), "UVSDK-Source": bundle.calibration.source},
        )
        answer.raise_for_status()

    def verify(self, user: str, sample: bytes) -> httpx.Response:
        """What an integrator does: a hashed user id and a recording or image over REST."""
        body = {"user": user, "sample": base64.b64encode(sample).decode()}
        return httpx.post(f"{self.url}/v1/verify", json=body, headers=_bearer(self.verify_token), timeout=60)

    def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.kill(self.process.pid, signal.SIGKILL)
                self.process.wait()

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
    process.kill()
    raise RuntimeError(f"the server was not ready within {START_TIMEOUT_S:.0f} s:\n{log.read_text(errors='replace')}")


def _tokens(data: Path, scope: str, *arguments: str) -> tuple[str, ...]:
    command = [sys.executable, "-m", "uvsdk", "token", "--data", str(data), "create", "--scope", scope, *arguments]
    return tuple(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
