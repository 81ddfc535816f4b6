"""Which model verifies, with which calibration: releases, numbered and signed, and the candidate that may be the next.

The database says which release is in force, and every answer asks it, so that a release made beside the server
(``uvsdk releases``) is in force here at once. One transaction makes a release: a server that is killed anywhere
verifies by the former one or by the new one.

An operator's roll-back holds what the gate would release by itself: the next promotion by an operator lifts that.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, StoreError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import pack, unpack
from uvsdk.release.gate import Verdict
from uvsdk.release.record import (
    POLICIES,
    Calibrator,
    Cause,
    Evaluation,
    Policy,
    Release,
    calibrated_by,
    sign_release,
)
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Calibration
from uvsdk.scoring.plausibility import check
from uvsdk_server import calibrations, observer
from uvsdk_server.clocks import Clock
from uvsdk_server.keys import AtRest, KeyFolder
from uvsdk_server.models import Download
from uvsdk_server.monitoring import Log, Metrics
from uvsdk_server.observer import Observer
from uvsdk_server.settings import Settings
from uvsdk_server.store import audit, ledger, roster
from uvsdk_server.store import releases as store
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database
from uvsdk_server.store.drafts import Drafts
from uvsdk_server.store.rows import DeploymentRow, Model, ReleaseRow
from uvsdk_server.store.schema import deployment, models

HELD: Final = "held"
"""What overrides the policy after a roll-back: an operator promotes, until one has."""

_BUNDLES: Final = 3
"""Bundles held in memory: the one in force, and those of former releases that were asked for last."""

Also = Callable[[AsyncConnection], Awaitable[None]]
"""What else becomes true in the transaction that makes a release."""


@dataclass(frozen=True, slots=True)
class Change:
    """False non-match rate of a candidate less the released model's, and its 95 % interval."""

    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What the gate last said of a model version.

    Args:
        passes: whether it may be released by itself.
        reasons: why not.
        change: where it is known; at most one.
        evaluation: of this model and the calibration that is kept with it; at most one.
        judged_unix_s: when.
    """

    passes: bool
    reasons: tuple[str, ...]
    change: tuple[Change, ...]
    evaluation: tuple[Evaluation, ...]
    judged_unix_s: float

    @classmethod
    def of(cls, verdict: Verdict, evaluation: Evaluation | None, now: float) -> Judged:
        """To be kept beside the model."""
        numbers = (verdict.change, *verdict.interval)
        known = (Change(*numbers),) if all(map(math.isfinite, numbers)) else ()
        return cls(verdict.passes, verdict.reasons, known, () if evaluation is None else (evaluation,), now)


@dataclass(frozen=True, slots=True)
class InForce:
    """A release that verifies, and its bundle with its calibration."""

    row: ReleaseRow = field(repr=False)
    bundle: Bundle = field(repr=False)

    @property
    def number(self) -> int:
        """Of the release."""
        return self.row.number

    @property
    def release(self) -> Release:
        """The record that is signed."""
        return unpack(Release, self.row.record)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What training goes on from, as one that may be released.

    Args:
        model_version: of the candidate.
        round_id: the round that made it.
        calibrated: whether impostors were measured against it.
        judged: what the gate last said; ``None`` before its first evaluation.
        policy: in force.
        held: whether that is so because of a roll-back.
        reasons: why it is not released; empty where it is.
    """

    model_version: str
    round_id: int
    calibrated: bool
    judged: Judged | None
    policy: Policy
    held: bool
    reasons: tuple[str, ...]


