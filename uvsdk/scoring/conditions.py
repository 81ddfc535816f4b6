"""Under which conditions a sample was taken, as far as its score depends on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

Conditions: TypeAlias = Mapping[str, float]
"""Name with unit -> value; what was not measured is absent."""

UNKNOWN: Final[Conditions] = MappingProxyType({})
"""Of an embedding that came without its sample."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a calibration looks at of a sample, one of the keys of :attr:`uvsdk.scoring.Quality.measured`.

    Args:
        name: with its unit; seconds (``_s``) add up over the samples of a template, all else is averaged.
        logarithmic: its doubling counts, and not its difference.
        highest: the value above which more changes nothing.
        complete: what a complete enrolment has of it, in seconds over all samples; 0 where it needs none.
    """

    name: str
    logarithmic: bool = False
    highest: float = math.inf
    complete: float = 0.0

    def place(self, value: float) -> float:
        """The value on the scale on which differences count."""
        value = min(value, self.highest)
        return math.log(max(value, 1e-6)) if self.logarithmic else value


class Named(Protocol):
    """What names a measured value: a :class:`Condition`, or a division into cells."""

    @property
    def name(self) -> str:
        """One of the keys of :attr:`uvsdk.scoring.Quality.measured`."""
        ...


def conditions_of(measured: Mapping[str, float], conditions: Sequence[Named]) -> dict[str, float]:
    """Those of ``conditions`` that were measured in one sample.

    >>> conditions_of({"speech_s": 3.2, "level_dbfs": -30.0, "snr_db": math.inf}, [Condition("speech_s")])
    {'speech_s': 3.2}
    """
    names = [condition.name for condition in conditions]
    return {name: float(measured[name]) for name in names if math.isfinite(measured.get(name, math.nan))}


def together(samples: Sequence[Conditions]) -> dict[str, float]:
    """The conditions of a template: of what all its samples have, the sum of seconds, else the mean.

    >>> together([{"speech_s": 3.0, "snr_db": 20.0}, {"speech_s": 2.0, "snr_db": 10.0}, {"speech_s": 1.0}])
    {'speech_s': 6.0}
    """
    found = {}
    for name in samples[0] if samples else ():
        values = [sample[name] for sample in samples if name in sample]
        if len(values) == len(samples):
            total = math.fsum(values)
            found[name] = total if name.endswith("_s") else total / len(values)
    return found
