"""Whom a round waits for."""

from uvsdk_server.awaited import Awaited

ALL = frozenset("abcd")


def waited(awaited: Awaited, round_id: int = 1, *, quorum: bool = True, absent: bool = False) -> str:
    return "".join(sorted(awaited.waited_for(ALL, round_id, quorum=quorum, absent=absent)))


def test_without_a_quorum_everyone_is_waited_for_but_the_refused() -> None:
    awaited = Awaited()
    awaited.open(1)
    awaited.refuse("a", 1)
    awaited.stall("b", 1)
    assert waited(awaited, quorum=False, absent=True) == "bcd"
    assert waited(awaited) == "cd"
    assert awaited.asked(ALL, 1) == frozenset("bcd")


def test_who_has_fetched_nothing_is_absent_when_the_time_for_it_is_over() -> None:
    awaited = Awaited()
    awaited.open(1)
    awaited.begin("c", 1)
    assert waited(awaited) == "abcd"
    assert waited(awaited, absent=True) == "c"


def test_a_server_that_was_started_in_the_middle_calls_nobody_absent() -> None:
    awaited = Awaited()
    awaited.begin("c", 1)
    assert waited(awaited, absent=True) == "abcd"


def test_who_stalled_and_then_has_a_task_is_waited_for_again() -> None:
    awaited = Awaited()
    awaited.open(1)
    awaited.stall("a", 1)
    awaited.begin("a", 1)
    assert waited(awaited) == "abcd"


def test_what_comes_late_of_a_former_round_is_nothing_to_the_next() -> None:
    awaited = Awaited()
    awaited.open(1)
    awaited.refuse("a", 1)
    awaited.open(2)
    awaited.refuse("b", 1)
    awaited.stall("c", 1)
    assert waited(awaited, 2) == "abcd"


def test_a_device_that_always_keeps_others_waiting_costs_ever_fewer_deadlines() -> None:
    awaited, missed = Awaited(), []
    for round_id in range(1, 101):
        awaited.open(round_id)
        awaited.begin("a", round_id)
        if "a" in waited(awaited, round_id):
            missed.append(round_id)
            awaited.close(frozenset("a"), round_id)
    # Waited for twice, and then not in 1, 2, 4, ... rounds.
    assert missed == [1, 2, 4, 7, 12, 21, 38, 71]


def test_one_miss_has_no_consequence_and_an_update_ends_them_all() -> None:
    awaited = Awaited()
    awaited.close(frozenset("a"), 1)
    assert waited(awaited, 2) == "abcd"
    awaited.close(frozenset("a"), 2)
    assert waited(awaited, 3) == "bcd"
    assert waited(awaited, 3, quorum=False) == "abcd"
    awaited.arrive("a")
    assert waited(awaited, 3) == "abcd"
    awaited.close(frozenset("a"), 3)
    awaited.close(frozenset("a"), 4)
    awaited.forget(frozenset("a"))
    assert waited(awaited, 5) == "abcd"
