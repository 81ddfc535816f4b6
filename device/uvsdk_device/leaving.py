"""Asking a server to delete a user, and how far it has come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from uvsdk.errors import ServerRefusedError, ServerUnreachableError, WireError
from uvsdk_device.connection import JSON_LIMIT, Connection

Removal: TypeAlias = Literal["complete", "pending"]
"""``complete``: nothing of the user is left on the server. ``pending``: the server can no longer read it, has removed
its rows and files, and goes on by itself to empty its log, which somebody still reads."""

_PAUSE_S: Final = 1.0


def delete_user(
    connection: Connection, user: str, *, patience_s: float, sleep: Callable[[float], None] = time.sleep
) -> Removal:
    """Have the server delete ``user``, and wait a while for the end of it.

    Args:
        connection: signed by a device of that user.
        user: hashed id.
        patience_s: how long to wait where the server says that it is not complete yet.
        sleep: waits between two questions.

    Raises:
        ServerUnreachableError, ServerRefusedError: nothing was deleted.
    """
    answer = connection.delete(f"/v1/users/{user}")
    if answer.status != 202:
        return "complete"
    waits = max(0, round(patience_s / _PAUSE_S))
    for _ in range(waits):
        sleep(_PAUSE_S)
        if _is_complete(connection, answer.body):
            return "complete"
    return "pending"


def _is_complete(connection: Connection, told: bytes) -> bool:
    """What became of it; the deletion is irrevocable, so an answer that cannot be had is no reason to stop."""
    try:
        name = json.loads(told)["deletion_id"]
        body = connection.with_signer(None).get(f"/v1/deletions/{name}", limit=JSON_LIMIT).body
        return bool(json.loads(body)["state"] == "complete")
    except (ServerUnreachableError, ServerRefusedError, WireError, ValueError, KeyError, TypeError):
        return False
