"""The README and the documents tell the truth: their code runs, their commands are ones that there are."""

from __future__ import annotations

import argparse
import io
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from tests import real_data
from uvsdk import cli
from uvsdk.errors import WeightsError
from uvsdk.training import weights

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
VERIFICATION = ROOT / "docs" / "verification.md"
INTEGRATION = ROOT / "docs" / "integration.md"
ERRORS = ROOT / "docs" / "errors.md"
DOCUMENTS = (README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")


def test_the_readme_is_three_screens() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.encode()) < 9000


def test_the_code_runs_and_prints_what_a_reader_expects() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    printed: list[str] = []
    for block in blocks:
        scope: dict[str, object] = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
        exec(compile(block, "README.md", "exec"), scope)
    accepted, impostor = printed[0].split()[0], printed[1]
    assert (accepted, impostor) == ("True", "False")
    said = " ".join(re.findall(r"^print\(.*\)  # (.*)$", "".join(blocks), re.MULTILINE)).split()
    for word, value in zip(said, " ".join(printed).split(), strict=True):
        # The second digit of a score may differ between processors.
        assert word == value or float(word) == pytest.approx(float(value), abs=0.02)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", VERIFICATION.read_text(encoding="utf-8"), re.DOTALL)


def run_block(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the code of one modality in ``folder``, which holds the files it names; what it printed."""
    (block,) = blocks(kind)
    monkeypatch.chdir(folder)
    printed: list[str] = []
    scope: dict[str, object] = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
    exec(compile(block, f"verification.md, {kind}", "exec"), scope)
    return printed


def exported(folder: Path, backbone: str, name: str, *needed: str) -> None:
    """The bundle that the documented command makes; skips where the weights are not at hand."""
    pytest.importorskip("torch", reason="making a bundle needs the train extra")
    for file in needed:
        try:
            weights.find(file)
        except WeightsError as error:
            pytest.skip(f"the weights cannot be had: {error}")
    assert cli.main(["export", backbone, "-o", str(folder / name)]) == 0


@pytest.mark.parametrize(("probe_of", "expected"), [("same", "True"), ("another", "False")])
def test_the_ten_lines_for_voices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe_of: str, expected: str
) -> None:
    folders = sorted(path for path in real_data.file("speech_librispeech/eval_test-other").iterdir() if path.is_dir())
    own = sorted(folders[0].rglob("*.flac"))
    exported(tmp_path, "voice", "voice.uvb", "campplus")
    for file, name in zip(own[:3], ("ada-1.wav", "ada-2.flac", "ada-3.mp3"), strict=True):
        pcm, rate = soundfile.read(file)
        soundfile.write(tmp_path / name, pcm, rate)
    probe = own[3] if probe_of == "same" else sorted(folders[1].rglob("*.flac"))[0]
    pcm, rate = soundfile.read(probe)
    soundfile.write(tmp_path / "probe.wav", pcm, rate)
    complete, decided, _ = run_block("voice", tmp_path, monkeypatch)
    assert 0 < float(complete.split()[0]) <= 100
    assert decided.split()[0] == expected


@pytest.mark.parametrize(("probe_of", "expected"), [("same", "True"), ("another", "False")])
def test_the_ten_lines_for_faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe_of: str, expected: str) -> None:
    people: dict[str, list[bytes]] = {}
    with tarfile.open(real_data.file("lfw_fold1_originals.tar")) as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            file = archive.extractfile(member) if member.name.endswith(".jpg") else None
            if file is not None:
                people.setdefault(Path(member.name).stem.rpartition("_")[0], []).append(file.read())
    several = [photos for photos in people.values() if len(photos) >= 4]
    exported(tmp_path, "face", "face.uvb", "sface", "yunet")
    for photo, name in zip(several[0][:3], ("ada-1.jpg", "ada-2.png", "ada-3.webp"), strict=True):
        Image.open(io.BytesIO(photo)).save(tmp_path / name)
    (tmp_path / "probe.jpg").write_bytes(several[0][3] if probe_of == "same" else several[1][0])
    fates, decided = run_block("face", tmp_path, monkeypatch)
    assert fates.count("True") == 3
    assert decided.split()[0] == expected


def command_lines(document: Path) -> list[str]:
    """The lines of blocks that are typed as they stand, those of our own commands."""
    shown = "".join(text for kind, text in _BLOCK.findall(document.read_text(encoding="utf-8")) if not kind)
    return [line for line in shown.replace("\\\n", " ").splitlines() if line.startswith(("uvsdk ", "make "))]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A command's parser and those of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_are_understood(document: Path) -> None:
    """What a reader copies is parsed by the very command; it ends with status 2 where it is not understood."""
    pytest.importorskip("fastapi", reason="some commands are the server's")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in command_lines(document):
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            assert arguments[0] in targets, line
        elif "[" not in line:  # else it is a synopsis
            cli._parsed(arguments)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_mentioned_exist(document: Path) -> None:
    pytest.importorskip("fastapi", reason="some commands are the server's")
    commands = {command.name: command for command in cli.commands()}
    for span in _SPAN.findall(_BLOCK.sub("", document.read_text(encoding="utf-8"))):
        program, *words = span.split()
        if program != "uvsdk" or not words:
            continue
        assert words[0] in commands, span
        parser = argparse.ArgumentParser()
        commands[words[0]].configure(parser)
        options = {option for below in parsers(parser) for option in below._option_string_actions}
        assert {word.split("=")[0].rstrip(":,.") for word in words if word.startswith("--")} <= options, span


def test_every_field_of_a_decision_is_explained() -> None:
    """docs/integration.md has a row for each field of ``POST /v1/verify``, which names the fields below it."""
    routes = pytest.importorskip("uvsdk_server.routes.verify", reason="the answer is the server's")
    text = INTEGRATION.read_text(encoding="utf-8").split("### What comes back")[1].split("###")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    fields = routes.VerifyAnswer.model_fields
    assert set(rows) == set(fields)
    for name, below in {
        "threshold": routes.ThresholdAnswer,
        "quality": routes.QualityAnswer,
        "presentations": routes.PresentationAnswer,
        "basis": routes.BasisAnswer,
    }.items():
        assert set(below.model_fields) <= set(re.findall(r"`(\w+)`", rows[name])), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_problem_kinds_that_are_mentioned_exist(document: Path) -> None:
    """Written as ``409 `uncalibrated```, they stand in docs/errors.md with that status."""
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d, ]+) \|", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    there = {(kind, status) for kind, statuses in rows for status in statuses.split(", ")}
    named = re.findall(r"\b([45]\d\d)\s+`([a-z]+(?:-[a-z]+)*)`", document.read_text(encoding="utf-8"))
    assert {(kind, status) for status, kind in named} <= there
