"""What is asked of the table of releases. Every function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk_server.store import ledger
from uvsdk_server.store.rows import DeploymentRow, ReleaseRow, every, first
from uvsdk_server.store.schema import deployment, refusals, releases, templates


async def held_deployment(connection: AsyncConnection) -> DeploymentRow:
    """The deployment, for a transaction that changes what is released or forgets models: one such goes at a time,
    also where another process (``uvsdk releases``) has begun one.
    """
    row = await first(connection, DeploymentRow, select(deployment).with_for_update())
    assert row is not None  # since the first start
    return row


async def of_number(connection: AsyncConnection, number: int) -> ReleaseRow | None:
    """One release."""
    return await first(connection, ReleaseRow, select(releases).where(releases.c.number == number))


async def in_force(connection: AsyncConnection) -> ReleaseRow | None:
    """The release that verifies; ``None`` before the first start has come to its end."""
    query = select(releases).join(deployment, deployment.c.released == releases.c.number)
    return await first(connection, ReleaseRow, query)


async def newest(connection: AsyncConnection, limit: int | None = None, before: int | None = None) -> list[ReleaseRow]:
    """The newest ``limit`` releases, below ``before`` where that is given."""
    query = select(releases).order_by(releases.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(releases.c.number < before)
    return await every(connection, ReleaseRow, query)


async def kept(connection: AsyncConnection) -> list[ReleaseRow]:
    """Releases whose parameters and calibration are here, newest first."""
    query = select(releases).where(releases.c.kept).order_by(releases.c.number.desc())
    return await every(connection, ReleaseRow, query)


async def refuse(connection: AsyncConnection, number: int, device_id: str, user: str) -> bool:
    """Note that a device refuses a release; false where that is known."""
    mine = (refusals.c.number == number) & (refusals.c.device_id == device_id)
    if (await connection.execute(select(refusals.c.number).where(mine))).first() is not None:
        return False
    await connection.execute(insert(refusals).values(number=number, device_id=device_id, user=user))
    return True


async def refusals_of(connection: AsyncConnection, numbers: Collection[int]) -> dict[int, int]:
    """How many devices refuse each of those releases."""
    query = select(refusals.c.number, func.count()).where(refusals.c.number.in_(numbers)).group_by(refusals.c.number)
    counted = {int(number): int(count) for number, count in await connection.execute(query)}
    return {number: counted.get(number, 0) for number in numbers}


async def put_in_force(connection: AsyncConnection, new: ReleaseRow, policy: str | None) -> None:
    """A new release, from now on the one that verifies; ``policy`` is what overrides that of the settings."""
    await connection.execute(insert(releases).values(**asdict(new)))
    await connection.execute(update(deployment).values(released=new.number, release_policy=policy))


async def forget(connection: AsyncConnection, *, keep: int, grace_s: float, now: float) -> tuple[str, ...]:
    """Let go of the calibrations of old releases, and of their claim to their parameters; gives spent blobs.

    Args:
        connection: of a transaction that holds the deployment.
        keep: the newest so many stay.
        grace_s: those that were replaced less than this ago stay as well while somebody's template is of them.
        now: Unix seconds.
    """
    rows = await newest(connection)
    in_use = {
        tuple(row) for row in await connection.execute(select(templates.c.model_version, templates.c.calibration))
    }
    spent, replaced = list[str | None](), now
    for place, row in enumerate(rows):
        named = {(row.model_version, row.calibration), (row.model_version, "")} & in_use
        if row.kept and place >= keep and not (named and replaced + grace_s > now):
            values = {"kept": False, "calibration_blob": None}
            await connection.execute(update(releases).where(releases.c.number == row.number).values(**values))
            spent.append(row.calibration_blob)
        replaced = row.created
    return await ledger.order_unnamed(connection, *spent)
