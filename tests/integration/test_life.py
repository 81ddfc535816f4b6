"""Three people learn together and never notice it: whoever was accepted before a round is accepted after it.

Real processes for server, agent and two of the devices; the third device takes part one round at a time, so that there
is a moment before, during and after each.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real_data
from tests.integration import life
from tests.integration.harness import eventually
from tests.integration.life import Life, Person
from uvsdk.errors import WeightsError
from uvsdk.training import weights

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ROOT / "docs" / "operations.md"
ROUNDS = 4
NAMES = ("ada", "bea", "cyd")


@pytest.fixture
def voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """Three people of LibriSpeech with the pretrained speaker encoder, configured as the documents show it."""
    pytest.importorskip("torch", reason="training needs the train extra")
    folders = sorted(path for path in real_data.file("speech_librispeech/eval_test-other").iterdir() if path.is_dir())
    try:
        weights.find("ge2e")
    except WeightsError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    spoken = [sorted(folder.rglob("*.flac")) for folder in folders[:4]]
    people = [Person(name, files[:5], files[7]) for name, files in zip(NAMES, spoken, strict=False)]
    (training,) = re.findall(r"```json\n(.*?)```", OPERATIONS.read_text(encoding="utf-8"), re.DOTALL)
    with begun(tmp_path, monkeypatch, people, spoken[3][7], training) as lived:
        life.said("export", "ge2e", "-o", "voice.uvb")
        yield lived


@contextlib.contextmanager
def begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch, people: list[Person], stranger: Path, training: str
) -> Iterator[Life]:
    """A life whose folder is the working one; its processes end with it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UVSDK_PASSPHRASE", life.ENVIRONMENT["UVSDK_PASSPHRASE"])
    Path("training.json").write_text(training)
    Path("pepper").write_bytes(secrets.token_bytes(32))
    lived = Life(folder, people, stranger, json.loads(training)["deployment"])
    try:
        yield lived
    finally:
        lived.stop()


def test_no_round_breaks_a_verification(voices: Life) -> None:
    """Four rounds; decisions on the device, by the agent and over REST before, during and after each of them."""
    ada, bea, cyd = voices.people
    voices.serve()
    voices.enrol(ada)
    voices.check("before anybody else is there")
    for person in (bea, cyd):
        voices.enrol(person)
        voices.start_participating(person, "--max-rounds", str(ROUNDS))
    for number in range(1, ROUNDS + 1):
        eventually(lambda: voices.open_round(accepted=2), timeout_s=120)
        voices.check(f"during round {number}")
        if number == 2:
            voices.kill_server()
            voices.check("while there is no server", "device", "agent", impostor=bea.probe)
            voices.serve()
            voices.check("once it is back", "rest", impostor=bea.probe)
        voices.participate(ada, "--max-rounds", "1")
        eventually(lambda number=number: voices.rounds("committed") == number)  # type: ignore[misc]
        voices.check(f"after round {number}", impostor=bea.probe)
        voices.forgive()
