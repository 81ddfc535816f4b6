"""Whether a candidate is released: only where it is measured to be no worse than what verifies now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.release.measurement import Measured

COLLAPSED: Final = 0.95
"""Mean cosine of two different class vectors above which a class matrix has collapsed to one point."""

TOLERANCE: Final = 0.05
"""By how much the false non-match rate may be higher at the upper end of its interval."""

LEAST_PEOPLE: Final = 8
"""People whose genuine trials a comparison rests on at least."""


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
    error = _paired_error(candidate, released)
    low, high = change - 1.96 * error, change + 1.96 * error
    if not change <= 0.0:
        reasons.append(
            f"at a false match rate of {candidate.fmr:g} it rejects {candidate.fnmr:.1%} of genuine trials, the "
            f"released model {released.fnmr:.1%}"
        )
    elif not high <= TOLERANCE:
        reasons.append(f"it may reject {high:.1%} more genuine trials than the released model (95 % interval)")
    if not candidate.worst_fnmr <= released.worst_fnmr + TOLERANCE:
        reasons.append(
            f"of the worst tenth of people it rejects {candidate.worst_fnmr:.0%}, the released model "
            f"{released.worst_fnmr:.0%}"
        )
    return Verdict(not reasons, tuple(reasons), change, (low, high))


def _paired_error(candidate: Measured, released: Measured) -> float:
    """Standard error of the difference, by the jackknife over groups of devices."""
    count = len(candidate.replicates)
    if count < 2 or count != len(released.replicates):
        return float("inf")
    apart = candidate.replicates - released.replicates
    return float(np.sqrt((count - 1) / count * ((apart - apart.mean()) ** 2).sum()))
