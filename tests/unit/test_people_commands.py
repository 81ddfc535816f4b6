"""``uvsdk enroll`` and ``uvsdk identify`` as a person at a terminal meets them, on real handwriting."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from uvsdk import cli
from uvsdk.bundle import shipped
from uvsdk_device.wrapping import ScryptCost


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages as files, the model, and a passphrase; the current folder."""
    digits = load_digits()
    for digit in (3, 7, 0):
        pages = digits.images[digits.target == digit]
        for place in range(8):
            Image.fromarray((255 - 15 * pages[place]).astype(np.uint8)).save(tmp_path / f"{digit}-{place}.png")
    Image.new("L", (8, 8), 255).save(tmp_path / "blank.png")
    shipped().save(tmp_path / "model.uvb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UVSDK_PASSPHRASE", "p")
    monkeypatch.setattr(ScryptCost, "__init__", _cheap)
    return tmp_path


def _cheap(self: ScryptCost, n: int = 1 << 12, r: int = 8, p: int = 1) -> None:
    for name, value in (("n", 1 << 12), ("r", 8), ("p", 1)):
        object.__setattr__(self, name, value)


COMMON = ("--model", "model.uvb", "--store", "store")


def pages(digit: int, *places: int) -> list[str]:
    return [f"{digit}-{place}.png" for place in places]


def test_enrolling_prints_every_files_fate_and_what_to_expect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [*pages(3, 0, 1), "blank.png", *pages(7, 0), *pages(3, 2, 3, 0)]
    assert cli.main(["enroll", "ada", *files, *COMMON]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith(("used", "not used"))] == [
        *("used", "used", "not used", "not used", "used", "used", "not used")
    ]
    assert "not used: blank.png: the page is empty" in "\n".join(lines)
    assert any(line.startswith("not used: 7-0.png: unlike the others, similarity") for line in lines)
    assert "not used: 3-0.png: the same as sample 0; make a new one" in lines
    assert any(line.startswith("enrolled from 4 samples, model") for line in lines)
    assert any(line.startswith("complete to ") for line in lines)
    assert "  missing: 1 more samples (4 of 5)" in lines
    assert (
        "expected false non-match rate: 0 of 4 samples rejected, so 0 to 61 % (95 % interval), and more on other days"
        in (lines)
    )


def test_somebody_is_found_and_a_stranger_is_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["enroll", "ada", *pages(3, 0, 1, 2, 3), *COMMON]) == 0
    assert cli.main(["enroll", "bea", *pages(7, 0, 1, 2, 3), *COMMON]) == 0
    capsys.readouterr()
    assert cli.main(["identify", "7-7.png", *COMMON]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("identified: bea\nthreshold ")
    assert " among 2 people\nbasis: false positive identification rate 0.01 measured on 20,000 of" in printed
    assert "20,000 impostor trials" in printed
    assert cli.main(["identify", "0-0.png", *COMMON, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["user"], found["people"]) == ("rejected", None, 2)
    assert {candidate["user"] for candidate in found["candidates"]} == {"ada", "bea"}
    assert found["threshold"]["measured_on"] == "comparisons"
    assert cli.main(["identify", "0-0.png", *COMMON]) == 3
    assert capsys.readouterr().out.startswith("rejected: nobody of them\n")
    assert cli.main(["identify", "7-7.png", *COMMON, "--fpir", "1e-6"]) == 1
    assert "impostor trials; there are 20000" in capsys.readouterr().err


def test_one_person_under_two_names_is_ambiguous(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ada", "ida"):
        assert cli.main(["enroll", name, *pages(3, 0, 1, 2, 3), *COMMON]) == 0
    capsys.readouterr()
    assert cli.main(["identify", "3-5.png", *COMMON]) == 3
    assert capsys.readouterr().out.startswith("ambiguous: 2 people share the best score")


def test_an_earlier_enrolment_is_replaced_extended_or_kept_as_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["enroll", "ada", *pages(3, 0, 1, 2), *COMMON]) == 0
    assert cli.main(["enroll", "ada", *pages(3, 3, 4), *COMMON, "--existing", "extend"]) == 0
    assert "extended from 5 samples" in capsys.readouterr().out
    assert cli.main(["enroll", "ada", *pages(3, 5, 6, 7), *COMMON, "--existing", "refuse"]) == 1
    assert "enrolled already" in capsys.readouterr().err
    assert cli.main(["enroll", "ada", *pages(3, 5, 6, 7), *COMMON]) == 0
    assert "enrolled anew from 3 samples" in capsys.readouterr().out


def test_ageing_is_reverted_from_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["enroll", "ada", *pages(3, 0, 1, 2), *COMMON]) == 0
    assert cli.main(["verify", "ada", "3-5.png", *COMMON, "--ageing"]) == 0
    assert cli.main(["store", "--store", "store", "--revert", "ada"]) == 0
    assert cli.main(["store", "--store", "store", "--revert", "bea"]) == 1
    assert "nobody of that name" in capsys.readouterr().err
