"""Enrolment and verification ask no network and write nothing outside the store, whoever imports what first.

The kernel kills a process that asks for a socket (``tests/without_network.py``); home, XDG folders, temporary folder
and working directory of every process are new, empty and looked at afterwards.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile
from PIL import Image
from sklearn.datasets import load_digits

from tests import without_network
from tests.integration.harness import CONFIG
from tests.synthetic_voice import RATE, utterance
from uvsdk.bundle import shipped
from uvsdk.system.offline import SWITCH

pytestmark = pytest.mark.skipif(not without_network.supported(), reason="needs seccomp of Linux on x86-64 or arm64")

ROOT = Path(__file__).resolve().parents[2]
GUARD = [sys.executable, str(ROOT / "tests" / "without_network.py")]

# Under these onnxruntime is silent by itself, and the test would prove nothing.
SILENT_BY_ITSELF = (SWITCH, "ORT_RUNNING_UNIT_TESTS", "CI", "GITHUB_ACTIONS", "TF_BUILD")

VERIFY = """
import multiprocessing, os, sys
{first}
import uvsdk
{second}
from pathlib import Path
from uvsdk import modality
from uvsdk.bundle import shipped
from uvsdk.system.execution import onnxruntime

def verify():
    pages = sorted(Path(sys.argv[1]).glob("ada-*.png"))
    ada = uvsdk.enroll("ada", pages[:5], model=shipped("digits"), store=uvsdk.MemoryStore())
    assert uvsdk.verify(pages[5], ada.template, model=shipped("digits")).accepted

class Speech:
    class manifest:
        preprocessing = {preprocessing}
    def session(self, name):
        graph = Path(uvsdk.__file__).parent / "modality" / "voice" / "speech.onnx"
        return onnxruntime.InferenceSession(graph.read_bytes(), providers=["CPUExecutionProvider"])

