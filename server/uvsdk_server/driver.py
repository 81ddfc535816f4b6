"""Rounds as a durable state machine (SPEC 1.5).

::

    open -> selected -> collecting -> aggregating -> committed
                            |              |
                            +--------------+-------> aborted

Between rounds candidates are evaluated (:mod:`uvsdk_server.evaluating`).
Every arrow is one database transaction. One task, :meth:`Driver.run`, draws them all; a server that is killed
anywhere goes on from the state it finds. A commit flips the model version, the algorithm's state and the
optimiser's state at once, and all randomness comes from the deployment's seed and the round's number
(:mod:`uvsdk.federation.streams`), so the model that follows is the one an undisturbed server would have made of the
same uploads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.bundle import Bundle
from uvsdk.errors import SealError, UpdateRejectedError, UvsdkError
from uvsdk.federation import clipping
from uvsdk.federation.messages import Admission, UpdateHead
from uvsdk.federation.round import Result, ServerState, Update, admit, select
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import Scalar, pack, unpack
from uvsdk_server import aggregation, observer, protocol
from uvsdk_server.board import Notice
from uvsdk_server.clocks import Waits
from uvsdk_server.evaluating import Evaluations
from uvsdk_server.models import Models
from uvsdk_server.monitoring import Log, Metrics, where
from uvsdk_server.rounds import Rounds
from uvsdk_server.settings import Settings
from uvsdk_server.store import course, ledger, removals
from uvsdk_server.store.rows import Candidate, DeploymentRow, Joining, Receipt, Round

_RETRY_S = 5.0
_LOOK_S = 60.0
"""Longest wait between two looks, so that what is due by time (a new key) is due while training rests as well."""
_AFTER_ABORT_S, _AFTER_ABORTS_S = 1.0, 60.0


class Driver:
    """Moves the newest round on, and nothing else does.

    Attributes:
        stalled: class of the error that keeps :meth:`run` from moving on, empty while nothing does.
    """

    def __init__(
        self,
        rounds: Rounds,
        models: Models,
        evaluations: Evaluations,
        *,
        settings: Settings,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self.stalled = ""
        self._evaluations = evaluations
        self._rounds = rounds
        self._database = rounds.database
        self._blobs = rounds.blobs
        self._keys = rounds.keys
        self._training = rounds.training
        self._drafts = rounds.drafts
        self._models = models
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._waits = Waits(rounds.clock)
        self._reported: dict[str, Scalar] | None = None

    async def run(self) -> None:
        """Move rounds on for ever; cancelled at shutdown."""
        cleaned = False
        while True:
            self._rounds.woken.clear()
            try:
                if not cleaned:
                    await self._clean()
                    self._metrics.class_cosine.set(self._training.mean_offdiagonal_cosine())
                    self._report()
                    cleaned = True
                if self._drafts.pending:
                    async with self._rounds.state_lock:
                        await self._drafts.discard()
                if self._keys.age_s() > self._settings.key_lifetime_s:
                    await self._renew_key()
                wait_s = await self._advance()
            except Exception as error:  # noqa: BLE001 - whatever it is, the rounds that follow must not end with it
                self.stalled = type(error).__name__
                self._log.error("round stalled", error=self.stalled, where=where(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)  # not ended by wake(), or requests could make it spin
                continue
            self.stalled = ""
            if wait_s == 0:
                continue
            try:
                await asyncio.wait_for(self._rounds.woken.wait(), self._look_s(wait_s))
            except TimeoutError:
                continue

    async def _advance(self) -> float | None:
        """Take the step that is next. Gives seconds until the next look, ``None`` to wait for :meth:`wake`."""
        async with self._database.read() as connection:
            row = await ledger.newest_round(connection)
        if row is None or row.state in ("committed", "aborted"):
            wait_s = await self._evaluations.advance()
            return await self._open(row) if wait_s is None else wait_s
        if row.state == "open":
            await self._select(row)
        elif row.state == "selected":
            await self._collect(row)
        elif row.state == "collecting":
            return await self._close(row)
        else:
            await self._aggregate(row)
        return 0.0

    async def _open(self, last: Round | None) -> float | None:
        config = self._training.config
        async with self._database.read() as connection:
            deployment = await ledger.deployment_row(connection)
            admitted = await ledger.admitted_users(connection)
            eligible = len(await ledger.eligible_devices(connection))
            aborts = await ledger.aborts_in_a_row(connection)
            medians = await ledger.norm_medians(connection, clipping.ROUNDS)
        assert deployment is not None
        finished = deployment.committed_rounds >= config.rounds
        stopped = bool(deployment.stopped)
        self._metrics.training_stopped.set(stopped)
        await self._rounds.board.post(Notice(finished=finished, stopped=stopped))
        size = config.cohort(eligible)
        early = not deployment.started and admitted < self._settings.start_after_users
        if finished or stopped or early or size < config.quorum(size):
            return None
        if last is not None:
            assert last.closed is not None  # it is committed or aborted
            pause_s = max(self._settings.round_pause_s, _after_aborts_s(aborts))
            ends = last.closed + pause_s
            remaining_s = self._waits.remaining_s("pause", last.round_id, until=ends, longest_s=pause_s)
            if remaining_s > 0:
                return remaining_s
        await self._renew_key()
        round_id = 1 if last is None else last.round_id + 1
        async with self._database.write() as connection:
            await ledger.insert_round(
                connection,
                round_id=round_id,
                state="open",
                model_version=self._models.candidate.version,
                config_digest=config.digest(),
                server_key_id=self._keys.current_id,
                seed=self._training.round_seed(round_id),
                cohort=0,
                quorum=0,
                opened=self._rounds.clock(),
                accepted=0,
                clip_norm=self._training.announced_norm(medians),
            )
        self._metrics.current_round.set(round_id)
        return 0.0

    async def _select(self, row: Round) -> None:
        """Take admissions into the algorithm's state and fix the cohort, in one transaction."""
        config, seed = self._training.config, int(row.seed)
        async with self._rounds.state_lock:
            async with self._database.read() as connection:
                deployment = await ledger.deployment_row(connection)
                pending = await ledger.pending_admissions(connection)
                known = await course.of(connection)
            assert deployment is not None
            anew = frozenset(item.user for item in pending if item.anew)
            try:
                admissions = [self._admission(item) for item in pending]
                state, refused = await asyncio.to_thread(
                    admit,
                    self._training.method,
                    self._training.state,
                    admissions,
                    seed=seed,
                    start=not deployment.started,
                    anew=anew,
                    refusal=Exception,  # whatever one device sent must not stop the rounds of the others
                )
            except Exception as error:  # noqa: BLE001 - an algorithm is a plug-in
                await self._give_up(row, error)
                return
            blob = await asyncio.to_thread(self._drafts.write, self._keys.files.seal_state(pack(state)))
            best = known if not pending else await asyncio.to_thread(self._joined, known, admissions, seed, anew)
            spent: tuple[str, ...] = ()
            async with self._database.write() as connection:
                if best != known:
                    spent = await course.keep(connection, best)
                for item in pending:
                    await ledger.settle_admission(connection, item, accepted=item.user not in refused)
                await ledger.keep_state(connection, blob, started=True)
                members = select(await ledger.eligible_devices(connection, settled=True), config, seed=seed)
                quorum = config.quorum(len(members))
                if len(members) < quorum:
                    await self._abort(connection, row, f"{len(members)} devices to choose from, need {quorum}")
                else:
                    await ledger.insert_cohort(connection, row.round_id, members)
                    await ledger.change_round(connection, row.round_id, "selected", cohort=len(members), quorum=quorum)
            if refused:
                self._log.warning("admissions refused", round_id=row.round_id, count=len(refused))
            self._drafts.settle()
            self._training.state = state
            self._blobs.remove(deployment.algorithm_blob, *spent)
            self._report()

    def _joined(
        self, known: course.CourseRow, admissions: Sequence[Admission], seed: int, anew: frozenset[str]
    ) -> course.CourseRow:
        """The best state with those who join, so that a return to it leaves nobody out."""
        if known.algorithm_blob is None:
            return known
        training, files = self._training, self._keys.files
        best = unpack(training.method.server.state, files.open_state(self._blobs.read(known.algorithm_blob)))
        joined, _ = admit(training.method, best, admissions, seed=seed, start=False, anew=anew, refusal=Exception)
        return replace(known, algorithm_blob=self._drafts.write(files.seal_state(pack(joined))))

    async def _collect(self, row: Round) -> None:
        deadline = self._rounds.clock() + self._training.config.deadline_s
        async with self._database.write() as connection:
            await ledger.change_round(connection, row.round_id, "collecting", deadline=deadline)
        self._rounds.awaited.open(row.round_id)
        self._log.info("round collecting", round_id=row.round_id, cohort=row.cohort, quorum=row.quorum)

    async def _close(self, row: Round) -> float:
        """End collection where the cohort is complete or the time is up."""
        assert row.deadline is not None  # since it collects
        # Read anew at each look: an upload may be recorded between a look and the notice that follows from it.
        async with self._database.read() as connection:
            outstanding = await ledger.outstanding(connection, row.round_id)
            arrived = await ledger.count_arrived(connection, row.round_id)
        awaited, quorum = self._rounds.awaited, arrived >= row.quorum
        asked = awaited.asked(outstanding, row.round_id)
        await self._rounds.board.post(Notice(protocol.header(self._training, row, self._keys), asked))
        longest_s = self._training.config.deadline_s
        remaining_s = self._waits.remaining_s("deadline", row.round_id, until=row.deadline, longest_s=longest_s)
        until_absent_s = remaining_s - (1 - self._settings.absent_after) * longest_s
        missing = awaited.waited_for(outstanding, row.round_id, quorum=quorum, absent=until_absent_s <= 0)
        if missing and remaining_s > 0:
            return until_absent_s if quorum and until_absent_s > 0 else remaining_s
        awaited.close(missing, row.round_id)
        async with self._database.write() as connection:
            accepted = len(await ledger.receipts_of(connection, row.round_id))
            if accepted >= row.quorum:
                await ledger.change_round(connection, row.round_id, "aggregating", accepted=accepted)
            else:
                reason = f"{accepted} updates before the deadline, need {row.quorum}"
                await self._abort(connection, row, reason, accepted=accepted)
        await self._rounds.board.post(Notice())
        if accepted < row.quorum:
            await self._clean()
        return 0.0

    async def _aggregate(self, row: Round) -> None:
        start = time.perf_counter()
        async with self._rounds.state_lock:
            await self._rounds.observer.reached(observer.AGGREGATION_STARTED)
            async with self._database.read() as connection:
                receipts = await ledger.receipts_of(connection, row.round_id)
                deployment = await ledger.deployment_row(connection)
                eligible = await ledger.eligible_devices(connection, settled=True)
            assert deployment is not None
            try:
                result = await self._result(row, receipts, eligible)
            except OSError:
                raise  # another try may succeed, and the uploads are kept
            except Exception as error:  # noqa: BLE001 - an algorithm is a plug-in
                await self._give_up(row, error, accepted=len(receipts))
            else:
                await self._commit(row, result, len(receipts), deployment)
                self._metrics.aggregation_seconds.observe(time.perf_counter() - start)
        await self._clean()

    async def _commit(self, row: Round, result: Result, accepted: int, former: DeploymentRow) -> None:
        bundle, outcome = await asyncio.to_thread(self._store, result)
        await self._rounds.observer.reached(observer.RESULT_STORED)
        async with self._database.write() as connection:
            known = await course.of(connection)
            if self._training.returns and known.kept_version is None:
                # What this round started from is the best so far: an evaluation may lead back to it.
                state = (former.model_version, former.algorithm_blob, former.optimiser_blob)
                await course.keep(connection, known.keeping(*state))
            spent = await ledger.commit_round(connection, row.round_id, outcome, accepted, self._rounds.clock())
        self._drafts.settle()
        await self._rounds.observer.reached(observer.ROUND_COMMITTED)
        self._blobs.remove(*spent)
        self._training.state, self._training.optimiser = result.state.algorithm, result.state.optimiser
        self._models.adopt(bundle, row.round_id)
        self._metrics.rounds.labels("committed").inc()
        self._metrics.class_cosine.set(self._training.mean_offdiagonal_cosine())
        self._metrics.mean_delta_norm.set(result.step.mean_norm)
        self._metrics.largest_step_ratio.set(result.step.largest_ratio)
        self._log.info(
            "round committed",
            round_id=row.round_id,
            accepted=accepted,
            model=outcome.model_version[:12],
            mean_delta_norm=float(f"{result.step.mean_norm:.4g}"),
            largest_step_ratio=float(f"{result.step.largest_ratio:.4g}"),
        )

    async def _give_up(self, row: Round, error: Exception, *, accepted: int = 0) -> None:
        """Abort a round over an error that trying again would meet again."""
        reason = str(error)
        if not isinstance(error, UvsdkError):
            # Only the class: what a stranger's code puts into a message may be anybody's data.
            reason = f"{type(error).__name__} in the algorithm {self._training.config.algorithm}; the log says where"
            self._log.error("round failed", round_id=row.round_id, error=type(error).__name__, where=where(error))
        async with self._database.write() as connection:
            await self._abort(connection, row, reason, accepted=accepted)

    async def _abort(self, connection: AsyncConnection, row: Round, reason: str, *, accepted: int = 0) -> None:
        """Close a round without a result: model, algorithm state, optimiser and the norms known stay as they were."""
        values = {"closed": self._rounds.clock(), "reason": reason[:1000], "accepted": accepted}
        await ledger.change_round(connection, row.round_id, "aborted", **values)
        self._metrics.rounds.labels("aborted").inc()
        self._log.warning("round aborted", round_id=row.round_id, reason=reason)

    async def _result(self, row: Round, receipts: Sequence[Receipt], eligible: Sequence[Candidate]) -> Result:
        private_key = self._keys.hpke(row.server_key_id)
        if private_key is None or len(receipts) < row.quorum:
            raise UpdateRejectedError(f"{len(receipts)} updates that can be opened, need {row.quorum}")
        training = self._training
        return await asyncio.to_thread(
            aggregation.aggregate,
            training.method,
            ServerState(self._models.candidate.theta, training.optimiser, training.state, training.step),
            [self._upload(receipt) for receipt in receipts],
            private_key,
            clip_norm=training.clip_norm(row.clip_norm),
            # Nobody is settled where all who took part joined anew meanwhile.
            everybody=[item.samples for item in eligible or receipts],
            seed=int(row.seed),
            tensors=[parameter.size for parameter in self._models.candidate.manifest.parameters],
        )

    def _upload(self, receipt: Receipt) -> aggregation.Upload:
        if receipt.head_sealed is None or receipt.blob is None:
            raise SealError("the content of an accepted update is gone from the database")
        head = unpack(
            UpdateHead,
            self._keys.files.user(receipt.user).open(
                receipt.head_sealed, f"head/{receipt.round_id}/{receipt.device_id}"
            ),
        )
        payload = unpack(self._training.method.server.payload, head.payload)
        contribution = Contribution(receipt.user, receipt.samples, payload)
        return aggregation.Upload(self._blobs.path(receipt.blob), Update(contribution, receipt.norm))

    def _admission(self, row: Joining) -> Admission:
        return unpack(Admission, self._keys.files.user(row.user).open(row.admission_sealed, f"admission/{row.user}"))

    def _store(self, result: Result) -> tuple[Bundle, ledger.Commit]:
        bundle = self._models.candidate.with_theta(result.state.theta)
        outcome = ledger.Commit(
            model_version=bundle.version,
            theta_blob=self._drafts.write_array(bundle.theta),
            algorithm_blob=self._drafts.write(self._keys.files.seal_state(pack(result.state.algorithm))),
            optimiser_blob=self._drafts.write(self._keys.files.seal_optimiser(pack(result.state.optimiser))),
            norm_median=result.norm_median,
        )
        return bundle, outcome

    def _report(self) -> None:
        """Log what the algorithm says of this training, where it says something new."""
        try:
            report = self._training.report()
        except Exception as error:  # noqa: BLE001 - an algorithm is a plug-in, and rounds do not need its report
            self._log.error("no report", error=type(error).__name__, where=where(error))
            return
        if report != self._reported:
            self._log.info("training", algorithm=self._training.config.algorithm, report=report)
            self._reported = report

    def _look_s(self, wait_s: float | None) -> float:
        """How long to wait at most: no longer than until the key is to be replaced, should that be soon."""
        look_s = min(_LOOK_S, self._settings.key_lifetime_s)
        return look_s if wait_s is None else min(wait_s, look_s)

    async def _renew_key(self) -> None:
        """Replace the server's HPKE key where it is due, and destroy those that are needed no more."""
        async with self._database.read() as connection:
            used = await ledger.rounds_with_key(connection, self._keys.current_id)
            needed = await ledger.open_key_ids(connection)
        if self._keys.age_s() > self._settings.key_lifetime_s or used >= self._settings.key_rounds:
            await self._keys.rotate(self._database, self._rounds.clock())
        await self._keys.retire(self._database, needed, self._rounds.clock())

    async def _clean(self) -> None:
        """Forget what closed rounds leave; at start-up, also what a crash kept from being forgotten."""
        async with self._database.write() as connection:
            blobs = await ledger.strip_uploads(connection) + await self._evaluations.clean(connection)
            newest = await ledger.newest_round(connection)
            if newest is not None:
                await ledger.forget_receipts(connection, newest.round_id - self._settings.keep_rounds)
            needed = await ledger.open_key_ids(connection)
        self._blobs.remove(*blobs)
        await removals.settle(self._database, self._settings.data)
        await self._keys.retire(self._database, needed, self._rounds.clock())
        await self._models.forget(self._settings.keep_models)


def _after_aborts_s(aborts: int) -> float:
    """The pause after so many aborted rounds in a row: 1 s, doubling up to a minute, for each costs every device.

    >>> [_after_aborts_s(aborts) for aborts in (0, 1, 2, 3, 99)]
    [0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return min(_AFTER_ABORTS_S, _AFTER_ABORT_S * 2.0 ** min(aborts - 1, 30)) if aborts else 0.0
