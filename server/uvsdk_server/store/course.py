"""What is asked of the table of the training's course. Every function runs in the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.release.backtracking import Best, Course
from uvsdk_server.store import ledger
from uvsdk_server.store.rows import first
from uvsdk_server.store.schema import course, deployment


@dataclass(frozen=True, slots=True)
class CourseRow:
    """The course, and the state that training would return to: the model version and its blobs, ``None`` while that is
    the present one.
    """

    id: int = 1
    step: float = 1.0
    worse: int = 0
    best: str | None = None
    around: float | None = None
    released: str | None = None
    released_around: float | None = None
    kept_version: str | None = None
    algorithm_blob: str | None = None
    optimiser_blob: str | None = None

    @property
    def course(self) -> Course:
        """What the rule goes by."""
        best = None
        if self.best is not None and self.around is not None:
            best = Best(self.best, self.around, self.released or "", self.released_around or 0.0)
        return Course(best, self.worse, self.step)

    def with_course(self, new: Course) -> CourseRow:
        """The same state with what an evaluation made of the course."""
        changed = replace(self, step=new.step, worse=new.worse)
        best = new.best
        if best is None:
            return replace(changed, best=None, around=None, released=None, released_around=None)
        return replace(
            changed,
            best=best.model_version,
            around=best.around,
            released=best.released,
            released_around=best.released_around,
        )

    def keeping(self, version: str | None, algorithm_blob: str | None, optimiser_blob: str | None) -> CourseRow:
        """The same course with another state to return to; none where the present one is the best."""
        return replace(self, kept_version=version, algorithm_blob=algorithm_blob, optimiser_blob=optimiser_blob)


@dataclass(frozen=True, slots=True)
class Returned:
    """The state that training goes back to: the model version, and the blobs that hold the rest."""

    model_version: str
    algorithm_blob: str
    optimiser_blob: str


async def of(connection: AsyncConnection) -> CourseRow:
    """The course; that of a training that was never evaluated where none is on record."""
    return await first(connection, CourseRow, select(course)) or CourseRow()


async def keep(connection: AsyncConnection, new: CourseRow) -> tuple[str, ...]:
    """Put it in place of the former one; gives the former one's blobs that no row names any more."""
    former = await of(connection)
    await connection.execute(delete(course))
    await connection.execute(insert(course).values(**asdict(new)))
    return await ledger.order_unnamed(connection, former.algorithm_blob, former.optimiser_blob)


async def go_back(connection: AsyncConnection, to: Returned) -> tuple[str, ...]:
    """Make ``to`` the state that training goes on from; gives the blobs of the one that is left."""
    query = select(deployment.c.algorithm_blob, deployment.c.optimiser_blob)
    former = (await connection.execute(query)).one()
    await connection.execute(update(deployment).values(**asdict(to)))
    return await ledger.order_unnamed(connection, *former)


async def forgive(connection: AsyncConnection) -> None:
    """The evaluations so far no longer count against training."""
    await connection.execute(update(course).values(worse=0))
