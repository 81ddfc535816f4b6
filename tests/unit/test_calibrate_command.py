"""``uvsdk calibrate`` on people who are files of numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders import open_store
from tests.unit.conftest import MakeBundle
from uvsdk.bundle import Bundle
from uvsdk.cli import main
from uvsdk.enroll import enroll
from uvsdk.errors import ThresholdError
from uvsdk.scoring.personal import personal_threshold
from uvsdk.templates.storage import MemoryStore
from uvsdk.verify import verify
from uvsdk_device.reembedding import is_current, remake
from uvsdk_device.runtime import Runtime


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
    assert calibration.cohort is None  # nobody's embedding, unless asked for
    said = capsys.readouterr().out
    assert "480 impostor trials of 16 people; 0 samples could not be used" in said
    assert "FMR 10.00%   llr threshold" in said
    assert "over people, good samples alone" in said
    assert "FMR 0.10%    not supported: a false match rate of 0.001 needs at least 3000 impostor trials" in said
    assert said.count("480 of 16 people") == 2  # the number of the first line, wherever a rate is refused


def test_options(people: Path, identity_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    kept = calibrated(people, identity_bundle(), "--with-cohort").calibration
    assert kept is not None
    assert kept.cohort is not None
    assert kept.cohort.people == 16
    assert "80 embeddings of 16 people: hand it to nobody" in capsys.readouterr().out
    judged = calibrated(people, identity_bundle(), "--with-cohort", "--as-norm").calibration
    assert judged is not None
    assert judged.ratio is not None
    assert judged.ratio.top == 27  # a third of the eighty samples
    assert main(["calibrate", "a", "b", "-o", "c", "--as-norm"]) == 1
    assert "add --with-cohort" in capsys.readouterr().err


@pytest.mark.parametrize("as_norm", [False, True])
def test_verification_needs_no_cohort(people: Path, identity_bundle: MakeBundle, tmp_path: Path, as_norm: bool) -> None:
    bundle = calibrated(people, identity_bundle(), "--with-cohort", *(["--as-norm"] if as_norm else []))
    store = open_store(tmp_path / "store")
    own = [path.read_bytes() for path in sorted((people / "p03").iterdir())]
    enroll("ana", own[:3], model=bundle, store=store, fmr=0.1)
    whole, bare = Runtime(store, bundle), Runtime(store, bundle, keep_cohort=False)
    assert bare.bundle.calibration is not None
    assert (bare.bundle.calibration.cohort is not None) == as_norm  # under AS-norm scores are judged against it
    assert bare.verify("ana", own[4]).llr == whole.verify("ana", own[4]).llr
    assert bare.template("ana") == whole.template("ana") == store.template("ana")


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
    first = calibrated(people, identity_bundle(), "--date", "2026-01-31")
    assert calibrated(people, identity_bundle(), "--date", "2026-01-31").to_bytes() == first.to_bytes()
    other = calibrated(people, identity_bundle(), "--date", "2026-02-01").calibration
    assert other is not None
    assert first.calibration is not None
    assert other.measured_unix_s - first.calibration.measured_unix_s == 24 * 3600
    assert other.people == first.calibration.people == 16


def test_enrolment_verification_and_re_embedding_decide_by_the_ratio(people: Path, identity_bundle: MakeBundle) -> None:
    bundle = calibrated(people, identity_bundle())
    store = MemoryStore()
    own = [path.read_bytes() for path in sorted((people / "p03").iterdir())]
    template = enroll("ana", own[:3], model=bundle, store=store, fmr=0.1).template
    assert template.threshold is not None
    assert template.threshold.scale == "llr"
    decision = verify(own[4], template, model=bundle)
    assert decision.llr is not None
    assert decision.value == decision.llr
    assert decision.accepted
    assert verify(own[4], template, model=bundle, fmr=0.2).threshold.fmr == 0.2
    assert bundle.calibration is not None
    assert bundle.calibration.ratio is not None
    # Made again from its features it is the same template, with the same threshold.
    assert is_current(template, bundle)
    assert remake(template, store.features("ana"), bundle) == template
    # Calibrated anew with other trials, the old ratio is no longer current; without one, nothing is lost.
    fewer = replace(bundle.calibration.ratio, trials=100)
    assert not is_current(template, bundle.with_calibration(replace(bundle.calibration, ratio=fewer)))
    assert not is_current(template, bundle.with_calibration(replace(bundle.calibration, ratio=None)))


def test_ones_own_samples_raise_the_ratio_too(people: Path, identity_bundle: MakeBundle) -> None:
    calibration = calibrated(people, identity_bundle()).calibration
    assert calibration is not None
    start = calibration.threshold(0.5, "llr")
    alike = np.tile(np.array([[1.0, 0.0, 0.0]], np.float32), (20, 1))
    raised = personal_threshold(start, calibration, embeddings=alike)
    # Twenty equal samples all have the ratio of a sample with itself, and the threshold goes up to that.
    assert raised.score == pytest.approx(calibration.llr(alike[0], alike[0], template={}, probe={}))
    assert raised.score > start.score
    assert raised.scale == "llr"
    assert raised.interval == calibration.interval(raised.score, "llr")
    trained = personal_threshold(start, calibration, embeddings=alike, template=alike[0])
    assert trained.score == pytest.approx(raised.score)
    assert personal_threshold(start, calibration, embeddings=alike[:19]) is start
    # Where the ratio is held to the highest the trials can show, so is the threshold, or nobody would reach it.
    assert calibration.ratio is not None
    held = replace(calibration, ratio=replace(calibration.ratio, highest=-3.0))
    assert personal_threshold(start, held, embeddings=alike).score == -3.0
    with pytest.raises(ThresholdError, match="highest ratio there is"):
        held.threshold(0.02, "llr")


@pytest.fixture
def two_groups(tmp_path: Path) -> Path:
    """Thirty-two people anywhere, as many close to each other, and who is which; two of these are not labelled."""
    rng = np.random.default_rng(1)
    lines = ["person,side"]
    for person in range(64):
        near = person % 2
        own = rng.normal(size=3) + near * np.array([3.0, 0, 0])
        (tmp_path / "people" / f"p{person:02}").mkdir(parents=True)
        for sample in range(4):
            numbers = own / np.linalg.norm(own) + rng.normal(0, 0.02, 3)
            (tmp_path / "people" / f"p{person:02}" / f"{sample}").write_text(" ".join(f"{n:.5f}" for n in numbers))
        if person < 61 or not near:
            lines.append(f"p{person:02},{'near' if near else 'far'}")
    (tmp_path / "groups.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_groups_are_reported_and_the_worst_can_set_the_threshold(
    two_groups: Path, identity_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = ("--groups", str(two_groups / "groups.csv"))
    everybody = calibrated(two_groups / "people", identity_bundle(), *labels).calibration
    said = capsys.readouterr().out
    assert everybody is not None
    assert everybody.people == 64
    # Sixty-four templates, one probe of each of the other sixty-three.
    assert said.startswith("4,032 impostor trials of 64 people; 0 samples could not be used\n")
    assert "  within side far, 32 people: " in said
    assert "  within side near, 30 people, the worst: " in said
    assert "over people, 870 trials" in said  # thirty times twenty-nine
    strict = calibrated(two_groups / "people", identity_bundle(), *labels, "--worst-group").calibration
    said = capsys.readouterr().out
    assert strict is not None
    assert strict.source.endswith("; trials within side near")
    assert (strict.people, strict.trials("cosine"), strict.trials("llr")) == (30, 870, 870)
    assert said.startswith("870 impostor trials of 30 people; ")
    for scale in ("cosine", "llr"):
        assert strict.threshold(0.1, scale).score > everybody.threshold(0.1, scale).score  # type: ignore[arg-type]
    within = [line for line in said.splitlines() if "side near" in line]
    assert float(within[0].split(": ")[1].split("%")[0]) <= 12.0  # at 10 % for all samples, of the good ones alone
    assert main(["calibrate", "a", "b", "-o", "c", "--worst-group"]) == 1
    assert "needs --groups" in capsys.readouterr().err


def test_a_group_of_few_is_not_the_worst(
    people: Path, identity_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = people.parent / "groups.csv"
    labels.write_text("person,side\n" + "".join(f"p{who:02},{'ab'[who % 2]}\n" for who in range(16)))
    calibrated(people, identity_bundle(), "--groups", str(labels))
    assert "within side a, 8 people (few): " in capsys.readouterr().out
    arguments = [str(people.parent / "model.uvb"), str(people), "-o", str(people.parent / "x.uvb")]
    assert main(["calibrate", *arguments, "--groups", str(labels), "--worst-group"]) == 1
    assert "no group of the label file has 30 people" in capsys.readouterr().err
