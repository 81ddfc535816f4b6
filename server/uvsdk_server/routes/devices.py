"""Registration of devices."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from uvsdk_server import problems
from uvsdk_server.authentication import Served, fresh_claim, verify_signature
from uvsdk_server.people import Registration
from uvsdk_server.problems import Problem

router = APIRouter(tags=["devices"])

NEW_DEVICE = "new"


def _raw_key(value: object) -> bytes:
    try:
        key = base64.b64decode(value if isinstance(value, str) else "", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("expected base64 of a raw public key of 32 bytes")
    return key


Key = Annotated[bytes, BeforeValidator(_raw_key)]
UserId = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class DeviceRequest(BaseModel, extra="forbid"):
    """A hashed user id (64 hexadecimal digits), an enrolment token, and the device's two public keys in base64."""

    token: Annotated[str, Field(max_length=200)]
    user: UserId
    signing_key: Key
    sealing_key: Key


class DeviceAnswer(BaseModel):
    """The name under which the device signs from now on."""

    device_id: str


@router.post("/v1/devices", status_code=201, responses={200: {"model": DeviceAnswer}, **problems.responses(409)})
async def post_device(served: Served, request: Request, response: Response, body: DeviceRequest) -> DeviceAnswer:
    """Register a device. The request is signed with the very key it hands in, under the key id ``new``."""
    now = served.now()
    claim = fresh_claim(request)
    if claim.key_id != NEW_DEVICE:
        raise Problem(401, "bad-signature", f"a registration is signed under the key id {NEW_DEVICE!r}")
    key = Ed25519PublicKey.from_public_bytes(body.signing_key)
    verify_signature(request, key, hashlib.sha256(await request.body()).digest())
    registration = Registration(body.token, body.user, body.signing_key, body.sealing_key)
    try:
        if not await served.people.expect(registration, now):
            served.registrations.check(now)
        new = await served.people.register(registration, now)
    except Problem as error:
        # Whoever shows no valid token uses up what is left to those who show none, and nothing else.
        if error.status in (401, 403):
            served.wrong_tokens.take(now)
        raise
    if new:
        served.registrations.count()
    else:
        response.status_code = 200
    # Only now: whoever has no token must not fill the memory.
    served.freshness.spend(claim, registration.device_id)
    return DeviceAnswer(device_id=registration.device_id)
