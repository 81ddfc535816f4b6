"""What is asked of the tables of rounds, uploads and admissions. Every function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import case, delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk_server.store.rows import (
    Candidate,
    DeploymentRow,
    Joining,
    Member,
    Model,
    Receipt,
    Round,
    RoundState,
    every,
    first,
)
from uvsdk_server.store.schema import (
    PERSONAL,
    cohort,
    course,
    deployment,
    devices,
    evaluations,
    models,
    releases,
    removals,
    reports,
    rounds,
    uploads,
    users,
)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a committed round leaves: the new model version, and the blobs that now hold the state."""

    model_version: str
    theta_blob: str
    algorithm_blob: str
    optimiser_blob: str
    norm_median: float | None = None


async def deployment_row(connection: AsyncConnection) -> DeploymentRow | None:
    """The deployment, ``None`` before the first start."""
    return await first(connection, DeploymentRow, select(deployment))


async def model_row(connection: AsyncConnection, version: str) -> Model | None:
    """One version of the model."""
    return await first(connection, Model, select(models).where(models.c.model_version == version))


async def newest_round(connection: AsyncConnection) -> Round | None:
    """The round with the highest id."""
    return await first(connection, Round, select(rounds).order_by(rounds.c.round_id.desc()).limit(1))


async def round_row(connection: AsyncConnection, round_id: int) -> Round | None:
    """One round."""
    return await first(connection, Round, select(rounds).where(rounds.c.round_id == round_id))


async def list_rounds(connection: AsyncConnection, limit: int, before: int | None = None) -> list[Round]:
    """The newest ``limit`` rounds, below ``before`` where that is given; ``accepted`` counts up while one collects."""
    so_far = select(func.count()).select_from(uploads).where(uploads.c.round_id == rounds.c.round_id)
    accepted = case((rounds.c.state == "collecting", so_far.scalar_subquery()), else_=rounds.c.accepted)
    columns = [column for column in rounds.c if column is not rounds.c.accepted]
    query = select(*columns, accepted.label("accepted")).order_by(rounds.c.round_id.desc()).limit(limit)
    if before is not None:
        query = query.where(rounds.c.round_id < before)
    return await every(connection, Round, query)


async def aborts_in_a_row(connection: AsyncConnection) -> int:
    """How many rounds have been aborted since the last that was committed."""
    committed = select(func.max(rounds.c.round_id)).where(rounds.c.state == "committed").scalar_subquery()
    query = select(func.count()).where(rounds.c.state == "aborted", rounds.c.round_id > func.coalesce(committed, 0))
    return int((await connection.execute(query)).scalar_one())


async def insert_round(connection: AsyncConnection, **values: object) -> None:
    """A new round."""
    await connection.execute(insert(rounds).values(**values))


async def change_round(connection: AsyncConnection, round_id: int, state: RoundState, **values: object) -> None:
    """Move a round to ``state``."""
    await connection.execute(update(rounds).where(rounds.c.round_id == round_id).values(state=state, **values))


async def admitted_users(connection: AsyncConnection) -> int:
    """How many users have been admitted."""
    query = select(func.count()).select_from(users).where(users.c.admitted)
    return int((await connection.execute(query)).scalar_one())


async def pending_admissions(connection: AsyncConnection) -> list[Joining]:
    """Users whose admission is not yet in the algorithm's state, sorted by id whatever the order they came in."""
    query = select(users.c.user, users.c.admission_sealed, users.c.anew)
    query = query.where(users.c.admission_sealed.is_not(None)).order_by(users.c.user)
    return await every(connection, Joining, query)


async def settle_admission(connection: AsyncConnection, pending: Joining, *, accepted: bool) -> None:
    """Forget an admission that was taken into the state, or refused; one that replaced it meanwhile stays."""
    await connection.execute(
        update(users)
        .where(users.c.user == pending.user, users.c.admission_sealed == pending.admission_sealed)
        .values(admission_sealed=None, admitted=accepted, anew=users.c.anew & (not accepted))
    )


async def eligible_devices(connection: AsyncConnection, *, settled: bool = False) -> list[Candidate]:
    """Every device that may train, of admitted users who do not only evaluate; by user, then device.

    ``settled`` leaves out users whose admission the algorithm's state does not hold yet.
    """
    query = (
        select(devices.c.device_id, devices.c.user, users.c.samples)
        .join(users, users.c.user == devices.c.user)
        .where(users.c.admitted, users.c.evaluates.is_not(True), devices.c.state.in_(("active", "unconfirmed")))
        .order_by(devices.c.user, devices.c.device_id)
    )
    if settled:
        query = query.where(users.c.admission_sealed.is_(None))
    return await every(connection, Candidate, query)


async def insert_cohort(connection: AsyncConnection, round_id: int, members: Sequence[Candidate]) -> None:
    """Fix the cohort of a round."""
    rows = [{"round_id": round_id, "device_id": member.device_id, "user": member.user} for member in members]
    await connection.execute(insert(cohort), rows)


