"""Which trials are made of a folder, and that nothing is scored against a template that contains it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.builders import angle_file, embed_angle, image_file, run_command
from uvsdk.bundle import shipped
from uvsdk.commands import calibrate, evaluate
from uvsdk.errors import EnrolmentError, SettingsError, UvsdkError
from uvsdk.evaluation import protocols
from uvsdk.evaluation.protocols import Person
from uvsdk.evaluation.record import as_json
from uvsdk.evaluation.summary import summarise


def angle(degrees: float) -> float:
    return float(np.cos(np.deg2rad(degrees)))


def test_first_files_enrol_and_the_rest_verify(tmp_path: Path) -> None:
    for name, angles in (("ann", (0, 20, 13)), ("bob", (90, 110, 96))):
        for number, value in enumerate(angles):
            angle_file(tmp_path / name / f"{number}.txt", value)
    angle_file(tmp_path / "ann" / ".hidden", "silence")
    outcome = protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=2), embed_angle)
    # Templates at 10 and 100 degrees, probes at 13 (ann) and 96 (bob); rows: probe-major.
    trials = outcome.trials
    assert trials.subjects == ("ann", "bob")
    assert trials.probe_subject.tolist() == [0, 0, 1, 1]
    assert trials.template_subject.tolist() == [0, 1, 0, 1]
    assert trials.scores == pytest.approx([angle(3), angle(87), angle(86), angle(4)], abs=1e-6)
    assert trials.genuine == pytest.approx([angle(3), angle(4)], abs=1e-6)
    assert (outcome.samples, outcome.failures, outcome.not_enrolled, outcome.repeated) == (6, (), (), 0)


def test_named_folders_decide_the_roles(tmp_path: Path) -> None:
    for name, base in (("ann", 0), ("bob", 90)):
        angle_file(tmp_path / name / "enrol" / "a.txt", base)
        angle_file(tmp_path / name / "verify" / "b.txt", base + 1)
        angle_file(tmp_path / name / "verify" / "c.txt", base + 2)
    people = protocols.read_folder(tmp_path, enrol=1)
    assert [(len(p.enrol), len(p.verify)) for p in people] == [(1, 2), (1, 2)]


def test_failures_are_counted_and_in_no_rate(tmp_path: Path) -> None:
    for name, values in (("ann", (0, 1, "silence")), ("bob", (90, "silence", 92)), ("cat", ("silence", 45, 46))):
        for number, value in enumerate(values):
            angle_file(tmp_path / name / f"{number}.txt", value)
    outcome = protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=1), embed_angle)
    # ann: template, 1 probe. bob: template, 1 probe. cat: no template; her 2 probes are impostors to both.
    assert (int(outcome.trials.is_genuine.sum()), len(outcome.trials.impostor)) == (2, 2 + 4)
    assert outcome.not_enrolled == ("cat",)
    assert [failure.subject for failure in outcome.failures] == ["ann", "bob", "cat"]
    assert {failure.kind for failure in outcome.failures} == {"no speech"}
    assert outcome.failure_to_acquire_rate == pytest.approx(3 / 9)


def test_a_copy_of_an_enrolment_sample_is_no_probe(tmp_path: Path) -> None:
    for name, values in (("ann", (0, "0", 5)), ("bob", (90, 91, 92))):
        for number, value in enumerate(values):
            angle_file(tmp_path / name / f"{number}.txt", value)
    outcome = protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=1), embed_angle)
    assert outcome.repeated == 1
    assert len(outcome.trials.genuine) == 3
    assert outcome.trials.genuine.max() < 1 - 1e-5


def test_a_file_with_both_roles_is_refused(tmp_path: Path) -> None:
    path = angle_file(tmp_path / "a.txt", 0)
    with pytest.raises(SettingsError, match=r"1 files are both .* a\.txt"):
        Person("ann", (path,), (tmp_path / "." / "a.txt",))


def test_all_pairs_compares_each_pair_once(tmp_path: Path) -> None:
    for name, values in (("ann", (0, 10, "10")), ("bob", (90,))):
        for number, value in enumerate(values):
            angle_file(tmp_path / name / f"{number}.txt", value)
    outcome = protocols.all_pairs(protocols.read_folder(tmp_path, enrol=1), embed_angle)
    assert outcome.repeated == 1
    assert outcome.trials.genuine == pytest.approx([angle(10)], abs=1e-6)
    assert sorted(outcome.trials.impostor) == pytest.approx([angle(90), angle(80)], abs=1e-6)
    with pytest.raises(EnrolmentError, match="0 genuine"):
        protocols.all_pairs([Person("a", (tmp_path / "ann" / "0.txt",), ()), Person("b", (), ())], embed_angle)


def test_a_list_of_files(tmp_path: Path) -> None:
    for name, value in (("a1", 0), ("a2", 2), ("b1", 90), ("b2", 91)):
        angle_file(tmp_path / f"{name}.txt", value)
    listing = tmp_path / "list.csv"
    listing.write_text("person,role,path\nann,enrol,a1.txt\nann,verify,a2.txt\nbob,enrol,b1.txt\nbob,verify,b2.txt\n")
    outcome = protocols.enrol_and_verify(protocols.read_list(listing), embed_angle)
    assert outcome.trials.genuine == pytest.approx([angle(2), angle(1)], abs=1e-6)
    listing.write_text("person,role,path\nann,probe,a1.txt\n")
    with pytest.raises(SettingsError, match="line 2: the role is enrol or verify"):
        protocols.read_list(listing)
    listing.write_text("who,path\nann,a1.txt\n")
    with pytest.raises(SettingsError, match="needs the columns"):
        protocols.read_list(listing)
    listing.write_text("person,role,path\nann,enrol,a1.txt\nbob,enrol,gone.txt\n")
    with pytest.raises(EnrolmentError, match="1 of 2 samples could not be used, most often: missing file"):
        protocols.enrol_and_verify(protocols.read_list(listing), embed_angle)


def test_too_little_to_measure_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a folder"):
        protocols.read_folder(tmp_path / "gone")
    angle_file(tmp_path / "ann" / "0.txt", 0)
    with pytest.raises(SettingsError, match="at least two people, got 1"):
        protocols.read_folder(tmp_path)
    angle_file(tmp_path / "bob" / "0.txt", 90)
    with pytest.raises(SettingsError, match="at least 1 enrolment sample"):
        protocols.read_folder(tmp_path, enrol=0)
    with pytest.raises(EnrolmentError, match="0 genuine and 0 impostor"):
        protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=1), embed_angle)


def test_summary_names_what_the_trials_cannot_support(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for person in range(8):
        for number in range(7):
            angle_file(tmp_path / f"p{person}" / f"{number}.txt", 45 * person + 9 * rng.normal())
    outcome = protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=1), embed_angle)
    # 8 people x 6 probes x 7 other templates = 336 impostor trials: 300 are enough for 10 %, not for 1 %.
    summary = summarise(outcome, resamples=50)
    assert summary.curve.impostor == 336
    assert set(summary.intervals) == {"eer", "fnmr_at_fmr_1e-1", "min_dcf_0.01", "min_dcf_0.05", "auroc"}
    assert dict(summary.unsupported) == {0.01: 3000, 0.001: 30_000, 0.0001: 300_000}
    record = json.loads(json.dumps(as_json(summary), allow_nan=False))
    assert record["metrics"]["eer"]["value"] == summary.intervals["eer"].value
    assert record["unsupported"]["fnmr_at_fmr_1e-2"] == {"impostor_trials_needed": 3000}
    # The people's labels stay out of what is written.
    assert "p0" not in json.dumps(record)


def test_no_error_seen_is_not_an_interval_of_zero_width(tmp_path: Path) -> None:
    for name, base in (("ann", 0), ("bob", 90)):
        for number in range(3):
            angle_file(tmp_path / name / f"{number}.txt", base + number)
    summary = summarise(protocols.enrol_and_verify(protocols.read_folder(tmp_path, enrol=1), embed_angle), resamples=20)
    assert summary.rows()[0] == ("EER", "0.00 %", "no error seen in 4 genuine trials")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The shipped bundle in a file, and scikit-learn's handwritten digits as a folder for each class."""
    datasets = pytest.importorskip("sklearn.datasets")
    root = tmp_path_factory.mktemp("digits")
    shipped("digits").save(root / "digits.uvb")
    images, labels = datasets.load_digits(return_X_y=True)
    for label in range(10):
        for number, pixels in enumerate(images[labels == label][:25]):
            ink = 255 - (pixels.reshape(8, 8) * 255 / 16).astype(np.uint8)
            path = root / "people" / f"digit{label}" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_file(ink))
    return root / "digits.uvb", root / "people"


