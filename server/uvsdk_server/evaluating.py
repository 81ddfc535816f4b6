"""Evaluations as a durable state machine, between rounds (SPEC 17).

::

    requested -> collecting -> judging -> closed
                     |            |
                     +------------+-----> failed

Every arrow is one database transaction, and :class:`uvsdk_server.driver.Driver` draws them: while an evaluation
collects no round opens. What is concluded is a function of the reports and of the time at which they were complete, so
that a server that is killed while it judges comes to the same release again, and makes it once. With the last arrow
training goes back to the best state so far, where the candidate is worse (:mod:`uvsdk_server.returning`).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.errors import BundleError, SealError, UvsdkError, WireError
from uvsdk.records.codec import unpack
from uvsdk.release import centring, conclusion
from uvsdk.release.backtracking import Compared
from uvsdk.release.conclusion import Conclusion, Finding, conclude
from uvsdk.release.gate import Verdict
from uvsdk.release.measurement import SUPPORTED
from uvsdk.release.record import Release
from uvsdk.release.report import SUMMED, EvaluationReport, ModelReport, centre_of
from uvsdk.release.subtraction import Subtraction
from uvsdk.release.sums import ModelSums
from uvsdk.rest.problems import Problem
from uvsdk.scoring.cells import names
from uvsdk.templates.attempts import DAY_S
from uvsdk_server import observer, protocol
from uvsdk_server.aggregation import map_envelope
from uvsdk_server.board import Notice
from uvsdk_server.clocks import Waits
from uvsdk_server.cohorts import Cohorts
from uvsdk_server.evaluators import NOTHING, Evaluators
from uvsdk_server.models import Models
from uvsdk_server.monitoring import Log, Metrics, where
from uvsdk_server.releases import Releases
from uvsdk_server.returning import Returning
from uvsdk_server.rounds import Rounds
from uvsdk_server.settings import Settings
from uvsdk_server.store import evaluations as store
from uvsdk_server.store import ledger
from uvsdk_server.store.rows import EvaluationRow, EvaluationState, ReportRow, Respondent

OFF: Final = "off"

GROWN: Final = 1.5
"""By how many times more devices there must be while training rests, before what verifies is measured on them anew."""

AGAIN_S: Final = DAY_S
"""How long after one that failed, while training rests, an evaluation is tried again: who was away may be back."""


_STANDS: Final = (
    "what verifies keeps the calibration that an operator gave it; start the server with --calibration-policy "
    "evaluations to have it measured anew"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What :func:`due` decides by.

    Args:
        finished: whether training rests.
        committed: rounds so far.
        candidate: version that training goes on from.
        released: version that verifies.
        evaluators: users who only evaluate.
        least: fewest of them that make an evaluation worth its cost.
        every: committed rounds between two evaluations, 0 for none.
        early: whether people are still awaited before anything begins (``start_after_users``).
        devices: that may be asked.
        since_s: seconds since the last evaluation ended.
    """

    finished: bool
    committed: int
    candidate: str
    released: str
    evaluators: int
    least: int
    every: int
    early: bool = False
    devices: int = 0
    since_s: float = 0.0


def due(now: Surroundings, history: Sequence[EvaluationRow]) -> str:
    """Why an evaluation is due, empty where none is.

    ``start``: enough people have joined, and the model that verifies has not been measured on any of them; ``centred``:
    what that measurement said has moved the start of training (:mod:`uvsdk.release.centring`); ``rounds``: enough
    rounds since the last; ``rest``: training rests, and its last candidate was not evaluated; ``few``: the same, and
    too few people could tell of it; ``people``: training rests, and so many have joined since the last that what
    verifies can be told more of. Where the last one failed, for too few answered in time, it is tried once more after a
    day of rest.
    """
    held = [row for row in history if row.asked]
    if now.evaluators < now.least:
        known = any(row.candidate == now.candidate for row in history)
        return "few" if now.finished and now.candidate != now.released and not known else ""
    if not held:
        return "" if now.early else "start"
    last = held[-1]
    if now.candidate != last.candidate == last.released and now.committed == last.committed_rounds:
        return "centred"
    if now.finished and now.candidate != now.released and all(row.candidate != now.candidate for row in held):
        return "rest"
    if now.finished and now.devices >= GROWN * last.asked:
        return "people"
    if now.finished and last.state == "failed" and now.since_s >= AGAIN_S:
        return "start" if now.candidate == now.released else "rest"
    moved = now.candidate != last.candidate and now.committed - last.committed_rounds >= now.every
    return "rounds" if now.every and moved and not now.finished else ""


