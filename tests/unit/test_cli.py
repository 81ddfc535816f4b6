"""The ``uvsdk`` command as a person meets it: exit statuses, one-line errors, help."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.integration.harness import CONFIG, serving
from uvsdk import cli
from uvsdk.bundle import shipped
from uvsdk_server.store import database

PATIENCE_S = 240.0
"""A command takes a second or two; two processors may be shared by many."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "uvsdk", *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )


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
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    assert done.stdout == "E"


def test_without_the_server_extra_the_other_commands_work_and_help_names_it() -> None:
    program = "import sys; sys.modules['fastapi'] = None; from uvsdk.cli import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "pip install 'uvsdk[server]'" in " ".join(done.stdout.split())
    assert "verify" in done.stdout
    assert "serve " not in done.stdout


# What is wrong with each call stands behind the arrow, in words of the one line that it ends with.
FAILURES = """
serve --data new -> first start needs a model bundle
serve --data new --model absent.uvb --training t.json -> cannot read the bundle absent.uvb
serve --data new --model garbage --training t.json -> not a model bundle
serve --data new --model m.uvb --training absent.json -> cannot read the training configuration
serve --data new --model m.uvb --training bad.json -> not a training configuration
serve --data new --model m.uvb --training bad.toml -> bad.toml is not a training configuration
serve --data new --model m.uvb --training list.json -> a JSON object
serve --data new --model m.uvb --training unknown.json -> unknown training settings
serve --data new --model m.uvb --training garbage -> not a training configuration
serve --data garbage --model m.uvb --training t.json -> garbage: File exists
serve --data garbage/below --model m.uvb --training t.json -> Not a directory
serve --data new --model m.uvb --training t.json --host 999.1.2.3 --allow-plain-http -> cannot listen on 999.1.2.3:8080
serve --data new --model m.uvb --training t.json --host a..b --allow-plain-http -> cannot listen on a..b:8080
serve --data new --model m.uvb --training t.json --port 70000 -> port
serve --data new --model m.uvb --training t.json --port {taken} -> Address already in use
serve --data used --port 0 -> in use by another server
serve --data broken --port 0 -> not a database
token --data absent list -> not a server's data folder
token --data broken list -> not a database
token --data used revoke nobody -> there is no token nobody
token --data used create --scope verify --days nan -> at most 100 years
token --data used create --scope verify --days 1e308 -> at most 100 years
token --data used create --scope enrol --unbound --uses 99999999999999999999999 -> 1 to 2147483647
token --data used create --scope verify --label \udcff -> no database can keep
rounds --data used list --before 99999999999999999999999 -> from 1 to 2147483647
rounds --data absent list -> not a server's data folder
lockouts --data used list --limit 99999999999999999999999 -> from 1 to 2147483647
lockouts --data used reset person \udcff -> no database can keep
enroll ada p0.png --model m.uvb {store} -> 3 are needed
enroll ada p0.png p1.png p2.png --model m.uvb --store s --passphrase-file utf16 -> utf16 is not UTF-8 text
enroll ada p0.png p1.png p2.png --model m.uvb --store s --passphrase-file absent -> cannot read absent
enroll ada p0.png p1.png p2.png --model m.uvb --store s --passphrase-file empty -> empty is empty
enroll ada p0.png p1.png p2.png --model m.uvb --store garbage --passphrase-file pw -> folder cannot be written
enroll ada p0.png p1.png p2.png --model m.uvb --store s -> needs a passphrase
enroll ada p0.png p1.png p2.png --model m.uvb --store k --keyring -> keyring cannot be used here
enroll \udcff p0.png p1.png p2.png --model m.uvb {store} -> valid Unicode
enroll ada p0.png p1.png p2.png --model m.uvb {store} --server https://x:99999 --pepper-file pepper -> https://host
enroll ada p0.png p1.png p2.png --model m.uvb {store} --server https://x -> --pepper-file
enroll ada p0.png p1.png p2.png --model m.uvb {store} --server https://x --pepper-file pw -> at least 16 bytes
verify ada p3.png --model absent.uvb {store} -> cannot read the bundle
verify ada p3.png --model . {store} -> Is a directory
verify ada p3.png --model m.uvb {store} -> enrol first
verify ada garbage --model m.uvb {store} -> enrol first
enroll ada p0.png p1.png p2.png --model m.uvb --fmr nan {store} -> between 0 and 1
identify p3.png --model m.uvb --fpir 2 {store} -> between 0 and 1
agent --model m.uvb --port {taken} {store} -> Address already in use
agent --model m.uvb --port 99999 {store} -> 0-65535
agent --model m.uvb --host 0.0.0.0 {store} -> --allow-remote
attempts show ada --store garbage --passphrase-file pw -> there is no store in garbage
participate ada --server http://127.0.0.1:1 --pepper-file pepper --token-file utf16 {store} -> not UTF-8 text
participate ada --server http://127.0.0.1:1 --pepper-file absent {store} -> cannot read absent
store --delete nobody {store} -> nobody of that name
store --refresh ada {store} -> --pepper-file
store --change-passphrase utf16 {store} -> not UTF-8 text
store --forget-server https://x:0 {store} -> https://host
evaluate m.uvb absent -> not a folder
evaluate garbage . -> not a model bundle
calibrate m.uvb absent -o out.uvb -> not a folder
calibrate absent . -o out.uvb -> cannot read the bundle
export no-such-backbone -o x.uvb -> no backbone
id hash ada --deployment clinic --pepper-file absent -> cannot read absent: No such file
id hash ada --deployment clinic --pepper-file . -> cannot read .: Is a directory
id hash ada --deployment clinic --pepper-file pw -> at least 16 bytes
id hash ada --deployment "" --pepper-file pepper -> cannot be empty
id hash "" --deployment clinic --pepper-file pepper -> cannot be empty
id hash "a	da" --deployment clinic --pepper-file pepper -> U+0009 at place 2
id hash \udcff --deployment clinic --pepper-file pepper -> valid Unicode
models fetch no-such-weights -> no weights
simulate --algorithm fedaws --data absent --rounds 1 -> not a folder
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder of good and bad files, a data folder and a port in use."""
    folder = tmp_path_factory.mktemp("place")
    shipped().save(folder / "m.uvb")
    digits = load_digits()
    for number, page in enumerate(digits.images[digits.target == 3][:4]):
        Image.fromarray((255 - page / 16 * 255).astype("uint8")).save(folder / f"p{number}.png")
    texts = {
        "t.json": CONFIG.to_json(),
        "bad.json": "{",
        "bad.toml": "= 3",
        "list.json": "[1]",
        "unknown.json": '{"x": 1}',
    }
    for name, text in (texts | {"pw": "secret\n", "empty": ""}).items():
        (folder / name).write_text(text)
    (folder / "garbage").write_bytes(bytes(range(256)))
    (folder / "utf16").write_bytes("secret\n".encode("utf-16"))
    (folder / "pepper").write_bytes(bytes(32))
    with serving(folder / "server"):
        pass
    (folder / "server" / "data").rename(folder / "used")
    (folder / "broken").mkdir()
    (folder / "broken" / "server.sqlite3").write_bytes(bytes(range(256)) * 20)
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "used" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder, taken.getsockname()[1]


