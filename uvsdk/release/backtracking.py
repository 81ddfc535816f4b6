"""Which state of a training is the best that was measured, and what follows of an evaluation that finds a worse one.

Every evaluation measures candidate and released model on the same people, none of whom ever trained. Where it finds the
candidate worse than the best so far, training goes back to that one, and the server's step is half as long from then
on: so the step is found by what evaluators' histograms say, as a line search finds it, and no person sets it. Three
such evaluations in a row, and training rests.

Two models that were measured by the same evaluation are compared by what that evaluation says; of a best one that was
measured before, the difference to the released model of its time is taken, which leaves out that other people answer.

>>> course = follow(Course(), Compared("first", 0.30, "start", 0.35, error=0.02))
>>> course.best.model_version, course.step
('first', 1.0)
>>> course = follow(course, Compared("second", 0.34, "start", 0.36, error=0.02))  # 0.02 better than the start, not 0.05
>>> course.best.model_version, course.worse, course.step
('first', 1, 0.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Self

WORSE_IN_A_ROW: Final = 3
"""So many evaluations in a row, each of a candidate that is worse than the best, and training rests."""

STEP_FALLS_BY: Final = 0.5
"""What the server's step is multiplied by with every return to the best."""

_CONFIDENCE: Final = 1.96


@dataclass(frozen=True, slots=True)
class Compared:
    """What one evaluation says of a candidate and of the released model, measured on the same people.

    Args:
        candidate: its version.
        candidate_around: share of genuine trials that it rejects, on average over false match rates
            (:attr:`uvsdk.release.measurement.Measured.around`).
        released: version of the model that verifies.
        released_around: the same of that.
        error: standard error of the difference; infinite where it is not known.
    """

    candidate: str
    candidate_around: float
    released: str
    released_around: float
    error: float = math.inf


@dataclass(frozen=True, slots=True)
class Best:
    """The best state so far, as the evaluation that found it measured it.

    Args:
        model_version: of the state.
        around: its mean share of rejected genuine trials.
        released: the model that it was measured beside.
        released_around: the same of that, by that evaluation.
    """

    model_version: str
    around: float
    released: str
    released_around: float

    @classmethod
    def of(cls, found: Compared) -> Self:
        """The candidate of an evaluation."""
        return cls(found.candidate, found.candidate_around, found.released, found.released_around)


@dataclass(frozen=True, slots=True)
class Course:
    """How a training has gone.

    Args:
        best: ``None`` before the first comparison.
        worse: evaluations in a row that found a candidate worse than it.
        step: what the server's step is multiplied by.
    """

    best: Best | None = None
    worse: int = 0
    step: float = 1.0

    @property
    def rests(self) -> bool:
        """Whether training is to rest although rounds are left."""
        return self.worse >= WORSE_IN_A_ROW


def follow(course: Course, found: Compared, *, returns: bool = True, sure: bool = False) -> Course:
    """The course after an evaluation of a candidate that is not the released model.

    The released model is the first best. With ``returns`` any rise counts as worse: a return that chance brings about
    costs the rounds since the best, and to go on from a worse state costs people. Without it nothing is undone, so that
    a rise counts where it is larger than the error of the comparison.

    Args:
        course: before.
        found: by the evaluation.
        returns: whether training goes back to the best, with a shorter step.
        sure: whether a rise counts only where it is larger than the error of the comparison, else the candidate is the
            best from then on: of a centred start (:mod:`uvsdk.release.centring`), which is made once, and which to undo
            by chance costs all that it gives.

    >>> found = Compared("centred", 0.18, "start", 0.17, error=0.02)
    >>> follow(Course(), found).best.model_version, follow(Course(), found, sure=True).best.model_version
    ('start', 'centred')
    """
    bar = bar_of(course.best, found)
    if found.candidate_around <= bar + (_CONFIDENCE * found.error if sure else 0.0):
        return replace(course, best=Best.of(found), worse=0)
    best = course.best or Best(found.released, found.released_around, found.released, found.released_around)
    if not returns and found.candidate_around <= bar + _CONFIDENCE * found.error:
        return replace(course, best=best, worse=0)
    return Course(best, course.worse + 1, course.step * STEP_FALLS_BY if returns else course.step)


def bar_of(best: Best | None, found: Compared) -> float:
    """What the best rejects on the people of this evaluation, as far as that is known.

    >>> bar_of(Best("b", 0.30, "start", 0.35), Compared("c", 0.5, "start", 0.40))
    0.35
    >>> bar_of(Best("b", 0.30, "start", 0.35), Compared("c", 0.5, "b", 0.31))
    0.31
    """
    if best is None or found.released == best.model_version:
        return found.released_around
    if found.candidate == best.model_version:
        return found.candidate_around
    if found.released == best.released:
        return round(best.around + found.released_around - best.released_around, 12)
    return best.around
