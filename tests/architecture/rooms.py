"""The house as it stands: rooms, the arrows between them, and which of these run back up.

``python -m tests.architecture.rooms`` prints them; ``test_rooms.py`` holds them to :data:`FLOORS`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"uvsdk": ROOT, "uvsdk_server": ROOT / "server", "uvsdk_device": ROOT / "device"}

FLOORS = (
    ("uvsdk_server", "uvsdk_device"),
    ("commands",),
    ("cli",),
    ("simulation",),
    ("training", "evaluation"),
    ("enroll", "stream"),
    ("enrolment", "identify"),
    ("verify",),
    ("presentation", "templates", "release"),
    ("federation",),
    ("bundle",),
    ("modality", "rest"),
    ("privacy", "scoring"),
    ("records", "system"),
    ("arrays",),
    ("errors",),
)
"""From the roof to the ground. A room imports from lower floors only; rooms of one floor do not know each other."""


def arrows() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(room, room) -> the modules that import, those inside functions and for type checkers only included."""
    files = dict(modules())
    found = dict[tuple[str, str], set[tuple[str, str]]]()
    for module, path in files.items():
        for target in sorted(_targets(ast.parse(path.read_text()), files)):
            pair = room(module), room(target)
            if pair[0] != pair[1]:
                found.setdefault(pair, set()).add((module, target))
    return found


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the three packages and its file."""
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def room(module: str) -> str:
    """Which room a module is in: the first name below ``uvsdk``, or its package."""
    package, _, rest = module.partition(".")
    return rest.split(".")[0] if package == "uvsdk" and rest else package


def back(found: Mapping[tuple[str, str], set[tuple[str, str]]]) -> list[tuple[str, str]]:
    """The arrows that run up, or along a floor. The front door (``uvsdk``) opens on every room below the commands."""
    height = {name: len(FLOORS) - place for place, floor in enumerate(FLOORS) for name in floor}
    height.update({"uvsdk": height["simulation"], "__main__": len(FLOORS) + 1})
    return sorted(pair for pair in found if height[pair[0]] <= height[pair[1]])


def _targets(tree: ast.AST, files: Mapping[str, Path]) -> set[str]:
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names.update(inside & set(files) or {node.module})
    return {name for name in names if name.split(".")[0] in PACKAGES}


def main() -> None:
    """Print the rooms with their size, the arrows, and those that run back."""
    found, lines = arrows(), dict[str, int]()
    for module, path in modules():
        lines[room(module)] = lines.get(room(module), 0) + len(path.read_text().splitlines())
    for floor in FLOORS:
        for name in floor:
            targets = sorted(target for source, target in found if source == name)
            print(f"{name:14} {lines.get(name, 0):6} lines -> {' '.join(targets)}")
    print(f"{len(lines)} rooms, {sum(lines.values())} lines, {len(found)} arrows, {len(back(found))} back")
    for pair in back(found):
        print(f"back: {pair[0]} -> {pair[1]}: {sorted(found[pair])}")


if __name__ == "__main__":
    main()
