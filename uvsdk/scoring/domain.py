"""Where the embeddings of those a calibration was measured on lie, so that others are noticed (SPEC 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.scoring.moments import Moments

LEADING = 60
"""Principal directions of people's means that are kept."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Moments of the people behind a calibration; of nobody in particular.

    Args:
        mean: float32 (d,), the mean of their means.
        directions: float32 (k, d), orthonormal rows: the leading principal directions of their means.
        variances: float64 (k,), descending.
        rest: the variance outside of these directions.
        people: behind them.
    """

    mean: Float32
    directions: Float32
    variances: Float64
    rest: float
    people: int

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """Of people's sums."""
        values, vectors = np.linalg.eigh(moments.between)
        kept = min(LEADING, max(moments.people - 1, 1), len(values))
        order = np.argsort(values)[::-1][:kept]
        leading = np.maximum(values[order], 0.0)
        rest = max(float(np.trace(moments.between)) - float(leading.sum()), 0.0)
        return cls(
            moments.centre.astype(np.float32),
            np.ascontiguousarray(vectors[:, order].T, np.float32),
            np.asarray(leading, np.float64),
            rest,
            moments.people,
        )
