"""The quick start of docs/operations.md, typed as it stands: a real server, three real devices, a verified person."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from tests import real_data
from tests.integration.harness import ROOT, eventually
from tests.integration.life import ENVIRONMENT, free_port
from uvsdk.errors import WeightsError
from uvsdk.training import weights

OPERATIONS = ROOT / "docs" / "operations.md"
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(shutil.which("bash") is None, reason="the lines are those of a shell"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="the lines ask with curl"),
]


def shown() -> dict[str, list[str]]:
    """What the section has, by the kind of its blocks: those without a kind are typed into a shell."""
    section = OPERATIONS.read_text(encoding="utf-8").split("## Quick start\n")[1].split("\n## ")[0]
    found: dict[str, list[str]] = {}
    for kind, block in _BLOCK.findall(section):
        found.setdefault(kind, []).append(block)
    return found


def quick_start(folder: Path, training: str) -> tuple[str, list[bool]]:
    """Type the lines of both terminals in ``folder``; what the devices printed, and the two answers of the server."""
    (folder / "training.json").write_text(training)
    program = folder / "uvsdk"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m uvsdk "$@"\n')
    program.chmod(0o700)
    environment = {**ENVIRONMENT, "PATH": f"{folder}:{ENVIRONMENT['PATH']}"}
    port = str(free_port())
    first, *second = (block.replace("8080", port) for block in shown()[""])
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["bash", "-euc", first.replace("uvsdk serve", "exec uvsdk serve")],
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
        )
    try:
        eventually(lambda: "operator token" in log.read_text() or server.poll() is not None, timeout_s=180)
        assert server.poll() is None, log.read_text()
        typed = ["bash", "-euo", "pipefail", "-c", "".join(second)]
        done = subprocess.run(typed, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
    finally:
        server.terminate()
        server.wait(timeout=60)
    printed, answers = done.stdout.split('{"accepted"', 1)
    first_answer, end = json.JSONDecoder().raw_decode(f'{{"accepted"{answers}')
    second_answer = json.loads(f'{{"accepted"{answers}'[end:])
    return printed, [first_answer["accepted"], second_answer["accepted"]]


def check(printed: str, answers: list[bool]) -> None:
    """Three rounds were trained by all three, and Ada is known, on her device and to the server."""
    assert printed.count("took part in 3 of 3 rounds") == 3, printed
    assert len(re.findall(r"^\d+ +committed +3 +3 ", printed, re.MULTILINE)) == 3, printed
    assert re.search(r"^accepted: ", printed, re.MULTILINE), printed
    assert answers == [True, False]


def test_the_lines_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="training needs the train extra")
    monkeypatch.chdir(tmp_path)
    (writes,) = shown()["python trial"]
    exec(compile(writes, "operations.md, trial", "exec"), {})
    (training,) = shown()["json trial"]
    check(*quick_start(tmp_path, training))


def test_the_same_with_voices(tmp_path: Path) -> None:
    """The changes that the section names: a bundle of pretrained weights, recordings, and its name in the settings."""
    pytest.importorskip("torch", reason="training needs the train extra")
    folders = sorted(path for path in real_data.file("speech_librispeech/eval_test-other").iterdir() if path.is_dir())
    try:
        weights.find("campplus")
    except WeightsError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    spoken = [sorted(folder.rglob("*.flac")) for folder in folders[:4]]
    for name, files in zip(("ada", "bea", "cyd"), spoken, strict=False):
        (tmp_path / "people" / name).mkdir(parents=True)
        for place, file in enumerate(files[:5]):
            (tmp_path / "people" / name / f"{place}.flac").write_bytes(file.read_bytes())
    for name, file in {"probe": spoken[0][7], "impostor": spoken[3][7]}.items():
        pcm, rate = soundfile.read(file)
        soundfile.write(tmp_path / name, pcm, rate, format="WAV")
    text = OPERATIONS.read_text(encoding="utf-8")
    (line,) = re.findall(r"`(uvsdk export voice [^`]*)`", text.split("## Quick start")[1].split("\n## ")[0])
    command = line.replace("uvsdk", f"{sys.executable} -m uvsdk")
    subprocess.run(command.split(), check=True, cwd=tmp_path, env=ENVIRONMENT)
    (training,) = shown()["json trial"]
    changed = '"modality": "voice", "backbone": "campplus", "train": "head"'
    assert changed in " ".join(text.split())
    check(*quick_start(tmp_path, training.replace('"modality": "handwriting", "backbone": "digits-cnn"', changed)))
