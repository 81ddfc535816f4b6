"""The audit log: who administered what, and when, as a chain in which nothing can be changed unseen.

An entry's ``digest`` is the SHA-256 of ``b"uvsdk audit/1\\n"``, the entry before's digest in hexadecimal digits (64
zeros before the first), a line feed, and the entry as JSON without its digest: keys sorted, no spaces, ASCII. So
whoever has noted one digest can prove later that every entry up to it is as it was. The database itself refuses to
change or delete a row.

An entry is written in the transaction of what it tells of: neither is there without the other. It holds no sample, no
embedding, no score and no id of a person. Whom it is about is a mark under that person's own key
(:meth:`uvsdk_server.keys.KeyFolder.mark`), which whoever deletes the person makes unreadable.

>>> start = Entry(1, 0, "server", "server-started", "", {"version": "0"}, "")
>>> chained(start, GENESIS).digest[:16]
'90f0fc51b5a211cc'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, TypeAlias, get_args

from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import StoreError
from uvsdk_server.store.schema import audit

Action: TypeAlias = Literal[
    "server-started",
    "configuration-changed",
    "key-made",
    "token-created",
    "token-rotated",
    "token-revoked",
    "token-user-added",
    "token-user-removed",
    "device-registered",
    "device-approved",
    "device-revoked",
    "device-keys-replaced",
    "user-left",
    "user-deleted",
    "release-made",
    "release-policy",
    "calibration-kept",
    "evaluation-requested",
    "training-resumed",
    "cohort-replaced",
    "cohort-removed",
    "attempts-reset",
]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)

SERVER: Final = "server"
"""Who did it where nobody asked: the gate, a start, a deletion that came to its end."""
COMMAND: Final = "command"
"""Who did it where it was done beside the server, by whoever may read its data folder."""
DEVICE: Final = "device"
"""Who did it where a person's own device asked; which person is the entry's subject."""

GENESIS: Final = "0" * 64
"""What stands in place of a digest before the first entry."""

Detail: TypeAlias = Mapping[str, str | int | None]

_DOMAIN: Final = b"uvsdk audit/1\n"
_LOCK: Final = 0x7576_7364_6B02
"""Key of PostgreSQL's advisory lock; any number that nothing else in this database takes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was done.

    Args:
        number: 1, 2, 3 and so on, without gaps.
        at_ms: milliseconds since 1970, by the server's clock.
        actor: ``token:ID``, :data:`DEVICE`, :data:`COMMAND` or :data:`SERVER`.
        action: of :data:`ACTIONS`; a later version may know more.
        subject: mark of the person it is about, else empty.
        detail: what else identifies it: ids and numbers, never text that people wrote.
        digest: of this entry and all before it, 64 hexadecimal digits.
    """

    number: int
    at_ms: int
    actor: str
    action: str
    subject: str
    detail: Detail
    digest: str

    def line(self) -> str:
        """The entry as one line of JSON, as it is exported."""
        return _canonical(self._fields() | {"digest": self.digest})

    @classmethod
    def of_line(cls, line: str) -> Self:
        """The inverse of :meth:`line`. Raises ``ValueError`` for anything else."""
        found = json.loads(line)
        names = {"action": str, "actor": str, "at_ms": int, "detail": dict, "digest": str, "number": int}
        names["subject"] = str
        if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != names:
            raise ValueError("this is no entry of an audit log")
        return cls(**found)

    def digest_after(self, previous: str) -> str:
        """What :attr:`digest` must be where the entry before has the digest ``previous``."""
        content = _DOMAIN + previous.encode() + b"\n" + _canonical(self._fields()).encode()
        return hashlib.sha256(content).hexdigest()

    def _fields(self) -> dict[str, object]:
        return {
            "number": self.number,
            "at_ms": self.at_ms,
            "actor": self.actor,
            "action": self.action,
            "subject": self.subject,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, slots=True)
class Head:
    """How far the log goes: the number and digest of its last entry, 0 and :data:`GENESIS` of an empty one."""

    number: int = 0
    digest: str = GENESIS


def by_token(token_id: str) -> str:
    """The actor where a token was shown."""
    return f"token:{token_id}"


def chained(entry: Entry, previous: str) -> Entry:
    """The entry with its digest, after one whose digest is ``previous``."""
    return replace(entry, digest=entry.digest_after(previous))


def verify_chain(entries: Iterable[Entry], head: Head | None = None) -> Head:
    """Follow the log from where ``head`` says that it was followed to; gives how far it goes.

    Raises:
        StoreError: an entry was changed, removed or put in between; says the first that does not fit.
    """
    head = head or Head()
    for entry in entries:
        if entry.number != head.number + 1:
            raise StoreError(f"entry {head.number + 1} of the audit log is missing: {entry.number} follows")
        if entry.digest != entry.digest_after(head.digest):
            raise StoreError(
                f"entry {entry.number} of the audit log, or one before it, is not what was written: its digest does "
                "not follow from them"
            )
        head = Head(entry.number, entry.digest)
    return head


async def append(
    connection: AsyncConnection,
    now: float,
    actor: str,
    action: Action,
    *,
    subject: str = "",
    **detail: str | int | None,
) -> Entry:
    """Add an entry, in the caller's transaction, as the last thing there.

    On PostgreSQL nobody else adds one before that transaction ends: whoever took the rows that it tells of afterwards
    could wait for somebody who holds them and waits to add.

    Args:
        connection: in the transaction of what is told.
        now: seconds since 1970.
        actor: as :class:`Entry` says.
        action: what was done.
        subject: mark of the person it is about.
        detail: ids and numbers that say which.
    """
    if connection.dialect.name == "postgresql":
        # At READ COMMITTED two processes would both follow the same entry.
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    last = await head(connection)
    entry = chained(Entry(last.number + 1, round(now * 1000), actor, action, subject, detail, ""), last.digest)
    await connection.execute(
        insert(audit).values(
            number=entry.number,
            at_ms=entry.at_ms,
            actor=actor,
            action=action,
            subject=subject,
            detail=_canonical(detail),
            digest=entry.digest,
        )
    )
    return entry


async def head(connection: AsyncConnection) -> Head:
    """How far the log goes."""
    query = select(audit.c.number, audit.c.digest).order_by(audit.c.number.desc()).limit(1)
    row = (await connection.execute(query)).first()
    return Head() if row is None else Head(row.number, row.digest)


async def listed(
    connection: AsyncConnection,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int | None = None,
    subject: str | None = None,
    action: str | None = None,
    newest: bool = False,
) -> list[Entry]:
    """Entries above ``after`` and below ``before``, oldest first; at most ``limit``, of the ``newest`` where asked."""
    query = select(audit).where(audit.c.number > after).limit(limit)
    query = query.order_by(audit.c.number.desc() if newest else audit.c.number)
    if before is not None:
        query = query.where(audit.c.number < before)
    if subject is not None:
        query = query.where(audit.c.subject == subject)
    if action is not None:
        query = query.where(audit.c.action == action)
    found = []
    for row in await connection.execute(query):
        detail = json.loads(row.detail)
        found.append(Entry(row.number, row.at_ms, row.actor, row.action, row.subject, detail, row.digest))
    return found[::-1] if newest else found


def _canonical(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
