"""Whom a round waits for. In memory: a server that is started again waits longer, which costs time and no data.

A round that has its quorum does not stay open for members of whom nothing is to be expected soon: whose update or whose
request for a task was refused, whose upload stalled, who have not even fetched their task, or who have kept several
rounds waiting already. All of them may upload until the round closes. A round that has no quorum yet waits for
everyone but those whose update was refused.
"""

from __future__ import annotations

_FORGIVEN = 1
"""Rounds that a device may keep waiting in a row before anything follows."""

_LONGEST_BIT = 6


class Awaited:
    """What was seen of the members of the round in progress, and of those of former rounds."""

    def __init__(self) -> None:
        self._round_id = 0
        self._watched = False
        self._refused: set[str] = set()
        self._stalled: set[str] = set()
        self._begun: set[str] = set()
        self._missed: dict[str, int] = {}
        self._sits_out: dict[str, int] = {}

    def open(self, round_id: int) -> None:
        """That round starts to collect, and is watched from its beginning."""
        self._is_current(round_id)
        self._watched = True

    def refuse(self, device_id: str, round_id: int) -> None:
        """An update of that device was refused; a better one still counts."""
        if self._is_current(round_id):
            self._refused.add(device_id)

    def stall(self, device_id: str, round_id: int) -> None:
        """Its upload stalled, or it asked for a task that it cannot have."""
        if self._is_current(round_id):
            self._stalled.add(device_id)

    def begin(self, device_id: str, round_id: int) -> None:
        """It has its task, or has begun to upload."""
        if self._is_current(round_id):
            self._begun.add(device_id)
            self._stalled.discard(device_id)

    def arrive(self, device_id: str) -> None:
        """Its update was taken: whatever it missed before is forgotten."""
        self._missed.pop(device_id, None)
        self._sits_out.pop(device_id, None)

    def asked(self, outstanding: frozenset[str], round_id: int) -> frozenset[str]:
        """Those of ``outstanding`` who are still asked to take part."""
        return outstanding - self._refused if round_id == self._round_id else outstanding

    def waited_for(self, outstanding: frozenset[str], round_id: int, *, quorum: bool, absent: bool) -> frozenset[str]:
        """Those of ``outstanding`` for whose sake the round stays open.

        Args:
            outstanding: members that have not uploaded.
            round_id: the round.
            quorum: whether there are enough updates without them.
            absent: whether those who have not fetched their task have had the time.
        """
        left = self.asked(outstanding, round_id)
        if not quorum:
            return left
        left = frozenset(device for device in left if self._sits_out.get(device, 0) < round_id)
        if round_id != self._round_id:
            return left
        return left & self._begun - self._stalled if absent and self._watched else left - self._stalled

    def at_work(self, outstanding: frozenset[str], round_id: int) -> frozenset[str]:
        """Those of ``outstanding`` who have their task, and of whom nothing says that they gave up."""
        return (
            self.asked(outstanding, round_id) & self._begun - self._stalled
            if round_id == self._round_id
            else frozenset()
        )

    def began(self, round_id: int) -> int | None:
        """How many have fetched their task; ``None`` where the round was not watched from its beginning."""
        return len(self._begun) if round_id == self._round_id and self._watched else None

    def close(self, missing: frozenset[str], round_id: int) -> None:
        """The round's time is up, and it had waited for ``missing`` in vain.

        A device that does so again and again is not waited for in the next 1, 2, 4, ... 64 rounds: one that stalls on
        purpose costs a number of deadlines that grows with the logarithm of the rounds.
        """
        for device in missing:
            missed = self._missed[device] = self._missed.get(device, 0) + 1
            if missed > _FORGIVEN:
                self._sits_out[device] = round_id + 2 ** min(missed - _FORGIVEN - 1, _LONGEST_BIT)

    def forget(self, device_ids: frozenset[str]) -> None:
        """Devices that have left."""
        for device in device_ids:
            self.arrive(device)

    def _is_current(self, round_id: int) -> bool:
        """Whether that is the newest round; what was seen of the former one is dropped where it is newer."""
        if round_id > self._round_id:
            self._round_id, self._watched = round_id, False
            self._refused, self._stalled, self._begun = set(), set(), set()
        return round_id == self._round_id