class Releases:
    """Releases of one deployment; for a server, or for a command beside it."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        base: Callable[[], Bundle],
        *,
        config: TrainingConfig,
        signing_key: Ed25519PrivateKey,
        at_rest: AtRest,
        policy: Policy,
        keep: int,
        grace_s: float,
        cache: Path,
        clock: Clock,
        watcher: Observer,
        metrics: Metrics,
        log: Log,
    ) -> None:
        """A deployment's releases.

        Args:
            database: says which are in force.
            blobs: hold parameters and calibrations.
            base: gives the graphs, preprocessing and detector of every model here.
            config: of the training.
            signing_key: the deployment's.
            at_rest: what calibrations are sealed with.
            policy: of the settings.
            keep: newest releases that one can roll back to.
            grace_s: how long a former release still verifies those whose template is of it.
            cache: folder of files to download.
            clock: Unix time.
            watcher: told of every release.
            metrics: counts them.
            log: tells of them.
        """
        self._database = database
        self._blobs = blobs
        self._base = base
        self._config = config
        self._signing_key = signing_key
        self._at_rest = at_rest
        self._policy: Policy = policy
        self._keep = keep
        self._grace_s = grace_s
        self._cache = cache
        self._clock = clock
        self._observer = watcher
        self._metrics = metrics
        self._log = log
        self._drafts = Drafts(database, blobs)
        self._changing = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._building = asyncio.Lock()
        self._bundles: OrderedDict[str, Bundle] = OrderedDict()
        self._told = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        database: Database,
        base: Callable[[], Bundle],
        *,
        config: TrainingConfig,
        files: KeyFolder,
        clock: Clock,
        watcher: Observer,
        metrics: Metrics,
        log: Log,
    ) -> Self:
        """As the settings say."""
        return cls(
            database,
            Blobs(settings.data / "blobs"),
            base,
            config=config,
            signing_key=files.signing,
            at_rest=files.at_rest,
            policy=settings.release_policy,
            keep=settings.keep_releases,
            grace_s=settings.template_grace_s,
            cache=settings.data / "bundles",
            clock=clock,
            watcher=watcher,
            metrics=metrics,
            log=log,
        )

    # What is

    async def current(self) -> InForce:
        """The release that verifies."""
        return await self.opened(await self.row())

    async def standing(self) -> list[ReleaseRow]:
        """Releases that verify: the one in force, then, within the grace, those before it, newest first."""
        async with self._database.read() as connection:
            current = await store.in_force(connection)
            kept = await store.kept(connection)
        assert current is not None  # found() comes before anybody asks
        self._tell(current)
        rows, replaced = [current], current.created
        for row in kept:
            if row.number >= current.number:
                continue
            if replaced + self._grace_s <= self._clock():
                break
            if all(row.bundle != other.bundle for other in rows):
                rows.append(row)
            replaced = row.created
        return rows

    async def opened(self, row: ReleaseRow) -> InForce:
        """A release with its bundle, from memory or from the blobs.

        Raises:
            Problem: 404, that bundle is no longer kept.
            StoreError: what is stored is not what was released.
        """
        async with self._loading:
            bundle = self._bundles.get(row.bundle)
            if bundle is None:
                async with self._database.read() as connection:
                    known = await store.of_number(connection, row.number)
                    model = await ledger.model_row(connection, row.model_version)
                if known is None or not known.kept or model is None:
                    raise _unknown(row.number)
                blob, source = known.calibration_blob, known.calibration_source
                model = replace(model, calibration_blob=blob, calibration_source=source)
                bundle = await asyncio.to_thread(self._bundle_of, model, None)
                if bundle.digest != row.bundle:
                    raise StoreError(
                        f"what is stored does not give the bundle of release {row.number}; restore it from a backup"
                    )
            self._remember(bundle)
        return InForce(row, bundle)

    async def row(self, number: int | None = None) -> ReleaseRow:
        """One release, by default the one in force. Raises :class:`Problem` 404."""
        async with self._database.read() as connection:
            row = await (store.in_force(connection) if number is None else store.of_number(connection, number))
        if row is None:
            raise _unknown(number)
        if number is None:
            self._tell(row)
        return row

    async def list(self, limit: int | None = None, before: int | None = None) -> list[ReleaseRow]:
        """The newest releases, below ``before`` where that is given."""
        async with self._database.read() as connection:
            return await store.newest(connection, limit, before)

    async def refusals(self, rows: Sequence[ReleaseRow]) -> dict[int, int]:
        """How many devices refuse each release, by its number."""
        async with self._database.read() as connection:
            return await store.refusals_of(connection, [row.number for row in rows])

    async def calibrators(self) -> dict[str, Calibrator]:
        """Who made each calibration that was released, by its digest."""
        async with self._database.read() as connection:
            records = [unpack(Release, row.record) for row in await store.newest(connection)]
        return {digest: calibrated_by(digest, records) for digest in {record.calibration for record in records}}

    async def bundle_file(self, row: ReleaseRow) -> Download:
        """The bundle of a release, signed. Raises :class:`Problem` 404 where it is no longer kept."""
        path = self._cache / f"{row.model_version}-release-{row.bundle[:16]}.uvb"
        async with self._building:
            if not path.exists():
                bundle = (await self.opened(row)).bundle
                signed = await asyncio.to_thread(bundle.sign, self._signing_key, issuer=self._config.deployment)
                await asyncio.to_thread(signed.save, path)
        return Download(path, f'"{row.bundle}"')

    async def policy(self) -> Policy:
        """The policy in force: that of the settings, or a stricter one."""
        async with self._database.read() as connection:
            row = await ledger.deployment_row(connection)
        assert row is not None
        return self._in_force(row)

    async def candidate(self) -> Candidate:
        """What training goes on from, and why it is not released."""
        async with self._database.read() as connection:
            trained = await ledger.deployment_row(connection)
            assert trained is not None
            model = await ledger.model_row(connection, trained.model_version)
            current = await store.in_force(connection)
        assert model is not None
        assert current is not None
        judged = None if model.judged is None else unpack(Judged, model.judged)
        policy, held = self._in_force(trained), trained.release_policy == HELD
        return Candidate(
            model_version=model.model_version,
            round_id=model.round_id,
            calibrated=model.calibration_blob is not None,
            judged=judged,
            policy=policy,
            held=held,
            reasons=_reasons(model, current, judged, policy, held=held),
        )

    # What changes it

    async def found(self, version: str) -> None:
        """The first release, of the model that a deployment begins with or that verified until there were releases.

        Again where there is one, nothing happens.
        """
        async with self._database.read() as connection:
            known = await store.in_force(connection) is not None
        if not known:
            await self._release(version, None, "founding", None)

    async def promote(
        self,
        model_version: str,
        *,
        calibration: Calibration | None = None,
        by: str,
        evaluation: Evaluation | None = None,
        also: Also | None = None,
    ) -> Release:
        """Release a model version that is kept here, as an operator wants it; this also lifts what a roll-back held.

        Where exactly this is in force already nothing is made, and that release is given.

        Args:
            model_version: mostly the candidate.
            calibration: of it; by default what was kept with it.
            by: who wants it, as the audit log names them.
            evaluation: of this model and calibration; by default what was kept with them.
            also: what else becomes true in the same transaction.

        Raises:
            Problem: 404, no such version; 409, releases are frozen, or it has no calibration and what verifies now has.
        """
        return await self._release(model_version, calibration, "operator", evaluation, by=by, also=also)

    async def consider(
        self,
        model_version: str,
        verdict: Verdict,
        *,
        calibration: Calibration | None = None,
        evaluation: Evaluation | None = None,
        also: Also | None = None,
    ) -> Release | None:
        """Take what an evaluation found of a model version: it is kept, and shown, and where the verdict passes and
        the policy is automatic the version is released in the same transaction.

        Of the model that verifies already it is a new calibration.

        Args:
            model_version: one that is kept here.
            verdict: the gate's.
            calibration: what was measured; ``None`` where too few told of it, and then what was kept stays.
            evaluation: error rates of this model and calibration.
            also: what else becomes true in the same transaction.

        Raises:
            Problem: 404, no such version.
        """
        judged = Judged.of(verdict, evaluation, self._clock())
        outcome = "passed" if verdict.passes else "refused"
        self._metrics.verdicts.labels(outcome).inc()
        self._log.info("candidate judged", model=model_version[:12], outcome=outcome, reasons=list(verdict.reasons))
        if verdict.passes and await self.policy() == "automatic":
            with contextlib.suppress(_NotReleasedError):
                return await self._release(model_version, calibration, "gate", evaluation, judged=judged, also=also)
        await self._keep_measured(model_version, calibration, judged, also)
        return None

    async def calibrate(self, model_version: str, calibration: Calibration, *, by: str) -> Release | None:
        """Take an operator's calibration; ``by`` names them in the audit log.

        Of the version that verifies it makes a new release. Another version is promotable from then on, and where it
        is the candidate and the policy automatic it is released: the operator has measured it.

        Raises:
            Problem: 404, no such version; 409, releases are frozen; 422, nobody measured these numbers.
        """
        try:
            check(calibration)
        except BundleError as error:
            raise Problem("invalid-request", str(error)) from error
        current = await self.row()
        async with self._database.read() as connection:
            trained = await ledger.deployment_row(connection)
        assert trained is not None
        automatic = model_version == trained.model_version and self._in_force(trained) == "automatic"
        if current.model_version == model_version or automatic:
            return await self.promote(model_version, calibration=calibration, by=by)

        async def note(connection: AsyncConnection) -> None:
            told = {"model_version": model_version, "calibration": calibration.without_cohort().digest}
            await audit.append(connection, self._clock(), by, "calibration-kept", **told)

        await self._keep_measured(model_version, calibration, None, note)
        return None

    async def roll_back(self, number: int | None = None, *, by: str) -> Release:
        """Release what an earlier release was, bit for bit, under a new number; allowed also where they are frozen.

        Where exactly that is in force nothing is made. What the gate lets pass waits for an operator from then on.

        Args:
            number: of the earlier release; by default the one that the present bundle took the place of.
            by: who wants it, as the audit log names them.

        Raises:
            Problem: 404, there is none, or its bundle is no longer kept.
        """
        async with self._changing:
            current = await self.row()
            target = await self._before(current) if number is None else await self.row(number)
            if target.bundle == current.bundle:
                return unpack(Release, current.record)
            bundle = (await self.opened(target)).bundle
            former = unpack(Release, target.record)
            await self._observer.reached(observer.RELEASE_STORED)
            async with self._database.write() as connection:
                held = await store.held_deployment(connection)
                row = await store.of_number(connection, target.number)
                if row is None or not row.kept:
                    raise _unknown(target.number)
                if held.released != current.number:
                    raise _changed()
                kept = (row.calibration_blob, row.calibration_source)
                made = await self._insert(
                    connection, held, former, *kept, cause="roll-back", policy=held.release_policy or HELD, by=by
                )
                spent = await self._forget(connection)
            await self._settle(made, bundle, spent)
            return unpack(Release, made.record)

    async def refuse(self, number: int, device_id: str, user: str) -> None:
        """Count a device that will not verify by a release; again, it is counted once.

        Raises:
            Problem: 404, no such release; 401, the device was removed meanwhile.
        """
        async with self._database.write() as connection:
            if await store.of_number(connection, number) is None:
                raise _unknown(number)
            if await roster.of_id(connection, device_id) is None:
                raise Problem("unknown-device", "the device was removed while this was received")
            new = await store.refuse(connection, number, device_id, user)
        if new:
            self._metrics.release_refusals.inc()
            self._log.warning("a device refuses a release", number=number)

    async def override(self, policy: Policy | None, *, by: str) -> Policy:
        """Follow a stricter policy than that of the settings, or (``None``) that of the settings again; also lifts
        what a roll-back has held. Gives the one in force from now on. ``by`` names who wants it in the audit log.
        """
        async with self._database.write() as connection:
            row = await store.held_deployment(connection)
            await connection.execute(update(deployment).values(release_policy=policy))
            await audit.append(connection, self._clock(), by, "release-policy", policy=policy or "automatic")
        found = self._in_force(replace(row, release_policy=policy))
        self._log.info("release policy", policy=found)
        return found

    async def _release(
        self,
        version: str,
        calibration: Calibration | None,
        cause: Cause,
        evaluation: Evaluation | None,
        *,
        by: str = audit.SERVER,
        judged: Judged | None = None,
        also: Also | None = None,
    ) -> Release:
        async with self._changing:
            async with self._database.read() as connection:
                model = await ledger.model_row(connection, version)
                current = await store.in_force(connection)
            if model is None:
                raise _unknown_model()
            bundle = await asyncio.to_thread(self._bundle_of, model, calibration)
            if current is not None:
                if current.calibration and bundle.calibration is None:
                    raise Problem(
                        "uncalibrated",
                        "this model has no impostor scores yet and what verifies now has; calibrate it, or wait for "
                        "an evaluation",
                    )
                if current.model_version == version and cause != "founding":
                    cause = "calibration"
            if calibration is None and evaluation is None and model.judged is not None:
                evaluation = next(iter(unpack(Judged, model.judged).evaluation), None)
            kept, values = await self._draft(model, calibration, judged)
            await self._observer.reached(observer.RELEASE_STORED)
            async with self._database.write() as connection:
                held = await store.held_deployment(connection)
                now = await ledger.model_row(connection, version)
                if now is None:
                    raise _unknown_model()
                if now.calibration_blob != model.calibration_blob:
                    raise _changed()
                if held.released != (None if current is None else current.number):
                    raise _changed()
                policy = self._in_force(held)
                if policy == "frozen" and cause != "founding":
                    raise Problem("release-frozen", "nothing new is released here by now; the operator froze it")
                if judged is not None and policy != "automatic":
                    raise _NotReleasedError
                if values:
                    await connection.execute(update(models).where(models.c.model_version == version).values(**values))
                spent = await ledger.order_unnamed(connection, model.calibration_blob)
                if also is not None:
                    await also(connection)
                if current is not None and current.bundle == bundle.digest:
                    made = current
                else:
                    fields = self._fields(bundle, model.round_id, evaluation)
                    lifts = cause == "operator" and held.release_policy == HELD
                    override = None if lifts else held.release_policy
                    made = await self._insert(connection, held, fields, *kept, cause=cause, policy=override, by=by)
                    spent += await self._forget(connection)
            self._drafts.settle()
            await self._settle(made, bundle, spent)
            return unpack(Release, made.record)

    async def _keep_measured(
        self, version: str, calibration: Calibration | None, judged: Judged | None, also: Also | None
    ) -> None:
        """Keep what was measured of a model version beside it, and release nothing."""
        async with self._changing:
            async with self._database.read() as connection:
                model = await ledger.model_row(connection, version)
            if model is None:
                raise _unknown_model()
            _, values = await self._draft(model, calibration, judged)
            async with self._database.write() as connection:
                await store.held_deployment(connection)
                if values:
                    changed = update(models).where(models.c.model_version == version).values(**values)
                    if (await connection.execute(changed)).rowcount == 0:
                        raise _unknown_model()
                spent = await ledger.order_unnamed(connection, model.calibration_blob)
                if also is not None:
                    await also(connection)
            self._drafts.settle()
            if spent:
                self._blobs.remove(*spent)

    async def _draft(
        self, model: Model, calibration: Calibration | None, judged: Judged | None
    ) -> tuple[tuple[str | None, str | None], dict[str, object]]:
        """The calibration's blob, written where it is new, and source; and what changes in the row of the model."""
        if self._drafts.pending:
            await self._drafts.discard()
        values: dict[str, object] = {} if judged is None else {"judged": pack(judged)}
        if calibration is None:
            return (model.calibration_blob, model.calibration_source), values
        kept = calibration.without_cohort()
        blob = await asyncio.to_thread(self._drafts.write, calibrations.seal_calibration(kept, self._at_rest))
        # What the gate said was said of another calibration.
        named: dict[str, object] = {"calibration_blob": blob, "calibration_source": kept.source}
        return (blob, kept.source), {"judged": None} | values | named

    def _fields(self, bundle: Bundle, round_id: int, evaluation: Evaluation | None) -> Release:
        """A release of a bundle but for its number, its cause and its time."""
        return Release(
            deployment=self._config.deployment,
            number=1,
            model_version=bundle.version,
            bundle=bundle.digest,
            calibration="" if bundle.calibration is None else bundle.calibration.digest,
            replaces=0,
            round_id=round_id,
            algorithm=self._config.algorithm,
            config_digest=self._config.digest(),
            cause="founding",
            evaluation=() if evaluation is None else (evaluation,),
            created_unix_s=0.0,
        )

    async def _insert(
        self,
        connection: AsyncConnection,
        held: DeploymentRow,
        fields: Release,
        calibration_blob: str | None,
        calibration_source: str | None,
        *,
        cause: Cause,
        policy: str | None,
        by: str,
    ) -> ReleaseRow:
        newest = await store.newest(connection, 1)
        number = newest[0].number + 1 if newest else 1
        now = self._clock()
        release = replace(fields, number=number, replaces=held.released or 0, cause=cause, created_unix_s=now)
        row = ReleaseRow(
            number=number,
            model_version=release.model_version,
            bundle=release.bundle,
            calibration=release.calibration,
            calibration_blob=calibration_blob,
            calibration_source=calibration_source,
            record=pack(release),
            signature=sign_release(release, self._signing_key),
            created=now,
            kept=True,
        )
        await store.put_in_force(connection, row, policy)
        await audit.append(
            connection,
            now,
            by,
            "release-made",
            release=number,
            replaces=release.replaces,
            cause=cause,
            model_version=release.model_version,
            calibration=release.calibration,
        )
        return row

    async def _forget(self, connection: AsyncConnection) -> tuple[str, ...]:
        return await store.forget(connection, keep=self._keep, grace_s=self._grace_s, now=self._clock())

    async def _settle(self, made: ReleaseRow, bundle: Bundle, spent: Sequence[str]) -> None:
        """After the transaction: what follows from it, and none of it counts."""
        await self._observer.reached(observer.RELEASE_COMMITTED)
        self._remember(bundle)
        if spent:
            self._blobs.remove(*spent)
        self._tell(made)

    async def _before(self, current: ReleaseRow) -> ReleaseRow:
        """The release that the bundle in force took the place of when it was first released."""
        async with self._database.read() as connection:
            rows = await store.newest(connection)
        first = min((row for row in rows if row.bundle == current.bundle), key=lambda row: row.number)
        replaced = unpack(Release, first.record).replaces
        found = next((row for row in rows if row.number == replaced), None)
        if found is None:
            raise Problem("unknown-release", "nothing was released before what verifies now")
        return found

    def _bundle_of(self, model: Model, calibration: Calibration | None) -> Bundle:
        """A model with the calibration given, or the one that its row names; shown to load."""
        bundle = self._base()
        if bundle.version != model.model_version:
            bundle = bundle.with_theta(self._blobs.read_array(model.theta_blob))
        if bundle.version != model.model_version:
            raise StoreError("the stored parameters do not give the model version on record; restore from a backup")
        if calibration is None and model.calibration_blob is not None:
            sealed, source = self._blobs.read(model.calibration_blob), model.calibration_source or ""
            calibration = calibrations.open_calibration(sealed, self._at_rest, bundle, source=source)
        bundle = bundle.with_calibration(None if calibration is None else calibration.without_cohort())
        bundle.session()
        return bundle

    def _remember(self, bundle: Bundle) -> None:
        self._bundles[bundle.digest] = bundle
        self._bundles.move_to_end(bundle.digest)
        while len(self._bundles) > _BUNDLES:
            self._bundles.popitem(last=False)

    def _tell(self, current: ReleaseRow) -> None:
        """Say which release is in force, where that has changed: here, or beside this process."""
        if current.number == self._told:
            return
        self._told = current.number
        self._metrics.release.set(current.number)
        release = unpack(Release, current.record)
        self._log.info(
            "release in force",
            number=release.number,
            cause=release.cause,
            model=release.model_version[:12],
            replaces=release.replaces,
        )

    def _in_force(self, row: DeploymentRow) -> Policy:
        override = "manual" if row.release_policy == HELD else row.release_policy
        return max((policy for policy in POLICIES if policy in (override, self._policy)), key=POLICIES.index)


class _NotReleasedError(Exception):
    """The policy is no longer automatic."""


def _reasons(
    model: Model, current: ReleaseRow, judged: Judged | None, policy: Policy, *, held: bool
) -> tuple[str, ...]:
    """Why a candidate is not released; empty where it is."""
    if model.model_version == current.model_version:
        return ()
    reasons = list[str]()
    if judged is not None:
        reasons += judged.reasons
    elif model.calibration_blob is None:
        reasons.append("it has not been evaluated yet, and no operator has calibrated it")
    else:
        reasons.append("it is calibrated and has not been evaluated")
    if policy == "frozen":
        reasons.append("releases are frozen")
    elif held:
        reasons.append("an operator has rolled back, so that an operator promotes the next one")
    elif policy == "manual":
        reasons.append("the policy is manual: an operator promotes")
    return tuple(reasons) or ("it is released by the next evaluation that it passes",)


def _unknown(number: int | None) -> Problem:
    return Problem("unknown-release", f"release {number or ''} is not known here, or its bundle is no longer kept")


def _unknown_model() -> Problem:
    return Problem("unknown-model", "no such model version is kept here; ask for models/candidate")


def _changed() -> Problem:
    return Problem("busy", "what is released was changed meanwhile; look again")
