"""What an update must satisfy before it may count (SPEC 1.7): finite, of the right size, of a plausible norm.

The checks read each chunk once, so that the server can apply them while it decrypts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.errors import UpdateRejectedError

UNIT_TOLERANCE = 1e-3
"""How far from 1 the norm of a class vector may be when it arrives (SPEC 1.7)."""

NORM_FACTOR = 10.0
"""An update longer than this many times the median of earlier rounds is refused (SPEC 1.7)."""

_ROUNDS = 20
_WINDOW = 255
_WARM = 5


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
    """Raise :class:`UpdateRejectedError` unless at least one sample stands behind an update."""
    if samples < 1:
        raise UpdateRejectedError(f"an update needs at least 1 sample behind it, got {samples}")


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
        return math.sqrt(self._squares)


@dataclass(frozen=True, slots=True)
class AcceptedNorms:
    """What the norms of the last committed rounds say of a plausible one.

    A round is judged by the rounds before it and not by itself, so that which updates it accepts does not depend on
    the order in which they arrive. Only where none went before, by the running median of what has arrived.

    Args:
        medians: float64 (n,), of each round the median of its norms that are not 0, oldest first.
        recent: float64 arrays, norms that are not 0 of the newest rounds: of as few as have 5 of them, or of all.
        arrived: float64 (a,), norms that are not 0 of the round in progress, where there are no medians.
    """

    medians: Float64 = field(default_factory=lambda: np.empty(0))
    recent: tuple[Float64, ...] = ()
    arrived: Float64 = field(default_factory=lambda: np.empty(0))

    def check(self, norm: float) -> None:
        """Raise :class:`UpdateRejectedError` for a norm over 10 x the largest median of the last 20 rounds.

        SPEC 1.7 says the running median. Devices that have learned what they can send deltas of 0 (a hinge) or close
        to it (a softmax); the more of them there are, the lower the median of the newest norms, until it would refuse
        everyone who still learns. The largest of the medians falls only when nobody has learned for 20 rounds, and to
        raise it takes the majority of a round, as before. With fewer than 5 norms nothing is refused: there is no
        scale to judge by.
        """
        if not math.isfinite(norm):
            raise UpdateRejectedError("the norm of an update is not finite")
        if len(self.medians):
            scale = float(self.medians.max())
        else:
            known = np.concatenate([*self.recent, self.arrived])
            if len(known) < _WARM:
                return
            scale = float(np.median(known))
        if norm > NORM_FACTOR * scale:
            raise UpdateRejectedError(
                f"an update has norm {norm:.4g}, more than {NORM_FACTOR:g} times the median {scale:.4g} of those before"
            )

    def accept(self, norm: float) -> AcceptedNorms:
        """The history with an update of the round in progress."""
        if len(self.medians) or norm <= 0:
            return self
        return replace(self, arrived=np.append(self.arrived, norm)[-_WINDOW:])

    def after(self, norms: Array) -> AcceptedNorms:
        """The history with one more round, whose accepted updates had ``norms``, in any order.

        A round of few is judged together with those just before it.
        """
        active = np.asarray(norms, np.float64)
        recent = [active[active > 0], *reversed(self.recent)]  # newest first
        enough = int(np.searchsorted(np.cumsum([len(of_round) for of_round in recent]), _WARM)) + 1
        recent = [of_round for of_round in recent[:enough] if len(of_round)]
        medians = self.medians
        if sum(len(of_round) for of_round in recent) >= _WARM and len(active):
            medians = np.append(medians, np.median(np.concatenate(recent)))[-_ROUNDS:]
        return AcceptedNorms(medians, tuple(reversed(recent)))
