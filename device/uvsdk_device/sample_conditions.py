"""Under which conditions each sample of an enrolment was taken, as one more section of its record.

A template tells averages alone, by which a short clip among long ones counts as a long one when a model is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float64
from uvsdk.errors import StoreError
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring.conditions import Conditions


@dataclass(frozen=True, slots=True)
class _Measured:
    """``values`` float64 (samples, names), NaN where one was not measured in a sample."""

    names: tuple[str, ...]
    values: Float64


def packed(conditions: Sequence[Conditions], *, samples: int) -> bytes:
    """The section; empty for none. Raises :class:`StoreError` for those of another number of samples, or no numbers."""
    if not conditions:
        return b""
    if len(conditions) != samples:
        raise StoreError(f"conditions of {len(conditions)} samples came with features of {samples}; give each its own")
    names = sorted({name for item in conditions for name in item})
    given = [[item.get(name, math.nan) for name in names] for item in conditions]
    if not all(math.isfinite(value) for item in conditions for value in item.values()):
        raise StoreError("the conditions of a sample are finite numbers; leave out what was not measured")
    return pack(_Measured(tuple(names), np.array(given, np.float64).reshape(samples, len(names))))


def unpacked(data: bytes = b"") -> tuple[Conditions, ...]:
    """The inverse of :func:`packed`; empty where an earlier version wrote no section. Raises ``WireError``."""
    if not data:
        return ()
    found = unpack(_Measured, data)
    return tuple(
        {name: value for name, value in zip(found.names, row, strict=True) if math.isfinite(value)}
        for row in found.values.tolist()
    )
