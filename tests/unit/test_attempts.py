"""When attempts wait and when they are closed, by hand; laws on random histories; what a killed process cannot undo."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.errors import AttemptsError, DisabledError, SettingsError, TooManyAttemptsError
from uvsdk.scoring import Basis, Decision, Placement, Threshold
from uvsdk.templates.attempts import (
    HOUR_S,
    WITH_DETECTION,
    Attempts,
    Outcome,
    Recent,
    RetryPolicy,
    Ticket,
    anchored,
    begun,
    is_known,
    outcome_of,
    refusal,
    settled,
    wait_s,
)

POLICY = RetryPolicy()


def attempt(state: Attempts, outcome: Outcome, now: float, policy: RetryPolicy = POLICY) -> Attempts:
    """One attempt that is admitted at ``now`` and ends at once."""
    assert wait_s(state, policy, now) == 0
    return settled(begun(state, policy, now), outcome, Ticket(now, state.since_s), policy, now=now)


def failed(times: int, *, since_s: float = 0.0) -> Attempts:
    return Attempts(failures=times, since_s=since_s)


def test_the_numbers_of_nist() -> None:
    # 30 s after 5, doubled each time: 30, 60, 120, 240, 480, 960, 1920; the next would be 3840, which is over an hour.
    delays = [POLICY.delay_s(failures) for failures in range(5, 14)]
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert all(POLICY.delay_s(failures) == 0 for failures in range(5))
    assert POLICY.delay_s(49) == 3600
    assert POLICY.delay_s(50) == math.inf
    assert (WITH_DETECTION.free_failures, WITH_DETECTION.disabled_at) == (10, 100)
    assert WITH_DETECTION.delay_s(9) == 0
    assert WITH_DETECTION.delay_s(10) == 30


def test_fifty_failures_take_a_day_and_a_half_and_then_it_is_closed() -> None:
    state, now = Attempts(), 0.0
    for _ in range(50):
        now += wait_s(state, POLICY, now)
        state = attempt(state, "rejected", now)
    # Waits after failures 5 to 11 are 30 + ... + 1920 = 30 (2^7 - 1) = 3810 s, then 38 waits of an hour (12 to 49).
    assert now == 30 * (2**7 - 1) + 38 * 3600
    assert wait_s(state, POLICY, now + 1e9) == math.inf
    assert wait_s(attempt(Attempts(failures=49), "accepted", 1e9), POLICY, 1e9) == 0


def test_an_acceptance_starts_anew() -> None:
    state = failed(4)
    state = attempt(state, "accepted", 10.0)
    assert state == Attempts(since_s=10.0, recent=Recent(at_s=10.0), accepted_s=10.0)
    for second in range(4):
        state = attempt(state, "rejected", 11.0 + second)
    assert wait_s(state, POLICY, 14.0) == 0


def test_an_attempt_counts_before_its_outcome_is_known() -> None:
    state = begun(failed(4), POLICY, now=100.0)
    assert state.failures == 5
    assert wait_s(state, POLICY, 100.0) == 30


def test_the_delay_runs_from_the_answer() -> None:
    state = begun(failed(4), POLICY, now=100.0)
    state = settled(state, "rejected", Ticket(100.0, 0.0), POLICY, now=103.0)
    assert wait_s(state, POLICY, 103.0) == 30


def test_every_tenth_unusable_sample_is_a_failure() -> None:
    state = Attempts()
    for number in range(1, 50):
        state = attempt(state, "unusable", float(number))
        assert state.failures == number // 10
        assert state.unusable == number
    # 49 unusable samples are 4 failures; the 50th makes it 5, which waits.
    state = attempt(state, "unusable", 50.0)
    assert wait_s(state, POLICY, 50.0) == 30
    assert attempt(state, "accepted", 80.0).unusable == 0


def test_an_unusable_sample_costs_no_new_wait() -> None:
    state = failed(6, since_s=0.0)  # waits until 60
    state = attempt(state, "unusable", 60.0)
    assert (state.failures, state.unusable, state.since_s) == (6, 1, 0.0)
    assert wait_s(state, POLICY, 60.0) == 0


def test_another_error_counts_as_nothing() -> None:
    state = failed(6)
    for _ in range(100):
        state = attempt(state, "void", 60.0)
    assert state == Attempts(6, recent=Recent(at_s=60.0))


def test_what_ends_beside_an_acceptance_stays_counted() -> None:
    # Three side by side: the first is accepted, the other two are still undecided and turn out to be rejected.
    state = begun(begun(begun(Attempts(), POLICY, 1.0), POLICY, 2.0), POLICY, 3.0)
    state = settled(state, "accepted", Ticket(1.0, 0.0), POLICY, now=4.0, undecided=2)
    assert state.failures == 2
    state = settled(state, "rejected", Ticket(2.0, 1.0), POLICY, now=5.0, undecided=1)
    state = settled(state, "rejected", Ticket(3.0, 2.0), POLICY, now=6.0, undecided=0)
    assert state.failures == 2


def test_a_reset_while_an_attempt_runs_keeps_that_attempt() -> None:
    assert settled(Attempts(), "rejected", Ticket(1.0, 0.0), POLICY, now=2.0).failures == 1
    assert settled(Attempts(), "unusable", Ticket(1.0, 0.0), POLICY, now=2.0).failures == 0


@pytest.mark.parametrize("jump_s", [1.0, 29.0, 3600.0, 1e9])
def test_a_clock_that_goes_back_waits_one_whole_delay_and_no_longer(jump_s: float) -> None:
    state = failed(5, since_s=1e9)
    now = 1e9 + 29.0 - jump_s - 29.0
    assert wait_s(anchored(state, now), POLICY, now) == 30
    moved = anchored(state, now)
    assert wait_s(moved, POLICY, now + 29.9) == pytest.approx(0.1)
    assert wait_s(moved, POLICY, now + 30.0) == 0
    assert anchored(moved, now + 30.0) == moved


def test_a_clock_that_goes_back_never_opens_what_is_disabled() -> None:
    state = failed(50, since_s=1e9)
    for now in (0.0, 1e9, 2e9):
        assert wait_s(anchored(state, now), POLICY, now) == math.inf


@given(
    st.lists(st.tuples(st.sampled_from(["rejected", "unusable", "void"]), st.floats(0, 5000)), max_size=120),
    st.integers(1, 6),
    st.integers(6, 20),
)
def test_no_history_compares_more_than_is_allowed(
    history: list[tuple[Outcome, float]], free: int, disabled_at: int
) -> None:
    """However attempts come, at most ``disabled_at`` are rejected, and those after ``free`` lie a delay apart."""
    policy = RetryPolicy(free_failures=free, disabled_at=disabled_at)
    state, now, rejections = Attempts(), 0.0, list[float]()
    for outcome, pause_s in history:
        now += pause_s
        state = anchored(state, now)
        if wait_s(state, policy, now) > 0:
            continue
        state = attempt(state, outcome, now, policy)
        if outcome == "rejected":
            rejections.append(now)
    assert len(rejections) <= disabled_at
    for earlier, later in zip(rejections[free - 1 :], rejections[free:], strict=False):
        assert later - earlier >= policy.first_delay_s


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_whatever_the_clock_does_nobody_waits_for_ever_and_failures_never_vanish(clock: list[float]) -> None:
    state = failed(7, since_s=clock[0])
    for now in clock:
        state = anchored(state, now)
        assert state.failures == 7
        assert 0 <= wait_s(state, POLICY, now) <= POLICY.delay_s(7)


def test_refusals_say_how_many_how_long_and_what_to_do() -> None:
    waiting = refusal(failed(6, since_s=100.0), POLICY, 100.5, whose="this person", reset="enrol again")
    assert isinstance(waiting, TooManyAttemptsError)
    assert waiting.retry_after_s == 59.5
    assert str(waiting) == "6 failed attempts in a row for this person; the next one is looked at in 60 s"
    closed = refusal(failed(50), POLICY, 1e9, whose="this device", reset="run `uvsdk attempts reset --device`")
    assert isinstance(closed, DisabledError)
    assert isinstance(closed, AttemptsError)
    assert "50 failed attempts in a row for this device" in str(closed)
    assert str(closed).endswith("then run `uvsdk attempts reset --device`")


# In a window: whatever is accepted in between

CALLER = RetryPolicy.windows(per_hour=60, per_day=300)


def test_spraying_is_slowed_whatever_is_accepted_in_between() -> None:
    """Four failures at each of thirty-five people, and after each four an acceptance of one's own."""
    state, now, slowed = Attempts(), 0.0, 0
    for _ in range(35):
        for outcome in ("rejected",) * 4 + ("accepted",):
            waits = wait_s(state, CALLER, now)
            slowed += waits > 0
            now += waits
            state = attempt(state, outcome, now, CALLER)
    # Sixty at once, the other eighty one a minute, and an acceptance among them finds the room that came meanwhile.
    assert slowed >= 80
    assert now == pytest.approx(80 * 60, rel=0.05)


