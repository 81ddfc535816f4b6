"""The secret bytes of simulated devices: a stream for each device and round, where a real one asks its system."""

from __future__ import annotations

import hashlib


class SeededSecret:
    """What a simulated device draws secrets from in one round (a :data:`uvsdk.federation.strategy.Secret`); for
    simulations and tests only.

    >>> SeededSecret(0, "a", 1)(4) == SeededSecret(0, "a", 1)(4) != SeededSecret(0, "b", 1)(4)
    True
    """

    __slots__ = ("_given", "_words")

    def __init__(self, seed: int, user: str, round_id: int) -> None:
        self._words = f"{seed} {round_id} {user}".encode()
        self._given = 0

    def __call__(self, size: int, /) -> bytes:
        """The next ``size`` bytes."""
        start, self._given = self._given, self._given + size
        return hashlib.shake_256(self._words).digest(self._given)[start:]
