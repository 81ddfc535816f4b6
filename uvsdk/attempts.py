"""How often a person or a device may fail before it must wait, and when verification closes: pure functions.

The rules are those of NIST SP 800-63B for biometrics (section 5.2.3; revision 4, section 3.2.3): after 5 failed
attempts in a row, or 10 where presentation attacks are detected, each further attempt waits at least 30 s, twice as
long every time; after 50 in a row, or 100, biometric verification is disabled until something else than a biometric
resets it. Revision 4 lets the wait stop growing; here it does at :attr:`RetryPolicy.longest_delay_s`.

What counts:

- A **rejection** is a failure, whether the score or a presentation attack detector caused it.
- An **acceptance** sets the count to zero.
- A sample that **cannot be used** (silence, no face, poor quality) was compared with nothing and is no failure; every
  tenth since the last acceptance counts as one, so that they are bounded too: 500 in all.
- An acceptance at a **higher false match rate** than the one in force (a caller may name one) counts as nothing: else
  a few easy acceptances would take hard failures back.
- An attempt that ends in **another error**, e.g. because there is no threshold, counts as nothing.

An attempt is counted as failed *before* its probe is looked at, and the count is given back afterwards where it was not
one. A process that is killed in between has counted it; attempts that run side by side cannot share one count. Where
the ones under way take up what is left, the next waits for their outcome (``undecided``).

The clock is Unix time and may be set. Where it went backwards the whole delay starts again from the new time: nothing
unlocks early by that, and nobody waits longer than one delay more. A clock that is set forwards ends a wait; who can do
that is bounded by the count alone.

>>> state, policy = Attempts(), RetryPolicy()
>>> for second in range(5):
...     state = begun(state, now=float(second))
>>> wait_s(state, policy, now=4.0), wait_s(state, policy, now=34.0)
(30.0, 0.0)
>>> wait_s(begun(state, now=34.0), policy, now=34.0)
60.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from uvsdk.errors import AttemptsError, DisabledError, SettingsError, TooManyAttemptsError
from uvsdk.scoring import Decision

Outcome: TypeAlias = Literal["accepted", "rejected", "unusable", "void"]
"""How an attempt ended; ``void`` where it failed for a reason that is not the sample's (no threshold, a full disk)."""

_DOUBLINGS: Final = 64  # 30 s doubled so often is longer than any limit, and no float overflows


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What failures in a row cost.

    Args:
        free_failures: failures after which the next attempt waits; NIST: at most 5, 10 with presentation attack
            detection that was shown to work.
        first_delay_s: the wait after that many; NIST: at least 30 s. Each further failure doubles it.
        longest_delay_s: where it stops growing; an hour, so that a person who was locked out by someone else gets in
            the same day.
        disabled_at: failures after which nothing is looked at any more; NIST: at most 50, 100 with detection.
        unusable_per_failure: so many samples that cannot be used count as one failure.
    """

    free_failures: int = 5
    first_delay_s: float = 30.0
    longest_delay_s: float = 3600.0
    disabled_at: int = 50
    unusable_per_failure: int = 10

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
class Attempts:
    """The count of one person, device or caller.

    Args:
        failures: in a row; those whose outcome is not known yet among them.
        unusable: samples since the last acceptance that could not be used.
        since_s: Unix time from which the wait counts.
    """

    failures: int = 0
    unusable: int = 0
    since_s: float = 0.0

    def __post_init__(self) -> None:
        if self.failures < 0 or self.unusable < 0 or not math.isfinite(self.since_s):
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
    return replace(state, since_s=now) if now < state.since_s else state


def wait_s(state: Attempts, policy: RetryPolicy, now: float) -> float:
    """Seconds until an attempt is looked at: 0 for at once, infinite for never."""
    delay_s = policy.delay_s(state.failures)
    return max(delay_s - max(now - state.since_s, 0.0), 0.0)


def begun(state: Attempts, now: float) -> Attempts:
    """The state once an attempt has begun: it counts as failed until :func:`settled` knows better."""
    return replace(state, failures=state.failures + 1, since_s=now)


def settled(
    state: Attempts, outcome: Outcome, ticket: Ticket, policy: RetryPolicy, *, now: float, undecided: int = 0
) -> Attempts:
    """The state once an attempt has ended.

    Args:
        state: as it is now, after whatever happened beside this attempt.
        outcome: how it ended.
        ticket: of its beginning.
        policy: says how many unusable samples are one failure.
        now: Unix time.
        undecided: other attempts that are under way here; an acceptance leaves them counted.
    """
    if outcome == "accepted":
        return Attempts(failures=undecided, since_s=state.since_s)
    # At least this one, even where everything was reset while it ran.
    failures = max(state.failures, undecided + 1)
    if outcome == "rejected":
        return replace(state, failures=failures, since_s=now)
    unusable = state.unusable + (outcome == "unusable")
    if outcome == "unusable" and unusable % policy.unusable_per_failure == 0:
        return Attempts(failures, unusable, now)
    # Only where nothing else has begun or ended since: their wait stands.
    since_s = ticket.waited_since_s if state.since_s == ticket.began_s else state.since_s
    return Attempts(failures - 1, unusable, since_s)


def outcome_of(decision: Decision, fmr: float | None) -> Outcome:
    """How an attempt counts that ended in ``decision``, where ``fmr`` is the false match rate in force.

    ``None`` where no rate is in force, e.g. for a template without a threshold: every acceptance then counts.

    >>> from uvsdk.scoring import Threshold
    >>> lax = Decision(0.4, Threshold(score=0.3, fmr=0.2, trials=1000), "m")
    >>> lax.accepted, outcome_of(lax, 0.01), outcome_of(lax, 0.2)
    (True, 'void', 'accepted')
    """
    if not decision.accepted:
        return "rejected"
    return "accepted" if fmr is None or decision.threshold.fmr <= fmr else "void"


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
    whole_s = math.ceil(remaining_s)
    return TooManyAttemptsError(f"{failed}; the next one is looked at in {whole_s} s", remaining_s)


__all__ = [
    "WITH_DETECTION",
    "Attempts",
    "Outcome",
    "RetryPolicy",
    "Ticket",
    "anchored",
    "begun",
    "outcome_of",
    "refusal",
    "settled",
    "wait_s",
]