async def cohort_of(connection: AsyncConnection, round_id: int) -> frozenset[str]:
    """Device ids of a round's cohort, without those deleted since."""
    query = select(cohort.c.device_id).where(cohort.c.round_id == round_id)
    return frozenset((await connection.execute(query)).scalars())


async def member(connection: AsyncConnection, round_id: int, device_id: str) -> Member | None:
    """One device's place in a cohort, ``None`` where it has none."""
    query = select(cohort).where(cohort.c.round_id == round_id, cohort.c.device_id == device_id)
    return await first(connection, Member, query)


async def keep_request(connection: AsyncConnection, round_id: int, device_id: str, sealed: bytes) -> None:
    """Note what a device of the cohort asked for."""
    mine = (cohort.c.round_id == round_id) & (cohort.c.device_id == device_id)
    await connection.execute(update(cohort).where(mine).values(request_sealed=sealed))


async def outstanding(connection: AsyncConnection, round_id: int) -> frozenset[str]:
    """Devices of the cohort that have not uploaded."""
    done = select(uploads.c.device_id).where(uploads.c.round_id == round_id)
    return await cohort_of(connection, round_id) - frozenset((await connection.execute(done)).scalars())


async def count_arrived(connection: AsyncConnection, round_id: int) -> int:
    """How many updates of a round were accepted so far."""
    query = select(func.count()).select_from(uploads).where(uploads.c.round_id == round_id)
    return int((await connection.execute(query)).scalar_one())


async def receipts_of(connection: AsyncConnection, round_id: int) -> list[Receipt]:
    """Accepted updates of a round in the order in which they are summed: by user, then device."""
    query = select(uploads).where(uploads.c.round_id == round_id).order_by(uploads.c.user, uploads.c.device_id)
    return await every(connection, Receipt, query)


async def receipt(connection: AsyncConnection, round_id: int, device_id: str) -> Receipt | None:
    """One device's accepted update in a round."""
    query = select(uploads).where(uploads.c.round_id == round_id, uploads.c.device_id == device_id)
    return await first(connection, Receipt, query)


async def names_upload(connection: AsyncConnection, blob: str) -> bool:
    """Whether an accepted update lies in that blob."""
    return (await connection.execute(select(uploads.c.round_id).where(uploads.c.blob == blob))).first() is not None


async def insert_receipt(connection: AsyncConnection, new: Receipt) -> None:
    """Accept an update."""
    await connection.execute(insert(uploads).values(**asdict(new)))


async def norm_medians(connection: AsyncConnection, count: int) -> list[float]:
    """Medians of the norms of the newest ``count`` committed rounds that have one, oldest first."""
    query = select(rounds.c.norm_median).where(rounds.c.state == "committed", rounds.c.norm_median.is_not(None))
    newest = (await connection.execute(query.order_by(rounds.c.round_id.desc()).limit(count))).scalars()
    return [float(median) for median in newest][::-1]


async def admitted_samples(connection: AsyncConnection, user: str) -> int:
    """n_i of that user, as admitted."""
    return int((await connection.execute(select(users.c.samples).where(users.c.user == user))).scalar_one())


async def pair_with(connection: AsyncConnection, deployment_id: str, signing_key: bytes) -> None:
    """Give the deployment its id, and the public key that its devices trust."""
    await connection.execute(update(deployment).values(deployment_id=deployment_id, signing_key=signing_key))


async def keep_state(connection: AsyncConnection, algorithm_blob: str, **values: object) -> None:
    """Point the deployment to another algorithm state, and order the former one away."""
    former = (await connection.execute(select(deployment.c.algorithm_blob))).scalar_one()
    if former != algorithm_blob:
        await order_blobs(connection, former)
    await connection.execute(update(deployment).values(algorithm_blob=algorithm_blob, **values))


async def open_key_ids(connection: AsyncConnection) -> set[str]:
    """HPKE keys that rounds and evaluations in progress were opened with."""
    opened = select(rounds.c.server_key_id).where(rounds.c.state.not_in(("committed", "aborted")))
    asked = select(evaluations.c.server_key_id).where(evaluations.c.state.in_(("collecting", "judging")))
    return {name for query in (opened, asked) for name in (await connection.execute(query)).scalars()}


async def rounds_with_key(connection: AsyncConnection, key_id: str) -> int:
    """How many rounds were opened with that HPKE key."""
    query = select(func.count()).select_from(rounds).where(rounds.c.server_key_id == key_id)
    return int((await connection.execute(query)).scalar_one())


async def device_ids(connection: AsyncConnection, user: str) -> frozenset[str]:
    """The devices of a user."""
    return frozenset((await connection.execute(select(devices.c.device_id).where(devices.c.user == user))).scalars())


