"""``uvsdk evaluate`` as a person meets it: real processes, the digits bundle, every form of source."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.builders import image_file
from uvsdk import cli
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.inference import embed


@dataclass(frozen=True)
class Digits:
    """The shipped bundle in a file, and images of five digits as folders of people."""

    bundle: Path
    people: Path


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    datasets = pytest.importorskip("sklearn.datasets")
    root = tmp_path_factory.mktemp("digits")
    shipped("digits").save(root / "digits.uvb")
    images, labels = datasets.load_digits(return_X_y=True)
    for label in range(5):
        for number, pixels in enumerate(images[labels == label][:8], 1):
            ink = 255 - (pixels.reshape(8, 8) * 255 / 16).astype("uint8")
            path = root / "people" / f"d{label}" / f"d{label}_{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_file(ink))
    return Digits(root / "digits.uvb", root / "people")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uvsdk", "evaluate", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Tags(HTMLParser):
    """Checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def voxceleb(digits: Digits, folder: Path, *, labels: bool = True) -> Path:
    """Each digit's neighbours in number, genuine, and the same numbers of the next digit, impostors."""
    lines = []
    for label in range(5):
        for number in range(1, 8):
            own, other = f"d{label}/d{label}_{number:04}.png", (label + 1) % 5
            lines.append(f"1 {own} d{label}/d{label}_{number + 1:04}.png")
            lines.append(f"0 {own} d{other}/d{other}_{number:04}.png")
    path = folder / "trials.txt"
    path.write_text("".join(f"{line if labels else line[2:]}\n" for line in lines))
    return path


