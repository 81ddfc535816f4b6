"""Whether the database takes writes, which the server finds out by itself now and then.

Whoever asks reads what was found: a question that anybody may put costs nothing and locks nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_STALE = 30.0
"""A look that takes longer than this has found a database that hangs."""


class Readiness:
    """What the last look found.

    Args:
        look: raises where the database takes no writes.
        every_s: between two looks.
    """

    def __init__(self, look: Callable[[], Awaitable[None]], *, every_s: float = 2.0) -> None:
        self._look = look
        self._every_s = every_s
        self._good = False
        self._looked = 0.0

    @property
    def takes_writes(self) -> bool:
        """Whether the last look was good, and not long ago."""
        return self._good and time.monotonic() - self._looked < self._every_s + _STALE

    async def look(self) -> None:
        """Look once."""
        try:
            await self._look()
        except Exception:  # noqa: BLE001 - whatever it is, the server cannot keep what it is sent
            self._good = False
        else:
            self._good = True
        self._looked = time.monotonic()

    async def run(self) -> None:
        """Look for ever; cancelled at shutdown."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.look()
