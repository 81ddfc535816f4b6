"""What bounds a stranger's share of the server: bytes of a body, and events in a minute."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from uvsdk_server.monitoring import Metrics
from uvsdk_server.problems import Problem

UPDATE_PATH: Final = re.compile(r"/v1/rounds/\d+/update")
"""Updates are streamed to the disk under a limit of their own (:mod:`uvsdk_server.uploads`)."""


class Gate:
    """ASGI middleware: bodies over the limit are refused before they are held, and every answer is counted."""

    def __init__(self, app: ASGIApp, *, limit_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._limit = limit_bytes
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

        if UPDATE_PATH.fullmatch(scope["path"]):
            await self._app(scope, receive, counted)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await too_large(self._limit).response()(scope, receive, counted)
            return
        seen = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                # FastAPI lets only this class through while it reads a body.
                raise HTTPException(413, too_large(self._limit).detail)
            return message

        await self._app(scope, bounded, counted)


def too_large(limit_bytes: int) -> Problem:
    """The problem of a body over ``limit_bytes``; the connection is closed, since the rest was not read."""
    return Problem(
        413, "too-large", f"the body exceeds {limit_bytes} bytes, the limit of this request", {"Connection": "close"}
    )


class Allowance:
    """So many events a minute, refilled evenly (token bucket). The clock is the caller's."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._seen = 0.0

    def take(self, now: float) -> None:
        """Count one event. Raises :class:`Problem` 429 with ``Retry-After`` where none is left.

        >>> allowance = Allowance(1)
        >>> allowance.take(100.0)
        >>> allowance.take(101.0)
        Traceback (most recent call last):
          ...
        uvsdk_server.problems.Problem: at most 1 registrations a minute are taken; try again later
        >>> allowance.take(160.0)
        """
        refill = max(0.0, now - self._seen) * self._per_minute / 60
        self._left = min(float(self._per_minute), self._left + refill)
        self._seen = now
        if self._left < 1:
            wait_s = int((1 - self._left) * 60 / self._per_minute) + 1
            raise Problem(
                429,
                "too-many-requests",
                f"at most {self._per_minute} registrations a minute are taken; try again later",
                {"Retry-After": str(wait_s)},
            )
        self._left -= 1
