"""What the documents show of a device, of calibrating and of hashed ids runs, against a real server."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import uvsdk
from tests.integration.harness import CONFIG, PEPPER, RunningServer, serving
from tests.integration.numpy_devices import token_of
from uvsdk import cli
from uvsdk.bundle import shipped
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk_device import EncryptedStore, Federation
from uvsdk_server.deployment import read_training

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
OPERATIONS = ROOT / "docs" / "operations.md"
INTEGRATION = ROOT / "docs" / "integration.md"


def run(kind: str, document: Path, changes: Mapping[str, str], scope: dict[str, object]) -> None:
    """Run the one block of that kind, with what is different here."""
    (block,) = re.findall(rf"```python {kind}\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    for shown, here in changes.items():
        assert shown in block
        block = block.replace(shown, here)
    exec(compile(block, f"{document.name}, {kind}", "exec"), scope)


def write_people(folder: Path) -> None:
    """Ten hands with eight pages each."""
    digits = load_digits()
    for number in range(10):
        (folder / str(number)).mkdir(parents=True)
        for place, image in enumerate(digits.images[digits.target == number][:8]):
            Image.fromarray((255 - image / 16 * 255).astype(np.uint8)).save(folder / str(number) / f"{place}.png")


def test_a_device_enrols_trains_and_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a device, until training rests; then those that calibrate the candidate, by which it is released.

    One device alone: under FedAwS its one class vector would have nothing to keep away from.
    """
    pytest.importorskip("torch", reason="training needs the train extra")
    monkeypatch.chdir(tmp_path)
    shipped().save(tmp_path / "digits.uvb")
    write_people(tmp_path / "PEOPLE")
    probe = tmp_path / "PEOPLE" / "3" / "7.png"
    config = replace(CONFIG, algorithm="positive_only", rounds=2, min_clients=1)
    user = hash_user_id("ada", deployment=config.deployment, pepper=PEPPER)
    with (
        serving(tmp_path / "server-data", config=config, settings={"start_after_users": 1}) as server,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.operator}"}) as operator,
    ):
        scope: dict[str, object] = {
            "passphrase": "of a test",
            "token": token_of(server, "ada"),
            "pepper": PEPPER,
            "recordings": sorted((tmp_path / "PEOPLE" / "3").glob("[0-4].png")),
        }
        run("device", README, {"https://clinic.example": server.url, "voice.uvb": "digits.uvb"}, scope)
        assert operator.get("/v1/rounds").text.count('"committed"') == 2

        def verify() -> httpx.Response:
            files = {"sample": ("probe.png", probe.read_bytes())}
            return operator.post("/v1/verify", data={"user": user}, files=files)

        assert verify().json()["accepted"] is True  # by release 1
        (tmp_path / "trained.uvb").write_bytes(operator.get("/v1/models/candidate/bundle").raise_for_status().content)
        assert cli.main(["calibrate", "trained.uvb", "PEOPLE", "-o", "calibrated.uvb"]) == 0
        (tmp_path / "server-data" / "operator-token").write_text(f"{server.operator}\n")
        run("calibrate", OPERATIONS, {"https://clinic.example": server.url}, {})
        trained = operator.get("/v1/models/candidate").json()
        assert operator.get("/v1/models/current").json() == trained
        assert verify().json()["accepted"] is True  # the device has not heard of it: still by release 1


@pytest.fixture
def enrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server that knows ada of the deployment ``clinic``; in the working folder her ``probe.png`` and the pepper."""
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path / "PEOPLE")
    for name, page in {"probe": "3/7", "impostor": "7/0"}.items():
        (tmp_path / f"{name}.png").write_bytes((tmp_path / "PEOPLE" / f"{page}.png").read_bytes())
    Image.new("L", (32, 32), 255).save(tmp_path / "blank.png")
    (tmp_path / "pepper").write_bytes(PEPPER)
    with serving(tmp_path / "server", config=replace(CONFIG, deployment="clinic")) as server:
        federation = Federation(
            server.url, enrolment_token=token_of(server, "ada"), pepper=PEPPER, server_verification=True
        )
        store = EncryptedStore.open(tmp_path / "ada-store", passphrase="of a test")
        samples = sorted((tmp_path / "PEOPLE" / "3").glob("[0-4].png"))
        uvsdk.enroll("ada", samples, model=shipped(), store=store, federation=federation)
        yield server


def test_the_lines_that_ask_for_a_decision(tmp_path: Path, enrolled: RunningServer) -> None:
    """Those of the shell, as they stand but for the address, the place of the data and the kind of sample."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed; test_the_python_that_asks_for_a_decision sends the same form")
    section = INTEGRATION.read_text(encoding="utf-8").split("## A decision\n")[1].split("\n## ")[0]
    lines = "".join(re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
    changes = {"https://clinic.example": enrolled.url, "server-data": "server/data", "probe.wav": "probe.png"}
    for shown, here in changes.items():
        assert shown in lines
        lines = lines.replace(shown, here)
    (tmp_path / "uvsdk").write_text(f'#!/bin/sh\nexec {sys.executable} -m uvsdk "$@"\n')
    (tmp_path / "uvsdk").chmod(0o700)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = ["bash", "-euo", "pipefail", "-c", lines]
    printed = subprocess.run(script, capture_output=True, text=True, check=True, env=environment).stdout
    first, end = json.JSONDecoder().raw_decode(printed)
    assert (first["accepted"], json.loads(printed[end:])["accepted"]) == (True, True)


def test_the_python_that_asks_for_a_decision(enrolled: RunningServer) -> None:
    token = enrolled.token("verify")

    def outcome(sample: str, **changes: str) -> str:
        scope: dict[str, object] = {"token": token}
        shown = {"https://clinic.example": enrolled.url, "probe.wav": f"{sample}.png"}
        run("verify", INTEGRATION, {**shown, **changes}, scope)
        return str(scope["outcome"])

    assert outcome("probe") == "accepted"
    assert outcome("impostor") == "rejected"
    assert outcome("blank").startswith("once more, please: the page is empty")
    with pytest.raises(RuntimeError, match="problem:unknown-user: nobody of that id"):
        outcome("probe", ada="bea")
    for _ in range(4):
        assert outcome("impostor") == "rejected"
    assert re.fullmatch(r"in \d+ s, please", outcome("probe"))


def test_the_command_that_hashes_an_id(tmp_path: Path) -> None:
    (command,) = re.findall(r"^HASHED_ID=\$\(uvsdk (.*)\)$", INTEGRATION.read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "pepper").write_bytes(PEPPER)
    printed = subprocess.run(
        [sys.executable, "-m", "uvsdk", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout
    assert printed == f"{hash_user_id('ada', deployment='clinic', pepper=PEPPER)}\n"


def test_the_training_configuration_that_is_shown_is_one(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", OPERATIONS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "training.json").write_text(shown)
    assert read_training(tmp_path / "training.json").deployment == "clinic"
