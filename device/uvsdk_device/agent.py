"""A REST endpoint on this machine that verifies at the edge: templates and probes stay here.

``POST /v1/verify`` (JSON, or a multipart form whose ``sample`` is a file) and ``DELETE /v1/users/{user}`` need
``Authorization: Bearer TOKEN``, ``GET /healthz`` does not. Errors are problem documents of the server's kinds. Failed
attempts are counted (:mod:`uvsdk.templates.attempts`): 429 with ``Retry-After`` means wait, 423 that verification is
disabled for this person or device until it is reset. An agent that is told of no server refuses to delete a user whom
a server may know (409 ``still-registered``): the keys that could ask for the deletion there would be gone.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from uvsdk.errors import SettingsError, UvsdkError, WireError
from uvsdk.modality.sample import FACES_RULES, QUALITY_POLICIES, Capture, FacesRule
from uvsdk.presentation.detector import detectors_of
from uvsdk.records import strict_json
from uvsdk.rest import forms
from uvsdk.rest.answers import response
from uvsdk.rest.problems import Problem
from uvsdk.rest.verification import FIELDS, decision_document
from uvsdk.scoring import Decision, QualityPolicy
from uvsdk.system import network
from uvsdk.verify import check_rate
from uvsdk_device.leaving import Removal
from uvsdk_device.records import disk_errors
from uvsdk_device.runtime import Runtime

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the agent listens and what it accepts.

    Args:
        host: address to listen on; anything but this machine must be allowed by name, for the agent speaks plain
            HTTP.
        port: 0 takes a free one.
        allow_remote: whether ``host`` may be reached from other machines.
        body_limit_bytes: largest request body; base64 makes a sample of 32 MiB, the largest that is read, 43 MiB.
        threads: verifications at a time; each uses one core.
        capture: how probes are taken; a request may ask for a stricter quality policy or faces rule.
        presentation_detector: ask the presentation attack detector that the model carries, where it carries one.
        scores: tell callers scores and likelihood ratios. As many scores as the embedding has dimensions are the
            template, so each answer then counts as an attempt, accepted or not.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    allow_remote: bool = False
    body_limit_bytes: int = 44 << 20
    threads: int = max(1, os.cpu_count() or 1)
    capture: Capture = field(default_factory=Capture)
    presentation_detector: bool = True
    scores: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535 or self.body_limit_bytes < 1 or self.threads < 1:
            raise SettingsError("the agent's port is 0-65535, its limits are at least 1")
        if not self.allow_remote and not network.is_loopback(self.host):
            raise SettingsError(
                f"{self.host} can be reached from other machines and the agent speaks plain HTTP; listen on 127.0.0.1, "
                "or allow it by name (allow_remote, --allow-remote) behind something that encrypts"
            )


def create_app(
    runtime: Runtime, *, token: str, settings: AgentSettings | None = None, forget: Callable[[str], Removal | None]
) -> Starlette:
    """The agent as an ASGI application.

    Args:
        runtime: verifies.
        token: what callers must show.
        settings: see :class:`AgentSettings`.
        forget: deletes one user, and says ``pending`` where a server is not yet done (answered 202); raises
            ``UnknownUserError``, and ``StillRegisteredError`` where it deletes here only and a server may know them.
    """
    chosen = settings or AgentSettings()
    handlers = _Handlers(runtime, token, chosen, forget)

    async def problem(_request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return response(Problem.of_status(error.status_code, error.detail, error.headers))
        known = Problem.of(error, "agent")
        if known is None:  # logged by the server around this application, with its traceback
            return response(Problem("internal", "the agent failed; its log holds the reason"))
        if known.status >= 500:
            _LOG.error("%s: %s", type(error).__name__, error)
        return response(known)

    return Starlette(
        routes=[
            Route("/healthz", handlers.health, methods=["GET"]),
            Route("/v1/verify", handlers.verify, methods=["POST"]),
            Route("/v1/users/{user:path}", handlers.delete, methods=["DELETE"]),
        ],
        exception_handlers=dict.fromkeys((Problem, UvsdkError, HTTPException, Exception), problem),
    )


def serve(app: Starlette, settings: AgentSettings, *, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until interrupted; ``ready`` is told the address once it listens."""
    with network.listener(settings.host, settings.port) as listener:
        listener.listen(128)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        ready(f"http://{host}:{listener.getsockname()[1]}")
        # No access log: its lines would hold user ids.
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listener])


def agent_token(folder: Path) -> str:
    """The token in ``folder/agent-token``, made at the first call with mode 0600."""
    path = folder / "agent-token"
    with disk_errors():
        draft = path.with_name(f"agent-token.{secrets.token_hex(4)}.tmp")
        if not path.exists():
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:  # noqa: PTH123 - a descriptor that was opened with mode 0600
                file.write(secrets.token_urlsafe(32))
                file.flush()
                os.fsync(file.fileno())
            # Two agents that start together end with one token: a link never replaces a file.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        return path.read_text().strip()


