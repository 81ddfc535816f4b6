"""JSON bodies, read by one reader before FastAPI looks at them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from uvsdk.errors import WireError
from uvsdk.records import strict_json
from uvsdk.rest import forms


class StrictRequest(Request):
    """A request whose JSON is read by :mod:`uvsdk.records.strict_json`."""

    async def json(self) -> Any:
        """The body's JSON. Raises what FastAPI lets through while it reads a body: answered 400 ``malformed``."""
        try:
            return strict_json.loads(await self.body())
        except WireError as error:
            raise HTTPException(400, str(error)) from error


class StrictRoute(APIRoute):
    """A route with a JSON body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, which is given a :class:`StrictRequest`."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


async def form_as_json(request: Request) -> Request:
    """The request, a multipart form in place of its JSON where it came as one: a file becomes base64.

    Raises:
        WireError: see :func:`uvsdk.rest.forms.read`.
    """
    if not forms.is_form(request.headers):
        return request
    body = json.dumps(await forms.read(request.headers, request.stream())).encode()
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return await request.receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}, receive)
