"""Bearer tokens of operators and integrators, and enrolment tokens of devices.

An enrolment token is for one user, whose hashed id it holds, unless the operator chose otherwise (``unbound``): whoever
has one of those may register as anybody, and is trusted accordingly (:mod:`uvsdk_server.store.roster`).

A token is ``uvsdk_ID_SECRET``. The database holds the id, by which the row is found, and the SHA-256 of the whole,
which is compared in constant time; whoever steals the database cannot present a token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SettingsError
from uvsdk.rest.problems import Problem
from uvsdk_server.store import audit
from uvsdk_server.store.rows import every, first
from uvsdk_server.store.schema import token_users, tokens

SCOPES: Final = ("operator", "verify", "enrol", "scores", "embeddings", "audit")
"""What a token may do; it may have several.

``operator``: administer, and ask for decisions; ``verify``: ``POST /v1/verify`` and models; ``enrol``: register
devices; ``scores``, beside ``verify``: be told scores and what was measured; ``embeddings``, beside ``verify``: send an
embedding in place of a sample. These two tell much more of a template, so an operator has neither unless named.
``audit``: read what was administered, measured and released, and change nothing.
"""

DAY_S: Final = 86_400.0
OPERATOR_LIFETIME_S: Final = 90 * DAY_S
ENROLMENT_LIFETIME_S: Final = 30 * DAY_S
LONGEST_OPERATOR_LIFETIME_S: Final = 366 * DAY_S
LONGEST_LIFETIME_S: Final = 36_525 * DAY_S

LONGEST_GRACE_S: Final = 30 * DAY_S

_USER = re.compile("[0-9a-f]{64}")
_NO_DIGEST: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an enrolment token that was just used says: its id, and the hashed id it is for, ``None`` for anybody's."""

    token_id: str
    user: str | None


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who shows a token that is valid: its id, which is no secret, its scopes, and whether it is ``limited`` to some
    people (:func:`serves`)."""

    token_id: str
    scopes: frozenset[str]
    limited: bool = False

    @property
    def actor(self) -> str:
        """As the audit log names whoever shows it."""
        return audit.by_token(self.token_id)


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the database knows it: by its digest.

    ``limited`` says that it verifies only those whom :func:`let` named; ``former_digest`` is of the secret before the
    newest, which is taken until ``former_until``.
    """

    token_id: str
    digest: str
    scopes: str
    label: str
    user: str | None
    created: float
    expires: float | None
    max_uses: int | None
    uses: int
    revoked: bool
    limited: bool
    former_digest: str | None
    former_until: float | None

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Whether it is worth anything."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


async def create(
    connection: AsyncConnection,
    scopes: Iterable[str],
    *,
    label: str,
    now: float,
    by: str,
    lifetime_s: float | None = None,
    max_uses: int | None = None,
    user: str | None = None,
    unbound: bool = False,
    limited: bool = False,
) -> str:
    """Make a token and give its text, which is not kept.

    Args:
        connection: in a transaction that writes.
        scopes: of :data:`SCOPES`.
        label: what it is for.
        now: seconds since 1970.
        by: who makes it, as the audit log names them.
        lifetime_s: until it expires; ``None`` for 90 days of an operator's, 30 of an enrolment token, and for ever.
        max_uses: devices that may register with it; ``None`` for one.
        user: hashed id of the one person whose devices may register with it.
        unbound: anybody's may; then ``max_uses`` must be given.
        limited: it verifies only those whom :func:`let` names.

    Raises:
        SettingsError: what does not go together.
    """
    chosen = _checked(scopes)
    if chosen == {"enrol"}:
        max_uses = _check_enrolment(max_uses, user, unbound=unbound)
        lifetime_s = ENROLMENT_LIFETIME_S if lifetime_s is None else lifetime_s
    elif max_uses is not None or user is not None or unbound:
        raise SettingsError("only an enrolment token has a user and a number of uses")
    if limited and ("verify" not in chosen or "operator" in chosen):
        raise SettingsError("only a token that verifies, and is no operator's, can be for some people alone")
    if "operator" in chosen:
        lifetime_s = OPERATOR_LIFETIME_S if lifetime_s is None else lifetime_s
        if lifetime_s > LONGEST_OPERATOR_LIFETIME_S:
            raise SettingsError("an operator's token lives for at most 366 days; make another one in time")
    if lifetime_s is not None and not 0 < lifetime_s <= LONGEST_LIFETIME_S:
        raise SettingsError(f"a token lives longer than 0 s and at most 100 years, got {lifetime_s:g} s")
    token_id = secrets.token_hex(6)
    text = _new_text(token_id)
    expires = None if lifetime_s is None else now + lifetime_s
    await connection.execute(
        insert(tokens).values(
            token_id=token_id,
            digest=_digest(text),
            scopes=write_scopes(chosen),
            label=label[:100],
            created=now,
            expires=expires,
            max_uses=max_uses,
            user=user,
            uses=0,
            revoked=False,
            limited=limited,
        )
    )
    await audit.append(
        connection,
        now,
        by,
        "token-created",
        token=token_id,
        scopes=write_scopes(chosen),
        expires_ms=None if expires is None else round(expires * 1000),
    )
    return text


