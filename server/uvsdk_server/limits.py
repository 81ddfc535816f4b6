"""What bounds a stranger's share of the server: bytes of a body, the time of a request, and events in a minute."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from uvsdk.rest.answers import response
from uvsdk.rest.problems import Problem
from uvsdk_server.monitoring import Metrics

UPDATE_PATH: Final = re.compile(r"/v1/rounds/\d+/update")
"""Updates are streamed to the disk under a limit of their own (:mod:`uvsdk_server.uploads`)."""

SMALL_BYTES: Final = 16 << 10
"""Largest body where nothing large belongs: a registration is 500 bytes, and anybody may send one."""

REPORT_BYTES: Final = 32 << 20
"""Largest report of an evaluation, whose moments grow with the square of the embedding's dimension: 3 MiB for 512."""

_REPORT: Final = re.compile(r"/v1/evaluations/\d+/report")
_LARGE: Final = re.compile(
    r"/v1/verify|/v1/users/[^/]*/(admission|template)|/v1/rounds/\d+/task|/v1/models/[^/]*/calibration"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one request may take.

    Args:
        body_bytes: largest body of the requests that carry samples, vectors or scores; of others :data:`SMALL_BYTES`.
        stall_s: longest wait for the next bytes of a body.
        bytes_per_s: slowest body, once ``stall_s`` have passed.
        handler_s: longest time from the end of a body to the answer; an update has no such limit.
    """

    body_bytes: int
    stall_s: float
    bytes_per_s: float
    handler_s: float

    def of_path(self, path: str) -> int:
        """The largest body of a request to that path, which is no update."""
        if _REPORT.fullmatch(path):
            return max(self.body_bytes, REPORT_BYTES)
        return self.body_bytes if _LARGE.fullmatch(path) else min(self.body_bytes, SMALL_BYTES)

    def patience_s(self, waited_s: float, received: int) -> float:
        """How long the next bytes of a body may take, after waits of ``waited_s`` for ``received`` bytes.

        >>> Bounds(0, stall_s=10.0, bytes_per_s=1000.0, handler_s=60.0).patience_s(8.0, 1000)
        3.0
        """
        return min(self.stall_s, self.stall_s + received / self.bytes_per_s - waited_s)


class Gate:
    """ASGI middleware: what takes too many bytes or too long is refused before it is held, and answers are counted."""

    def __init__(self, app: ASGIApp, *, bounds: Bounds, metrics: Metrics) -> None:
        self._app = app
        self._bounds = bounds
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(scope["method"], str(message["status"])).inc()
            await send(message)

        # Who hangs up before the body is whole has nobody to be answered, and is no fault of the server's to be logged.
        with contextlib.suppress(ClientDisconnect):
            await self._handle(scope, receive, counted)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if UPDATE_PATH.fullmatch(scope["path"]):
            await self._app(scope, _Body(self._bounds, receive, limit=0).next_of_update, send)
            return
        limit = self._bounds.of_path(scope["path"])
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            await response(too_large(limit))(scope, receive, send)
            return
        await self._in_time(scope, _Body(self._bounds, receive, limit=limit), send)

    async def _in_time(self, scope: Scope, body: _Body, send: Send) -> None:
        """Run the application; while it works on an answer, and neither reads nor writes, its time is limited."""
        loop, answering = asyncio.get_running_loop(), False

        async def suspended() -> MutableMapping[str, Any]:
            if answering:
                return await body.next()
            allowed.reschedule(None)
            try:
                return await body.next()
            finally:
                if not answering:
                    allowed.reschedule(loop.time() + self._bounds.handler_s)

        async def started(message: MutableMapping[str, Any]) -> None:
            nonlocal answering
            if not answering:
                answering = True
                allowed.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(self._bounds.handler_s) as allowed:
                await self._app(scope, suspended, started)
        except TimeoutError:
            if not allowed.expired():
                raise
            await response(timeout(self._bounds.handler_s))(scope, body.next, send)


class _Body:
    """A request's body, piece by piece, as fast as it must come."""

    def __init__(self, bounds: Bounds, receive: Receive, *, limit: int) -> None:
        self._bounds = bounds
        self._receive = receive
        self._limit = limit
        self._received = 0
        self._waited_s = 0.0
        self._complete = False

    async def next(self) -> MutableMapping[str, Any]:
        """The next message. Raises ``HTTPException``, the one class that FastAPI lets through while it reads a body."""
        try:
            message = await self._next()
        except TimeoutError as error:
            raise HTTPException(408, too_slow(self._bounds).detail) from error
        if self._received > self._limit:
            raise HTTPException(413, too_large(self._limit).detail)
        return message

    async def next_of_update(self) -> MutableMapping[str, Any]:
        """The same, for a body whose size its reader limits. Raises :class:`Problem`."""
        try:
            return await self._next()
        except TimeoutError as error:
            raise too_slow(self._bounds) from error

    async def _next(self) -> MutableMapping[str, Any]:
        if self._complete:  # what is waited for now is that the client goes away
            return await self._receive()
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with asyncio.timeout(max(0.0, self._bounds.patience_s(self._waited_s, self._received))):
            message = await self._receive()
        self._waited_s += loop.time() - asked
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message


def too_large(limit_bytes: int) -> Problem:
    """The problem of a body over ``limit_bytes``; the connection is closed, since the rest was not read."""
    return Problem(
        "too-large", f"the body exceeds {limit_bytes} bytes, the limit of this request", {"Connection": "close"}
    )


def too_slow(bounds: Bounds) -> Problem:
    """The problem of a body that stalls or trickles; the connection is closed."""
    return Problem(
        "too-slow",
        f"the body came slower than {bounds.bytes_per_s:g} bytes a second, or stopped for {bounds.stall_s:g} s; send "
        "it again",
        {"Connection": "close"},
    )


def timeout(limit_s: float) -> Problem:
    """The problem of a request that took too long inside the server."""
    return Problem(
        "timed-out",
        f"the request took longer than {limit_s:g} s and was given up; it may have had its effect, so ask again",
        {"Retry-After": "5"},
    )


class Allowance:
    """So many events a minute, refilled evenly (token bucket). The clock is the caller's."""

    def __init__(self, per_minute: int, events: str = "registrations") -> None:
        self._per_minute = per_minute
        self._events = events
        self._left = float(per_minute)
        self._seen = 0.0

    def take(self, now: float) -> None:
        """Count one event. Raises :class:`Problem` 429 with ``Retry-After`` where none is left.

        >>> allowance = Allowance(1)
        >>> allowance.take(100.0)
        >>> allowance.take(101.0)
        Traceback (most recent call last):
          ...
        uvsdk.rest.problems.Problem: at most 1 registrations a minute are taken; try again later
        >>> allowance.take(160.0)
        """
        self.check(now)
        self.count()

    def count(self) -> None:
        """Count one event that :meth:`check` has let pass."""
        self._left -= 1

    def check(self, now: float) -> None:
        """Raise as :meth:`take` does, and count nothing."""
        refill = max(0.0, now - self._seen) * self._per_minute / 60
        self._left = min(float(self._per_minute), self._left + refill)
        self._seen = now
        if self._left < 1:
            wait_s = int((1 - self._left) * 60 / self._per_minute) + 1
            raise Problem(
                "too-many-requests",
                f"at most {self._per_minute} {self._events} a minute are taken; try again later",
                {"Retry-After": str(wait_s)},
            )
