"""HTTP to the coordination server: signed, bounded in time and size, and every failure one of two errors.

What the server said is :class:`ServerRefusedError`; that it said nothing usable in time is
:class:`ServerUnreachableError`, after which trying again makes sense. A proxy, a firewall or the sign-in page of a
network may answer in the server's place: whatever lacks the challenge that every answer of a server carries was not
said by it, is not read, and costs no upload its place in the queue.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from uvsdk.errors import ServerRefusedError, ServerUnreachableError, WireError
from uvsdk.privacy.request_signing import CHALLENGE_HEADER, Requested, sign_request
from uvsdk.records.codec import Scalar
from uvsdk.records.transfer import stays_here
from uvsdk.rest.problems import MEDIA_TYPE, PREFIX
from uvsdk.system import network
from uvsdk_device.address import Address

JSON_LIMIT = 1 << 20
"""Largest JSON answer that is read."""

# Not now, says the server or what stands before it: the same request may pass later. A server that failed (500) or
# ran out of disk (507) is mended by its operator, and must not cost the device its place meanwhile.
_LATER = frozenset({408, 425, 429})
_NEVER = frozenset({501, 505})  # not implemented; another version of HTTP
_DETAIL_LIMIT = 500
# A body is sent whole before a refusal is seen, so it is sent over a challenge that the server has just given out.
_CHALLENGE_AGE_S = 60.0
_REASON_LIMIT = 200


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """The key that signs requests and the name the server knows it by."""

    key: Ed25519PrivateKey
    key_id: str

    __reduce_ex__ = stays_here("it holds a private key; read it from the store in each process")


@dataclass(slots=True)
class _Challenge:
    """What the server last asked requests to be signed over; shared by the signers of one connection."""

    text: str = ""
    since_s: float = -math.inf

    def age_s(self) -> float:
        return time.monotonic() - self.since_s

    def learn(self, headers: Mapping[str, str]) -> bool:
        """Whether the answer brought another one than was known."""
        former, self.text = self.text, headers.get(CHALLENGE_HEADER, self.text)
        self.since_s = time.monotonic()
        return self.text != former

    def forget(self) -> None:
        self.since_s = -math.inf


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take.

    Args:
        connect_s: until a connection stands.
        silence_s: between two pieces of an answer, or of a request being sent.
        whole_s: from the first byte out to the last byte in, so that a server that drips holds nobody up for ever.
    """

    connect_s: float = 10.0
    silence_s: float = 60.0
    whole_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is not an error. ``headers`` has lower-case names; status 304 has an empty body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """A client of one server. Safe to share between threads; close it, or use it in ``with``.

    Args:
        url: ``https://host[:port][/prefix]``; plain ``http`` only to this machine, unless ``allow_plain_http``.
        signer: signs every request; ``None`` for the few that need no signature.
        allow_plain_http: for a network that encrypts by other means. Bodies are sealed either way; what plain
            HTTP shows is who talks to whom and when, and the enrolment token.
        timeouts: see :class:`Timeouts`.
        clock: seconds since 1970, for the signatures.

    Raises:
        SettingsError: the address, see :class:`~uvsdk_device.address.Address`.
        ServerUnreachableError: the environment names a proxy or certificates that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        signer: Signer | None = None,
        allow_plain_http: bool = False,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base = Address.parse(url, allow_plain_http=allow_plain_http).url
        self._signer = signer
        self._timeouts = timeouts or Timeouts()
        self._clock = clock
        self._challenge = _Challenge()
        try:
            self._client = network.client(
                self._base,
                timeout=httpx.Timeout(self._timeouts.silence_s, connect=self._timeouts.connect_s),
                headers={"Accept-Encoding": "identity"},  # models do not compress, and nothing can inflate in memory
            )
        except ConnectionError as error:
            raise ServerUnreachableError(f"no way to {self._base}: {error}") from error

    __reduce_ex__ = stays_here("it is open; connect in each process")

    @property
    def url(self) -> str:
        """The server's origin and base path, without a slash at the end."""
        return self._base

    @property
    def authority(self) -> str:
        """Host, and port where it is not the scheme's own: the name by which this device calls the server."""
        return httpx.URL(self._base).netloc.decode("ascii").lower()

    def with_signer(self, signer: Signer | None) -> Connection:
        """The same connection, whose requests ``signer`` signs; both share sockets and are closed together."""
        other = object.__new__(Connection)
        other._base, other._signer, other._clock = self._base, signer, self._clock
        other._timeouts, other._client, other._challenge = self._timeouts, self._client, self._challenge
        return other

    def get(
        self, path: str, *, query: Mapping[str, str | int | float] | None = None, limit: int, etag: str | None = None
    ) -> Answer:
        """GET at most ``limit`` bytes; with ``etag``, an answer of status 304 says that it still holds.

        Raises:
            ServerUnreachableError, ServerRefusedError: see the module.
            WireError: the body is longer than ``limit``.
        """
        headers = {} if etag is None else {"If-None-Match": etag}
        return self._call("GET", path, query=query, headers=headers, limit=limit)

    def get_json(self, path: str, *, query: Mapping[str, str | int | float] | None = None) -> tuple[Answer, Object]:
        """GET a JSON object; an answer without a body gives an empty one. Raises as :meth:`get`."""
        answer = self.get(path, query=query, limit=JSON_LIMIT)
        return answer, _object(answer.body) if answer.body else {}

    def post_json(self, path: str, values: Mapping[str, Scalar]) -> Object:
        """POST a JSON object and read one. Raises as :meth:`get`."""
        body = json.dumps(values).encode()
        headers = {"Content-Type": "application/json"}
        return _object(self._call("POST", path, body=body, headers=headers, limit=JSON_LIMIT).body)

    def put_json(self, path: str, values: Mapping[str, Scalar]) -> Answer:
        """PUT a JSON object. Raises as :meth:`get`."""
        body = json.dumps(values).encode()
        return self._call("PUT", path, body=body, headers={"Content-Type": "application/json"}, limit=JSON_LIMIT)

    def put(self, path: str, body: bytes, *, sha256: bytes | None = None) -> Answer:
        """PUT bytes, with their SHA-256 where the caller knows it. Raises as :meth:`get`."""
        headers = {"Content-Type": "application/octet-stream"}
        return self._call("PUT", path, body=body, sha256=sha256, headers=headers, limit=JSON_LIMIT)

    def post(self, path: str, body: bytes, *, limit: int) -> Answer:
        """POST bytes and read at most ``limit``. Raises as :meth:`get`."""
        headers = {"Content-Type": "application/octet-stream"}
        return self._call("POST", path, body=body, headers=headers, limit=limit)

    def delete(self, path: str) -> Answer:
        """DELETE. Raises as :meth:`get`."""
        return self._call("DELETE", path, headers={}, limit=JSON_LIMIT)

    def close(self) -> None:
        """Close the sockets."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        limit: int,
        query: Mapping[str, str | int | float] | None = None,
        body: bytes = b"",
        sha256: bytes | None = None,
    ) -> Answer:
        # Built by hand and sent as it is: what is signed must be what arrives.
        target = path if not query else f"{path}?{urlencode(query)}"
        request = self._client.build_request(method, self._base + target, headers=headers, content=body or None)
        digest = sha256 or hashlib.sha256(body).digest()
        ends_at = time.monotonic() + self._timeouts.whole_s
        if self._signer is not None and (
            self._challenge.age_s() == math.inf or (body and self._challenge.age_s() > _CHALLENGE_AGE_S)
        ):
            alive, _ = self._send(self._client.build_request("GET", f"{self._base}/healthz"), JSON_LIMIT, ends_at)
            self._challenge.learn(alive.headers)
        self._sign(request, digest)
        response, content = self._send(request, limit, ends_at)
        fresh = self._challenge.learn(response.headers)
        if fresh and self._signer is not None and _kind(response, content) == "stale-challenge":
            self._sign(request, digest)
            response, content = self._send(request, limit, ends_at)
        _raise_for(response, content)
        return Answer(response.status_code, {key.lower(): value for key, value in response.headers.items()}, content)

    def _sign(self, request: httpx.Request, body_sha256: bytes) -> None:
        if self._signer is None:
            return
        requested = Requested(
            request.method,
            request.url.netloc.decode("ascii").lower(),
            # Below the prefix, where the server has its paths.
            request.url.raw_path.decode("ascii").removeprefix(urlsplit(self._base).path),
            body_sha256,
        )
        request.headers.update(
            sign_request(
                requested,
                self._signer.key,
                key_id=self._signer.key_id,
                challenge=self._challenge.text,
                created=int(self._clock()),
            )
        )

    def _send(self, request: httpx.Request, limit: int, ends_at: float) -> tuple[httpx.Response, bytes]:
        try:
            response = self._client.send(request, stream=True)
            try:
                _check_origin(response)
                content = self._read(response, limit, ends_at)
            finally:
                response.close()
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            self._challenge.forget()  # it may be the one of a server that has been started again since
            reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error).strip())[:_REASON_LIMIT] or type(error).__name__
            raise ServerUnreachableError(
                f"no usable answer from {self._base} ({reason}); what is queued stays queued"
            ) from error
        return response, content

    def _read(self, response: httpx.Response, limit: int, ends_at: float) -> bytes:
        limit = limit if response.is_success else JSON_LIMIT
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > limit:
                raise WireError(f"the server's answer is longer than the {limit} bytes expected here; not read further")
            if time.monotonic() > ends_at:
                raise ServerUnreachableError(f"the answer took longer than {self._timeouts.whole_s:g} s")
        return bytes(body)


Object = dict[str, object]
"""A JSON object whose values are still to be checked."""


def _object(body: bytes) -> Object:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError("the server's answer is not JSON; is the address a uvsdk server?") from error
    if not isinstance(values, dict):
        raise WireError("the server's answer is not a JSON object")
    return values


def _raise_for(response: httpx.Response, content: bytes) -> None:
    status = response.status_code
    if response.is_success or status == 304:
        return
    if status in _LATER or (status >= 500 and status not in _NEVER):
        raise ServerUnreachableError(f"the server cannot answer now (status {status}); try again later")
    if not _is_problem(response):
        raise ServerUnreachableError(f"an answer of status {status} that is no problem document; try again later")
    problem = _object(content)
    detail = str(problem.get("detail") or problem.get("title") or response.reason_phrase)[:_DETAIL_LIMIT]
    raise ServerRefusedError(status, _kind(response, content), detail)


def _is_problem(response: httpx.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.startswith(MEDIA_TYPE)


def _kind(response: httpx.Response, content: bytes) -> str:
    """What a refusal is called: of a problem document, or by its status. Raises :class:`WireError`."""
    kind = f"http-{response.status_code}"
    return str(_object(content).get("type", kind)).removeprefix(PREFIX)[:100] if _is_problem(response) else kind


def _check_origin(response: httpx.Response) -> None:
    """Raise :class:`ServerUnreachableError` where something else than the server has answered."""
    if CHALLENGE_HEADER in response.headers:
        return
    status = response.status_code
    answer = f"{response.request.url.host} answered {status} in the server's place"
    if response.is_redirect:
        what = (
            f"with a redirect{_target(response)}, which is not followed. Is this network waiting for a sign-in, or has "
            "the server moved? Then give its new address"
        )
    elif status == 413:
        size = response.request.headers.get("content-length", "0")
        what = (
            f"that {size} bytes are too much: something between here and the server limits bodies; its operator must "
            "allow them (docs/operations.md)"
        )
    elif status >= 500 or status in _LATER:
        what = "that the server cannot be reached now"
    else:
        what = (
            "without the header of a coordination server. Is the address right? Does this network wait for a sign-in?"
        )
    raise ServerUnreachableError(f"{answer}: {what}; what is queued stays queued")


def _target(response: httpx.Response) -> str:
    """Where a redirect points to; the host alone, for the rest may hold a token of a sign-in page."""
    try:
        host = urlsplit(response.headers.get("location", "")).hostname
    except ValueError:
        host = None
    return f" to {host[:100]}" if host else ""
