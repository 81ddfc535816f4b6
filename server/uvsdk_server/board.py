"""What devices that wait for a round need to know, in memory, so that waiting holds no database connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from uvsdk.federation.messages import RoundHeader


@dataclass(frozen=True, slots=True)
class Notice:
    """The round that is collecting, and who has yet to upload; ``header`` is ``None`` while none is."""

    header: RoundHeader | None = None
    outstanding: frozenset[str] = frozenset()
    finished: bool = False

    def for_device(self, device_id: str, after: int) -> RoundHeader | None:
        """The header, where that device is asked to take part in a round above ``after``."""
        if self.header is None or self.header.round_id <= after or device_id not in self.outstanding:
            return None
        return self.header


class Board:
    """The current :class:`Notice`, and those who wait for another."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._closing = False
        self.notice = Notice()

    async def post(self, notice: Notice) -> None:
        """Replace the notice, and wake everyone where another round, or none, is announced."""
        async with self._changed:
            former, self.notice = self.notice, notice
            if (former.header is None, former.finished) != (notice.header is None, notice.finished):
                self._changed.notify_all()

    def strike(self, device_ids: frozenset[str]) -> None:
        """Note devices that have uploaded, or left; nobody needs to be woken for that."""
        self.notice = replace(self.notice, outstanding=self.notice.outstanding - device_ids)

    async def release(self) -> None:
        """Send everyone home: the server is shutting down."""
        async with self._changed:
            self._closing = True
            self._changed.notify_all()

    async def wait(self, device_id: str, after: int, wait_s: float) -> RoundHeader | None:
        """The header of a round that asks this device, as soon as there is one within ``wait_s`` seconds."""

        def settled() -> bool:
            notice = self.notice
            return self._closing or notice.finished or notice.for_device(device_id, after) is not None

        async with self._changed:
            if settled() or wait_s <= 0:
                return self.notice.for_device(device_id, after)
            try:
                await asyncio.wait_for(self._changed.wait_for(settled), wait_s)
            except TimeoutError:
                return None
        return self.notice.for_device(device_id, after)
