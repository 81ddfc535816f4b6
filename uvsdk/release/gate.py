"""Whether a candidate is released: only where it is measured to be no worse than what verifies now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from uvsdk.arrays import Float64
from uvsdk.release.measurement import AROUND, Measured
from uvsdk.scoring.moments import jackknife

COLLAPSED: Final = 0.95
"""Mean cosine of two different class vectors above which a class matrix has collapsed to one point."""

TOLERANCE: Final = 0.1
"""By how much the false non-match rate may be higher at the upper end of its interval, and for the worst tenth of
people. Leaving out a group of devices moves threshold and all: of twenty people's rates the jackknife tells twice the
error that other people's show (tests/federated_gate.py: 2.9 against 1.5 points)."""

MOST_WORSE: Final = 0.25
"""By how much it may be higher for the worst tenth of people, however few they are."""

LEAST_PEOPLE: Final = 8
"""People whose genuine trials a comparison rests on at least."""

CONFIDENCE: Final = 1.96
"""Standard errors on either side of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says.

    Args:
        passes: whether the candidate may be released by itself.
        reasons: why not, in words; empty where it passes.
        change: false non-match rate of the candidate less the released model's; NaN where it is not known.
        interval: 95 % interval of ``change``.
    """

    passes: bool
    reasons: tuple[str, ...]
    change: float
    interval: tuple[float, float]


def judge(candidate: Measured, released: Measured, *, collapse: float) -> Verdict:
    """Compare two models by one evaluation, at one false match rate and on the same people.

    The candidate rejects no more genuine trials at that rate, nor on average over rates around it (what changes at one
    rate alone is a handful of trials), and with the error of the difference at most :data:`TOLERANCE` more. Nor does it
    reject clearly more of the worst tenth of people: of few people that is one or two, so here a difference counts that
    is larger than the tolerance and than what leaving out a group of devices would change.

    Args:
        candidate: measured at the rate that ``released`` was measured at.
        released: what verifies now.
        collapse: mean cosine of different rows of the candidate's class matrix; NaN where there is none.
    """
    reasons = []
    if min(candidate.people, released.people) < LEAST_PEOPLE:
        reasons.append(f"{candidate.people} people told of genuine trials, {LEAST_PEOPLE} are the least")
    if collapse > COLLAPSED:
        reasons.append(f"the class vectors have collapsed: their mean cosine is {collapse:.2f}")
    change = candidate.fnmr - released.fnmr
    error = paired_error(candidate.replicates, released.replicates)
    low, high = change - CONFIDENCE * error, change + CONFIDENCE * error
    if not change <= 0.0:
        reasons.append(
            f"at a false match rate of {candidate.fmr:g} it rejects {candidate.fnmr:.1%} of genuine trials, the "
            f"released model {released.fnmr:.1%}"
        )
    elif not high <= TOLERANCE:
        reasons.append(f"it may reject {high:.1%} more genuine trials than the released model (95 % interval)")
    if not candidate.around <= released.around:
        reasons.append(
            f"on average over false match rates of {AROUND[0]:g} to {AROUND[-1]:g} it rejects {candidate.around:.1%}, "
            f"the released model {released.around:.1%}"
        )
    worse = candidate.worst_fnmr - released.worst_fnmr
    worst_error = paired_error(candidate.worst_replicates, released.worst_replicates)
    if not worse <= max(TOLERANCE, min(CONFIDENCE * worst_error, MOST_WORSE)):
        reasons.append(
            f"of the worst tenth of people it rejects {candidate.worst_fnmr:.0%}, the released model "
            f"{released.worst_fnmr:.0%}"
        )
    return Verdict(not reasons, tuple(reasons), change, (low, high))


def paired_error(candidate: Float64, released: Float64) -> float:
    """Standard error of the difference, by the jackknife over groups of devices; infinite where it is not known."""
    if len(candidate) < 2 or len(candidate) != len(released):
        return math.inf
    return jackknife(candidate - released)
