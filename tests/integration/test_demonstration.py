"""Whatever ends the demonstration, it leaves no server and no device running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.harness import eventually
from uvsdk.bundle import shipped

SCRIPT = Path(__file__).with_name("demonstration_process.py")


def begun(folder: Path, module: str, *arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The script, and the numbers of the processes it has started."""
    command = [sys.executable, str(SCRIPT), str(folder), module, *arguments]
    # The default again: pytest in the background ignores SIGINT, and so would whatever it starts.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None
    return process, [int(number) for number in process.stdout.readline().split()]


def running(numbers: list[int]) -> list[int]:
    """Those of the processes that there still are; one that has ended and that nobody has asked about is none."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, numbers))], capture_output=True, text=True, check=False
    )
    states = dict(line.split() for line in listed.stdout.splitlines())
    return [number for number in numbers if states.get(str(number), "Z")[0] != "Z"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_demonstration_that_is_told_to_end(tmp_path: Path, how: signal.Signals) -> None:
    process, numbers = begun(tmp_path, "http.server", "0", "--bind", "127.0.0.1")
    assert len(numbers) == 3
    assert running(numbers) == numbers
    process.send_signal(how)
    process.communicate(timeout=60)
    eventually(lambda: not running(numbers))


def test_nothing_is_left_of_a_demonstration_that_is_killed(tmp_path: Path) -> None:
    """A server that serves, and devices: nobody is left to tell them, and each sees that by itself."""
    shipped("digits").save(tmp_path / "model.uvb")
    training = {"deployment": "hands", "modality": "handwriting", "backbone": "digits-cnn", "algorithm": "fedaws"}
    (tmp_path / "training.json").write_text(json.dumps(training))
    named = {"--data": "data", "--model": "model.uvb", "--training": "training.json"}
    paths = [part for name, file in named.items() for part in (name, str(tmp_path / file))]
    process, numbers = begun(tmp_path, "uvsdk", "serve", "--port", "0", *paths)
    log = tmp_path / "log"
    eventually(lambda: "listening on" in log.read_text())
    assert running(numbers) == numbers
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not running(numbers))
    assert "Traceback" not in log.read_text()
