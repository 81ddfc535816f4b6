"""Cells of conditions: where a sample was taken, coarsely enough that the people in a cell can be counted together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Division:
    """A measured value, and where it divides samples into cells.

    Args:
        name: one of the keys of :attr:`uvsdk.scoring.Quality.measured`, with its unit.
        bounds: ascending; a value that equals one lies above it.
        absolute: its size counts, and not its sign.
    """

    name: str
    bounds: tuple[float, ...]
    absolute: bool = False

    def __post_init__(self) -> None:
        if not self.bounds or list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError(f"the bounds of {self.name} ascend, got {self.bounds}")


def names(divisions: Sequence[Division]) -> tuple[str, ...]:
    """What each cell holds, in words: a fixed number of them, whatever is measured.

    >>> names([Division("speech_s", (2.0,)), Division("snr_db", (10.0, 20.0))])
    ('speech_s below 2', 'speech_s from 2', 'snr_db below 10', 'snr_db from 10 to 20', 'snr_db from 20')
    """
    found = []
    for division in divisions:
        bounds = [f"{value:g}" for value in division.bounds]
        between = [f"from {low} to {high}" for low, high in itertools.pairwise(bounds)]
        found += [f"{division.name} {words}" for words in (f"below {bounds[0]}", *between, f"from {bounds[-1]}")]
    return tuple(found)


def cells_of(measured: Mapping[str, float], divisions: Sequence[Division]) -> tuple[int, ...]:
    """The cells of one sample, one of each division that was measured: indices into :func:`names`.

    >>> divisions = [Division("speech_s", (2.0,)), Division("yaw", (0.2,), absolute=True)]
    >>> cells_of({"speech_s": 3.1, "yaw": -0.3}, divisions), cells_of({"yaw": 0.0}, divisions)
    ((1, 3), (2,))
    """
    found, start = [], 0
    for division in divisions:
        value = float(measured.get(division.name, math.nan))
        if not math.isnan(value):
            size = abs(value) if division.absolute else value
            found.append(start + sum(size >= bound for bound in division.bounds))
        start += len(division.bounds) + 1
    return tuple(found)


def cells_of_enrolment(together: Mapping[str, float], samples: int, divisions: Sequence[Division]) -> tuple[int, ...]:
    """The cells of an enrolment as a whole, by the average of its samples: all that is known of one that was stored
    without the conditions of each.

    Args:
        together: of :func:`uvsdk.scoring.conditions.together`, where seconds are summed.
        samples: of the enrolment.
        divisions: of the modality.

    >>> divisions = [Division("speech_s", (2.0,)), Division("snr_db", (15.0,))]
    >>> cells_of_enrolment({"speech_s": 9.0, "snr_db": 12.0}, 6, divisions)
    (0, 2)
    """
    averages = {name: value / max(samples, 1) if name.endswith("_s") else value for name, value in together.items()}
    return cells_of(averages, divisions)
