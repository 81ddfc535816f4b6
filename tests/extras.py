"""Which test files need a package that an extra brings and this environment lacks.

Read from the source, so that a file is skipped for what it imports (itself, or by way of our own modules) and for
nothing else: a module that should do without torch and does not is still an error.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, ROOT / "server", ROOT / "device")

EXTRAS = {
    "torch": "train",
    "torchvision": "train",
    "torchaudio": "train",
    "facenet_pytorch": "train",
    "onnx": "train",
    "av": "media",
    "pillow_heif": "media",
    "matplotlib": "evaluate",
    "rich": "simulate",
    "sklearn": "simulate",
    "tensorboard": "simulate",
    "ray": "scale",
    "faiss": "scale",
}
"""Packages that an extra brings -> the extra."""


WITH_TORCH = (
    "uvsdk.training.backbones",
    "uvsdk.training.export",
    "uvsdk.training.graphs",
    "uvsdk.simulation",
    "uvsdk.training.loop",
)
"""Modules that train or export; everything else must load where torch is not installed."""


def lacking(path: Path) -> frozenset[str]:
    """The packages of :data:`EXTRAS` that importing this file needs and that are not installed."""
    absent = {package for package in EXTRAS if not _is_installed(package)}
    return frozenset(_needed(path) & absent) if absent else frozenset()


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _needed(start: Path) -> set[str]:
    """Packages from outside that are imported when ``start`` is, directly or not."""
    needed: set[str] = set()
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imported(path):
            files = _files(name)
            waiting.extend(files)
            if not files:
                needed.add(name.split(".")[0])
    return needed


@functools.cache
def _imported(path: Path) -> tuple[str, ...]:
    """The names that the module's import statements load, those inside functions left out."""
    return tuple(_names(ast.parse(path.read_bytes()).body))


def _names(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            # What is imported from a package may be a module of its own.
            yield str(statement.module)
            yield from (
                f"{statement.module}.{alias.name}" for alias in statement.names if _files(str(statement.module))
            )
        elif isinstance(statement, ast.If):
            typing_only = "TYPE_CHECKING" in ast.dump(statement.test)
            yield from _names(statement.orelse if typing_only else statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from _names(statement.body)


@functools.cache
def _files(name: str) -> tuple[Path, ...]:
    """Our own files that importing ``name`` executes, its packages' included; empty for what is not ours."""
    parts = name.split(".")
    found = []
    for source in SOURCES:
        for length in range(1, len(parts) + 1):
            place = source.joinpath(*parts[:length])
            found += [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()]
    return tuple(found)
