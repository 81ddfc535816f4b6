"""Who is asking: a device by its request signature, an operator or integrator by a bearer token."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from fastapi import Depends, Request
from starlette.responses import Response

from uvsdk.errors import SealError
from uvsdk.privacy.request_signing import Claim, Requested, claim_of, verify_request
from uvsdk.rest.problems import Problem
from uvsdk_server import tokens
from uvsdk_server.bodies import StrictRoute, form_as_json
from uvsdk_server.deployment import Deployment
from uvsdk_server.people import Device, check_active, check_known, check_trains
from uvsdk_server.store import roster


def deployment(request: Request) -> Deployment:
    """The deployment this app serves."""
    found: Deployment = request.app.state.deployment
    return found


async def known_device(request: Request) -> Device:
    """The device that signed this request and its body, which is read whole; one that waits for approval as well."""
    device = await _signer(request)
    check_known(device.state)
    return await _with_body(request, device)


async def signed_device(request: Request) -> Device:
    """The device that signed this request and its body, and that takes part."""
    return await _with_body(request, await claimed_device(request))


async def active_device(request: Request) -> Device:
    """The device that signed this request and its body, and that somebody has vouched for."""
    device = await _signer(request)
    check_active(device.state)
    return await _with_body(request, device)


async def claimed_device(request: Request) -> Device:
    """The device that signed this request's headers, and that takes part.

    The signature covers ``Content-Digest``, so a body that is streamed needs only :func:`check_body` afterwards.
    """
    device = await _signer(request)
    check_trains(device.state)
    return device


async def _with_body(request: Request, device: Device) -> Device:
    check_body(request, hashlib.sha256(await request.body()).digest())
    return device


async def _signer(request: Request) -> Device:
    claim = fresh_claim(request)
    async with deployment(request).database.read() as connection:
        row = await roster.of_id(connection, claim.key_id)
    if row is None:
        raise Problem("unknown-device", "no such device is registered; register it with an enrolment token")
    key = Ed25519PublicKey.from_public_bytes(row.signing_key)
    verify_signature(request, key, claimed_digest(request))
    deployment(request).freshness.spend(claim, row.device_id)
    former = row.former_signing_key
    return Device(
        device_id=row.device_id,
        user=row.user,
        state=row.state,
        signing_key=key,
        sealing_key=X25519PublicKey.from_public_bytes(row.sealing_key),
        former_signing_key=None if former is None else Ed25519PublicKey.from_public_bytes(former),
    )


def fresh_claim(request: Request) -> Claim:
    """What the request's signature claims, over a challenge that is accepted. Raises :class:`Problem` 401."""
    try:
        claim = claim_of(request.headers)
    except SealError as error:
        raise _unsigned(error) from error
    deployment(request).freshness.check(claim)
    return claim


def verify_signature(request: Request, key: Ed25519PublicKey, body_sha256: bytes) -> None:
    """Check the request's signature by ``key``, for this server. Raises :class:`Problem` 401, 421."""
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    query: bytes = request.scope["query_string"]
    target = (path.split(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")
    called = request.headers.get("host", "")
    names = deployment(request).authorities.possible(called)
    if not names:
        raise Problem(
            "wrong-authority",
            "this server was called by a name that is not its own; the operator gives it that name with "
            "`uvsdk serve --authority NAME` (UVSDK_SERVER_AUTHORITIES)",
        )
    for name in names:
        try:
            requested = Requested(request.method, name, target, body_sha256)
            verify_request(request.headers, requested, public_key=key)
        except SealError as error:
            refusal = error
        else:
            return
    raise _unsigned(refusal) from refusal


def claimed_digest(request: Request) -> bytes:
    """The SHA-256 that ``Content-Digest`` claims. Raises :class:`Problem` 401."""
    value = request.headers.get("content-digest", "")
    try:
        digest = base64.b64decode(value.removeprefix("sha-256=:").removesuffix(":"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem("bad-signature", "Content-Digest is not sha-256=:BASE64: (RFC 9530)") from error
    if len(digest) != 32:
        raise Problem("bad-signature", "Content-Digest does not hold a SHA-256 (RFC 9530)")
    return digest


def check_body(request: Request, sha256: bytes) -> None:
    """Raise :class:`Problem` 401 unless the body that arrived is the one that was signed."""
    if claimed_digest(request) != sha256:
        raise Problem("bad-signature", "the body is not the one whose Content-Digest was signed")


async def bearer(request: Request) -> tokens.Bearer | None:
    """Who shows a bearer token, ``None`` where the request has none. Raises :class:`Problem` 401."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if not kind:
        return None
    if kind.lower() != "bearer":
        raise Problem("unauthorized", "expected Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
    async with deployment(request).database.read() as connection:
        return await tokens.bearer_of(connection, text.strip(), deployment(request).now())


async def operator(request: Request) -> tokens.Bearer:
    """The operator who asks; nobody else passes."""
    return await _require(request, ("operator",))


async def auditor(request: Request) -> tokens.Bearer:
    """The auditor or operator who asks; nobody else passes."""
    return await _require(request, ("audit", "operator"))


async def verifier(request: Request) -> tokens.Bearer:
    """The integrator or operator who asks; nobody else passes."""
    return await _require(request, ("verify", "operator"))


async def reader(request: Request) -> None:
    """Let through whoever may download models: a registered device, or any bearer token but an enrolment token."""
    if request.headers.get("authorization"):
        await _require(request, ("verify", "audit", "operator"))
    else:
        await signed_device(request)


async def speaks_for(request: Request) -> Device | tokens.Bearer:
    """Who approves a device: an active one of the same user, or the operator."""
    if request.headers.get("authorization"):
        return await operator(request)
    return await active_device(request)


async def owner_or_operator(request: Request, user: str) -> Device | tokens.Bearer:
    """Let the user's own device pass, and operators."""
    if request.headers.get("authorization"):
        return await operator(request)
    device = await signed_device(request)
    if device.user != user:
        raise Problem("forbidden", "a device may act for its own user only")
    return device


async def _require(request: Request, scopes: tuple[str, ...]) -> tokens.Bearer:
    """Who shows a token that has at least one of ``scopes``. Raises :class:`Problem` 401, 403."""
    shown = await bearer(request)
    if shown is None:
        raise Problem("unauthorized", "this needs Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
    if shown.scopes.isdisjoint(scopes):
        raise Problem("forbidden", f"this needs a token of scope {' or '.join(scopes)}")
    return shown


class BearerFirst(StrictRoute):
    """A route whose caller shows a valid token before anything of a body is read.

    FastAPI reads and parses the body before it asks the dependencies; whoever may not call need not have that done.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind the door."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            await verifier(request)
            return await handler(await form_as_json(request))

        return shown


def _unsigned(error: SealError) -> Problem:
    return Problem("bad-signature", str(error))


Served = Annotated[Deployment, Depends(deployment)]
SignedDevice = Annotated[Device, Depends(signed_device)]
KnownDevice = Annotated[Device, Depends(known_device)]
ActiveDevice = Annotated[Device, Depends(active_device)]
ClaimedDevice = Annotated[Device, Depends(claimed_device)]
Caller = Annotated[tokens.Bearer, Depends(verifier)]
Operator = Annotated[tokens.Bearer, Depends(operator)]