class Evaluations:
    """Moves the newest evaluation on, for the driver, and answers what is asked of it."""

    def __init__(
        self,
        rounds: Rounds,
        models: Models,
        releases: Releases,
        cohorts: Cohorts,
        *,
        settings: Settings,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._cohorts = cohorts
        self._rounds = rounds
        self._database = rounds.database
        self._training = rounds.training
        self._keys = rounds.keys
        self._models = models
        self._releases = releases
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._waits = Waits(rounds.clock)
        self._told = -1
        self._returning = Returning(rounds, models, metrics=metrics, log=log)

    async def impostors(self) -> str:
        """Where impostors' scores come from; ``off`` where no model is evaluated."""
        found = self._training.method.impostors
        return OFF if found == "cohort" and not await self._cohorts.size() else found

    # What the driver asks

    async def advance(self) -> float | None:
        """Take the step that is next; gives seconds until the next look, ``None`` where rounds may go on."""
        async with self._database.read() as connection:
            row = await store.newest(connection)
        if row is not None and row.state == "collecting":
            return await self._close(row)
        if row is not None and row.state == "judging":
            await self._judge(row)
            return 0.0
        requested = row is not None and row.state == "requested"
        return 0.0 if await self._open(row if requested else None) else None

    async def clean(self, connection: AsyncConnection) -> tuple[str, ...]:
        """Forget what closed evaluations leave; gives blobs that may be removed."""
        return await store.strip(connection, self._settings.keep_rounds)

    # What operators ask

    async def request(self, by: str) -> EvaluationRow:
        """Have the candidate evaluated as soon as no round is open; ``by`` names who asks in the audit log.

        Raises :class:`Problem` 409.
        """
        impostors = await self.impostors()
        if impostors == OFF:
            raise Problem("evaluation-off", NOTHING)
        async with self._database.write() as connection:
            row = await store.request(connection, impostors, self._rounds.clock(), by=by)
        self._rounds.wake()
        return row

    async def resume(self, by: str) -> None:
        """Let training go on where it has stopped by itself; the evaluations so far no longer count against it, and
        the step stays as short as they have made it. ``by`` names who asks in the audit log.
        """
        async with self._database.write() as connection:
            await store.resume(connection, self._rounds.clock(), by=by)
        self._log.info("training resumed")
        self._rounds.wake()

    # The machine

    async def _open(self, requested: EvaluationRow | None) -> bool:
        """Begin what is due; false where nothing is."""
        impostors = await self.impostors()
        if impostors == OFF:
            if requested is not None:
                await self._refuse(replace(requested, state="failed", closed=self._rounds.clock()), requested, NOTHING)
            return requested is not None
        async with self._database.read() as connection:
            deployment = await ledger.deployment_row(connection)
            history = await store.judged(connection)
            devices = await store.respondents(connection)
            admitted = await ledger.admitted_users(connection)
        assert deployment is not None
        config = self._training.config
        evaluators = Evaluators.of(config, devices)
        current = await self._releases.row()
        if not evaluators.suffice and deployment.started and evaluators.told != self._told:
            self._told = evaluators.told
            moved = self._models.candidate.version != current.model_version
            self._log.info("too few people to evaluate", outlook=evaluators.words(candidate=moved))
        surroundings = Surroundings(
            finished=bool(deployment.stopped) or deployment.committed_rounds >= config.rounds,
            committed=deployment.committed_rounds,
            candidate=self._models.candidate.version,
            released=current.model_version,
            evaluators=evaluators.told,
            least=evaluators.least,
            every=config.evaluate_every,
            early=not deployment.started and admitted < self._settings.start_after_users,
            devices=len(devices),
            since_s=self._rounds.clock() - (history[-1].closed or 0.0) if history else 0.0,
        )
        cause = due(surroundings, history) if requested is None else "request"
        if not cause:
            return False
        few = not evaluators.suffice
        now = self._rounds.clock()
        number = requested.evaluation_id if requested else history[-1].evaluation_id + 1 if history else 1
        row = EvaluationRow(
            evaluation_id=number,
            state="failed" if few else "collecting",
            cause="rest" if cause == "few" else cause,
            candidate=surroundings.candidate,
            released=surroundings.released,
            impostors=impostors,
            config_digest=config.digest(),
            server_key_id=self._keys.current_id,
            committed_rounds=deployment.committed_rounds,
            cohort_rows=0,
            opened=now,
            deadline=now + config.deadline_s,
            closed=now if few else None,
            asked=0 if few else len(devices),
            arrived=0,
            outcome="kept" if few else None,
            release=None,
            summary=None,
        )
        row = replace(row, **await self._subtracted(row))
        if few:
            await self._refuse(row, requested, evaluators.words(candidate=row.candidate != row.released))
            return True
        if impostors == "cohort":
            try:
                rows = [await self._cohorts.rows(version) for version in (row.released, row.candidate)]
            except BundleError as error:
                refused = replace(row, state="failed", closed=now, deadline=None, asked=0, outcome="kept")
                await self._refuse(refused, requested, str(error))
                return True
            row = replace(row, cohort_rows=len(rows[0]))
        await self._put(row, requested)
        self._rounds.reporting.open(number)
        self._log.info("evaluation collecting", evaluation=number, cause=cause, asked=row.asked, impostors=impostors)
        return True

    async def _subtracted(self, row: EvaluationRow) -> dict[str, Any]:
        """What is subtracted in the second report on the released model, and whether that verifies so.

        It is written down with the evaluation, so that all devices are asked the same, whatever is released meanwhile.
        """
        if self._training.config.centring != "measured" or row.impostors not in SUMMED:
            return {}
        current = await self._releases.current()
        calibration = current.bundle.calibration
        centre = centre_of(calibration)
        if calibration is None or centre is None or current.row.model_version != row.released:
            return {}
        return {"centre": centre.astype("<f4").tobytes(), "verifies_centred": calibration.centring is not None}

    async def _put(self, row: EvaluationRow, requested: EvaluationRow | None) -> None:
        values = asdict(row)
        async with self._database.write() as connection:
            if requested is None:
                await store.add(connection, row)
            else:
                state = values.pop("state")
                await store.change(connection, values.pop("evaluation_id"), state, **values)

    async def _refuse(self, row: EvaluationRow, requested: EvaluationRow | None, reason: str) -> None:
        """Say of a candidate that nobody can tell whether it is better; nobody is asked."""
        verdict = Verdict(False, (reason,), math.nan, (-math.inf, math.inf))
        if row.candidate != row.released:
            await self._releases.consider(row.candidate, verdict)
        await self._put(replace(row, summary=json.dumps({"passes": False, "reasons": [reason]})), requested)
        self._metrics.evaluations.labels("failed").inc()
        self._log.warning("no evaluation", evaluation=row.evaluation_id, reason=reason)

    async def _close(self, row: EvaluationRow) -> float:
        """End collection where everybody who is awaited has answered, or the time is up."""
        assert row.deadline is not None  # since it collects
        async with self._database.read() as connection:
            devices = await store.respondents(connection)
            arrived = await store.reports_of(connection, row.evaluation_id)
        reporting = self._rounds.reporting
        told = {item.device_id for item in arrived}
        outstanding = frozenset(item.device_id for item in devices) - told
        enough = _suffices(row, devices, arrived)
        asked = reporting.asked(outstanding, row.evaluation_id)
        header = protocol.evaluation_header(self._training, row, self._keys)
        await self._rounds.board.post(Notice(evaluation=header, respondents=asked))
        longest_s = max(row.deadline - row.opened, 0.0)
        until, place = row.deadline, row.evaluation_id
        remaining_s = self._waits.remaining_s("evaluation", place, until=until, longest_s=longest_s)
        until_absent_s = remaining_s - (1 - self._settings.absent_after) * longest_s
        missing = reporting.waited_for(outstanding, place, quorum=enough, absent=until_absent_s <= 0)
        if missing and remaining_s > 0:
            if enough:
                return until_absent_s if until_absent_s > 0 else remaining_s
            quiet_s = await self._quiet_s(place, outstanding, arrived=len(arrived), longest_s=longest_s)
            if quiet_s > 0:
                return min(quiet_s, remaining_s)
            missing = frozenset()  # nobody has kept it waiting
        reporting.close(missing, place)
        async with self._database.write() as connection:
            number = len(await store.reports_of(connection, place))
            await store.change(connection, place, "judging", closed=self._rounds.clock(), arrived=number)
        await self._rounds.board.post(Notice())
        return 0.0

    async def _quiet_s(self, place: int, outstanding: frozenset[str], *, arrived: int, longest_s: float) -> float:
        """Seconds for which an evaluation that too few have answered stays open if nobody comes.

        Rounds wait for it. So once nobody is at work on a report, and for :attr:`Settings.absent_after` of its time
        nobody has come, it closes; whoever has fetched a task is waited for, and where training rests nothing is lost
        by waiting to the end.
        """
        async with self._database.read() as connection:
            deployment = await ledger.deployment_row(connection)
        assert deployment is not None
        resting = bool(deployment.stopped) or deployment.committed_rounds >= self._training.config.rounds
        began = self._rounds.reporting.began(place)
        if resting or began is None or self._rounds.reporting.at_work(outstanding, place):
            return longest_s
        patience_s = self._settings.absent_after * longest_s
        until = self._rounds.clock() + patience_s
        return self._waits.remaining_s("quiet", (place, arrived, began), until=until, longest_s=patience_s)

    async def _judge(self, row: EvaluationRow) -> None:
        assert row.closed is not None  # since it is judged
        start = time.perf_counter()
        await self._rounds.observer.reached(observer.EVALUATION_COMPLETE)
        async with self._database.read() as connection:
            reports = await store.reports_of(connection, row.evaluation_id)
            devices = await store.respondents(connection)
        begins: Float32 | None = None
        try:
            found = await asyncio.to_thread(self._conclude, row, reports)
            begins = await asyncio.to_thread(self._begins, row, reports)
            found = replace(found, reasons=(*_too_few_answered(row, reports, devices), *found.reasons))
        except OSError:
            raise  # another try may succeed, and the reports are kept
        except Exception as error:  # noqa: BLE001 - whatever it is, the rounds that follow must not end with it
            self._log.error("evaluation failed", error=type(error).__name__, where=where(error))
            reason = str(error) if isinstance(error, UvsdkError) else f"{type(error).__name__}; the log says where"
            found = Conclusion(False, (reason,), None, None)
        release, outcome, stands = await self._apply(row, found)
        found = replace(found, reasons=(*found.reasons, *stands))
        await self._rounds.observer.reached(observer.EVALUATION_APPLIED)
        state: EvaluationState = "closed" if found.candidate is not None or found.released is not None else "failed"
        async with self._returning.judged(row, found, begins) as change:
            number = None if release is None else release.number
            summary = summary_of(found, self._cells()) | {"training": change.told()}
            values = {"outcome": outcome, "release": number, "summary": json.dumps(summary)}
            async with self._database.write() as connection:
                await store.change(connection, row.evaluation_id, state, **values)
                await change.keep(connection)
        self._metrics.evaluations.labels(outcome if state == "closed" else "failed").inc()
        self._metrics.evaluation_seconds.observe(time.perf_counter() - start)
        self._log.info(
            "evaluation closed",
            evaluation=row.evaluation_id,
            outcome=outcome,
            arrived=row.arrived,
            reasons=list(found.reasons),
        )
        async with self._database.write() as connection:
            blobs = await self.clean(connection)
        self._rounds.blobs.remove(*blobs)

    def _conclude(self, row: EvaluationRow, reports: Sequence[ReportRow]) -> Conclusion:
        """Add the reports up and judge; runs in a worker thread, with one report in memory at a time."""
        assert row.closed is not None
        candidate = self._sums(row, reports, row.candidate)
        alone = row.candidate == row.released
        tried = [item.accepts for _, item in self._opened(row, reports) if item.accepts >= 0]
        return conclude(
            candidate,
            candidate if alone else self._sums(row, reports, row.released),
            centred=self._centred_sums(row, reports),
            verifies_centred=row.verifies_centred,
            evaluation_id=row.evaluation_id,
            collapse=self._training.mean_offdiagonal_cosine(),
            source=_source(row, len({item.user for item in reports})),
            now=row.closed,
            refusals=tried.count(0),
            tried=len(tried),
        )

    def _begins(self, row: EvaluationRow, reports: Sequence[ReportRow]) -> Float32 | None:
        """What training begins from where this evaluation, of the model that it begins with, centres that."""
        begins = self._models.candidate
        if row.candidate != row.released or row.committed_rounds or not centring.centres(begins.manifest):
            return None
        sums = self._sums(row, reports, row.candidate)
        return centring.centred(begins.theta, sums, dimension=begins.manifest.dimension)

    def _sums(self, row: EvaluationRow, reports: Sequence[ReportRow], version: str) -> ModelSums:
        found = (
            (self._training.group(report.user), model)
            for report, opened in self._opened(row, reports)
            for model in _models_of(opened)
            if model.model_version == version
        )
        return ModelSums.of(found, model_version=version, impostors=row.impostors)

    def _centred_sums(self, row: EvaluationRow, reports: Sequence[ReportRow]) -> ModelSums | None:
        """Of the second reports on the released model; ``None`` where they were not asked for."""
        if row.centre is None:
            return None
        opened = self._opened(row, reports)
        found = ((self._training.group(report.user), item) for report, told in opened for item in told.centred)
        centre = np.frombuffer(row.centre, np.dtype("<f4"))
        return ModelSums.of(found, model_version=row.released, impostors=row.impostors, centre=centre)

    def _opened(self, row: EvaluationRow, reports: Sequence[ReportRow]) -> Iterator[tuple[ReportRow, EvaluationReport]]:
        """The reports, one of each user whatever the number of their devices: the first by its id."""
        private_key = self._keys.hpke(row.server_key_id)
        if private_key is None:
            raise SealError("the key that the reports were sealed to is gone")
        seen = set[str]()
        for report in reports:
            if report.blob is None or report.user in seen:
                continue
            seen.add(report.user)
            try:
                with map_envelope(self._rounds.blobs.path(report.blob)) as envelope:
                    yield report, unpack(EvaluationReport, b"".join(envelope.open(private_key)))
            except (SealError, WireError):
                self._log.error("a report no longer opens and is left out", evaluation=row.evaluation_id)

    def _cells(self) -> tuple[str, ...]:
        return names(modality.get(self._training.config.modality).cells)

    async def _apply(self, row: EvaluationRow, found: Conclusion) -> tuple[Release | None, str, tuple[str, ...]]:
        """Release the candidate, or calibrate what is released anew, as the policy has it.

        Returns:
            The release, what came of it, and why a calibration stands that could have been made anew.
        """
        release: Release | None = None
        if row.candidate != row.released:
            verdict = Verdict(found.passes, found.reasons, found.change, found.interval)
            release = await self._consider(row.candidate, verdict, found.candidate)
        if release is not None:
            return release, "released", ()
        if found.released is None:
            return None, "kept", ()
        current = await self._releases.current()
        record, old = current.release, current.bundle.calibration
        new = found.released.calibration
        calibrator = (await self._releases.calibrators())[record.calibration]
        made = bool(record.evaluation) and record.evaluation[0].evaluation_id == row.evaluation_id
        if made or current.row.model_version != row.released:  # made before this process was killed
            return (record, "calibrated", ()) if made else (None, "kept", ())
        if not conclusion.renews(old, new, own=calibrator == "evaluation", now=row.closed or 0.0):
            return None, "kept", ()
        stands = conclusion.unusable(found.released)
        if calibrator == "operator" and self._settings.calibration_policy == "operator":
            stands = _STANDS
        if stands:
            self._log.warning("what verifies keeps its calibration", evaluation=row.evaluation_id, reason=stands)
            return None, "kept", (stands,)
        verdict = Verdict(True, (), math.nan, (-math.inf, math.inf))
        release = await self._consider(row.released, verdict, found.released)
        return release, "kept" if release is None else "calibrated", ()

    async def _consider(self, version: str, verdict: Verdict, found: Finding | None) -> Release | None:
        calibration = None if found is None else found.calibration
        evaluation = None if found is None else found.evaluation
        return await self._releases.consider(version, verdict, calibration=calibration, evaluation=evaluation)


def _models_of(report: EvaluationReport) -> tuple[ModelReport, ...]:
    return (report.candidate, *report.released)


def _suffices(row: EvaluationRow, devices: Sequence[Respondent], arrived: Sequence[ReportRow]) -> bool:
    """Whether an evaluation need not wait for those of whom nothing is to be expected soon."""
    evaluators = len({item.user for item in arrived if item.evaluates})
    least = SUPPORTED[0][0] if row.impostors in SUMMED else 0
    return evaluators >= least and 2 * len(arrived) >= len(devices)


def _too_few_answered(
    row: EvaluationRow, reports: Sequence[ReportRow], devices: Sequence[Respondent]
) -> tuple[str, ...]:
    """Why nothing could be measured, where that is so because people were away."""
    least = SUPPORTED[0][0] if row.impostors in SUMMED else 0
    answered = len({item.user for item in reports if item.evaluates})
    asked = len({item.user for item in devices if item.evaluates})
    if answered >= least:
        return ()
    return (f"{answered} of the {asked} people who only evaluate have answered, {least} are the least",)


def _source(row: EvaluationRow, people: int) -> str:
    kinds = {
        "moments": "sums of moments",
        "third_moments": "sums of three moments",
        "cohort": "scores against the operator's cohort",
    }
    return f"{kinds[row.impostors]} of {people} people of this deployment, evaluation {row.evaluation_id}"


def summary_of(found: Conclusion, cells: Sequence[str] = ()) -> dict[str, Any]:
    """What an evaluation found, for people and programs; a number that is not known is ``None``.

    Args:
        found: by the evaluation.
        cells: names of the cells of conditions; those that nobody told of are left out.
    """
    return {
        "passes": found.passes,
        "reasons": list(found.reasons),
        "change": _finite(found.change),
        "interval": [_finite(value) for value in found.interval],
        "mean_offdiagonal_cosine": _finite(found.collapse),
        "around": None if found.compared is None else _around(found.compared),
        "centring": None if found.subtraction is None else _subtraction(found.subtraction),
        "candidate": None if found.candidate is None else asdict(found.candidate.evaluation),
        "released": None if found.released is None else asdict(found.released.evaluation),
        "cells": {} if found.candidate is None else _told_of(found.candidate, cells),
    }


def _around(compared: Compared) -> dict[str, float | None]:
    """What training goes by: rejected genuine trials, on average over false match rates."""
    return {
        "candidate": compared.candidate_around,
        "released": compared.released_around,
        "error": _finite(compared.error),
    }


def _subtraction(found: Subtraction) -> dict[str, Any]:
    """What verifies with its domain's mean and without, and whether it is calibrated without."""
    return asdict(found) | {
        "fnmr": _finite(found.fnmr),
        "centred_fnmr": _finite(found.centred_fnmr),
        "interval": [_finite(value) for value in found.interval],
    }


def _told_of(finding: Finding, cells: Sequence[str]) -> dict[str, dict[str, float]]:
    pairs = zip(cells, finding.cells, strict=True)
    return {name: {"fnmr": rate, "people": people} for name, (rate, people) in pairs if people}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
