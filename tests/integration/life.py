"""A deployment as its users run it: `uvsdk serve`, devices and an agent by the command line, decisions at all three."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.integration.harness import ROOT, eventually
from uvsdk import Bundle, cli

ENVIRONMENT: Mapping[str, str] = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "server", "device")),
    "OMP_NUM_THREADS": "1",
    "UVSDK_PASSPHRASE": "of a test",
}


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who enrols with ``samples`` and is verified by ``probe``."""

    name: str
    samples: Sequence[Path]
    probe: Path


@dataclass(frozen=True, slots=True)
class Decided:
    """What one way of asking answered of one probe."""

    way: str
    accepted: bool
    document: Mapping[str, Any]


@dataclass
class Life:
    """One deployment in a folder of its own; the folder is the working directory while it lives.

    Args:
        folder: of everything.
        people: the first is the one who is verified.
        stranger: a probe of somebody who never enrolled.
        deployment: its name in ``training.json``, which lies in the folder, with the first model in ``voice.uvb``.
    """

    folder: Path
    people: Sequence[Person]
    stranger: Path
    deployment: str
    start_after: int = 3
    url: str = ""
    server: subprocess.Popen[str] | None = None
    agent: tuple[subprocess.Popen[str], str, str] | None = None
    devices: list[subprocess.Popen[str]] = field(default_factory=list)
    hashed: str = ""
    integrator: str = ""

    def serve(self) -> None:
        """Start the server, on the port it had where it runs again."""
        port = int(self.url.rpartition(":")[2]) if self.url else free_port()
        line = f"serve --data server-data --model voice.uvb --training training.json --port {port} --start-after"
        self.server = self._start("server", *line.split(), str(self.start_after), ready="listening on ")
        self.url = f"http://127.0.0.1:{port}"

    def released(self) -> dict[str, Any]:
        """The release that verifies."""
        with self.operator() as operator:
            answer: dict[str, Any] = operator.get("/v1/releases/current").raise_for_status().json()
        return answer

    def calibrate_candidate(self) -> None:
        """As docs/operations.md shows it: measured on the people of the folder ``people``, and handed to the server."""
        with self.operator() as operator:
            answer = operator.get("/v1/models/candidate/bundle").raise_for_status()
            Path("trained.uvb").write_bytes(answer.content)
            said("calibrate", "trained.uvb", "people", "-o", "calibrated.uvb")
            calibration = Bundle.open("calibrated.uvb").calibration
            assert calibration is not None
            operator.put(
                f"/v1/models/{calibration.model_version}/calibration",
                content=calibration.impostor.astype("<f4").tobytes(),
                headers={"UVSDK-Source": calibration.source},
            ).raise_for_status()

    def kill_server(self) -> None:
        """As a power cut would."""
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def stop(self) -> None:
        """End what was started."""
        for process in [
            *self.devices,
            *([self.agent[0]] if self.agent else []),
            *([self.server] if self.server else []),
        ]:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=60)

    def enrol(self, person: Person) -> None:
        """A token of the operator's, and the person's device joins."""
        user = ["--user", person.name, "--pepper-file", "pepper"]
        token = said("token", "--data", "server-data", "create", "--scope", "enrol", *user)
        Path(f"{person.name}.token").write_text(token)
        files = [str(path) for path in person.samples]
        said("enroll", person.name, *files, "--model", "voice.uvb", *self.member(person), "--server-verification")

    def participate(self, person: Person, *options: str) -> str:
        """Take part from this process; what the command printed."""
        return said("participate", person.name, *self.member(person), "--server-verification", *options)

    def start_participating(self, person: Person, *options: str) -> None:
        """Take part from a process of its own, in the background."""
        line = ["participate", person.name, *self.member(person), "--server-verification", *options]
        self.devices.append(self._start(person.name, *line))

    def operator(self) -> httpx.Client:
        """Requests with the operator's token."""
        token = Path("server-data/operator-token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def rounds(self, state: str) -> int:
        """How many rounds are in that state."""
        with self.operator() as operator:
            return sum(item["state"] == state for item in operator.get("/v1/rounds").json()["rounds"])

    def open_round(self, accepted: int) -> bool:
        """Whether a round is open that has so many updates."""
        with self.operator() as operator:
            return any(
                item["state"] == "collecting" and item["accepted"] == accepted
                for item in operator.get("/v1/rounds").json()["rounds"]
            )

    def decisions(self, probe: Path, *ways: str) -> list[Decided]:
        """Ask of the first person in every way, or those named: ``device``, ``agent``, ``rest``, ``pinned``."""
        return [getattr(self, f"_by_{way}")(probe) for way in ways or ("device", "agent", "rest")]

    def check(self, moment: str, *ways: str, impostor: Path | None = None) -> list[Decided]:
        """The first person is accepted and the impostor, by default the stranger, is rejected; gives the decisions."""
        found = []
        for probe, expected in ((impostor or self.stranger, False), (self.people[0].probe, True)):
            for decided in self.decisions(probe, *ways):
                assert decided.accepted is expected, f"{moment}, by {decided.way}: {decided.document}"
                found.append(decided)
        return found

    def forgive(self) -> None:
        """Forget the impostors' failures, as whoever holds the device and the operator may."""
        name = self.people[0].name
        for whose in (name, "--device"):
            said("attempts", "reset", whose, "--store", f"{name}-store")
        for whose, subject in (("person", self.hashed), ("caller", self.integrator.split("_")[1])):
            run("lockouts", "--data", "server-data", "reset", whose, subject)

    def _by_device(self, probe: Path) -> Decided:
        """By the release that the store has adopted."""
        return self._by_store("device", probe)

    def _by_pinned(self, probe: Path) -> Decided:
        """By the bundle that the person was enrolled with, whatever was released."""
        return self._by_store("pinned", probe, "--model", "voice.uvb")

    def _by_store(self, way: str, probe: Path, *options: str) -> Decided:
        name = self.people[0].name
        status, printed = run("verify", name, str(probe), "--store", f"{name}-store", "--json", *options)
        assert status in (0, 3), f"{way}: {printed}"
        return Decided(way, status == 0, json.loads(printed))

    def _by_agent(self, probe: Path) -> Decided:
        name = self.people[0].name
        if self.agent is None:
            words = ["agent", "--store", f"{name}-store", "--port", "0", "--scores"]
            process = self._start("agent", *words, ready="listening on ")
            (address,) = re.findall("listening on (http://[^,]+)", self.log("agent"))
            self.agent = process, address, Path(f"{name}-store", "agent-token").read_text()
        _, url, token = self.agent
        return self._asked("agent", url, token, name, probe)

    def _by_rest(self, probe: Path) -> Decided:
        name = self.people[0].name
        if not self.hashed:
            self.hashed = said("id", "hash", name, "--deployment", self.deployment, "--pepper-file", "pepper").strip()
            scopes = ["--scope", "verify", "--scope", "scores"]
            self.integrator = said("token", "--data", "server-data", "create", *scopes).strip()
        return self._asked("rest", self.url, self.integrator, self.hashed, probe)

    def _asked(self, way: str, url: str, token: str, user: str, probe: Path) -> Decided:
        sample = base64.b64encode(probe.read_bytes()).decode()
        answer = httpx.post(
            f"{url}/v1/verify",
            json={"user": user, "sample": sample},
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert answer.status_code == 200, f"{way}: {answer.status_code} {answer.text}"
        return Decided(way, answer.json()["accepted"], answer.json())

    def log(self, name: str) -> str:
        """What that process printed so far."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def _start(self, name: str, *words: str, ready: str = "") -> subprocess.Popen[str]:
        """A process of the command line, once its log says ``ready`` one more time."""
        seen = self.log(name).count(ready) if ready else 0
        with (self.folder / f"{name}.log").open("a") as log:
            command = [sys.executable, "-m", "uvsdk", *words]
            process = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=ENVIRONMENT)
        if ready:
            eventually(lambda: self.log(name).count(ready) > seen or process.poll() is not None, timeout_s=180)
            assert process.poll() is None, self.log(name)
        return process

    def member(self, person: Person) -> list[str]:
        """The options of a device of that person."""
        line = f"--store {person.name}-store --server {self.url} --pepper-file pepper --token-file {person.name}.token"
        return line.split()


def run(*words: str) -> tuple[int, str]:
    """A command of the command line in this process: its exit status, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = cli.main(words)
    return status, printed.getvalue()


def said(*words: str) -> str:
    """What a command printed that did not fail."""
    status, printed = run(*words)
    assert status == 0, printed
    return printed


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
