"""``uvsdk serve --check``: what a start would find and do, said without one."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer
from uvsdk.cli import main


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert main(["serve", "--check", *arguments]) == 0, capsys.readouterr().err
    lines = capsys.readouterr().out.splitlines()
    return {line.split("  ")[0].strip(): line.split("  ", 1)[1].strip() for line in lines}


def prepared(tmp_path: Path) -> tuple[str, str]:
    model, training = tmp_path / "model.uvb", tmp_path / "training.json"
    harness.shipped().save(model)
    training.write_text(CONFIG.to_json())
    return str(model), str(training)


def test_a_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, training = prepared(tmp_path)
    data = tmp_path / "data"
    found = said(
        capsys,
        "--data",
        str(data),
        "--model",
        model,
        "--training",
        training,
        "--port",
        "0",
        "--authority",
        "clinic.example",
    )
    assert "a start makes a deployment" in found["data"]
    assert found["deployment"] == CONFIG.deployment
    assert found["called by"] == "clinic.example"
    assert found["model version"] == harness.shipped().version
    assert not data.exists()
    assert main(["serve", "--check", "--data", str(data)]) == 1
    assert "the first start needs a model" in capsys.readouterr().err
    (tmp_path / "broken.uvb").write_bytes(b"nonsense")
    assert (
        main(["serve", "--check", "--data", str(data), "--model", f"{tmp_path}/broken.uvb", "--training", training])
        == 1
    )
    assert capsys.readouterr().err.startswith("uvsdk serve: not a model bundle")


def test_what_would_change_and_what_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = RunningServer(tmp_path / "server")
    server.start()
    try:
        data = ("--data", str(server.data), "--port", "0")
        assert said(capsys, *data)["listens"].endswith("a server of this data folder is running")
    finally:
        server.stop()
    before = files_of(server.data)
    found = said(capsys, *data)
    assert found["data"].split(", ")[0].endswith("a deployment")
    assert "running" not in found["listens"]
    assert "changes" not in found
    other = tmp_path / "other.json"
    other.write_text(replace(CONFIG, rounds=CONFIG.rounds + 5).to_json())
    assert main(["serve", "--check", *data, "--training", str(other)]) == 0
    out = capsys.readouterr().out
    assert f"rounds {CONFIG.rounds} -> {CONFIG.rounds + 5}" in out
    assert "a round in progress is aborted" in out
    other.write_text(replace(CONFIG, deployment="another").to_json())
    assert main(["serve", "--check", *data, "--training", str(other)]) == 1
    assert "deployment cannot change" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "--check", "--data", str(server.data), "--port", port]) == 1
        assert port in capsys.readouterr().err
    (server.data / "keys" / "at-rest.key").rename(tmp_path / "at-rest.key")
    assert main(["serve", "--check", *data]) == 1
    assert "at-rest.key is missing" in capsys.readouterr().err
    (tmp_path / "at-rest.key").rename(server.data / "keys" / "at-rest.key")
    assert files_of(server.data) == before  # nothing was written, no lock, no log of the database
