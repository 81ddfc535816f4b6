"""After an evaluation: what training goes on from, and by how long a step (:mod:`uvsdk.release.backtracking`).

After that of the model that a deployment begins with, training goes on from the same model with its head centred, where
it has one that is made for it (:mod:`uvsdk.release.centring`).

The state of the best candidate so far is kept beside the present one while that differs: its parameters, the
algorithm's state, the optimiser's. Those who join meanwhile are admitted to both, and who leaves is removed from both.
A return is one transaction with the end of the evaluation that asked for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.federation import optimisers
from uvsdk.federation.messages import OptimiserState
from uvsdk.records.codec import pack, unpack
from uvsdk.release.backtracking import WORSE_IN_A_ROW, Compared, Course, bar_of, follow
from uvsdk.release.conclusion import Conclusion
from uvsdk_server import observer
from uvsdk_server.models import Models
from uvsdk_server.monitoring import Log, Metrics
from uvsdk_server.rounds import Rounds
from uvsdk_server.store import course, evaluations, ledger
from uvsdk_server.store.course import CourseRow, Returned
from uvsdk_server.store.rows import EvaluationRow


@dataclass(frozen=True, slots=True)
class _Former:
    """A state that is to be the present one again, opened."""

    bundle: Bundle
    round_id: int
    algorithm: Any
    optimiser: OptimiserState
    to: Returned
    new_blob: str | None = None
    """Of its parameters, where no row names the version yet."""


@dataclass(slots=True)
class Change:
    """What an evaluation means for training; :meth:`keep` makes it durable."""

    before: CourseRow
    after: CourseRow
    worse: bool
    former: _Former | None
    stop: str
    now: float = 0.0
    spent: tuple[str, ...] = ()

    @property
    def centred(self) -> bool:
        """Whether training goes on from a centred start, and from no earlier state."""
        return self.former is not None and self.former.new_blob is not None

    def told(self) -> dict[str, Any]:
        """For people and programs: the best version, what training returned to or was centred to, and the step."""
        return {
            "best": self.after.best,
            "worse": self.worse,
            "returned_to": None if self.former is None or self.centred else self.former.to.model_version,
            "centred": self.former.to.model_version if self.former is not None and self.centred else None,
            "step": self.after.step,
        }

    async def keep(self, connection: AsyncConnection) -> None:
        """Write it down, in the transaction that closes the evaluation."""
        if self.former is not None:
            if self.former.new_blob is not None:
                version, place = self.former.to.model_version, self.former.round_id
                await ledger.insert_model(connection, version, self.former.new_blob, place, self.now)
            self.spent += await course.go_back(connection, self.former.to)
        if self.after != self.before:
            self.spent += await course.keep(connection, self.after)
        if self.stop:
            await evaluations.stop_training(connection, self.stop)


class Returning:
    """Takes training back where evaluations find that it got worse."""

    def __init__(self, rounds: Rounds, models: Models, *, metrics: Metrics, log: Log) -> None:
        self._rounds = rounds
        self._training = rounds.training
        self._models = models
        self._metrics = metrics
        self._log = log

    @asynccontextmanager
    async def judged(
        self, row: EvaluationRow, found: Conclusion, start: Float32 | None = None
    ) -> AsyncIterator[Change]:
        """What ``found`` means for training; on leaving the block, which has to :meth:`Change.keep` it, it is done.

        ``start`` is what training that has not begun is to begin from: float32 (P,), the centred parameters.
        """
        async with self._rounds.state_lock:
            change = await self._change(row, found, start)
            yield change
            self._rounds.drafts.settle()
            self._training.step = change.after.step
            if change.former is not None:
                if not change.centred:
                    await self._rounds.observer.reached(observer.TRAINING_RETURNED)
                self._training.state, self._training.optimiser = change.former.algorithm, change.former.optimiser
                self._models.adopt(change.former.bundle, change.former.round_id)
            self._rounds.blobs.remove(*change.spent)
        self._say(row, change)

    async def _change(self, row: EvaluationRow, found: Conclusion, start: Float32 | None) -> Change:
        async with self._rounds.database.read() as connection:
            before = await course.of(connection)
            deployment = await ledger.deployment_row(connection)
        assert deployment is not None
        compared = found.compared
        present = row.candidate == self._models.candidate.version
        if start is not None and present and not deployment.committed_rounds:
            begins = await asyncio.to_thread(self._begins, start)
            return Change(before, before, worse=False, former=begins, stop="", now=row.closed or 0.0)
        if compared is None or not present:
            return Change(before, before, worse=False, former=None, stop="")
        moved = follow(before.course, compared, returns=self._training.returns, sure=row.cause == "centred")
        after, worse = before.with_course(moved), moved.worse > before.worse
        former = None
        if not worse:
            if moved.best is not None and moved.best.model_version == row.candidate:
                after = after.keeping(None, None, None)  # the present state is the best
        elif self._training.returns and moved.best is not None:
            former = await self._former(before, moved.best.model_version, deployment.committed_rounds)
            after = after if former is None else after.keeping(None, None, None)
        stop = "" if deployment.stopped or not moved.rests else _worse(moved, compared, deployment.committed_rounds)
        return Change(before, after, worse, former, stop)

    async def _former(self, kept: CourseRow, version: str, committed: int) -> _Former | None:
        """The state of ``version``; where only its parameters are kept, with the present class vectors and without
        moments. ``None`` where not even those are, or where it is the present one.
        """
        if version == self._models.candidate.version:
            return None
        async with self._rounds.database.read() as connection:
            model = await ledger.model_row(connection, version)
        if model is None:
            self._log.warning("the best parameters so far are no longer kept", model=version[:12])
            return None
        return await asyncio.to_thread(self._opened, kept, version, model.theta_blob, model.round_id)

    def _opened(self, kept: CourseRow, version: str, theta_blob: str, round_id: int) -> _Former:
        training, files, blobs = self._training, self._rounds.keys.files, self._rounds.blobs
        state, optimiser = training.state, optimisers.initial(training.parameters, training.config)
        algorithm_blob = None
        if kept.kept_version == version and kept.algorithm_blob is not None and kept.optimiser_blob is not None:
            algorithm_blob = kept.algorithm_blob
            state = unpack(training.method.server.state, files.open_state(blobs.read(algorithm_blob)))
            optimiser = unpack(OptimiserState, files.open_optimiser(blobs.read(kept.optimiser_blob)))
        # Rounds are counted on, so that the step falls to its end when they are used up.
        optimiser = replace(optimiser, steps=training.optimiser.steps)
        return _Former(
            self._models.candidate.with_theta(blobs.read_array(theta_blob)),
            round_id,
            state,
            optimiser,
            Returned(
                version,
                algorithm_blob or self._rounds.drafts.write(files.seal_state(pack(state))),
                self._rounds.drafts.write(files.seal_optimiser(pack(optimiser))),
            ),
        )

    def _begins(self, theta: Float32) -> _Former:
        """The present state with other parameters."""
        training, files, drafts = self._training, self._rounds.keys.files, self._rounds.drafts
        bundle = self._models.candidate.with_theta(theta)
        to = Returned(
            bundle.version,
            drafts.write(files.seal_state(pack(training.state))),
            drafts.write(files.seal_optimiser(pack(training.optimiser))),
        )
        blob = drafts.write_array(bundle.theta)
        return _Former(bundle, self._models.round_id, training.state, training.optimiser, to, blob)

    def _say(self, row: EvaluationRow, change: Change) -> None:
        self._metrics.training_step.set(change.after.step)
        if change.centred and change.former is not None:
            self._log.info("training begins centred", model=change.former.to.model_version[:12])
        elif change.former is not None:
            self._metrics.training_returns.inc()
            self._log.warning(
                "training returned to the best",
                evaluation=row.evaluation_id,
                left=row.candidate[:12],
                model=change.former.to.model_version[:12],
                step=change.after.step,
            )
        if change.stop:
            self._log.warning("training stopped by itself", reason=change.stop)


def _worse(moved: Course, last: Compared, committed: int) -> str:
    bar = bar_of(moved.best, last)
    known = f"{bar:.1%}" if math.isfinite(bar) else "fewer"
    return (
        f"{WORSE_IN_A_ROW} evaluations in a row were worse than the best: {last.candidate_around:.1%} of genuine "
        f"trials are rejected on average over false match rates, {known} by the best. Training rests after "
        f"{committed} rounds; what verifies stays. Change the training settings, or go on all the same "
        "(POST /v1/training/resume, uvsdk releases resume)"
    )
