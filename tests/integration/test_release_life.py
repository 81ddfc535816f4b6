"""Rounds, a release, a refusal and a roll-back, with real devices: everybody is verified at every moment of it."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.builders import image_file, on_loopback, open_store
from tests.integration.harness import CONFIG, PEPPER, RunningServer, serving
from tests.integration.numpy_devices import federation_of, token_of
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.scoring import Decision
from uvsdk_device import EncryptedStore, Federation, RoundReport, Runtime, agent
from uvsdk_device.membership import forget_here
from uvsdk_device.releases import ReleaseReport, read_standing

DIGITS, FOUNDING = load_digits(), shipped()
PEOPLE = {"ada": 3, "ben": 7, "cleo": 0}
ROUNDS = 2
# A threshold of 0.71 at the default rate, where the founding release has 0.73; and one that nobody reaches.
SCORES = np.linspace(-0.3, 0.71, 20000, dtype=np.float32)
UNREACHABLE = np.linspace(-0.3, 0.9999, 20000, dtype=np.float32)


def page(person: int, place: int) -> bytes:
    return image_file((255 - 15 * DIGITS.images[DIGITS.target == person][place]).astype(np.uint8))


GENUINE, IMPOSTOR = page(3, 5), page(7, 5)


@dataclass
class Life:
    """A server, the devices of three people, and an agent on the first one's."""

    server: RunningServer
    stores: dict[str, EncryptedStore]
    federations: dict[str, Federation]
    edge: httpx.Client

    @property
    def store(self) -> EncryptedStore:
        return self.stores["ada"]

    def here(self) -> dict[str, tuple[float, float, str]]:
        """Every way of asking this device: by the founding bundle that is named, by the release, over the agent."""
        found = {}
        for name, model in (("named", FOUNDING), ("release", None)):
            runtime = Runtime(self.store, model, retry=None)
            found[name] = _of(runtime.verify("ada", GENUINE), runtime.verify("ada", IMPOSTOR))
        genuine, impostor = (self._ask_agent(probe) for probe in (GENUINE, IMPOSTOR))
        assert (genuine["accepted"], impostor["accepted"]) == (True, False)
        found["agent"] = genuine["score"], genuine["threshold"]["score"], genuine["model_version"]
        assert found["agent"] == found["release"]
        return found

    def there(self) -> tuple[float, float, str]:
        """What the server decides by the template that it was handed."""
        genuine, impostor = (self._ask_server(probe) for probe in (GENUINE, IMPOSTOR))
        assert (genuine["accepted"], impostor["accepted"]) == (True, False)
        assert genuine["basis"]["release"] > 0
        return genuine["score"], genuine["threshold"]["score"], genuine["model_version"]

    def refresh(self) -> None:
        for name, store in self.stores.items():
            self.federations[name].refresh_template(name, store)

    def _ask_agent(self, probe: bytes) -> Any:
        answer = self.edge.post("/v1/verify", json={"user": "ada", "sample": base64.b64encode(probe).decode()})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _ask_server(self, probe: bytes) -> Any:
        user = hash_user_id("ada", deployment="integration", pepper=PEPPER)
        body = {"user": user, "sample": base64.b64encode(probe).decode()}
        answer = self.server.ask("POST", "/v1/verify", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _of(genuine: Decision, impostor: Decision) -> tuple[float, float, str]:
    assert (genuine.accepted, impostor.accepted) == (True, False)
    return genuine.score, genuine.threshold.score, genuine.model_version


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    config = replace(CONFIG, rounds=ROUNDS)
    with serving(tmp_path / "server", config=config, settings={"start_after_users": len(PEOPLE)}) as server:
        stores, federations = {}, {}
        for name, person in PEOPLE.items():
            stores[name] = open_store(tmp_path / name)
            enroll(name, [page(person, place) for place in range(5)], model=FOUNDING, store=stores[name])
            federations[name] = federation_of(server, token_of(server, name), server_verification=True)
            federations[name].refresh_template(name, stores[name])
        store = stores["ada"]
        token = agent.agent_token(store.folder)
        app = agent.create_app(
            Runtime(store, retry=None),
            token=token,
            settings=agent.AgentSettings(scores=True),
            forget=lambda user: forget_here(user, store),
        )
        with on_loopback(app) as url, httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as edge:
            yield Life(server, stores, federations, edge)


def test_nobody_loses_a_verification(life: Life) -> None:
    # Joined, and before any round.
    before, there = life.here(), life.there()
    assert there == before["release"] == before["named"]

    # Rounds make candidates, and change nothing for anybody who verifies.
    reports: dict[str, tuple[RoundReport, ...]] = {}

    def take_part(name: str) -> None:
        reports[name] = life.federations[name].participate(name, life.stores[name])

    threads = [threading.Thread(target=take_part, args=(name,)) for name in PEOPLE]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert life.here() == before
        threads[0].join(0.05)
    assert {name: [item.state for item in found] for name, found in reports.items()} == {
        name: ["uploaded"] * ROUNDS for name in PEOPLE
    }
    assert life.server.candidate()["model_version"] != FOUNDING.version
    assert life.server.released()["number"] == 1
    assert (life.here(), life.there()) == (before, there)

    # A release: who has not asked yet is verified as before, on the device and by the server.
    second = life.server.promote(scores=SCORES)
    assert (life.here(), life.there()) == (before, there)
    life.refresh()
    after = life.here()
    assert after["named"] == before["named"]
    assert after["release"][2] == second["model_version"]
    assert after["release"][1] == pytest.approx(0.71, abs=1e-3)
    assert life.there() == after["release"]

    # One that the devices refuse: they stay, and the server goes on by the release before, for them.
    assert life.server.ask(
        "PUT",
        f"/v1/models/{second['model_version']}/calibration",
        content=UNREACHABLE.tobytes(),
        headers={"UVSDK-Source": "nobody"},
    ).is_success
    life.refresh()
    assert (life.here(), life.there()) == (after, after["release"])
    (refusal,) = read_standing(life.store, "handwriting").followed[0].refusals
    assert (refusal.number, refusal.told) == (3, True)
    assert "of the owner's own samples are accepted" in refusal.reason

    # A roll-back to the founding release, bit for bit, and forward again.
    rolled = life.server.ask("POST", "/v1/releases/roll-back", json={"number": 1})
    assert rolled.json()["number"] == 4
    assert life.there() == there  # it has kept the template of then
    assert life.here() == after
    life.refresh()
    assert (life.here(), life.there()) == (before, there)
    assert life.server.ask("POST", "/v1/releases/roll-back", json={"number": 2}).is_success
    life.refresh()
    assert (life.here(), life.there()) == (after, after["release"])


def test_a_device_that_waits_for_a_round_moves_between_them(life: Life) -> None:
    """Training waits for two more people; what is released meanwhile arrives without anybody asking for it."""
    told: list[ReleaseReport] = []
    stop = threading.Event()

    def note(report: ReleaseReport) -> None:
        told.append(report)
        stop.set()

    federation = replace(life.federations["ada"], sleep=lambda _: None)
    thread = threading.Thread(
        target=lambda: federation.participate("ada", life.store, max_rounds=ROUNDS, released=note), daemon=True
    )
    thread.start()
    number = life.server.promote(FOUNDING.version, scores=SCORES)["number"]
    others = [
        threading.Thread(target=lambda name=name: life.federations[name].participate(name, life.stores[name]))
        for name in PEOPLE
        if name != "ada"
    ]
    for other in others:
        other.start()
    for other in (thread, *others):
        other.join()
    assert stop.is_set()
    assert [(report.number, report.state) for report in told] == [(number, "adopted")]
    assert life.here()["release"][1] == pytest.approx(0.71, abs=1e-3)
    assert life.there() == life.here()["release"]


def test_an_agent_that_knows_the_server_asks_for_releases_itself(life: Life, tmp_path: Path) -> None:
    number = life.server.promote(FOUNDING.version, scores=SCORES)["number"]
    (tmp_path / "pepper").write_bytes(PEPPER)
    words = ["agent", "--store", str(life.store.folder), "--port", "0", "--server", life.server.url]
    agent_process = subprocess.Popen(
        [sys.executable, "-m", "uvsdk", *words, "--pepper-file", str(tmp_path / "pepper"), "--server-verification"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "UVSDK_PASSPHRASE": "p"},
    )
    assert agent_process.stdout is not None
    try:
        with agent_process.stdout as said:
            lines = sorted(said.readline() for _ in range(2))
    finally:
        agent_process.kill()
        agent_process.wait()
    assert lines[0].startswith("listening on ")
    assert lines[1].startswith(f"release {number}: adopted, model ")
    assert life.here()["release"][1] == pytest.approx(0.71, abs=1e-3)
    assert life.there() == life.here()["release"]
