"""Connections that get nowhere are closed: whoever opens them, they hold a file descriptor that others need.

uvicorn's own time limit is for connections that are idle between two requests. Here every connection has one for each
of its waits: the headers of a request must be complete within ``headers_s`` of the connection, or of the answer before
it; an answer must be taken at ``bytes_per_s``. What happens between headers and answer is
:class:`uvsdk_server.limits.Gate`'s. Where there are as many connections as the process may have, the oldest that has
never sent a request makes room for a new one.

A server behind a proxy is reached by the proxy's connections only, and the proxy's limits then come first.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

_WRITE_LOOK_S: Final = 5.0
_RESERVED: Final = 64
"""File descriptors left to the database, the uploads on their way and the log."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may take.

    Args:
        headers_s: until a request's headers are complete.
        bytes_per_s: slowest reader of an answer.
        connections: most at once.
    """

    headers_s: float
    bytes_per_s: float
    connections: int

    def protocol(self) -> type[asyncio.Protocol]:
        """The class that uvicorn makes one of for each connection."""
        own = {"patience": self, "silent": {}, "between": {}}
        return cast("type[asyncio.Protocol]", type("Bounded", (_Bounded,), own))


def room() -> int:
    """Connections that the limit of open files leaves; the soft limit is raised as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass
    if soft == resource.RLIM_INFINITY:
        return 1 << 16
    return max(16, int(soft * 0.8) - _RESERVED)


class _Bounded(H11Protocol):
    patience: Patience
    silent: dict[_Bounded, None]
    """Connections that never had a request, the oldest first; one dictionary for each server."""
    between: dict[_Bounded, None]
    """Connections between two requests, the longest waiting first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._until: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unwritten = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request(self.silent, self.patience.headers_s)
        if len(self.connections) > self.patience.connections:
            next(iter(self.silent)).abort()  # there is one: this

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_request()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        former = self.cycle
        super().handle_events()
        if self.cycle is not former:
            self._have_request()

    def on_response_complete(self) -> None:
        # First, for a request that waits in the buffer is taken up by what follows.
        self._await_request(self.between, self.timeout_keep_alive + self.patience.headers_s)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = self.transport.get_write_buffer_size()
        self._writing = self.loop.call_later(_WRITE_LOOK_S, self._look_at_writing)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def abort(self) -> None:
        """Close without waiting for what cannot be written."""
        self._have_request()
        self.transport.abort()

    def _look_at_writing(self) -> None:
        left = self.transport.get_write_buffer_size()
        if self._unwritten - left < self.patience.bytes_per_s * _WRITE_LOOK_S:
            self.abort()
            return
        self._unwritten = left
        self._writing = self.loop.call_later(_WRITE_LOOK_S, self._look_at_writing)

    def _await_request(self, among: dict[_Bounded, None], wait_s: float) -> None:
        self._have_request()
        among[self] = None
        self._until = self.loop.call_later(wait_s, self.abort)

    def _have_request(self) -> None:
        self.silent.pop(self, None)
        self.between.pop(self, None)
        if self._until is not None:
            self._until.cancel()
            self._until = None
