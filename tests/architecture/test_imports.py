"""Who may import whom, and that nothing but training ever loads torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import uvsdk
from tests.extras import WITH_TORCH

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT, ROOT / "server", ROOT / "device")

WITHOUT_TORCH = """
import sys
for name in ("torch", "torchvision", "facenet_pytorch", "onnx", "scipy", "sklearn"):
    sys.modules[name] = None
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
"""

LIGHT = """
import sys
import uvsdk
assert uvsdk.enroll is not None
heavy = sorted({"onnxruntime", "PIL", "soundfile", "soxr", "httpx", "keyring", "torch"} & set(sys.modules))
sys.exit(f"import uvsdk also loads {heavy}" if heavy else 0)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(source) for source in SOURCES)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def needs_training(name: str) -> bool:
    of_a_device = name.startswith("uvsdk.federation.") and name.endswith(".client")
    return of_a_device or any(name == item or name.startswith(f"{item}.") for item in WITH_TORCH)


def walk(package: str, folder: Path) -> list[str]:
    """Every module of a package, found on disk so that a new one is covered without being listed."""
    names = [package]
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and parts[-1] != "__main__":
            names.append(".".join((package, *parts)))
    return sorted(set(names))


@pytest.mark.parametrize(
    ("package", "folder"),
    [
        ("uvsdk", ROOT / "uvsdk"),
        ("uvsdk_server", ROOT / "server" / "uvsdk_server"),
        ("uvsdk_device", ROOT / "device" / "uvsdk_device"),
    ],
)
def test_everything_but_training_imports_without_torch(package: str, folder: Path) -> None:
    # Migrations are run by Alembic inside its own context and cannot be imported by themselves.
    names = [name for name in walk(package, folder) if not needs_training(name) and ".migrations" not in name]
    assert package in names
    result = run(WITHOUT_TORCH, *names)
    assert result.returncode == 0, result.stderr[-3000:]


def test_import_uvsdk_is_light() -> None:
    result = run(LIGHT)
    assert result.returncode == 0, result.stderr


def test_onnxruntime_is_imported_in_one_place() -> None:
    """Which turns off its reports first: uvsdk.system.offline."""
    folders = ("uvsdk", "server", "device", "examples", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    importers = {
        str(path.relative_to(ROOT))
        for path in files
        if "onnxruntime" in (text := path.read_text()) and any(_imports(node) for node in ast.walk(ast.parse(text)))
    }
    assert importers == {"uvsdk/system/execution.py"}


def _imports(node: ast.AST) -> bool:
    """Whether this imports onnxruntime, by a statement or by the call of a function that imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""] if not node.level else []
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        names = [str(node.args[0].value)] if called in ("importorskip", "import_module", "__import__") else []
    else:
        return False
    return any(name.split(".")[0] == "onnxruntime" for name in names)


def test_public_names() -> None:
    assert uvsdk.__all__ == sorted(uvsdk.__all__)
    assert uvsdk.__all__ == [
        "Bundle",
        "Capture",
        "Decision",
        "Enrollment",
        "Gallery",
        "Identification",
        "MemoryStore",
        "Quality",
        "Sample",
        "Template",
        "Threshold",
        "UvsdkError",
        "VoiceStream",
        "enroll",
        "fuse",
        "hash_user_id",
        "identify",
        "verify",
    ]
    for name in uvsdk.__all__:
        assert getattr(uvsdk, name) is not None
        assert name in dir(uvsdk)
    assert callable(uvsdk.enroll)
    assert callable(uvsdk.verify)


def test_the_functions_win_over_the_modules_of_the_same_name() -> None:
    result = run("import uvsdk.enroll, uvsdk.verify; uvsdk.enroll.__call__; uvsdk.verify.__call__")
    assert result.returncode == 0, result.stderr


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'enrol'"):
        _ = uvsdk.enrol


def test_import_contracts() -> None:
    pytest.importorskip("importlinter", reason="import-linter is in the dev extra")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    paths = os.pathsep.join(str(source) for source in SOURCES)
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


def test_the_server_reads_the_wall_clock_in_one_place() -> None:
    """Everything else is handed a clock, so that a test may set it; a migration runs by itself."""
    readers = {
        str(path.relative_to(ROOT / "server" / "uvsdk_server"))
        for path in (ROOT / "server" / "uvsdk_server").rglob("*.py")
        if "time.time" in path.read_text()
    }
    assert readers == {"clocks.py", "store/migrations/versions/0009_devices.py"}
