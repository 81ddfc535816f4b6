"""The one place where an error becomes an HTTP answer: RFC 9457 problem documents.

Handlers raise :class:`Problem`, or let an error of :mod:`uvsdk.errors` pass; nothing else writes an error body.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
from uvsdk_server.monitoring import Log, where
from uvsdk_server.store.failures import trouble

PREFIX = "urn:uvsdk:problem:"

# The most derived class that matches decides; a SampleError's kind is its class name in kebab case.
_STATUS: Mapping[type[errors.UvsdkError], tuple[int, str]] = {
    errors.SampleTooLargeError: (413, "sample-too-large"),
    errors.SampleError: (422, "sample"),
    errors.ModelMismatchError: (409, "model-mismatch"),
    errors.LaxerRateError: (422, "laxer-rate"),
    errors.ThresholdError: (422, "threshold"),
    errors.TooManyAttemptsError: (429, "too-many-attempts"),
    errors.DisabledError: (423, "disabled"),
    errors.WireError: (400, "malformed"),
    errors.SealError: (400, "unsealable"),
    errors.UpdateRejectedError: (422, "invalid-update"),
    errors.SettingsError: (422, "invalid-request"),
    errors.BundleError: (503, "unusable-model"),
    errors.UnknownUserError: (404, "unknown-user"),
}


_BODY: Mapping[int, str] = {408: "too-slow", 413: "too-large"}
"""What :class:`uvsdk_server.limits.Gate` raises while a body is read."""


class Problem(Exception):
    """An answer that is not a success.

    Args:
        status: HTTP status code.
        kind: last part of the ``type`` URI, kebab case.
        detail: what happened, what was expected and what to do.
        headers: headers that the answer needs, e.g. ``Retry-After``.
        measured: what was measured in a sample that was refused, name with unit -> value.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        measured: dict[str, float] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.measured = measured

    __reduce__ = errors.as_it_was

    def response(self) -> Response:
        """As ``application/problem+json``."""
        body = ProblemDocument(
            type=PREFIX + self.kind,
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            measured=self.measured,
        )
        text = body.model_dump_json(exclude_none=True)
        return Response(text, self.status, media_type="application/problem+json", headers=self.headers)


class ProblemDocument(BaseModel):
    """RFC 9457, as it stands in the OpenAPI description. ``measured`` comes with ``low-quality`` only."""

    type: str
    title: str
    status: int
    detail: str
    measured: dict[str, float] | None = None


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with these problem statuses."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: {"model": ProblemDocument, "description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def of(error: Exception) -> Problem:
    """The problem that ``error`` is."""
    if isinstance(error, Problem):
        return error
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, name = _STATUS[kind]
            name = _kebab(type(error).__name__) if kind is errors.SampleError else name
            return Problem(status, name, str(error), _headers(error), getattr(error, "measured", None))
    return _of_trouble(error) or Problem(500, "internal", "the server failed; its log holds the reason")


def _headers(error: Exception) -> dict[str, str]:
    if not isinstance(error, errors.TooManyAttemptsError):
        return {}
    return {"Retry-After": str(math.ceil(error.retry_after_s))}


def _of_trouble(error: Exception) -> Problem | None:
    """What a disk or database that cannot answers; both pass, and the same request may then be sent again."""
    kind = trouble(error)
    if kind == "full":
        return Problem(
            507,
            "storage-full",
            "the server has no space left, so nothing was kept of this request; what was acknowledged before is safe. "
            "Try again later; the operator must free space",
            {"Retry-After": "30"},
        )
    if kind == "busy":
        return Problem(
            503, "busy", "the server's database is busy; nothing was changed, try again", {"Retry-After": "1"}
        )
    return None


def install(app: FastAPI, log: Log) -> None:
    """Answer every error of ``app`` with a problem document; ``log`` hears of those that are not the caller's."""

    async def known(_request: Request, error: Exception) -> Response:
        problem = of(error)
        if problem.status >= 500 and not isinstance(error, Problem):
            reason = str(error) if isinstance(error, errors.UvsdkError) else problem.kind
            log.error("request failed", status=problem.status, error=type(error).__name__, reason=reason)
        return problem.response()

    async def storage(request: Request, error: Exception) -> Response:
        if trouble(error) is None:
            raise error  # nobody's known trouble: Fence answers 500 and logs where it came from
        return await known(request, error)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # The rejected input may be an embedding, so only its place and what is wrong with it are told.
        places = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return Problem(422, "invalid-request", "; ".join(places)[:1000]).response()

    async def http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code in _BODY:
            close = {"Connection": "close"}  # the rest of the body was not read
            return Problem(error.status_code, _BODY[error.status_code], str(error.detail), close).response()
        if error.status_code == 400:
            return Problem(400, "malformed", str(error.detail), error.headers).response()
        kind = _kebab(re.sub(r"\W+", "", HTTPStatus(error.status_code).phrase.title()))
        return Problem(error.status_code, kind, str(error.detail), error.headers).response()

    app.add_exception_handler(Problem, known)
    app.add_exception_handler(errors.UvsdkError, known)
    app.add_exception_handler(OSError, storage)
    app.add_exception_handler(SQLAlchemyError, storage)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_middleware(Fence, log=log)


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
        await problem.response()(scope, receive, send)


def _kebab(name: str) -> str:
    """``NoSpeechError`` -> ``no-speech``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.removesuffix("Error")).lower()