def all_of_it():
    verify()
    modality.get("voice").prepare(Path(sys.argv[1]) / "ada.flac", Speech())
    others = [name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
    names = [Path(f"/proc/self/task/{{name}}/comm").read_text().strip() for name in others]
    assert all(name.startswith("python") for name in names), names  # of computing, none that has a name of its own

if __name__ == "__main__":
    all_of_it()
    for way in ("fork", "spawn"):
        child = multiprocessing.get_context(way).Process(target=all_of_it)
        child.start()
        child.join()
        assert child.exitcode == 0, (way, child.exitcode)
    print("verified")
"""

WRITING = "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"

POWER = {"sample_rate": 16000, "mels": 40, "window_s": 0.025, "hop_s": 0.01, "scale": "power", "mean": "none"}


@dataclass
class Surroundings:
    """A place where whatever a process writes is seen."""

    samples: Path
    folders: Mapping[str, Path]
    allowed: Path

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in SILENT_BY_ITSELF}
        kept = {name: value for name, value in kept.items() if not name.startswith("UVSDK_")}
        paths = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
        watched = {name: str(folder) for name, folder in self.folders.items() if name != "cwd"}
        return {
            **kept,
            **watched,
            "PYTHONPATH": paths,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def written(self) -> list[str]:
        """What lies in the watched folders."""
        return [str(path) for folder in self.folders.values() for path in folder.rglob("*") if path.is_file()]

    def run(
        self, *command: str, call: str = "socket", then: str = "kill", traced: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments where ``call`` is forbidden; ``traced`` where there is strace."""
        tracer: list[str] = []
        strace = shutil.which("strace")
        if traced and strace is not None and _may_trace(strace):
            tracer = [strace, "-f", "-qq", "-z", "-e", f"trace={WRITING}", "-o", str(self.samples / "trace")]
        return subprocess.run(
            [*GUARD, call, then, *tracer, sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folders["cwd"],
            env=self.environment(),
        )

    def touched(self) -> list[str]:
        """What the last traced command opened to write outside ``allowed``; nothing where nobody may trace."""
        trace = self.samples / "trace"
        if not trace.exists():
            return []
        lines = [
            line for line in trace.read_text().splitlines() if not re.search(r" open(at)?\(", line) or _writes(line)
        ]
        assert any(str(self.allowed) in line for line in lines)
        return [line for line in lines if str(self.allowed) not in line]

    @contextmanager
    def running(self, *command: str) -> Iterator[str]:
        """A service that may listen and not call anybody; its address."""
        process = subprocess.Popen(
            [*GUARD, "connect", "kill", sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folders["cwd"],
            env=self.environment(),
        )
        try:
            assert process.stdout is not None
            found = re.search(r"listening on (http://[\d.:]+)", process.stdout.readline())
            assert found is not None, process.communicate(timeout=30)
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert process.returncode not in (-signal.SIGSYS, -signal.SIGKILL), out + err


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    names = (
        "HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_RUNTIME_DIR",
        "TMPDIR",
    )
    folders = {name: tmp_path / name.lower() for name in (*names, "cwd")}
    samples = tmp_path / "samples"
    for folder in (*folders.values(), samples, tmp_path / "store"):
        folder.mkdir(mode=0o700)
    digits = load_digits()
    for number, page in enumerate(digits.images[digits.target == 3][:6]):
        Image.fromarray((255 - page / 16 * 255).astype("uint8")).save(samples / f"ada-{number}.png")
    soundfile.write(samples / "ada.flac", utterance(3.0, 1), RATE)
    shipped().save(samples / "model.uvb")
    (samples / "passphrase").write_text("correct horse battery staple\n")
    (samples / "training.json").write_text(CONFIG.to_json())
    return Surroundings(samples, folders, tmp_path / "store")


def _may_trace(strace: str) -> bool:
    return subprocess.run([strace, "-qq", "true"], capture_output=True).returncode == 0


def _writes(line: str) -> bool:
    return bool(re.search(r"O_WRONLY|O_RDWR|O_CREAT", line)) and '"/dev/' not in line


def program(surroundings: Surroundings, *, first: str = "", second: str = "") -> str:
    path = surroundings.samples / "program.py"
    path.write_text(VERIFY.format(first=first, second=second, preprocessing=POWER))
    return str(path)


def store_arguments(surroundings: Surroundings) -> list[str]:
    store, passphrase = surroundings.allowed / "ada", surroundings.samples / "passphrase"
    model = surroundings.samples / "model.uvb"
    return ["--model", str(model), "--store", str(store), "--passphrase-file", str(passphrase)]


@pytest.mark.parametrize("call", ["socket", "connect"])
def test_the_guard_sees_what_python_does_not(surroundings: Surroundings, call: str) -> None:
    ask = (
        "import ctypes, socket, threading; libc = ctypes.CDLL(None, use_errno=True);"
        f"call = lambda: libc.connect(0, b'', 0) if {call!r} == 'connect' else libc.socket(2, 2, 0);"
        "ask = lambda: (call(), ctypes.get_errno());"
        "print(ask()); thread = threading.Thread(target=ask); thread.start(); thread.join(); print('lives')"
    )
    assert surroundings.run("-c", ask, call=call).returncode == -signal.SIGSYS
    assert surroundings.run("-c", ask, call=call, then="refuse").stdout == "(-1, 13)\nlives\n"


def test_the_api_in_this_and_in_forked_and_spawned_processes(surroundings: Surroundings) -> None:
    # Whatever the environment says, and if the application imports onnxruntime itself, after uvsdk.
    path = program(surroundings, first=f"os.environ[{SWITCH!r}] = '0'", second="import onnxruntime")
    done = surroundings.run("-W", "error", path, str(surroundings.samples))
    assert (done.returncode, done.stdout) == (0, "verified\n"), done.stderr
    assert surroundings.written() == []


def test_an_application_that_imported_onnxruntime_before_is_told(surroundings: Surroundings) -> None:
    before = "import onnxruntime, uvsdk, os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'; import uvsdk.bundle"
    done = surroundings.run("-c", before, then="refuse")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Import uvsdk first, or set ORT_DISABLE_TELEMETRY=1") == 1
    switched_off = f"import os; os.environ[{SWITCH!r}] = 'true'; {before}"
    done = surroundings.run("-W", "error", "-c", switched_off)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_and_the_agent(surroundings: Surroundings) -> None:
    pages = [str(surroundings.samples / f"ada-{number}.png") for number in range(6)]
    for command in (("enroll", "ada", *pages[:5]), ("verify", "ada", pages[5])):
        done = surroundings.run("-m", "uvsdk", *command, *store_arguments(surroundings), traced=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert surroundings.touched() == []
    with surroundings.running("-m", "uvsdk", "agent", "--port", "0", *store_arguments(surroundings)) as url:
        token = (surroundings.allowed / "ada" / "agent-token").read_text().strip()
        answer = _verify(url, token, Path(pages[5]).read_bytes())
        assert answer["accepted"] is True
    assert surroundings.written() == []


def test_the_server(surroundings: Surroundings) -> None:
    data, model = surroundings.allowed / "server", surroundings.samples / "model.uvb"
    training = surroundings.samples / "training.json"
    command = ["serve", "--data", str(data), "--model", str(model), "--training", str(training), "--port", "0"]
    with (
        surroundings.running("-m", "uvsdk", *command) as url,
        urllib.request.urlopen(f"{url}/readyz", timeout=30) as answered,
    ):
        assert json.load(answered) == {"status": "ok"}
    assert surroundings.written() == []


def _verify(url: str, token: str, sample: bytes) -> dict[str, object]:
    body = json.dumps({"user": "ada", "sample": base64.b64encode(sample).decode()}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/verify", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answered:
        found: dict[str, object] = json.load(answered)
    return found
