"""The README tells the truth: its code runs, its table is the one the payload modules give, its files exist.

``python -m tests.architecture.test_readme`` writes the table anew.
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from tests import real_data
from uvsdk import cli
from uvsdk.errors import WeightsError
from uvsdk.federation import disclosure
from uvsdk.training import weights

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_TABLE = re.compile(r"(<!-- disclosure -->\n).*?(<!-- /disclosure -->)", re.DOTALL)


def with_current_table(text: str) -> str:
    """``text`` with the table between its marks made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}{disclosure.table()}\n{found[2]}", text)


def test_the_table_of_what_leaves_the_device_is_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert _TABLE.search(text)
    assert text == with_current_table(text), "run: python -m tests.architecture.test_readme"


def test_the_code_runs_and_prints_what_a_reader_expects() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    printed: list[str] = []
    for block in blocks:
        scope: dict[str, object] = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
        exec(compile(block, "README.md", "exec"), scope)
    accepted, impostor = printed[0].split()[0], printed[1]
    assert (accepted, impostor) == ("True", "False")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run_block(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the README's code of one modality in ``folder``, which holds the files it names; what it printed."""
    (block,) = blocks(kind)
    monkeypatch.chdir(folder)
    printed: list[str] = []
    scope: dict[str, object] = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
    exec(compile(block, f"README.md, {kind}", "exec"), scope)
    return printed


def exported(folder: Path, backbone: str, name: str, *needed: str) -> None:
    """The bundle that the README's command makes; skips where the weights are not at hand."""
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
    exported(tmp_path, "ge2e", "voice.uvb", "ge2e")
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
    exported(tmp_path, "sface", "face.uvb", "sface", "yunet")
    for photo, name in zip(several[0][:3], ("ada-1.jpg", "ada-2.png", "ada-3.webp"), strict=True):
        Image.open(io.BytesIO(photo)).save(tmp_path / name)
    (tmp_path / "probe.jpg").write_bytes(several[0][3] if probe_of == "same" else several[1][0])
    fates, decided = run_block("face", tmp_path, monkeypatch)
    assert fates.count("True") == 3
    assert decided.split()[0] == expected


def test_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


if __name__ == "__main__":
    README.write_text(with_current_table(README.read_text(encoding="utf-8")), encoding="utf-8")