@pytest.mark.parametrize("line", FAILURES.strip().splitlines())
def test_whatever_fails_is_one_line_and_status_1(
    line: str, place: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if line.startswith(("export", "simulate")):
        pytest.importorskip("torch", reason="these commands need the train extra, and say so before all else")
    folder, taken = place
    monkeypatch.chdir(folder)
    monkeypatch.delenv("UVSDK_PASSPHRASE", raising=False)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    call, _, words = line.partition(" -> ")
    call = call.replace("{taken}", str(taken)).replace("{store}", "--store s --passphrase-file pw")
    arguments = [argument.replace("\\udcff", "\udcff") for argument in shlex.split(call.replace("\\", "\\\\"))]
    with monkeypatch.context() as patch, open(os.devnull) as nothing:  # noqa: PTH123
        patch.setattr(sys, "stdin", nothing)
        assert cli.main(arguments) == 1
    printed = capsys.readouterr()
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith(f"uvsdk {arguments[0]}: ")
    assert words in last
    assert "a fault of ours" not in last
    # A server logs in JSON before it fails; nothing else is said.
    assert [text for text in printed.err.splitlines() if not text.startswith("{")] == [last]


def test_a_locked_database_is_one_line(
    place: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = place
    monkeypatch.setattr(database, "_BUSY_MS", 100)
    with closing(sqlite3.connect(folder / "used" / "server.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert cli.main(["token", "--data", str(folder / "used"), "create", "--scope", "verify"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_what_nobody_foresaw_is_one_line_too() -> None:
    assert cli._words(OSError(28, "No space left on device", "/x")) == "/x: No space left on device"
    assert cli._words(MemoryError()) == "not enough memory"
    assert "UVSDK_TRACEBACK=1" in cli._words(RuntimeError("two\nlines"))
    assert "\n" not in cli._words(RuntimeError("two\nlines"))
    assert (
        cli._words(ModuleNotFoundError("no", name="sklearn"))
        == "this needs the package sklearn, which is not installed"
    )


ASCII = """
import sys
from uvsdk.cli import main
store = ["--store", "names", "--passphrase-file", "pw"]
assert main(["enroll", "Zo\\xeb-\\u65e5", "p0.png", "p1.png", "p2.png", "--model", "m.uvb", *store]) == 0
print("listed:")
assert main(["store", "--list", *store]) == 0
sys.stdout = None  # what Python makes of a closed one
assert main(["store", "--list", *store]) == 0
assert main(["store", "--delete", "nobody", *store]) == 1
sys.stderr = None
assert main(["store", "--delete", "nobody", *store]) == 1
"""


def test_names_that_the_terminal_cannot_show(place: tuple[Path, int]) -> None:
    folder, _ = place
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", ASCII]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("listed:\nZo\\xeb-\\u65e5\n")
    assert done.stderr == "uvsdk store: nobody of that name is enrolled on this device\n"


def test_output_that_cannot_be_written(place: tuple[Path, int]) -> None:
    folder, _ = place
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "uvsdk", "algorithms"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, cwd=folder)
    assert (done.returncode, done.stderr) == (1, "uvsdk algorithms: No space left on device\n")


def test_ctrl_c_is_one_line(place: tuple[Path, int]) -> None:
    folder, _ = place
    os.mkfifo(folder / "pipe")
    arguments = ["enroll", "ana", "p0.png", "--model", "m.uvb", "--store", "unfinished", "--passphrase-file", "pipe"]
    command = [sys.executable, "-m", "uvsdk", *arguments]
    # Whoever runs tests in the background ignores the signal, and a child would inherit that.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder, preexec_fn=heeds)
    held = None
    while held is None and process.poll() is None:  # until the other side reads
        with contextlib.suppress(OSError):
            held = os.open(folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[1] == "uvsdk enroll: interrupted\n"
    assert process.returncode == 130
    assert held is not None
    os.close(held)


def test_a_service_that_is_stopped_has_not_failed(place: tuple[Path, int], tmp_path: Path) -> None:
    folder, _ = place
    command = [sys.executable, "-m", "uvsdk", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    command += ["--model", str(folder / "m.uvb"), "--training", str(folder / "t.json")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    assert process.stdout.readline().startswith("operator token")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_a_device_command_does_not_load_the_server() -> None:
    code = (
        "import sys\n"
        "from uvsdk import cli\n"
        "found, _ = cli._load('verify')\n"
        "assert 'verify' in {command.name for command in found}\n"
        "assert not {'fastapi', 'sqlalchemy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
