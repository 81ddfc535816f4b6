"""What is asked of the tables of evaluations and reports. Every function runs in the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk_server.store import audit, course, ledger
from uvsdk_server.store.rows import EvaluationRow, EvaluationState, ReportRow, Respondent, every, first
from uvsdk_server.store.schema import deployment, devices, evaluations, reports, users

OPEN = ("collecting", "judging")


async def newest(connection: AsyncConnection) -> EvaluationRow | None:
    """The evaluation with the highest id."""
    query = select(evaluations).order_by(evaluations.c.evaluation_id.desc()).limit(1)
    return await first(connection, EvaluationRow, query)


async def of_id(connection: AsyncConnection, evaluation_id: int) -> EvaluationRow | None:
    """One evaluation."""
    query = select(evaluations).where(evaluations.c.evaluation_id == evaluation_id)
    return await first(connection, EvaluationRow, query)


async def listed(connection: AsyncConnection, limit: int, before: int | None = None) -> list[EvaluationRow]:
    """The newest ``limit`` evaluations, below ``before`` where that is given; ``arrived`` counts up while one does."""
    arrived = select(func.count()).select_from(reports)
    arrived = arrived.where(reports.c.evaluation_id == evaluations.c.evaluation_id)
    columns = [column for column in evaluations.c if column is not evaluations.c.arrived]
    query = select(*columns, arrived.scalar_subquery().label("so_far"), evaluations.c.arrived)
    query = query.order_by(evaluations.c.evaluation_id.desc()).limit(limit)
    if before is not None:
        query = query.where(evaluations.c.evaluation_id < before)
    found = []
    for row in await connection.execute(query):
        values = dict(row._mapping)
        so_far = values.pop("so_far")
        found.append(EvaluationRow(**values | ({"arrived": so_far} if values["state"] == "collecting" else {})))
    return found


async def judged(connection: AsyncConnection) -> list[EvaluationRow]:
    """Those that have come to a conclusion, oldest first."""
    query = select(evaluations).where(evaluations.c.state.in_(("closed", "failed")))
    return await every(connection, EvaluationRow, query.order_by(evaluations.c.evaluation_id))


async def add(connection: AsyncConnection, new: EvaluationRow) -> None:
    """A new evaluation."""
    await connection.execute(insert(evaluations).values(**asdict(new)))


async def request(connection: AsyncConnection, impostors: str, now: float, *, by: str) -> EvaluationRow:
    """Ask for an evaluation as soon as no round is open; gives it, or the one that is under way.

    ``by`` is who asks, as the audit log names them.
    """
    row = await newest(connection)
    if row is not None and row.state not in ("closed", "failed"):
        return row
    new = EvaluationRow(
        evaluation_id=1 if row is None else row.evaluation_id + 1,
        state="requested",
        cause="request",
        candidate="",
        released="",
        impostors=impostors,
        config_digest="",
        server_key_id="",
        committed_rounds=0,
        cohort_rows=0,
        opened=now,
        deadline=None,
        closed=None,
        asked=0,
        arrived=0,
        outcome=None,
        release=None,
        summary=None,
    )
    await add(connection, new)
    await audit.append(connection, now, by, "evaluation-requested", evaluation=new.evaluation_id)
    return new


async def resume(connection: AsyncConnection, now: float, *, by: str) -> bool:
    """Let training go on; the evaluations so far no longer count against it. False where it has not stopped.

    ``by`` is who says so, as the audit log names them.
    """
    stopped = (await connection.execute(select(deployment.c.stopped))).scalar_one()
    await stop_training(connection, None)
    await course.forgive(connection)
    if stopped is not None:
        await audit.append(connection, now, by, "training-resumed")
    return stopped is not None


async def change(connection: AsyncConnection, evaluation_id: int, state: EvaluationState, **values: object) -> None:
    """Move an evaluation to ``state``."""
    mine = evaluations.c.evaluation_id == evaluation_id
    await connection.execute(update(evaluations).where(mine).values(state=state, **values))


async def respondents(connection: AsyncConnection, device_id: str | None = None) -> list[Respondent]:
    """Every device that may answer, of admitted users, or the one named; by user, then device."""
    query = (
        select(devices.c.device_id, devices.c.user, users.c.evaluates.is_(True).label("evaluates"))
        .join(users, users.c.user == devices.c.user)
        .where(users.c.admitted, devices.c.state.in_(("active", "unconfirmed")))
        .order_by(devices.c.user, devices.c.device_id)
    )
    if device_id is not None:
        query = query.where(devices.c.device_id == device_id)
    found = await every(connection, Respondent, query)
    return [Respondent(item.device_id, item.user, bool(item.evaluates)) for item in found]


async def respondent(connection: AsyncConnection, device_id: str) -> Respondent | None:
    """One device that may answer."""
    return next(iter(await respondents(connection, device_id)), None)


async def trainers(connection: AsyncConnection) -> int:
    """How many admitted users train."""
    query = select(func.count()).select_from(users).where(users.c.admitted, users.c.evaluates.is_not(True))
    return int((await connection.execute(query)).scalar_one())


async def role(connection: AsyncConnection, user: str) -> bool | None:
    """Whether a user only evaluates; ``None`` before it is drawn."""
    return (await connection.execute(select(users.c.evaluates).where(users.c.user == user))).scalar_one_or_none()


async def report(connection: AsyncConnection, evaluation_id: int, device_id: str) -> ReportRow | None:
    """One device's accepted report."""
    query = select(reports).where(reports.c.evaluation_id == evaluation_id, reports.c.device_id == device_id)
    return await first(connection, ReportRow, query)


async def reports_of(connection: AsyncConnection, evaluation_id: int) -> list[ReportRow]:
    """Accepted reports in the order in which they are summed: by user, then device."""
    query = select(reports).where(reports.c.evaluation_id == evaluation_id)
    return await every(connection, ReportRow, query.order_by(reports.c.user, reports.c.device_id))


async def add_report(connection: AsyncConnection, new: ReportRow) -> None:
    """Accept a report."""
    await connection.execute(insert(reports).values(**asdict(new)))


async def names_report(connection: AsyncConnection, blob: str) -> bool:
    """Whether an accepted report lies in that blob."""
    return (await connection.execute(select(reports.c.evaluation_id).where(reports.c.blob == blob))).first() is not None


async def strip(connection: AsyncConnection, keep: int) -> tuple[str, ...]:
    """Forget the reports of evaluations that are over, and give the blobs that may now be removed.

    The receipts of the newest ``keep`` evaluations stay, so that a late retry is recognised.
    """
    over = select(evaluations.c.evaluation_id).where(evaluations.c.state.in_(("closed", "failed")))
    spent = reports.c.evaluation_id.in_(over) & reports.c.blob.is_not(None)
    blobs = tuple((await connection.execute(select(reports.c.blob).where(spent))).scalars())
    await ledger.order_blobs(connection, *blobs)
    await connection.execute(update(reports).where(spent).values(blob=None))
    last = await newest(connection)
    if last is not None:
        await connection.execute(delete(reports).where(reports.c.evaluation_id <= last.evaluation_id - keep))
    return blobs


async def stop_training(connection: AsyncConnection, reason: str | None) -> None:
    """Let training rest for ``reason``, or go on where there is none."""
    await connection.execute(update(deployment).values(stopped=reason))
