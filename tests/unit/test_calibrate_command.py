"""``uvsdk calibrate`` on people who are files of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uvsdk.bundle import Bundle
from uvsdk.cli import main

MakeBundle = Callable[..., Bundle]


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Sixteen people with five samples each, three numbers a sample, close to a direction of their own."""
    rng = np.random.default_rng(0)
    root = tmp_path / "people"
    for person in range(16):
        own = rng.normal(size=3)
        (root / f"p{person:02}").mkdir(parents=True)
        for sample in range(5):
            numbers = own / np.linalg.norm(own) + rng.normal(0, 0.05, 3)
            (root / f"p{person:02}" / f"{sample}").write_text(" ".join(f"{value:.5f}" for value in numbers))
    return root


def calibrated(people: Path, bundle: Bundle, *options: str) -> Bundle:
    bundle.save(people.parent / "model.uvb")
    output = people.parent / "calibrated.uvb"
    assert main(["calibrate", str(people.parent / "model.uvb"), str(people), "-o", str(output), *options]) == 0
    return Bundle.open(output)


def test_what_is_written_and_said(
    people: Path, identity_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    found = calibrated(people, identity_bundle(), "--source", "nobody real")
    calibration = found.calibration
    assert found.version == identity_bundle().version
    assert calibration is not None
    assert calibration.source == "nobody real"
    # Sixteen templates of three samples, two probes of each of the others: 16 * 15 * 2.
    assert len(calibration.impostor) == 480
    assert calibration.scale == "llr"
    assert calibration.cohort is not None
    said = capsys.readouterr().out
    assert "480 impostor trials of 16 people; 0 samples could not be used" in said
    assert "FMR 10.00%   llr threshold" in said
    assert "over people, originals alone" in said
    assert "FMR 0.10%    not supported: a false match rate of 0.001 needs at least 3000 impostor trials" in said


def test_options(people: Path, identity_bundle: MakeBundle) -> None:
    bare = calibrated(people, identity_bundle(), "--no-cohort").calibration
    assert bare is not None
    assert bare.cohort is None
    judged = calibrated(people, identity_bundle(), "--as-norm").calibration
    assert judged is not None
    assert judged.ratio is not None
    assert judged.ratio.top == 40  # half of the eighty samples
    assert main(["calibrate", "a", "b", "-o", "c", "--as-norm", "--no-cohort"]) != 0


def test_one_sample_each_gives_impostor_scores(
    people: Path, identity_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in people.glob("*/[1-4]"):
        path.unlink()
    found = calibrated(people, identity_bundle()).calibration
    assert found is not None
    assert len(found.impostor) == 120  # every pair of sixteen
    assert found.scale == "cosine"
    assert "No likelihood ratio: 16 people with 0 genuine comparisons" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes(people: Path, identity_bundle: MakeBundle) -> None:
    first = calibrated(people, identity_bundle()).to_bytes()
    assert calibrated(people, identity_bundle()).to_bytes() == first
