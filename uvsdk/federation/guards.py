"""What an update must satisfy before it may count (SPEC 1.7): finite and of the right size.

How far one may move the model is said in :mod:`uvsdk.federation.clipping`. The checks read each chunk once, so that
the server can apply them while it decrypts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.errors import UpdateRejectedError

UNIT_TOLERANCE = 1e-3
"""How far from 1 the norm of a class vector may be when it arrives (SPEC 1.7)."""

MOST_SAMPLES = 1_000_000
"""A device that says it holds more samples than this says what no device can."""

LONGEST = 1e12
"""A norm that no training gives: a longer update is damaged, like one that is not finite. Below it the factor that
shortens an update is a number that float32 holds to its full precision."""


def squared_norm(block: Float32) -> float:
    """Sum of squares of a float32 block; NaN or infinite exactly if the block holds such a value.

    One BLAS dot answers both questions at once: a finite dot product proves finite data. Only when it is not finite
    (data that is not, or finite data whose square overflows float32) is the block read again in float64.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        fast = float(np.dot(block, block))
    if math.isfinite(fast):
        return fast
    exact = block.astype(np.float64)
    return float(np.dot(exact, exact))


def check_samples(samples: int) -> None:
    """Raise :class:`UpdateRejectedError` unless 1 to :data:`MOST_SAMPLES` samples stand behind an update."""
    if samples < 1:
        raise UpdateRejectedError(f"an update needs at least 1 sample behind it, got {samples}")
    if samples > MOST_SAMPLES:
        raise UpdateRejectedError(
            f"an update of more than {MOST_SAMPLES} samples is not plausible; say how many it has"
        )


def check_unit_vector(vector: Array, dimension: int) -> None:
    """Raise :class:`UpdateRejectedError` unless ``vector`` is finite, of shape (dimension,) and of norm 1 +- 1e-3."""
    check_vector(vector, dimension)
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if abs(norm - 1.0) > UNIT_TOLERANCE:
        raise UpdateRejectedError(
            f"a class vector has norm {norm:.6g}, expected 1 within {UNIT_TOLERANCE:g}; normalise it before sending"
        )


def check_vector(vector: Array, dimension: int) -> None:
    """Raise :class:`UpdateRejectedError` unless ``vector`` is a finite floating array of shape (dimension,)."""
    if not np.issubdtype(vector.dtype, np.floating):
        raise UpdateRejectedError(f"a vector has dtype {vector.dtype}, expected a floating one")
    if vector.shape != (dimension,):
        raise UpdateRejectedError(f"a vector has shape {vector.shape}, expected ({dimension},)")
    if not bool(np.isfinite(vector).all()):
        raise UpdateRejectedError("a vector holds NaN or infinity, expected finite numbers")


@dataclass(slots=True)
class DeltaCheck:
    """Checks a delta chunk by chunk as it arrives: float32, finite, exactly ``parameters`` numbers.

    >>> check = DeltaCheck(parameters=3)
    >>> check.add(np.array([3.0, 0.0], np.float32))
    >>> check.add(np.array([4.0], np.float32))
    >>> check.finish()
    5.0
    """

    parameters: int
    _count: int = field(default=0, init=False)
    _squares: float = field(default=0.0, init=False)

    def add(self, chunk: Float32) -> None:
        """Take the next chunk. Raises :class:`UpdateRejectedError` at the first that cannot belong to a good delta."""
        if chunk.dtype != np.float32 or chunk.ndim != 1:
            raise UpdateRejectedError(f"a delta chunk is {chunk.dtype} of {chunk.ndim} axes, expected flat float32")
        self._count += len(chunk)
        if self._count > self.parameters:
            raise UpdateRejectedError(f"a delta holds more than the model's {self.parameters} parameters")
        self._squares += squared_norm(chunk)
        if not math.isfinite(self._squares):
            raise UpdateRejectedError("a delta holds NaN or infinity, expected finite numbers")

    def finish(self) -> float:
        """The delta's norm. Raises :class:`UpdateRejectedError` if parameters are missing."""
        if self._count != self.parameters:
            raise UpdateRejectedError(f"a delta holds {self._count} numbers, the model has {self.parameters}")
        norm = math.sqrt(self._squares)
        if norm > LONGEST:
            raise UpdateRejectedError(f"a delta has norm {norm:.3g}, which no training gives; it is damaged")
        return norm
