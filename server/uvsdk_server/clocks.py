"""Time that passes, whatever becomes of the wall clock.

A wall clock may be set: back, forwards, or forwards and back. What only has to last (a pause, a deadline, the age of a
key) is measured by the monotonic clock; a time that was stored by an earlier process is believed no further than the
longest that it can mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

Clock = Callable[[], float]


def wall_clock() -> float:
    """Seconds since 1970."""
    return time.time()


class NotBefore:
    """Unix time that passes at least as fast as time does: a wall clock that is set back lets nothing live longer.

    A clock that is put ahead and back while the server runs is followed both ways.

    >>> wall, steady = [1000.0], [0.0]
    >>> now = NotBefore(lambda: wall[0], lambda: steady[0])
    >>> wall[0], steady[0] = 400.0, 60.0
    >>> now()
    1060.0
    """

    def __init__(self, wall: Clock = wall_clock, steady: Clock = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._offset_s = wall() - steady()

    def __call__(self) -> float:
        """Seconds since 1970."""
        return max(self._wall(), self._offset_s + self._steady())


class Waits:
    """What remains of waits that were written down as a wall-clock time.

    Args:
        wall: seconds since 1970.
        steady: seconds that never go backwards.

    >>> wall, steady = [1000.0], [0.0]
    >>> waits = Waits(lambda: wall[0], lambda: steady[0])
    >>> waits.remaining_s("pause", 1, until=1060.0, longest_s=60.0)
    60.0
    >>> wall[0], steady[0] = -9000.0, 45.0  # set back
    >>> waits.remaining_s("pause", 1, until=1060.0, longest_s=60.0)
    15.0
    >>> waits.remaining_s("pause", 2, until=1060.0, longest_s=60.0)  # stored before the clock was set back
    60.0
    """

    def __init__(self, wall: Clock = wall_clock, steady: Clock = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._ends: dict[str, tuple[Hashable, float]] = {}

    def remaining_s(self, what: str, which: Hashable, *, until: float, longest_s: float) -> float:
        """Seconds until ``until``, at most ``longest_s``, from the first time that this was asked about ``which``.

        Of each ``what`` only the last ``which`` is remembered.
        """
        known, ends = self._ends.get(what, (None, 0.0))
        if known != which:
            ends = self._steady() + min(max(until - self._wall(), 0.0), longest_s)
            self._ends[what] = (which, ends)
        return max(ends - self._steady(), 0.0)


class Ageing:
    """The age of something whose making was written down as a wall-clock time.

    One that seems to come from the future was made under a clock that has been set since: nobody knows its age, so it
    is taken to be as old as can be.

    >>> Ageing(1000.0, lambda: 400.0, lambda: 0.0).age_s()
    inf
    """

    def __init__(self, made: float, wall: Clock = wall_clock, steady: Clock = time.monotonic) -> None:
        self._steady = steady
        known_s = wall() - made
        self._since = steady() - known_s if known_s >= 0 else float("-inf")

    def age_s(self) -> float:
        """Seconds."""
        return self._steady() - self._since