class _Handlers:
    def __init__(
        self, runtime: Runtime, token: str, settings: AgentSettings, forget: Callable[[str], Removal | None]
    ) -> None:
        self._runtime = runtime
        self._token = token.encode()
        self._settings = settings
        self._forget = forget
        if settings.presentation_detector:
            detectors_of(runtime.bundle)  # one that cannot be used is told of at the start
        self._limiter: anyio.CapacityLimiter | None = None

    async def health(self, _request: Request) -> Response:
        bundle = await self._in_thread(lambda: self._runtime.bundle)
        return JSONResponse({"status": "ok", "model_version": bundle.version, "modality": bundle.manifest.modality})

    async def verify(self, request: Request) -> Response:
        self._authorise(request)
        body = self._pieces(request)
        if forms.is_form(request.headers):
            asked = _asked(_typed(await forms.read(request.headers, body)))
        else:
            asked = _asked(strict_json.loads(b"".join([piece async for piece in body])))
        capture = self._settings.capture.narrow(quality=asked.quality, faces=asked.faces)

        def work() -> Decision:
            runtime = self._runtime.settled()  # one release for all of this request
            if asked.fmr is not None:
                check_rate(asked.fmr, runtime.rate(asked.user))
            return runtime.verify(
                asked.user,
                asked.sample,
                fmr=asked.fmr,
                fallback=asked.fallback,
                capture=capture,
                detectors=detectors_of(runtime.bundle) if self._settings.presentation_detector else (),
                told=self._settings.scores,
            )

        decision = await self._in_thread(work)
        told = self._settings.scores
        return JSONResponse(
            decision_document(decision, told=told) | ({"timings_s": decision.timings_s} if told else {})
        )

    async def delete(self, request: Request) -> Response:
        self._authorise(request)
        user = request.path_params["user"]
        if await self._in_thread(lambda: self._forget(user)) == "pending":
            return JSONResponse({"state": "pending"}, 202)
        return Response(status_code=204)

    def _authorise(self, request: Request) -> None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
            headers = {"WWW-Authenticate": "Bearer"}
            raise Problem("unauthorized", "this needs Authorization: Bearer TOKEN, the content of agent-token", headers)

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        """The body as it comes, refused where it exceeds the limit."""
        limit = self._settings.body_limit_bytes
        refusal = Problem("too-large", f"a body may have {limit} bytes; send a shorter sample", {"Connection": "close"})
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise refusal
        seen = 0
        async for piece in request.stream():
            seen += len(piece)
            if seen > limit:
                raise refusal
            yield piece

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        if self._limiter is None:  # it belongs to an event loop, so it is made inside one
            self._limiter = anyio.CapacityLimiter(self._settings.threads)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


@dataclass(frozen=True, slots=True)
class _VerifyRequest:
    """What ``POST /v1/verify`` asks."""

    user: str
    sample: bytes
    fmr: float | None = None
    fallback: bool = False
    quality: QualityPolicy | None = None
    faces: FacesRule | None = None


def _typed(form: Mapping[str, str]) -> dict[str, object]:
    """A form as the JSON it stands for: ``fmr`` a number where it is one, ``fallback`` true or false."""
    values: dict[str, object] = dict(form)
    if form.get("fallback") in ("true", "false"):
        values["fallback"] = form["fallback"] == "true"
    with contextlib.suppress(ValueError):
        values |= {name: float(str(values[name])) for name in {"fmr"} & set(values)}
    return values


def _asked(values: object) -> _VerifyRequest:
    if not isinstance(values, dict) or not {"user", "sample"} <= set(values) <= set(FIELDS):
        raise WireError(
            f"expected an object of user, sample (base64) and, if wanted, {', '.join(list(FIELDS)[2:-1])} and "
            f"{list(FIELDS)[-1]}"
        )
    user, sample, fmr = values["user"], values["sample"], values.get("fmr")
    fallback, quality, faces = values.get("fallback", False), values.get("quality"), values.get("faces")
    if not isinstance(user, str) or not user or not isinstance(sample, str):
        raise WireError("user and sample are text, and user is not empty")
    if fmr is not None and (isinstance(fmr, bool) or not isinstance(fmr, int | float)):
        raise WireError("fmr is a number")
    if not isinstance(fallback, bool):
        raise WireError("fallback is true or false")
    if quality not in (None, *QUALITY_POLICIES) or faces not in (None, *FACES_RULES):
        raise WireError(f"quality is one of {', '.join(QUALITY_POLICIES)}; faces one of {', '.join(FACES_RULES)}")
    try:
        return _VerifyRequest(user, base64.b64decode(sample, validate=True), fmr, fallback, quality, faces)
    except ValueError as error:
        raise WireError("sample is not base64") from error