def test_evaluate_command(digits: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, people = digits
    (people / "digit3" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n cut short")
    arguments = ("--enrol", "5", "--bootstrap", "50", "--output", str(tmp_path / "out"))
    assert run_command(evaluate.COMMAND, str(bundle), str(people), *arguments) == 0
    printed = capsys.readouterr().out
    assert "EER" in printed
    assert "Failures to acquire" in printed
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    # 10 people x 20 probes, each against 9 others.
    assert (record["genuine_trials"], record["impostor_trials"], record["failures_to_acquire"]) == (200, 1800, 1)
    # The bundle was trained on digits of these ten kinds, so the rate is low and says nothing about people.
    assert 0 <= record["metrics"]["eer"]["value"] < 0.1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "undecodable sample" in page
    assert "http" not in page
    (people / "digit3" / "broken.png").unlink()


def test_calibrate_command(digits: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from uvsdk.bundle import Bundle

    bundle, people = digits
    target = tmp_path / "calibrated.uvb"
    assert run_command(calibrate.COMMAND, str(bundle), str(people), "-o", str(target), "--source", "ten digits") == 0
    printed = capsys.readouterr().out
    assert "FMR 0.01%" in printed
    assert "needs at least 30000 impostor trials" in printed
    found = Bundle.open(target)
    assert found.version == Bundle.open(bundle).version
    assert found.calibration is not None
    assert found.calibration.source == "ten digits"
    assert len(found.calibration.impostor) == 10 * 22 * 9
    threshold = found.calibration.threshold(0.01)
    assert threshold.fmr == 0.01
    assert np.mean(found.calibration.impostor >= threshold.score) <= 0.01
    with pytest.raises(UvsdkError, match="at least two people"):
        run_command(calibrate.COMMAND, str(bundle), str(tmp_path), "-o", str(target))
