"""How often somebody may fail before they must wait, and when verification closes: pure functions.

Two rules, and each subject of a count has one or both (:class:`RetryPolicy`):

- **In a row**, as NIST SP 800-63B has it for biometrics (section 5.2.3; revision 4, section 3.2.3): after 5 failed
  attempts, or 10 where presentation attacks are detected, each further attempt waits at least 30 s, twice as long every
  time; after 50, or 100, verification is disabled until something else than a biometric resets it. Revision 4 lets the
  wait stop growing; here it does at :attr:`RetryPolicy.longest_delay_s`.
- **In a window**: so many failures at once, and so many again in every hour and every day, whatever was accepted in
  between. An acceptance of one's own person says nothing about the attempts on others, so it does not take these back.
  The levels run dry evenly (the leaky bucket of ITU-T I.371), so whoever has used up an hour's failures may try again
  after a part of it, and in any hour there are at most twice :attr:`RetryPolicy.per_hour`.

Who counts what: a device counts each person and itself, a server each pair of caller and person, each caller, and each
person. The person's count over all callers binds only callers whom that person was never accepted through
(:func:`is_known`), so a stranger with a token can slow other strangers and lock nobody out.

What counts:

- A **rejection** is a failure, whether the score or a presentation attack detector caused it, and whatever rate was
  asked for: else the lowest rate at which a probe is accepted would be free to find.
- An **acceptance** sets the count in a row to zero. Where its score was told it stays in the windows: every score that
  leaves is one more equation for the template.
- An acceptance **outside of what was measured** (:attr:`uvsdk.scoring.Basis.placement`) is one, or whoever always lies
  there would be locked out; but it makes nobody known, since at which false match rate it was made nobody knows.
- An acceptance at a **higher false match rate** than the one in force (whoever holds the store may name one) is what
  the rate in force makes of it.
- A sample that **cannot be used** (silence, no face, poor quality) was compared with nothing and is no failure; every
  tenth since the last acceptance counts as one, so that they are bounded too: 500 in all.
- An attempt that ends in **another error**, e.g. because there is no threshold, was compared with nothing either.

An attempt is counted as failed *before* its probe is looked at, and the count is given back afterwards where it was not
one. A process that is killed in between has counted it; attempts that run side by side cannot share one count. Where
the ones under way take up what is left, the next waits for their outcome (``undecided``).

The clock is Unix time and may be set. Where it went backwards the whole delay starts again from the new time: nothing
unlocks early by that, and nobody waits longer than one delay more. A clock that is set forwards ends a wait; who can do
that is bounded by the count in a row alone.

>>> state, policy = Attempts(), RetryPolicy()
>>> for second in range(5):
...     state = begun(state, policy, now=float(second))
>>> wait_s(state, policy, now=4.0), wait_s(state, policy, now=34.0)
(30.0, 0.0)
>>> wait_s(begun(state, policy, now=34.0), policy, now=34.0)
60.0

A caller with a limit of 60 an hour and none in a row, who has one accepted attempt after each failure:

>>> caller, state = RetryPolicy.windows(per_hour=60, per_day=300), Attempts()
>>> for _ in range(60):
...     state = begun(state, caller, now=0.0)
...     state = settled(begun(state, caller, now=0.0), "accepted", Ticket(0.0, 0.0), caller, now=0.0)
>>> wait_s(state, caller, now=0.0)  # one a minute from here on
60.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from uvsdk.errors import AttemptsError, DisabledError, SettingsError, TooManyAttemptsError
from uvsdk.scoring import Decision, Threshold
from uvsdk.scoring.caution import raised

Outcome: TypeAlias = Literal["accepted", "accepted outside", "rejected", "unusable", "void"]
"""How an attempt ended; ``accepted outside``: of what was measured; ``void`` where it failed for a reason that is not
the sample's (no threshold, a full disk)."""

