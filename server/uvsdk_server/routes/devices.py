"""Devices: who is known, who vouches for whom, and with which keys.

A device registers with an enrolment token. What it may do from then on is its ``state``
(:mod:`uvsdk_server.store.roster`): one that waits is approved by an active device of the same person, or by the
operator.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from uvsdk.errors import SealError
from uvsdk.privacy.key_rotation import Rotation
from uvsdk.rest.problems import Problem
from uvsdk_server import problems, tokens
from uvsdk_server.authentication import (
    KnownDevice,
    Operator,
    Served,
    fresh_claim,
    known_device,
    operator,
    speaks_for,
    verify_signature,
)
from uvsdk_server.bodies import StrictRoute
from uvsdk_server.people import Registration, check_active
from uvsdk_server.store.roster import DeviceRow, State

router = APIRouter(tags=["devices"], route_class=StrictRoute)

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
DeviceId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


class DeviceRequest(BaseModel, extra="forbid"):
    """A hashed user id (64 hexadecimal digits), an enrolment token, and the device's two public keys in base64."""

    token: Annotated[str, Field(max_length=200)]
    user: UserId
    signing_key: Key
    sealing_key: Key


class DeviceAnswer(BaseModel):
    """The name under which the device signs from now on, and what it may do.

    ``active``: everything for its user; ``unconfirmed``: train; ``pending``: nothing before it is approved.
    """

    device_id: str
    state: State


class DeviceListing(BaseModel):
    """One device; ``created`` is Unix time."""

    device_id: str
    user: str
    state: State
    created: float


class DevicesAnswer(BaseModel):
    """A page, sorted by id; ``next_after`` is the ``after`` of the next page, ``null`` on the last."""

    devices: list[DeviceListing]
    next_after: str | None


class RotationRequest(BaseModel, extra="forbid"):
    """A device's new public keys in base64, and the proof that it holds the new signing key.

    ``proof`` is base64 of :meth:`uvsdk.privacy.key_rotation.Rotation.prove`.
    """

    signing_key: Key
    sealing_key: Key
    proof: Annotated[str, Field(max_length=100)]


class EnrolmentTokenRequest(BaseModel, extra="forbid"):
    """For whom, for how many of their devices, and for how long."""

    user: UserId
    uses: Annotated[int, Field(ge=1, le=100)] = 1
    days: Annotated[float, Field(gt=0, le=366)] = tokens.ENROLMENT_LIFETIME_S / tokens.DAY_S
    label: Annotated[str, Field(max_length=100)] = ""


class EnrolmentTokenAnswer(BaseModel):
    """The token, which is not shown again."""

    token: str


@router.post("/v1/devices", status_code=201, responses={200: {"model": DeviceAnswer}, **problems.responses(409)})
async def post_device(served: Served, request: Request, response: Response, body: DeviceRequest) -> DeviceAnswer:
    """Register a device. The request is signed with the very key it hands in, under the key id ``new``."""
    now = served.now()
    claim = fresh_claim(request)
    if claim.key_id != NEW_DEVICE:
        raise Problem("bad-signature", f"a registration is signed under the key id {NEW_DEVICE!r}")
    key = Ed25519PublicKey.from_public_bytes(body.signing_key)
    verify_signature(request, key, hashlib.sha256(await request.body()).digest())
    registration = Registration(body.token, body.user, body.signing_key, body.sealing_key)
    try:
        if not await served.people.expect(registration, now):
            served.registrations.check(now)
        state, new = await served.people.register(registration, now)
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
    return DeviceAnswer(device_id=registration.device_id, state=state)


@router.get("/v1/devices")
async def get_devices(
    served: Served,
    request: Request,
    user: Annotated[UserId | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    after: Annotated[str, Query(max_length=32)] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> DevicesAnswer:
    """The operator sees every device, an active or unconfirmed one those of its user, and one that waits itself."""
    if request.headers.get("authorization"):
        await operator(request)
    else:
        device = await known_device(request)
        if user not in (None, device.user):
            raise Problem("forbidden", "a device may act for its own user only")
        user = device.user
        if device.state == "pending":
            own = await served.people.devices(user=user, after="")
            rows = [row for row in own if row.device_id == device.device_id]
            return DevicesAnswer(devices=[_listed(row) for row in rows], next_after=None)
    found = await served.people.devices(user=user, state=state, after=after, limit=limit + 1)
    page = [_listed(row) for row in found[:limit]]
    return DevicesAnswer(devices=page, next_after=page[-1].device_id if len(found) > limit else None)


@router.post("/v1/devices/{device_id}/approval", status_code=204, responses=problems.responses(404, 409))
async def post_approval(served: Served, request: Request, device_id: DeviceId) -> None:
    """Let a device that waits act for its user; by an active device of the same user, or by the operator."""
    await served.people.approve(device_id, by=await speaks_for(request), now=served.now())


@router.put("/v1/devices/{device_id}/keys", status_code=204, responses=problems.responses(409))
async def put_keys(served: Served, device: KnownDevice, body: RotationRequest, device_id: DeviceId) -> None:
    """Put new keys in place of the device's own; signed by the old ones, under the same device id as before."""
    if device.device_id != device_id:
        raise Problem("forbidden", "a device replaces its own keys only")
    try:
        proof = base64.b64decode(body.proof, validate=True)
        rotation = Rotation(
            deployment=served.training.config.deployment,
            device_id=device_id,
            former=device.signing_key.public_bytes_raw(),
            signing=body.signing_key,
            sealing=body.sealing_key,
        )
        rotation.check(proof)
    except (binascii.Error, ValueError, SealError) as error:
        raise Problem("bad-signature", "the proof is not by the new signing key, for this very device") from error
    await served.people.rotate(device, rotation, served.now())


@router.delete("/v1/devices/{device_id}", status_code=204, responses=problems.responses(404))
async def delete_device(served: Served, request: Request, device_id: DeviceId) -> None:
    """Revoke a device: a lost one, by another active device of its user or by the operator; any device itself.

    Its user stays, with template and class vector. Doing it again is fine.
    """
    if request.headers.get("authorization"):
        await served.people.revoke(device_id, by=await operator(request), now=served.now())
        return
    device = await known_device(request)
    if device.device_id != device_id:
        check_active(device.state)
    await served.people.revoke(device_id, by=device, now=served.now())


@router.post("/v1/enrolment-tokens", status_code=201)
async def post_enrolment_token(served: Served, shown: Operator, body: EnrolmentTokenRequest) -> EnrolmentTokenAnswer:
    """Make an enrolment token for one person, as ``uvsdk token create --scope enrol --user`` does."""
    async with served.database.write() as connection:
        token = await tokens.create(
            connection,
            ["enrol"],
            label=body.label,
            now=served.now(),
            by=shown.actor,
            lifetime_s=body.days * tokens.DAY_S,
            max_uses=body.uses,
            user=body.user,
        )
    return EnrolmentTokenAnswer(token=token)


def _listed(row: DeviceRow) -> DeviceListing:
    return DeviceListing(device_id=row.device_id, user=row.user, state=row.state, created=row.created)