async def list_tokens(connection: AsyncConnection) -> list[Token]:
    """Every token, oldest first."""
    return await every(connection, Token, select(tokens).order_by(tokens.c.created))


async def page(connection: AsyncConnection, limit: int, after: str = "") -> list[Token]:
    """At most ``limit`` tokens whose ids are above ``after``, by id."""
    query = select(tokens).where(tokens.c.token_id > after).order_by(tokens.c.token_id).limit(limit)
    return await every(connection, Token, query)


async def of_id(connection: AsyncConnection, token_id: str) -> Token | None:
    """One token, valid or not."""
    return await first(connection, Token, select(tokens).where(tokens.c.token_id == token_id))


async def revoke(connection: AsyncConnection, token_id: str, *, now: float, by: str) -> bool:
    """Revoke a token by its id; false where there is none. ``now`` and ``by`` as of :func:`create`."""
    result = await connection.execute(update(tokens).where(tokens.c.token_id == token_id).values(revoked=True))
    if result.rowcount == 1:
        await audit.append(connection, now, by, "token-revoked", token=token_id)
    return result.rowcount == 1


async def rotate(connection: AsyncConnection, token_id: str, *, now: float, by: str, grace_s: float = DAY_S) -> str:
    """Give a token a new secret, and its text; it keeps id, scopes, people and what was counted of it, and lives anew
    for as long as it was made for.

    Args:
        connection: in a transaction that writes.
        token_id: of the token.
        now: seconds since 1970.
        by: who does it, as the audit log names them.
        grace_s: for how long the secret so far is still taken, 0 to :data:`LONGEST_GRACE_S`.

    Raises:
        SettingsError: no such token, one that is not valid any more, or an enrolment token; or such a grace.
    """
    if not 0 <= grace_s <= LONGEST_GRACE_S:
        raise SettingsError(f"a former secret is taken for 0 s to 30 days more, got {grace_s:g} s")
    row = await of_id(connection, token_id)
    if row is None or row.state(now) != "valid":
        raise SettingsError(f"there is no token {token_id} that is valid; see `uvsdk token list`")
    if "enrol" in read_scopes(row.scopes):
        raise SettingsError("an enrolment token is not replaced; make another one, and revoke this")
    text = _new_text(token_id)
    expires = None if row.expires is None else now + (row.expires - row.created)
    await connection.execute(
        update(tokens)
        .where(tokens.c.token_id == token_id)
        .values(
            digest=_digest(text),
            created=now,
            expires=expires,
            former_digest=row.digest if grace_s else None,
            former_until=now + grace_s if grace_s else None,
        )
    )
    until_ms = round((now + grace_s) * 1000)
    await audit.append(connection, now, by, "token-rotated", token=token_id, former_until_ms=until_ms)
    return text


async def let(
    connection: AsyncConnection,
    token_id: str,
    user: str,
    mark: Callable[[str], str],
    *,
    verify: bool,
    now: float,
    by: str,
) -> None:
    """Let a token that is for some people alone verify a person, or no longer; doing it again changes nothing.

    Args:
        connection: in a transaction that writes.
        token_id: of the token.
        user: hashed id of the person, whether or not they are known here yet.
        mark: gives the audit log's mark of a hashed user id.
        verify: whether it may.
        now: seconds since 1970.
        by: who says so, as the audit log names them.

    Raises:
        SettingsError: no such token, one that is for everybody, or no hashed id.
    """
    if not _USER.fullmatch(user):
        raise SettingsError("a hashed user id is 64 hexadecimal digits in lower case")
    row = await of_id(connection, token_id)
    if row is None:
        raise SettingsError(f"there is no token {token_id}; see `uvsdk token list`")
    if not row.limited:
        raise SettingsError("this token verifies everybody; make one that is for some people (--only)")
    if await serves(connection, token_id, user) == verify:
        return
    mine = (token_users.c.token_id == token_id) & (token_users.c.user == user)
    change = insert(token_users).values(token_id=token_id, user=user) if verify else delete(token_users).where(mine)
    await connection.execute(change)
    verb: audit.Action = "token-user-added" if verify else "token-user-removed"
    await audit.append(connection, now, by, verb, subject=mark(user), token=token_id)