_DOUBLINGS: Final = 64  # 30 s doubled so often is longer than any limit, and no float overflows
_NEVER: Final = 1 << 60
_ROUNDING_S: Final = 1e-3  # what is left of a level after it ran out in floating point
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What failures cost, in a row and in a window.

    Args:
        free_failures: failures after which the next attempt waits; NIST: at most 5, 10 with presentation attack
            detection that was shown to work.
        first_delay_s: the wait after that many; NIST: at least 30 s. Each further failure doubles it.
        longest_delay_s: where it stops growing; an hour, so that a person who was locked out by someone else gets in
            the same day.
        disabled_at: failures after which nothing is looked at any more; NIST: at most 50, 100 with detection.
        unusable_per_failure: so many samples that cannot be used count as one failure.
        per_hour: failures in an hour's window, whatever is accepted in between.
        per_day: the same in a day's. The defaults are ours: OWASP ASVS 5 (6.1.1, 6.3.1) asks for such limits and leaves
            the numbers to the application.
        known_s: how long an acceptance makes a caller known for a person.
    """

    free_failures: int = 5
    first_delay_s: float = 30.0
    longest_delay_s: float = 3600.0
    disabled_at: int = 50
    unusable_per_failure: int = 10
    per_hour: int = 20
    per_day: int = 50
    known_s: float = 90 * DAY_S

    def __post_init__(self) -> None:
        if not 1 <= self.free_failures <= self.disabled_at:
            raise SettingsError(
                f"a retry policy allows at least 1 failure and is disabled no sooner than it delays, got "
                f"{self.free_failures} and {self.disabled_at}"
            )
        if not 0 <= self.first_delay_s <= self.longest_delay_s < math.inf:
            raise SettingsError(
                f"delays are finite and the longest is not below the first, got {self.first_delay_s:g} s and "
                f"{self.longest_delay_s:g} s"
            )
        if self.unusable_per_failure < 1:
            raise SettingsError(f"unusable_per_failure is {self.unusable_per_failure}; it must be at least 1")
        if self.per_hour < 1 or self.per_day < 1 or not 0 <= self.known_s < math.inf:
            raise SettingsError(
                f"a window holds at least 1 failure and a caller is known for a while, got {self.per_hour} an hour, "
                f"{self.per_day} a day and {self.known_s:g} s"
            )

    @classmethod
    def windows(cls, *, per_hour: int, per_day: int) -> RetryPolicy:
        """Of somebody whose failures in a row say nothing, because they are of many people or by many callers."""
        return cls(free_failures=_NEVER, disabled_at=_NEVER, per_hour=per_hour, per_day=per_day)

    def delay_s(self, failures: int) -> float:
        """The wait before the attempt that follows ``failures`` in a row; infinite where it is disabled.

        >>> [RetryPolicy().delay_s(failures) for failures in (4, 5, 6, 7, 11, 12, 49, 50)]
        [0.0, 30.0, 60.0, 120.0, 1920.0, 3600.0, 3600.0, inf]
        """
        if failures >= self.disabled_at:
            return math.inf
        if failures < self.free_failures:
            return 0.0
        doubled = self.first_delay_s * 2.0 ** min(failures - self.free_failures, _DOUBLINGS)
        return min(doubled, self.longest_delay_s)


WITH_DETECTION: Final = RetryPolicy(free_failures=10, disabled_at=100)
"""What NIST allows where a presentation attack detector was shown to stop 90 % of attacks; ours was not."""


@dataclass(frozen=True, slots=True)
class Recent:
    """How full the windows are.

    Args:
        hour: failures in the hour's window, less what has run out of it.
        day: likewise in the day's.
        at_s: Unix time of both.
    """

    hour: float = 0.0
    day: float = 0.0
    at_s: float = 0.0

    def at(self, policy: RetryPolicy, now: float) -> Recent:
        """The levels at ``now``; a clock that went backwards lets nothing run out."""
        passed_s = max(now - self.at_s, 0.0)
        return Recent(
            max(self.hour - passed_s * policy.per_hour / HOUR_S, 0.0),
            max(self.day - passed_s * policy.per_day / DAY_S, 0.0),
            now,
        )

    def plus(self, failures: float) -> Recent:
        """With so many more, or, below 0, fewer."""
        return replace(self, hour=max(self.hour + failures, 0.0), day=max(self.day + failures, 0.0))

    def wait_s(self, policy: RetryPolicy) -> float:
        """Seconds until one more fits into both windows."""
        over_hour = (self.hour + 1 - policy.per_hour) * HOUR_S / policy.per_hour
        over_day = (self.day + 1 - policy.per_day) * DAY_S / policy.per_day
        longest_s = max(over_hour, over_day)
        return longest_s if longest_s > _ROUNDING_S else 0.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """The count of one subject.

    Args:
        failures: in a row; those whose outcome is not known yet among them.
        unusable: samples since the last acceptance that could not be used.
        since_s: Unix time from which the wait for failures in a row counts.
        recent: the windows.
        accepted_s: Unix time of the last acceptance inside of what was measured; ``None`` where there was none, or
            nobody keeps it.
    """

    failures: int = 0
    unusable: int = 0
    since_s: float = 0.0
    recent: Recent = Recent()
    accepted_s: float | None = None

    def __post_init__(self) -> None:
        levels = (self.recent.hour, self.recent.day)
        times = (self.since_s, self.recent.at_s, 0.0 if self.accepted_s is None else self.accepted_s)
        if self.failures < 0 or self.unusable < 0 or not all(map(math.isfinite, (*levels, *times))) or min(levels) < 0:
            raise ValueError("a count is not negative and its time is a number")


@dataclass(frozen=True, slots=True)
class Ticket:
    """One attempt that was begun.

    Args:
        began_s: Unix time.
        waited_since_s: :attr:`Attempts.since_s` before it, restored if the attempt turns out to be none.
    """

    began_s: float
    waited_since_s: float


def anchored(state: Attempts, now: float) -> Attempts:
    """``state``, waiting from ``now`` on where the clock went back behind its beginning; to be kept if it changed."""
    since_s, at_s = min(state.since_s, now), min(state.recent.at_s, now)
    accepted_s = None if state.accepted_s is None else min(state.accepted_s, now)
    return replace(state, since_s=since_s, recent=replace(state.recent, at_s=at_s), accepted_s=accepted_s)


def wait_s(state: Attempts, policy: RetryPolicy, now: float) -> float:
    """Seconds until an attempt is looked at: 0 for at once, infinite for never."""
    in_a_row_s = policy.delay_s(state.failures) - max(now - state.since_s, 0.0)
    return max(in_a_row_s, state.recent.at(policy, now).wait_s(policy), 0.0)


def is_known(state: Attempts, policy: RetryPolicy, now: float) -> bool:
    """Whether the caller of a pair was accepted for its person lately."""
    return state.accepted_s is not None and now - state.accepted_s < policy.known_s


def begun(state: Attempts, policy: RetryPolicy, now: float) -> Attempts:
    """The state once an attempt has begun: it counts as failed until :func:`settled` knows better."""
    recent = state.recent.at(policy, now).plus(1)
    return replace(state, failures=state.failures + 1, since_s=now, recent=recent)


def settled(
    state: Attempts,
    outcome: Outcome,
    ticket: Ticket,
    policy: RetryPolicy,
    *,
    now: float,
    undecided: int = 0,
    told: bool = False,
) -> Attempts:
    """The state once an attempt has ended.

    Args:
        state: as it is now, after whatever happened beside this attempt.
        outcome: how it ended.
        ticket: of its beginning.
        policy: says how many unusable samples are one failure.
        now: Unix time.
        undecided: other attempts that are under way here; an acceptance leaves them counted.
        told: whether the caller is told a score: then an acceptance too stays in the windows.
    """
    recent = state.recent.at(policy, now)
    if outcome in ("accepted", "accepted outside"):
        known_s = now if outcome == "accepted" else state.accepted_s
        return Attempts(undecided, 0, state.since_s, recent if told else recent.plus(-1), known_s)
    # At least this one, even where everything was reset while it ran.
    failures = max(state.failures, undecided + 1)
    if outcome == "rejected":
        return replace(state, failures=failures, since_s=now, recent=recent)
    unusable = state.unusable + (outcome == "unusable")
    recent = recent.plus(1 / policy.unusable_per_failure - 1 if outcome == "unusable" else -1)
    if outcome == "unusable" and unusable % policy.unusable_per_failure == 0:
        return replace(state, failures=failures, unusable=unusable, since_s=now, recent=recent)
    # Only where nothing else has begun or ended since: their wait stands.
    since_s = ticket.waited_since_s if state.since_s == ticket.began_s else state.since_s
    return replace(state, failures=failures - 1, unusable=unusable, since_s=since_s, recent=recent)


def outcome_of(decision: Decision, in_force: Threshold | None) -> Outcome:
    """How an attempt counts that ended in ``decision``, where ``in_force`` is the threshold in force.

    ``None`` where none is in force, e.g. for a template without a threshold: every acceptance then counts.

    >>> from uvsdk.scoring import Threshold
    >>> in_force = Threshold(score=0.5, fmr=0.01, trials=1000)
    >>> lax = Threshold(score=0.3, fmr=0.2, trials=1000)
    >>> [outcome_of(Decision(score, lax, "m"), in_force) for score in (0.2, 0.4, 0.6)]
    ['rejected', 'rejected', 'accepted']
    """
    if not decision.accepted:
        return "rejected"
    limit, placement = decision.threshold, decision.basis.placement
    accepted: Outcome = "accepted outside" if placement.verdict == "outside" else "accepted"
    if in_force is None or limit.fmr <= in_force.fmr:
        return accepted
    value = decision.llr if in_force.scale == "llr" else decision.score
    needed = in_force.score if in_force.scale == "llr" else raised(in_force.score, placement)
    return accepted if value is not None and value >= needed else "rejected"


def refusal(state: Attempts, policy: RetryPolicy, now: float, *, whose: str, reset: str) -> AttemptsError:
    """Why an attempt is not looked at now.

    Args:
        state: whose :func:`wait_s` is not 0.
        policy: that says so.
        now: Unix time.
        whose: whose failures, e.g. ``"this person"``.
        reset: what ends it when it is disabled, an imperative sentence without a full stop.
    """
    remaining_s = wait_s(state, policy, now)
    failed = f"{state.failures} failed attempts in a row for {whose}"
    if math.isinf(remaining_s):
        return DisabledError(f"{failed}: verification is disabled. Identify the person in another way, then {reset}")
    recent = state.recent.at(policy, now)
    if recent.wait_s(policy) >= remaining_s:
        failed = f"too many failed attempts lately for {whose}, whatever was accepted in between"
    whole_s = math.ceil(remaining_s)
    return TooManyAttemptsError(f"{failed}; the next one is looked at in {whole_s} s", remaining_s)