def test_a_folder_with_groups_gives_a_table_json_and_a_page(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("person,<b>loop</b>\n" + "d0,yes\nd1,no\nd2,no\nd3,no\n")
    done = run(
        digits.bundle, digits.people, "--all-pairs", "--groups", tmp_path / "groups.csv", "--jobs", "2", "--quality",
        "off", "--bootstrap", "20", "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "<b>loop</b> no, 3 people (few): FMR within" in done.stdout
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    # 40 images: 5 * 28 genuine of 780 pairs.
    assert (record["genuine_trials"], record["impostor_trials"]) == (140, 640)
    loops = {group["group"]: group for group in record["groups"]["<b>loop</b>"]["groups"]}
    # Within "no" 3 * 64 pairs; across 64 * 3; d4 has no label.
    assert (loops["no"]["fmr_within"]["trials"], loops["yes"]["fmr_across"]["trials"]) == (192, 192)
    assert record["groups"]["<b>loop</b>"]["unknown_people"] == 1
    assert "--quality off" in record["command"]
    assert str(tmp_path) not in record["command"]
    page = (tmp_path / "out" / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "&lt;b&gt;loop" in page
    for word in ("<b>", "http", "src=", "d0_0001", str(tmp_path)):
        assert word not in page, word


def test_a_trial_list_in_voxceleb_form(digits: Digits, tmp_path: Path) -> None:
    path = voxceleb(digits, tmp_path)
    with path.open("a") as list_file:
        list_file.write("0 d0/d0_0001.png d1/gone.png\n")
    done = run(digits.bundle, path, "--root", digits.people, "--scores", tmp_path / "scores.txt", "--bootstrap", "20")
    assert done.returncode == 0, done.stderr
    assert "cannot use people/d1/gone.png: there is no file gone.png" in done.stderr
    assert "Wrote 70 scores" in done.stdout
    assert "1 trials have none" in done.stdout
    words = dict(line.rsplit("  ", 1) for line in done.stdout.splitlines() if line.count("  "))
    assert {name.strip(): value for name, value in words.items()}["Samples"] == "41"
    assert "missing file" in done.stdout
    scores = (tmp_path / "scores.txt").read_text().splitlines()
    assert len(scores) == 70
    score, one, other = scores[0].split()
    assert (one, other) == ("d0/d0_0001.png", "d0/d0_0002.png")
    assert 0 < float(score) <= 1


def test_a_blind_list_gives_scores_and_no_rates(
    digits: Digits, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = voxceleb(digits, tmp_path, labels=False)
    words = ["evaluate", str(digits.bundle), str(path), "--root", str(digits.people)]
    assert cli.main(words) == 1
    assert "does not say which trials are genuine" in capsys.readouterr().err
    assert cli.main([*words, "--scores", str(tmp_path / "scores.txt")]) == 0
    assert "EER" not in capsys.readouterr().out
    assert len((tmp_path / "scores.txt").read_text().splitlines()) == 70


def test_lfw_pairs(digits: Digits, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["2\t4"]
    for fold in range(2):
        lines += [f"d{label}\t{1 + fold}\t{5 + fold}" for label in range(4)]
        lines += [f"d{label}\t{1 + fold}\td{label + 1}\t{5 + fold}" for label in range(4)]
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    words = ["evaluate", str(digits.bundle), str(tmp_path / "pairs.txt"), "--root", str(digits.people)]
    assert cli.main([*words, "--bootstrap", "20", "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("Accuracy")
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert len(record["accuracy"]["by_fold"]) == 2
    # The bundle was trained on digits of these kinds.
    assert record["accuracy"]["mean"] > 0.8
    assert record["protocol"].startswith("LFW pairs: 2 folds")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("1 a b\n1 a\n", (), "trials.txt: 1 line is malformed: line 2: 2 fields, the first line has 3"),
        ("1 a b\n", ("--all-pairs",), "--all-pairs is for people"),
        ("1 a b\n", ("--root", "nowhere"), "nowhere is not a folder; --root is where"),
        ("1 a/1 a/2\n0 a/1 b/1\n", (), "0 genuine and 0 impostor trials could be made of 2 listed ones (3 of 3"),
        ("1 a b\n", ("--bootstrap", "0"), "--bootstrap is at least 1"),
        ("1 a/1 a/2\n0 a/1 b/1\n", ("--jobs", "0"), "at least one job"),
        ("10\t300\nAnn\t1\t2\n", (), "has 1 pairs, its heading announces 10 folds"),
        ("person,role,path\nann,enrol\n", (), "line 2: 2 fields under 3 columns"),
        ("1 a b\n", ("--groups", "gone.csv"), "cannot read the list gone.csv"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    digits: Digits,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "trials.txt").write_text(text)
    assert cli.main(["evaluate", str(digits.bundle), str(tmp_path / "trials.txt"), *options]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("uvsdk evaluate: ")
    assert words in error


def test_options_that_need_a_list(digits: Digits, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--scores", "--root"):
        assert cli.main(["evaluate", str(digits.bundle), str(digits.people), option, str(tmp_path)]) == 1
        assert f"{option} is" in capsys.readouterr().err


def test_samples_of_another_kind_are_failures_with_reasons(
    digits: Digits, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, an empty file, a cut picture and a folder in place of a file, among good ones."""
    for person in ("d0", "d1"):
        for source in sorted((digits.people / person).iterdir())[:4]:
            target = tmp_path / "people" / person / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    good = (digits.people / "d0" / "d0_0001.png").read_bytes()
    for number, content in enumerate((b"hello", b"", good[:40], b"RIFF\x00\x00\x00\x00WAVEfmt ")):
        (tmp_path / "people" / "d0" / f"odd{number}.png").write_bytes(content)
    (tmp_path / "people" / "d1" / "folder.png").mkdir()
    words = ["evaluate", str(digits.bundle), str(tmp_path / "people"), "--enrol", "2", "--bootstrap", "10"]
    assert cli.main(words) == 0
    printed = capsys.readouterr()
    assert printed.err.count("cannot use people/d0/odd") == 4
    assert "Failures to acquire" in printed.out
    assert "undecodable sample" in printed.out


def test_nobodys_embedding_is_written(digits: Digits, tmp_path: Path) -> None:
    """Neither by a calibration nor by a report: in any precision, as it is or scaled, the first eight numbers of it."""
    written = tmp_path / "written"
    calibrated = written / "calibrated.uvb"
    written.mkdir()
    assert cli.main(["calibrate", str(digits.bundle), str(digits.people), "-o", str(calibrated), "--no-copies"]) == 0
    done = run(calibrated, digits.people, "--output", written / "report")
    assert done.returncode == 0, done.stderr
    data = [path.read_bytes() for path in written.rglob("*") if path.is_file()]
    assert len(data) > 2
    bundle = Bundle.open(calibrated)
    for path in sorted(digits.people.rglob("*.png")):
        row = embed(path, bundle).embedding.astype(np.float64)
        for values in (row, row / np.abs(row).max()):
            for kind in ("<f2", "<f4", "<f8", ">f4", ">f8"):
                assert not any(values[:8].astype(kind).tobytes() in body for body in data)
            for digit in (3, 6):
                text = ",".join(f"{value:.{digit}f}" for value in values[:4])
                assert not any(text.encode() in body.replace(b" ", b"") for body in data)
