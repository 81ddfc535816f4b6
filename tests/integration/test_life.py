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

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests import real_data
from tests.integration import life
from tests.integration.harness import eventually
from tests.integration.life import Decided, Life, Person
from uvsdk.bundle import shipped
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
        weights.find("campplus")
    except WeightsError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    spoken = [sorted(folder.rglob("*.flac")) for folder in folders[:4]]
    people = [Person(name, files[:5], files[7]) for name, files in zip(NAMES, spoken, strict=False)]
    (training,) = re.findall(r"```json\n(.*?)```", OPERATIONS.read_text(encoding="utf-8"), re.DOTALL)
    with begun(tmp_path, monkeypatch, people, spoken[3][7], training) as lived:
        life.said("export", "voice", "-o", "voice.uvb")
        yield lived


@pytest.fixture
def hands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """Three digits as three people, with the shipped bundle; the folder ``people`` has ten, eight pages of each."""
    pytest.importorskip("torch", reason="training needs the train extra")
    digits = load_digits()
    pages: dict[int, list[Path]] = {}
    for digit in range(10):
        folder = tmp_path / "people" / str(digit)
        folder.mkdir(parents=True)
        pages[digit] = [folder / f"{place}.png" for place in range(8)]
        for path, page in zip(pages[digit], digits.images[digits.target == digit], strict=False):
            Image.fromarray((255 - page / 16 * 255).astype(np.uint8)).save(path)
    people = [Person(name, pages[digit][:5], pages[digit][6]) for name, digit in zip(NAMES, (3, 5, 8), strict=True)]
    training = {"deployment": "hands", "modality": "handwriting", "backbone": "digits-cnn", "algorithm": "fedaws"}
    with begun(tmp_path, monkeypatch, people, pages[7][6], json.dumps({**training, "rounds": 2})) as lived:
        shipped("digits").save("voice.uvb")
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
        voices.check(f"after round {number}", "pinned")
        voices.forgive()


def test_a_promoted_candidate_and_a_roll_back(hands: Life) -> None:
    """What an operator releases is right everywhere, before devices have it and after; what comes back is as it was."""
    ada = hands.people[0]
    hands.serve()
    for person in hands.people:
        hands.enrol(person)
    for number in (1, 2):
        for person in hands.people:
            hands.participate(person, "--max-rounds", "1")
        eventually(lambda number=number: hands.rounds("committed") == number)  # type: ignore[misc]
    founding = hands.released()
    assert (founding["number"], founding["cause"]) == (1, "founding")
    first = hands.check("after training")

    # Three people are too few to measure the candidate by; their operator measures it on others.
    status, printed = life.run("releases", "--data", "server-data", "promote", "candidate")
    assert (status, "no impostor scores" in printed) == (1, True), printed
    life.said("releases", "--data", "server-data", "policy", "manual")
    hands.calibrate_candidate()
    assert hands.released()["number"] == 1
    assert "release 2 verifies" in life.said("releases", "--data", "server-data", "promote", "candidate")
    hands.check("released, no device has it")
    hands.participate(ada, "--once")
    second = hands.check("adopted")
    promoted = hands.released()
    assert {decided.document["model_version"] for decided in second} == {promoted["model_version"]}
    assert promoted["model_version"] != founding["model_version"]

    hands.kill_server()
    hands.check("while there is no server", "device", "agent")
    assert life.run("store", "--refresh", ada.name, *hands.member(ada))[0] == 1
    hands.check("after a device has looked for it", "device", "agent")
    hands.serve()
    assert hands.check("the server was killed", "rest") == [decided for decided in second if decided.way == "rest"]
    hands.forgive()

    assert "release 3 verifies" in life.said("releases", "--data", "server-data", "roll-back")
    hands.check("rolled back, no device knows of it")
    hands.participate(ada, "--once")
    assert [as_decided(item) for item in hands.check("rolled back")] == [as_decided(item) for item in first]


def as_decided(decided: Decided) -> tuple[str, bool, dict[str, object]]:
    """A decision without what differs from one time to the next: how long it took, and the number of the release."""
    document = {name: value for name, value in decided.document.items() if name != "timings_s"}
    basis = dict(decided.document["basis"])
    basis["words"] = re.sub(r"release \d+", "release", basis.pop("words"))
    assert basis.pop("release") in (0, 1, 3)
    return decided.way, decided.accepted, {**document, "basis": basis}
