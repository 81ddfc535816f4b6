"""A server under a prefix that no proxy strips, e.g. ``https://host/uv/v1/...``."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class BasePath:
    """ASGI middleware, outside of all that reads an address: takes the prefix off, so that everything inside,
    signatures too, is below it.

    Args:
        app: what is inside.
        prefix: e.g. ``/uv``, empty for none. Requests without it, stripped by a proxy, are served as well.
    """

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if self._prefix and scope["type"] == "http" and scope["path"].startswith(f"{self._prefix}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix)}
            if scope.get("raw_path"):
                scope["raw_path"] = scope["raw_path"].removeprefix(self._prefix.encode())
        await self._app(scope, receive, send)