def test_a_window_has_room_again_after_a_part_of_it_and_the_day_bounds_the_hours() -> None:
    state = Attempts()
    for _ in range(60):
        state = attempt(state, "rejected", 0.0, CALLER)
    assert wait_s(state, CALLER, 0.0) == pytest.approx(60)
    assert wait_s(state, CALLER, 60.0) == 0
    assert wait_s(state, CALLER, 3600.0) == 0
    now = 0.0
    failures = 60
    while now < 86_400:
        now += wait_s(state, CALLER, now) + 0.01
        state = attempt(state, "rejected", now, CALLER)
        failures += 1
    # 300 fit into the day's window at once and 300 run out of it in a day.
    assert 590 <= failures <= 602


@given(
    st.lists(st.tuples(st.sampled_from(["rejected", "accepted"]), st.floats(0, 300)), max_size=150),
    st.integers(1, 10),
    st.integers(10, 30),
)
def test_no_history_holds_more_failures_than_the_window(
    history: list[tuple[Outcome, float]], per_hour: int, per_day: int
) -> None:
    policy = RetryPolicy.windows(per_hour=per_hour, per_day=per_day)
    state, now, rejections = Attempts(), 0.0, list[float]()
    for outcome, pause_s in history:
        now += pause_s
        if wait_s(state, policy, now) > 0:
            continue
        state = attempt(state, outcome, now, policy)
        if outcome == "rejected":
            rejections.append(now)
    for place, start in enumerate(rejections):
        within = [moment for moment in rejections[place:] if moment < start + HOUR_S]
        assert len(within) <= 2 * per_hour


