"""What one user's rows are sealed with, for handlers that may race with the user's deletion."""

from __future__ import annotations

from sqlalchemy import select

from uvsdk.errors import StoreError
from uvsdk.rest.problems import Problem
from uvsdk_server.keys import KeyFolder, UserSeal
from uvsdk_server.store.database import Database
from uvsdk_server.store.schema import users


async def seal_of(user: str, keys: KeyFolder, database: Database) -> UserSeal:
    """The user's own key.

    Raises:
        Problem: 401, the user was deleted since the request was authenticated.
        StoreError: the key file is missing, and the user is not.
    """
    try:
        return keys.user(user)
    except StoreError:
        async with database.read() as connection:
            if (await connection.execute(select(users.c.user).where(users.c.user == user))).first() is not None:
                raise
    raise Problem("unknown-device", "no such device is registered; register it with an enrolment token")
