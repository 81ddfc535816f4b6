"""The ``uvsdk`` command as a person meets it: exit statuses, one-line errors, help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from uvsdk import cli


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "uvsdk", *arguments], capture_output=True, text=True, timeout=60)


def test_every_subcommand_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    names = [command.name for command in cli.commands()]
    assert {"serve", "agent", "enroll", "verify", "participate", "export", "evaluate", "models"} <= set(names)
    assert len(names) == len(set(names))
    for name in names:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0
        assert name in capsys.readouterr().out


def test_an_expected_failure_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(tmp_path / "absent.uvb"), str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("uvsdk evaluate: ")
    assert printed.err.count("\n") == 1


def test_a_wrong_call_is_status_2() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    command = f"{sys.executable} -m uvsdk algorithms --table | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout == "E"


def test_without_the_server_extra_the_other_commands_work_and_help_names_it() -> None:
    program = "import sys; sys.modules['fastapi'] = None; from uvsdk.cli import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pip install 'uvsdk[server]'" in " ".join(done.stdout.split())
    assert "verify" in done.stdout
    assert "serve " not in done.stdout
