"""The one place where an error becomes an HTTP answer: RFC 9457 problem documents.

Handlers raise :class:`uvsdk.rest.problems.Problem`, or let an error of :mod:`uvsdk.errors` pass; nothing else writes an
error body.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uvsdk import errors
from uvsdk.rest.answers import response
from uvsdk.rest.problems import MEDIA_TYPE, Problem
from uvsdk_server.monitoring import Log, where
from uvsdk_server.store.failures import trouble


class ProblemDocument(BaseModel):
    """RFC 9457, as it stands in the OpenAPI description. ``measured`` comes with ``low-quality`` only."""

    type: str
    title: str
    status: int
    detail: str
    measured: dict[str, float] | None = None


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with these problem statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def of(error: Exception) -> Problem:
    """The problem that ``error`` is."""
    known = Problem.of(error, "server") or _of_trouble(error)
    return known or Problem("internal", "the server failed; its log holds the reason")


def _of_trouble(error: Exception) -> Problem | None:
    """What a disk or database that cannot answers; both pass, and the same request may then be sent again."""
    kind = trouble(error)
    if kind == "full":
        return Problem(
            "storage-full",
            "the server has no space left, so nothing was kept of this request; what was acknowledged before is safe. "
            "Try again later; the operator must free space",
            {"Retry-After": "30"},
        )
    if kind == "busy":
        return Problem("busy", "the server's database is busy; nothing was changed, try again", {"Retry-After": "1"})
    return None


def install(app: FastAPI, log: Log) -> None:
    """Answer every error of ``app`` with a problem document; ``log`` hears of those that are not the caller's."""

    async def known(_request: Request, error: Exception) -> Response:
        problem = of(error)
        if problem.status >= 500 and not isinstance(error, Problem):
            reason = str(error) if isinstance(error, errors.UvsdkError) else problem.kind
            log.error("request failed", status=problem.status, error=type(error).__name__, reason=reason)
        return response(problem)

    async def storage(request: Request, error: Exception) -> Response:
        if trouble(error) is None:
            raise error  # nobody's known trouble: Fence answers 500 and logs where it came from
        return await known(request, error)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # The rejected input may be an embedding, so only its place and what is wrong with it are told.
        places = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return response(Problem("invalid-request", "; ".join(places)[:1000]))

    async def http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return response(Problem.of_status(error.status_code, str(error.detail), error.headers))

    app.add_exception_handler(Problem, known)
    app.add_exception_handler(errors.UvsdkError, known)
    app.add_exception_handler(OSError, storage)
    app.add_exception_handler(SQLAlchemyError, storage)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_middleware(Fence, log=log)
    _describe(app)


def _describe(app: FastAPI) -> None:
    """Add the problem document to what the OpenAPI description of ``app`` names.

    FastAPI would do so for a response's ``model``, and then say that problems also come as ``application/json``.
    """
    generate = app.openapi

    def described() -> dict[str, Any]:
        description = generate()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas[ProblemDocument.__name__] = ProblemDocument.model_json_schema()
        return description

    app.openapi = described  # type: ignore[method-assign]


class Fence:
    """ASGI middleware: what nobody foresaw is answered 500, and logged by its class and its place in the code.

    Its message is not, nor a traceback, which ends in it: a database's error may quote a row, a library's an embedding.
    """

    def __init__(self, app: ASGIApp, *, log: Log) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
            return
        except Exception as error:  # noqa: BLE001 - this is where errors end
            problem = of(error)
            self._log.error(
                "request failed", status=problem.status, error=type(error).__name__, where=where(error), begun=started
            )
        if started:
            raise ConnectionAbortedError("an answer was cut short; the log says where")
        await response(problem)(scope, receive, send)