async def serves(connection: AsyncConnection, token_id: str, user: str) -> bool:
    """Whether a token that is for some people alone verifies this one."""
    mine = (token_users.c.token_id == token_id) & (token_users.c.user == user)
    return (await connection.execute(select(token_users.c.user).where(mine))).first() is not None


async def served_by(connection: AsyncConnection, token_id: str) -> list[str]:
    """Hashed ids of those whom a token that is for some people alone verifies, sorted."""
    query = select(token_users.c.user).where(token_users.c.token_id == token_id).order_by(token_users.c.user)
    return list((await connection.execute(query)).scalars())


async def bearer_of(connection: AsyncConnection, text: str, now: float) -> Bearer:
    """Who shows this token, which must be valid now. Raises :class:`Problem` 401."""
    row = await _find(connection, text, now)
    return Bearer(row.token_id, read_scopes(row.scopes), row.limited)


async def spend(connection: AsyncConnection, text: str, user: str, now: float) -> Enrolment:
    """Use up one use of an enrolment token for ``user``, in the caller's transaction.

    Raises :class:`Problem` 401 or 403.
    """
    row = await _find(connection, text, now)
    if "enrol" not in read_scopes(row.scopes):
        raise Problem("forbidden", "this is not an enrolment token; ask the operator for one")
    if row.user is not None and not hmac.compare_digest(row.user, user):
        raise Problem("wrong-user", "the enrolment token is for another person; ask the operator for one")
    if row.max_uses is not None and row.uses >= row.max_uses:
        raise Problem("token-spent", "the enrolment token has no uses left; ask the operator for another")
    await connection.execute(update(tokens).where(tokens.c.token_id == row.token_id).values(uses=tokens.c.uses + 1))
    return Enrolment(row.token_id, row.user)


def write_scopes(scopes: frozenset[str]) -> str:
    """Scopes as the database keeps them: with spaces between, in the order of :data:`SCOPES`.

    >>> write_scopes(frozenset({"scores", "verify"}))
    'verify scores'
    """
    return " ".join(scope for scope in SCOPES if scope in scopes)


def read_scopes(text: str) -> frozenset[str]:
    """The inverse of :func:`write_scopes`."""
    return frozenset(text.split())


def _checked(scopes: Iterable[str]) -> frozenset[str]:
    if isinstance(scopes, str):
        raise TypeError(f"create() takes several scopes, got the text {scopes!r}; pass a list of them")
    chosen = frozenset(scopes)
    unknown = chosen - set(SCOPES)
    if unknown or not chosen:
        raise SettingsError(f"scopes are one or more of {', '.join(SCOPES)}, got {', '.join(sorted(chosen)) or 'none'}")
    if chosen & {"scores", "embeddings"} and "verify" not in chosen:
        raise SettingsError("the scopes scores and embeddings say what a verifying token may do besides; add verify")
    if "enrol" in chosen and len(chosen) > 1:
        raise SettingsError("an enrolment token travels to devices, so it has no other scope; make a second token")
    return chosen


def _check_enrolment(max_uses: int | None, user: str | None, *, unbound: bool) -> int:
    if (user is None) != unbound:
        raise SettingsError(
            "an enrolment token is for one person (a hashed user id), or explicitly for anybody (unbound): whoever has "
            "such a one may register as any person whose id they know"
        )
    if user is not None and not _USER.fullmatch(user):
        raise SettingsError("a hashed user id is 64 hexadecimal digits in lower case")
    if unbound and max_uses is None:
        raise SettingsError("say how many devices may register with a token that is for anybody (uses)")
    if max_uses is not None and not 1 <= max_uses < 1 << 31:
        raise SettingsError("an enrolment token has 1 to 2147483647 uses")
    return 1 if max_uses is None else max_uses


async def _find(connection: AsyncConnection, text: str, now: float) -> Token:
    # What cannot be a token is not looked for: databases and hashes take no lone surrogates, PostgreSQL no NUL.
    parts = text.split("_", 2) if text.isascii() and text.isprintable() else []
    token_id = parts[1] if len(parts) == 3 else ""
    row = await of_id(connection, token_id)
    # An unknown id costs the same comparisons, so that ids cannot be told apart by time.
    shown = _digest(text)
    newest = hmac.compare_digest(shown, row.digest if row else _NO_DIGEST)
    former = hmac.compare_digest(shown, (row.former_digest if row else None) or _NO_DIGEST)
    graced = former and row is not None and row.former_until is not None and now < row.former_until
    if row is None or not (newest or graced) or row.state(now) != "valid":
        raise Problem("unauthorized", "the token is not valid: unknown, revoked or expired", _CHALLENGE)
    return row


def _new_text(token_id: str) -> str:
    return f"uvsdk_{token_id}_{secrets.token_urlsafe(32)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