def test_a_caller_who_is_accepted_at_will_finds_no_free_oracle() -> None:
    """One who is accepted after each rejection, e.g. looking for the lowest rate that a probe still passes."""
    state, now, rejected = Attempts(), 0.0, 0
    for _ in range(1000):
        if wait_s(state, POLICY, now) > 0:
            break
        state = attempt(state, "accepted", now)
        state = attempt(state, "rejected", now)
        rejected += 1
    assert rejected == POLICY.per_hour
    assert state.failures == 1


def test_a_score_that_is_told_stays_in_the_windows() -> None:
    state = Attempts()
    for _ in range(POLICY.per_hour):
        assert wait_s(state, POLICY, 0.0) == 0
        begins = begun(state, POLICY, 0.0)
        state = settled(begins, "accepted", Ticket(0.0, 0.0), POLICY, now=0.0, told=True)
    assert (state.failures, state.recent.hour, state.recent.day) == (0, 20, 20)
    assert wait_s(state, POLICY, 0.0) == pytest.approx(3600 / 20)
    # Not told, nothing is kept.
    assert attempt(Attempts(), "accepted", 0.0).recent == Recent()


def test_ten_unusable_samples_fill_the_windows_as_one_failure_does() -> None:
    state = Attempts()
    for _ in range(10):
        state = attempt(state, "unusable", 0.0)
    assert state.recent.hour == pytest.approx(1.0)
    assert attempt(state, "void", 0.0).recent.hour == pytest.approx(1.0)


def test_nothing_runs_out_of_a_window_by_a_clock_that_goes_back() -> None:
    state = Attempts(recent=Recent(20, 20, 1e9))
    state = anchored(state, 5.0)
    assert wait_s(state, POLICY, 5.0) == pytest.approx(180)
    assert wait_s(state, POLICY, 185.0) == 0


def test_a_caller_is_known_for_a_while() -> None:
    state = attempt(Attempts(), "accepted", 100.0)
    assert is_known(state, POLICY, 100.0)
    assert is_known(attempt(state, "rejected", 200.0), POLICY, 200.0)
    assert not is_known(state, POLICY, 100.0 + POLICY.known_s)
    assert not is_known(attempt(Attempts(), "rejected", 0.0), POLICY, 0.0)


def test_an_acceptance_outside_of_what_was_measured_makes_nobody_known() -> None:
    twice = attempt(attempt(Attempts(), "rejected", 0.0), "rejected", 10.0)
    outside = attempt(twice, "accepted outside", 20.0)
    # Whoever is let in need not wait, and has failed no longer; but that it was the right one nobody has measured.
    assert (outside.failures, outside.accepted_s) == (0, None)
    assert outside.recent == attempt(twice, "accepted", 20.0).recent
    known = attempt(attempt(Attempts(), "accepted", 0.0), "accepted outside", 30.0)
    assert known.accepted_s == 0.0


def test_what_an_acceptance_outside_counts_as() -> None:
    in_force, lax = Threshold(0.5, 0.01, 1000), Threshold(0.3, 0.2, 1000)
    placement = Placement("outside", cosine_rise=0.2)
    found = list[Outcome]()
    for score, limit in ((0.8, in_force), (0.6, in_force), (0.8, lax), (0.6, lax)):
        higher = replace(limit, score=limit.score + 0.2, trials=0)
        found.append(outcome_of(Decision(score, higher, "m", basis=Basis("x", placement=placement)), in_force))
    # At a laxer rate the one in force decides how it counts, and it is raised as well: 0.6 does not reach 0.7.
    assert found == ["accepted outside", "rejected", "accepted outside", "rejected"]


def test_a_refusal_of_a_window_says_so() -> None:
    error = refusal(Attempts(recent=Recent(20, 20, 0.0)), POLICY, 0.0, whose="this caller", reset="")
    assert isinstance(error, TooManyAttemptsError)
    expected = "too many failed attempts lately for this caller, whatever was accepted in between; the next one"
    assert str(error) == f"{expected} is looked at in 180 s"


@pytest.mark.parametrize(
    "change",
    [
        {"per_hour": 0},
        {"per_day": 0},
        {"known_s": -1.0},
        {"known_s": math.inf},
        {"free_failures": 0},
        {"free_failures": 51},
        {"first_delay_s": -1.0},
        {"first_delay_s": 7200.0},
        {"longest_delay_s": math.inf},
        {"longest_delay_s": math.nan},
        {"unusable_per_failure": 0},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        replace(POLICY, **change)


@pytest.mark.parametrize("values", [(-1, 0, 0.0), (0, -1, 0.0), (0, 0, math.nan)])
def test_a_count_that_makes_no_sense_is_refused(values: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="count"):
        Attempts(*values)
