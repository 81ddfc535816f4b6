"""Tokens: which there are, and whom those for some people verify."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from uvsdk.errors import SettingsError
from uvsdk.rest.problems import Problem
from uvsdk_server import problems, tokens
from uvsdk_server.authentication import Operator, Served
from uvsdk_server.tokens import Token

router = APIRouter(tags=["tokens"])

TokenId = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]
User = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


class TokenListing(BaseModel):
    """One token, without its secret. Times are Unix seconds; ``expires`` is ``null`` of one that never does.

    ``user`` is the hashed id that an enrolment token is for, ``limited`` whether a token verifies some people alone.
    """

    token_id: str
    scopes: list[str]
    label: str
    user: str | None
    created: float
    expires: float | None
    uses: int
    max_uses: int | None
    limited: bool
    state: Literal["valid", "expired", "revoked"]

    @classmethod
    def of(cls, token: Token, now: float) -> TokenListing:
        """As it is answered."""
        return cls(
            token_id=token.token_id,
            scopes=sorted(tokens.read_scopes(token.scopes), key=tokens.SCOPES.index),
            label=token.label,
            user=token.user,
            created=token.created,
            expires=token.expires,
            uses=token.uses,
            max_uses=token.max_uses,
            limited=token.limited,
            state=token.state(now),
        )


class TokensAnswer(BaseModel):
    """A page, by id; ``next_after`` is the ``after`` of the next page, ``null`` on the last."""

    tokens: list[TokenListing]
    next_after: str | None


class PeopleAnswer(BaseModel):
    """Hashed ids, sorted."""

    users: list[str]


@router.get("/v1/tokens")
async def get_tokens(
    served: Served,
    shown: Operator,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(pattern="^[0-9a-f]{0,12}$")] = "",
) -> TokensAnswer:
    """Every token, without its secret; ``uvsdk token list`` shows them too."""
    async with served.database.read() as connection:
        found = await tokens.page(connection, limit + 1, after)
    page = [TokenListing.of(token, served.now()) for token in found[:limit]]
    return TokensAnswer(tokens=page, next_after=page[-1].token_id if len(found) > limit else None)


@router.get("/v1/tokens/{token_id}/users", responses=problems.responses(404))
async def get_token_users(served: Served, shown: Operator, token_id: TokenId) -> PeopleAnswer:
    """Whom a token that is for some people alone verifies."""
    async with served.database.read() as connection:
        token = await tokens.of_id(connection, token_id)
        if token is None or not token.limited:
            raise _unknown()
        return PeopleAnswer(users=await tokens.served_by(connection, token_id))


@router.put("/v1/tokens/{token_id}/users/{user}", status_code=204, responses=problems.responses(404))
async def put_token_user(served: Served, shown: Operator, token_id: TokenId, user: User) -> None:
    """Let a token that is for some people alone verify this person too; they need not be known here yet."""
    await _let(served, shown, token_id, user, verify=True)


@router.delete("/v1/tokens/{token_id}/users/{user}", status_code=204, responses=problems.responses(404))
async def delete_token_user(served: Served, shown: Operator, token_id: TokenId, user: User) -> None:
    """Let a token that is for some people alone verify this person no longer; doing it again is fine."""
    await _let(served, shown, token_id, user, verify=False)


async def _let(served: Served, shown: Operator, token_id: str, user: str, *, verify: bool) -> None:
    mark = served.keys.files.mark
    try:
        async with served.database.write() as connection:
            await tokens.let(connection, token_id, user, mark, verify=verify, now=served.now(), by=shown.actor)
    except SettingsError as error:
        raise _unknown() from error


def _unknown() -> Problem:
    return Problem("unknown-token", "there is no token of that id that is for some people alone; see GET /v1/tokens")
