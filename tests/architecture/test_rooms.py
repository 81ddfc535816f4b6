"""No import runs back up."""

from __future__ import annotations

from tests.architecture import rooms


def test_no_arrow_runs_back_up() -> None:
    found = rooms.arrows()
    assert {pair: sorted(found[pair]) for pair in rooms.back(found)} == {}


def test_every_room_has_its_floor() -> None:
    there = {rooms.room(module) for module, _ in rooms.modules()} - {"uvsdk", "__main__"}
    assert there == {name for floor in rooms.FLOORS for name in floor}


def test_an_arrow_that_runs_back_is_seen() -> None:
    assert rooms.back({("scoring", "bundle"): set(), ("bundle", "scoring"): set()}) == [("scoring", "bundle")]
    assert rooms.back({("privacy", "scoring"): set()}) == [("privacy", "scoring")], "rooms of one floor"
