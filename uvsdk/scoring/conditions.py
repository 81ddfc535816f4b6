"""Under which conditions a sample was taken, as far as its score depends on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

Conditions: TypeAlias = Mapping[str, float]
"""Name with unit -> value, some of :data:`CONDITIONS`; what was not measured is absent."""

CONDITIONS: Final = ("speech_s", "snr_db", "bandwidth_hz", "face_pixels", "sharpness")
"""The keys of :attr:`uvsdk.scoring.Quality.measured` that a calibration looks at."""

UNKNOWN: Final[Conditions] = MappingProxyType({})
"""Of an embedding that came without its sample."""


def conditions_of(measured: Mapping[str, float]) -> dict[str, float]:
    """The conditions among what was measured in one sample.

    >>> conditions_of({"speech_s": 3.2, "level_dbfs": -30.0, "snr_db": math.inf})
    {'speech_s': 3.2}
    """
    return {name: float(measured[name]) for name in CONDITIONS if math.isfinite(measured.get(name, math.nan))}


def together(samples: Sequence[Conditions]) -> dict[str, float]:
    """The conditions of a template: of what all its samples have, the sum of seconds, else the mean.

    >>> together([{"speech_s": 3.0, "snr_db": 20.0}, {"speech_s": 2.0, "snr_db": 10.0}, {"speech_s": 1.0}])
    {'speech_s': 6.0}
    """
    found = {}
    for name in CONDITIONS:
        values = [sample[name] for sample in samples if name in sample]
        if values and len(values) == len(samples):
            total = math.fsum(values)
            found[name] = total if name.endswith("_s") else total / len(values)
    return found


__all__ = ["CONDITIONS", "UNKNOWN", "Conditions", "conditions_of", "together"]
