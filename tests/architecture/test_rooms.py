"""No import runs back up."""

from __future__ import annotations

import re

from tests.architecture import rooms

HOUSE = (rooms.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## The house")[1].split("\n## ")[0]


def test_no_arrow_runs_back_up() -> None:
    found = rooms.arrows()
    assert {pair: sorted(found[pair]) for pair in rooms.back(found)} == {}


def test_every_room_has_its_floor() -> None:
    there = {rooms.room(module) for module, _ in rooms.modules()} - {"uvsdk", "__main__"}
    assert there == {name for floor in rooms.FLOORS for name in floor}


def test_an_arrow_that_runs_back_is_seen() -> None:
    assert rooms.back({("scoring", "bundle"): set(), ("bundle", "scoring"): set()}) == [("scoring", "bundle")]
    assert rooms.back({("privacy", "scoring"): set()}) == [("privacy", "scoring")], "rooms of one floor"


def test_every_room_is_described() -> None:
    there = {name.removesuffix(".py").split("/")[-1] for name in re.findall(r"`([\w/.]+)`", HOUSE)}
    assert {name for floor in rooms.FLOORS for name in floor} <= there


def test_every_file_of_a_walk_exists() -> None:
    named = [name for name in re.findall(r"`([\w/]+/[\w/.]+)`", HOUSE) if "<" not in name]
    assert len(named) > 25
    assert [name for name in named if not (rooms.ROOT / name).exists()] == []
