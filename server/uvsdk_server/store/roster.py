"""Which devices may act for a user, and who says so. Every function runs in the caller's transaction.

A device is in one of four states:

* ``active``: by the operator's word (a token for this very user, or an approval) or by that of the user's own active
  device. It may do everything for its user.
* ``unconfirmed``: the first device of its user, registered with a token that is for anybody. It trains; nothing that
  the server verifies people by is taken from it.
* ``pending``: another device of a user who has one; it waits for an approval and can do nothing.
* ``revoked``: lost, stolen, or never the user's.

As soon as one device of a user is active, nobody's mere claim counts any more: unconfirmed ones are pending then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk_server.store.rows import every, first
from uvsdk_server.store.schema import cohort, devices, rounds, uploads, users

State: TypeAlias = Literal["active", "unconfirmed", "pending", "revoked"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device; ``last_number`` is that of its newest message."""

    device_id: str
    user: str
    signing_key: bytes
    sealing_key: bytes
    created: float
    last_number: int
    state: State
    former_signing_key: bytes | None


async def first_state(connection: AsyncConnection, user: str, *, vouched: bool) -> State:
    """The state of a device that registers for ``user``; ``vouched`` where its token is for this very user."""
    query = select(devices.c.state).where(devices.c.user == user)
    known = set((await connection.execute(query)).scalars())
    if vouched:
        return "pending" if "active" in known else "active"
    return "pending" if known else "unconfirmed"


async def activate(connection: AsyncConnection, row: DeviceRow) -> frozenset[str]:
    """Let a device act for its user; gives the devices that may no longer train, for they only claimed to be one."""
    doubtful = (
        (devices.c.user == row.user) & (devices.c.state == "unconfirmed") & (devices.c.device_id != row.device_id)
    )
    gone = frozenset((await connection.execute(select(devices.c.device_id).where(doubtful))).scalars())
    await connection.execute(update(devices).where(doubtful).values(state="pending"))
    await _vouch(connection, row)
    await _put(connection, row.device_id, "active")
    await leave_rounds(connection, gone)
    return gone


async def revoke(connection: AsyncConnection, row: DeviceRow) -> frozenset[str]:
    """Take a device's rights for good; its user, their template and what they taught the model stay."""
    gone = frozenset({row.device_id})
    await _put(connection, row.device_id, "revoked")
    await leave_rounds(connection, gone)
    return gone


async def leave_rounds(connection: AsyncConnection, device_ids: frozenset[str]) -> None:
    """Take devices out of the round in progress, unless it has their update already."""
    under_way = select(rounds.c.round_id).where(rounds.c.state.not_in(("committed", "aborted")))
    uploaded = select(uploads.c.device_id).where(uploads.c.round_id == cohort.c.round_id)
    await connection.execute(
        delete(cohort).where(
            cohort.c.device_id.in_(device_ids),
            cohort.c.round_id.in_(under_way),
            cohort.c.device_id.not_in(uploaded),
        )
    )


async def of_id(connection: AsyncConnection, device_id: str) -> DeviceRow | None:
    """One device."""
    return await first(connection, DeviceRow, select(devices).where(devices.c.device_id == device_id))


async def count(connection: AsyncConnection, user: str, states: Sequence[State]) -> int:
    """How many devices of ``user`` are in one of ``states``."""
    query = select(func.count()).select_from(devices).where(devices.c.user == user, devices.c.state.in_(states))
    return int((await connection.execute(query)).scalar_one())


async def list_devices(
    connection: AsyncConnection,
    *,
    user: str | None = None,
    state: State | None = None,
    after: str = "",
    limit: int | None = None,
) -> list[DeviceRow]:
    """Devices sorted by id, above ``after``: all, or those of a user, or in a state."""
    query = select(devices).where(devices.c.device_id > after).order_by(devices.c.device_id).limit(limit)
    if user is not None:
        query = query.where(devices.c.user == user)
    if state is not None:
        query = query.where(devices.c.state == state)
    return await every(connection, DeviceRow, query)


async def _vouch(connection: AsyncConnection, row: DeviceRow) -> None:
    """Note that somebody has vouched for a user's device, and have what mere claims taught the state forgotten.

    The first device that is vouched for may be one that trained already; else it is admitted anew, in place of whoever
    only claimed to be this user.
    """
    mine = (users.c.user == row.user) & users.c.vouched.is_(False)
    if (await connection.execute(update(users).where(mine).values(vouched=True))).rowcount == 0:
        return
    others = (devices.c.user == row.user) & (devices.c.device_id != row.device_id)
    if row.state != "unconfirmed" and (await connection.execute(select(devices.c.device_id).where(others))).first():
        anew = {"anew": True, "admitted": False, "admission_sealed": None}
        await connection.execute(update(users).where(users.c.user == row.user).values(**anew))


async def _put(connection: AsyncConnection, device_id: str, state: State) -> None:
    await connection.execute(update(devices).where(devices.c.device_id == device_id).values(state=state))
