"""The audit log, for operators and auditors."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict

from uvsdk_server.audit_log import sign_head
from uvsdk_server.authentication import Served, auditor
from uvsdk_server.store import audit

router = APIRouter(tags=["audit"], dependencies=[Depends(auditor)])


class EntryAnswer(BaseModel):
    """One entry. ``at_ms`` is milliseconds since 1970, ``actor`` ``token:ID``, ``device``, ``command`` or ``server``.

    ``subject`` is a mark of the person it is about, empty where it is about nobody; ``GET /v1/audit?user=HASH`` finds
    those of a person who is here. ``digest`` chains it to all entries before.
    """

    model_config = ConfigDict(from_attributes=True)

    number: int
    at_ms: int
    actor: str
    action: str
    subject: str
    detail: dict[str, str | int | None]
    digest: str


class AuditAnswer(BaseModel):
    """A page, oldest first; ``next_after`` is the ``after`` of the next page, ``null`` on the last."""

    entries: list[EntryAnswer]
    next_after: int | None


class HeadAnswer(BaseModel):
    """How far the log goes: number and digest of its last entry, 0 and 64 zeros of an empty one.

    ``signature`` is base64 of the deployment's Ed25519 signature over ``uvsdk audit head/1``, the deployment's name,
    the number and the digest, each followed by a line feed. Whoever keeps it can prove later that the log up to there
    was changed, or cut.
    """

    deployment: str
    number: int
    digest: str
    signature: str


@router.get("/v1/audit")
async def get_audit(
    served: Served,
    after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    user: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None,
    action: Annotated[str | None, Query(max_length=40, pattern="^[a-z-]+$")] = None,
) -> AuditAnswer:
    """Who administered what; ``user`` (a hashed id) and ``action`` let through only what is about them."""
    subject = None if user is None else served.keys.files.mark(user) or "-"  # of nobody known here: nothing
    async with served.database.read() as connection:
        found = await audit.listed(connection, after=after, limit=limit + 1, subject=subject, action=action)
    page = [EntryAnswer.model_validate(entry) for entry in found[:limit]]
    return AuditAnswer(entries=page, next_after=page[-1].number if len(found) > limit else None)


@router.get("/v1/audit/head")
async def get_audit_head(served: Served) -> HeadAnswer:
    """How far the log goes, signed: to be kept elsewhere, from time to time."""
    async with served.database.read() as connection:
        head = await audit.head(connection)
    name = served.training.config.deployment
    signature = base64.b64encode(sign_head(name, head, served.keys.signing)).decode()
    return HeadAnswer(deployment=name, number=head.number, digest=head.digest, signature=signature)
