"""No signed request twice: the challenges that requests are signed over, and the nonces that were seen.

A challenge is 128 random bits, drawn by this process and replaced after ``window_s`` seconds of the monotonic clock;
the one before it is still accepted, so a device has between one and two windows to use what it was given. A nonce is
remembered for as long as its challenge is accepted. A process that is started again knows none of the former
challenges: what was captured before is refused without anything having been written to a disk, and a wall clock that
jumps changes nothing. A device that is told ``stale-challenge`` signs anew with the challenge in that very answer.

Memory is bounded: a device has ``per_device`` requests in a window, and where all devices together reach ``in_all`` the
challenge is replaced early, which costs everyone one repetition.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from uvsdk.privacy.request_signing import CHALLENGE_HEADER, Claim
from uvsdk.rest.problems import Problem

_HEADER: Final = CHALLENGE_HEADER.lower().encode()
_NONCE_BYTES: Final = 16


@dataclass(slots=True)
class _Epoch:
    """One challenge, from when it is given out, and the nonces that were used under it."""

    challenge: str
    began_s: float
    seen: dict[str, set[bytes]] = field(default_factory=dict)
    count: int = 0


class Freshness:
    """Accepts each signed request once. Belongs to one event loop.

    Args:
        window_s: age at which the challenge is replaced.
        per_device: requests of one device under one challenge.
        in_all: requests of all devices under one challenge.
        steady: seconds that never go backwards.
    """

    def __init__(
        self,
        window_s: float,
        *,
        per_device: int = 5_000,
        in_all: int = 200_000,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._per_device = per_device
        self._in_all = in_all
        self._steady = steady
        self._current = self._drawn()
        self._former: _Epoch | None = None

    @property
    def challenge(self) -> str:
        """What the next requests are to be signed over."""
        self._turn()
        return self._current.challenge

    def check(self, claim: Claim) -> None:
        """Raise :class:`Problem` 401 where the challenge is none that is accepted; costs next to nothing."""
        if self._epoch(claim) is None:
            raise Problem(
                "stale-challenge",
                "the request is not signed over a challenge of the last minutes; sign it over UVSDK-Challenge of this "
                "answer and send it again",
            )

    def spend(self, claim: Claim, device_id: str) -> None:
        """Remember the nonce of a request whose signature holds.

        Raises:
            Problem: 401, the request was seen before, or its challenge has been retired meanwhile; 429, that device
                asks too often.
        """
        self.check(claim)
        epoch = self._epoch(claim)
        assert epoch is not None  # check() looked
        seen = epoch.seen.setdefault(device_id, set())
        nonce = hashlib.blake2b(claim.nonce.encode(), digest_size=_NONCE_BYTES).digest()
        if nonce in seen:
            raise Problem("replayed-request", "this very request was received before; a repetition is signed anew")
        if len(seen) >= self._per_device:
            raise Problem(
                "too-many-requests",
                f"one device may send {self._per_device} requests in {self._window_s:g} s; try again later",
                {"Retry-After": str(int(self._window_s) + 1)},
            )
        seen.add(nonce)
        epoch.count += 1
        if self._current.count >= self._in_all:
            self._replace()

    def _epoch(self, claim: Claim) -> _Epoch | None:
        self._turn()
        for epoch in (self._current, self._former):
            if epoch is not None and secrets.compare_digest(epoch.challenge, claim.challenge):
                return epoch
        return None

    def _turn(self) -> None:
        age_s = self._steady() - self._current.began_s
        if age_s >= self._window_s:
            self._replace()
        if age_s >= 2 * self._window_s:
            self._former = None

    def _replace(self) -> None:
        self._former, self._current = self._current, self._drawn()

    def _drawn(self) -> _Epoch:
        return _Epoch(secrets.token_hex(16), self._steady())


class ChallengeHeader:
    """ASGI middleware: every answer carries the challenge."""

    def __init__(self, app: ASGIApp, *, freshness: Freshness) -> None:
        self._app = app
        self._freshness = freshness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""

        async def marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (_HEADER, self._freshness.challenge.encode())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, marked if scope["type"] == "http" else send)
