"""What devices that wait for a round need to know, in memory, so that waiting holds no database connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from uvsdk.federation.messages import EvaluationHeader, RoundHeader


@dataclass(frozen=True, slots=True)
class Notice:
    """The round that is collecting, and who has yet to upload; ``header`` is ``None`` while none is.

    ``evaluation`` and ``respondents`` are the same of an evaluation. ``finished``: training rests, ``stopped``: it does
    although rounds are left.
    """

    header: RoundHeader | None = None
    outstanding: frozenset[str] = frozenset()
    finished: bool = False
    stopped: bool = False
    evaluation: EvaluationHeader | None = None
    respondents: frozenset[str] = frozenset()

    @property
    def kind(self) -> tuple[bool, bool, bool, bool]:
        """What everybody who waits is told anew when it changes."""
        return self.header is None, self.evaluation is None, self.finished, self.stopped

    @property
    def rests(self) -> bool:
        """Whether no round follows."""
        return self.finished or self.stopped

    def asks(self, device_id: str, evaluated: int) -> EvaluationHeader | None:
        """The header of an evaluation above ``evaluated`` that asks that device."""
        header = self.evaluation
        if header is None or header.evaluation_id <= evaluated or device_id not in self.respondents:
            return None
        return header

    def for_device(self, device_id: str, after: int) -> RoundHeader | None:
        """The header, where that device is asked to take part in a round above ``after``."""
        if self.header is None or self.header.round_id <= after or device_id not in self.outstanding:
            return None
        return self.header


class Board:
    """The current :class:`Notice`, and those who wait for another: each device once."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._closing = False
        self.notice = Notice()

    async def post(self, notice: Notice) -> None:
        """Replace the notice, and wake everyone where another round, or none, is announced."""
        former, self.notice = self.notice, notice
        if former.kind != notice.kind:
            self._wake()

    def strike(self, device_ids: frozenset[str]) -> None:
        """Note devices that have uploaded, or left; nobody needs to be woken for that."""
        self.notice = replace(
            self.notice,
            outstanding=self.notice.outstanding - device_ids,
            respondents=self.notice.respondents - device_ids,
        )

    async def release(self) -> None:
        """Send everyone home: the server is shutting down."""
        self._closing = True
        self._wake()

    async def wait(self, device_id: str, after: int, wait_s: float, *, evaluated: int = 0) -> RoundHeader | None:
        """The header of a round that asks this device, as soon as there is one within ``wait_s`` seconds.

        Ends without one where an evaluation above ``evaluated`` asks it (:meth:`Notice.asks`).

        A device that asks again while it waits already, over a new connection, ends its former wait: it cannot hold
        more than one connection so.
        """
        former = self._waiting.pop(device_id, None)
        if former is not None:
            former.set()
        if self._is_settled(device_id, after, evaluated) or wait_s <= 0:
            return self.notice.for_device(device_id, after)
        woken = self._waiting[device_id] = asyncio.Event()
        try:
            async with asyncio.timeout(wait_s):
                while not self._is_settled(device_id, after, evaluated):
                    await woken.wait()
                    if self._waiting.get(device_id) is not woken:
                        return None
                    woken.clear()
        except TimeoutError:
            return None
        finally:
            if self._waiting.get(device_id) is woken:
                del self._waiting[device_id]
        return self.notice.for_device(device_id, after)

    def _is_settled(self, device_id: str, after: int, evaluated: int) -> bool:
        asked = self.notice.asks(device_id, evaluated) or self.notice.for_device(device_id, after)
        return self._closing or self.notice.rests or asked is not None

    def _wake(self) -> None:
        for woken in self._waiting.values():
            woken.set()
