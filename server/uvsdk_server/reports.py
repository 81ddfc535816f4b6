"""What devices are asked in an evaluation, and their reports on their way to the disk: durable before acknowledged.

The order of checks is that of :mod:`uvsdk_server.uploads`; a report is some hundred kilobytes, and is held in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import numpy as np

from uvsdk import modality
from uvsdk.errors import UvsdkError
from uvsdk.privacy.sealing import Envelope
from uvsdk.records.codec import unpack
from uvsdk.release import report
from uvsdk.release.report import EvaluationReport, EvaluationTask
from uvsdk.rest.problems import Problem
from uvsdk.scoring.cells import names
from uvsdk_server import envelopes, observer, problems, protocol
from uvsdk_server.cohorts import Cohorts
from uvsdk_server.monitoring import Metrics
from uvsdk_server.people import Device
from uvsdk_server.rounds import Rounds
from uvsdk_server.shielding import to_its_end
from uvsdk_server.store import evaluations as store
from uvsdk_server.store.rows import EvaluationRow, ReportRow, Respondent

_AT_ONCE = 4
"""Reports that are opened and checked at once."""


class Reports:
    """Tasks of evaluations, and what comes back."""

    def __init__(self, rounds: Rounds, cohorts: Cohorts, metrics: Metrics, *, dimension: int) -> None:
        self._cohorts = cohorts
        self._rounds = rounds
        self._database = rounds.database
        self._metrics = metrics
        self._dimension = dimension
        self._cells = len(names(modality.get(rounds.training.config.modality).cells))
        self._checking = asyncio.Semaphore(_AT_ONCE)
        self._devices: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def asked(self, device_id: str, evaluation_id: int) -> tuple[EvaluationRow, Respondent]:
        """The evaluation that asks a device. Raises :class:`Problem` 403, 409, 410."""
        row, respondent, _ = await self._found(device_id, evaluation_id)
        if respondent is None:
            raise Problem("not-selected", "that user is not among those admitted; send an admission first")
        return row, respondent

    async def task(self, device: Device, evaluation_id: int) -> bytes:
        """The task for one device, sealed to it. Raises as :meth:`asked`."""
        row, respondent = await self.asked(device.device_id, evaluation_id)
        check_collecting(row)
        task = await self._task(row, respondent)
        self._rounds.reporting.begin(device.device_id, evaluation_id)
        training, keys = self._rounds.training, self._rounds.keys
        return await asyncio.to_thread(protocol.evaluation_task, training, device, row, keys, task)

    async def receive(
        self,
        device: Device,
        evaluation_id: int,
        read: Callable[[], Awaitable[bytes]],
        check_body: Callable[[bytes], None],
    ) -> bool:
        """Take one report; false where the very same was accepted before.

        Args:
            device: the device that signed the request.
            evaluation_id: from the address.
            read: gives the request's body.
            check_body: raises unless the SHA-256 it is given is the one that was signed.

        Raises:
            Problem, UvsdkError: it was refused, and nothing changed.
        """
        try:
            new = await self._receive(device, evaluation_id, read, check_body)
        except (Problem, UvsdkError) as error:
            problem = problems.of(error)
            self._metrics.reports.labels(problem.kind).inc()
            if problem.status < 500 and problem.status not in (410, 429):
                self._rounds.reporting.refuse(device.device_id, evaluation_id)
                self._rounds.wake()
            raise
        self._metrics.reports.labels("accepted" if new else "repeated").inc()
        return new

    async def _receive(
        self,
        device: Device,
        evaluation_id: int,
        read: Callable[[], Awaitable[bytes]],
        check_body: Callable[[bytes], None],
    ) -> bool:
        row, respondent, former = await self._found(device.device_id, evaluation_id)
        if former is None:
            check_collecting(row)
            if respondent is None:
                raise Problem("not-selected", "that user is not among those admitted; send an admission first")
        # One body of each device at a time, so that nobody fills the memory.
        async with self._devices.setdefault(device.device_id, asyncio.Lock()):
            body = await read()
            digest = hashlib.sha256(body)
            check_body(digest.digest())
            with Envelope.parse(body) as envelope:
                envelopes.check(envelope, device, self._expected(row))
                nonce = envelope.binding.nonce
                if former is not None:
                    return _repeated(former, nonce, digest.hexdigest())
                assert respondent is not None
                task = await self._task(row, respondent)
                async with self._checking:
                    await asyncio.to_thread(self._check, envelope, row, task)
        new = ReportRow(
            evaluation_id=evaluation_id,
            device_id=device.device_id,
            user=device.user,
            nonce=nonce,
            digest=digest.hexdigest(),
            evaluates=respondent.evaluates,
            blob=digest.hexdigest(),
            received=self._rounds.clock(),
        )
        return await to_its_end(self._keep(new, body))

    def _check(self, envelope: Envelope, row: EvaluationRow, task: EvaluationTask) -> None:
        private_key = self._rounds.keys.hpke(row.server_key_id)
        if private_key is None:
            raise Problem("evaluation-closed", "the key of that evaluation was destroyed after it closed")
        found = unpack(EvaluationReport, b"".join(envelope.open(private_key)))
        report.check(found, task, dimension=self._dimension, cells=self._cells)

    async def _keep(self, new: ReportRow, body: bytes) -> bool:
        blobs = self._rounds.blobs
        await asyncio.to_thread(blobs.write, body)
        await self._rounds.observer.reached(observer.REPORT_STORED)
        try:
            async with self._database.write() as connection:
                former = await store.report(connection, new.evaluation_id, new.device_id)
                if former is None:
                    row = await store.of_id(connection, new.evaluation_id)
                    assert row is not None  # found before, and evaluations are never deleted
                    check_collecting(row)
                    if await store.respondent(connection, new.device_id) is None:
                        raise Problem("not-selected", "the device left while its report was received")
                    await store.add_report(connection, new)
        except BaseException:
            await self._discard(new.digest)
            raise
        if former is not None:
            if former.digest != new.digest:
                blobs.remove(new.digest)
            return _repeated(former, new.nonce, new.digest)
        await self._rounds.observer.reached(observer.REPORT_RECORDED)
        self._rounds.board.strike(frozenset({new.device_id}))
        self._rounds.reporting.arrive(new.device_id)
        self._rounds.wake()
        return True

    async def _discard(self, blob: str) -> None:
        """Remove the file of a report that could not be recorded, unless it was: a commit whose answer was lost."""
        async with self._database.read() as connection:
            recorded = await store.names_report(connection, blob)
        if not recorded:
            self._rounds.blobs.remove(blob)

    async def _found(
        self, device_id: str, evaluation_id: int
    ) -> tuple[EvaluationRow, Respondent | None, ReportRow | None]:
        async with self._database.read() as connection:
            row = await store.of_id(connection, evaluation_id)
            if row is None:
                raise Problem("wrong-evaluation", "there is no such evaluation; ask for the current one")
            former = await store.report(connection, evaluation_id, device_id)
            return row, await store.respondent(connection, device_id), former

    async def _task(self, row: EvaluationRow, respondent: Respondent) -> EvaluationTask:
        nobody = np.empty((0, self._dimension), np.float32)
        cohort, released = nobody, nobody
        if row.impostors == "cohort":
            cohort = await self._cohorts.rows(row.candidate)
            released = nobody if row.candidate == row.released else await self._cohorts.rows(row.released)
        return EvaluationTask(
            evaluation_id=row.evaluation_id,
            candidate=row.candidate,
            released=row.released,
            impostors=row.impostors,
            evaluates=respondent.evaluates,
            cohort=cohort,
            released_cohort=released,
            centre=np.zeros(0, np.float32) if row.centre is None else np.frombuffer(row.centre, np.dtype("<f4")),
        )

    def _expected(self, row: EvaluationRow) -> envelopes.Expected:
        config = self._rounds.training.config
        return envelopes.Expected(
            deployment=config.deployment,
            message_type="evaluation-report",
            algorithm=config.algorithm,
            round_id=row.evaluation_id,
            model_version=row.candidate,
            server_key_id=row.server_key_id,
        )


def check_collecting(row: EvaluationRow) -> None:
    """Raise :class:`Problem` 410 unless that evaluation takes reports."""
    if row.state != "collecting":
        raise Problem("evaluation-closed", f"evaluation {row.evaluation_id} is {row.state}; ask for the current one")


def _repeated(former: ReportRow, nonce: str, digest: str) -> bool:
    """False for the report that was accepted before. Raises :class:`Problem` 409 for any other."""
    if (former.nonce, former.digest) == (nonce, digest):
        return False
    if former.nonce == nonce:
        raise Problem("replayed-nonce", "the nonce of an accepted report was used for another one")
    raise Problem("already-uploaded", "this device's report was accepted; there is one an evaluation")