async def commit_round(
    connection: AsyncConnection, round_id: int, outcome: Commit, accepted: int, now: float
) -> tuple[str, ...]:
    """Flip model version, algorithm state and optimiser state together with the round's state.

    The files of the former states are ordered away where no row names them any more; gives their names.
    """
    former = (await connection.execute(select(deployment.c.algorithm_blob, deployment.c.optimiser_blob))).one()
    await connection.execute(
        update(deployment).values(
            model_version=outcome.model_version,
            algorithm_blob=outcome.algorithm_blob,
            optimiser_blob=outcome.optimiser_blob,
            committed_rounds=deployment.c.committed_rounds + 1,
        )
    )
    # A round in which nothing moved ends with the version it began with.
    await insert_model(connection, outcome.model_version, outcome.theta_blob, round_id, now)
    await change_round(
        connection,
        round_id,
        "committed",
        closed=now,
        accepted=accepted,
        result_version=outcome.model_version,
        norm_median=outcome.norm_median,
    )
    return await order_unnamed(connection, *former)


async def insert_model(connection: AsyncConnection, version: str, theta_blob: str, round_id: int, now: float) -> None:
    """Keep a version's parameters; of one that is kept already the round is the later one."""
    moved = await connection.execute(update(models).where(models.c.model_version == version).values(round_id=round_id))
    if moved.rowcount == 0:
        await connection.execute(
            insert(models).values(model_version=version, round_id=round_id, theta_blob=theta_blob, created=now)
        )


async def strip_uploads(connection: AsyncConnection) -> tuple[str, ...]:
    """Forget content of updates whose round is closed, and give the blobs that may now be removed."""
    closed = select(rounds.c.round_id).where(rounds.c.state.in_(("committed", "aborted")))
    spent = uploads.c.round_id.in_(closed) & uploads.c.blob.is_not(None)
    blobs = tuple((await connection.execute(select(uploads.c.blob).where(spent))).scalars())
    await order_blobs(connection, *blobs)
    await connection.execute(update(uploads).where(spent).values(blob=None, head_sealed=None))
    return blobs


async def forget_receipts(connection: AsyncConnection, before: int) -> None:
    """Drop cohorts and receipts of rounds below ``before``."""
    await connection.execute(delete(uploads).where(uploads.c.round_id < before))
    await connection.execute(delete(cohort).where(cohort.c.round_id < before))


async def forget_user(connection: AsyncConnection, user: str) -> tuple[str, ...]:
    """Delete every row of ``user``, order the blobs of its updates and reports away, and give their names."""
    blobs: tuple[str, ...] = ()
    for table in (uploads, reports):
        query = select(table.c.blob).where(table.c.user == user, table.c.blob.is_not(None))
        blobs += tuple((await connection.execute(query)).scalars())
    await order_blobs(connection, *blobs)
    for table in PERSONAL:
        await connection.execute(delete(table).where(table.c.user == user))
    return blobs


async def is_known(connection: AsyncConnection, user: str) -> bool:
    """Whether any row is of that user."""
    for table in PERSONAL:
        query = select(literal(1)).select_from(table).where(table.c.user == user).limit(1)
        if (await connection.execute(query)).first() is not None:
            return True
    return False


async def wanted_blobs(connection: AsyncConnection) -> set[str]:
    """Every blob that a row names."""
    columns = (
        deployment.c.base_blob,
        deployment.c.algorithm_blob,
        deployment.c.optimiser_blob,
        deployment.c.cohort_blob,
        course.c.algorithm_blob,
        course.c.optimiser_blob,
        models.c.theta_blob,
        models.c.calibration_blob,
        releases.c.calibration_blob,
        uploads.c.blob,
        reports.c.blob,
    )
    named: set[str] = set()
    for column in columns:
        named.update((await connection.execute(select(column).where(column.is_not(None)))).scalars())
    return named


def blob_path(name: str) -> str:
    """The path of a blob in the data folder."""
    return f"blobs/{name}"


def key_path(name: str) -> str:
    """The path of a key file in the data folder."""
    return f"keys/{name}"


async def order_removal(connection: AsyncConnection, paths: Collection[str]) -> None:
    """Order files away, in the transaction of the caller, in which no row names them any more."""
    rows = [{"path": path} for path in sorted(set(paths))]
    if rows:
        await connection.execute(delete(removals).where(removals.c.path.in_([row["path"] for row in rows])))
        await connection.execute(insert(removals), rows)


async def order_blobs(connection: AsyncConnection, *names: str | None) -> None:
    """Order blobs away; ``None`` is fine."""
    await order_removal(connection, [blob_path(name) for name in names if name is not None])


async def order_unnamed(connection: AsyncConnection, *names: str | None) -> tuple[str, ...]:
    """Order those blobs away that no row names any more, and give their names; ``None`` is fine."""
    spent = {name for name in names if name is not None}
    spent -= await wanted_blobs(connection) if spent else set()
    await order_blobs(connection, *spent)
    return tuple(spent)


async def ordered_blobs(connection: AsyncConnection) -> set[str]:
    """Everything that was ordered away and not noted as gone."""
    return set((await connection.execute(select(removals.c.path))).scalars())


async def withdraw_removal(connection: AsyncConnection, path: str) -> None:
    """That file is in use again."""
    await connection.execute(delete(removals).where(removals.c.path == path))
