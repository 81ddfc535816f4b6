"""Every request has an id: the caller's own, or a new one; it is in the answer and in what the log says meanwhile."""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER: Final = "X-Request-ID"

_OURS: Final = HEADER.lower().encode()
# What could be mistaken for something else in a log is not taken over.
_TAKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """ASGI middleware, outside of everything that logs or answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_id(dict(scope["headers"]).get(_OURS, b"").decode("latin-1"))

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (_OURS, name.encode())]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request=name):
            await self._app(scope, receive, named)


def request_id(given: str) -> str:
    """The id that a request goes by: the one given where it can be one, else a new one of 16 hexadecimal digits.

    >>> request_id("order-4711.2")
    'order-4711.2'
    >>> len(request_id("two words"))
    16
    """
    return given if _TAKEN.fullmatch(given) else secrets.token_hex(8)
