"""Everything one server process serves, opened from its settings and closed again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import tomllib
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from sqlalchemy import insert, select

from uvsdk.bundle import Bundle
from uvsdk.errors import SettingsError, StoreError, WireError
from uvsdk.federation import clipping, recipes, roles
from uvsdk.federation.messages import OptimiserState, TrainingConfig
from uvsdk.federation.statements import Validity
from uvsdk.privacy.bundle_signing import read_public_key
from uvsdk.records.codec import pack, unpack
from uvsdk.records.transfer import stays_here
from uvsdk_server import flat_states
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.authorities import Authorities
from uvsdk_server.calibrations import open_base, seal_base, seal_calibration
from uvsdk_server.clocks import Clock, NotBefore, wall_clock
from uvsdk_server.cohorts import Cohorts
from uvsdk_server.deletions import Deletions
from uvsdk_server.driver import Driver
from uvsdk_server.evaluating import Evaluations
from uvsdk_server.freshness import Freshness
from uvsdk_server.keys import AtRest, KeyFolder, KeyRing
from uvsdk_server.limits import Allowance
from uvsdk_server.models import Models, take_over
from uvsdk_server.monitoring import Log, Metrics, where
from uvsdk_server.observer import Observer
from uvsdk_server.people import People
from uvsdk_server.readiness import Readiness
from uvsdk_server.releases import Releases
from uvsdk_server.reports import Reports
from uvsdk_server.rounds import Rounds
from uvsdk_server.settings import Settings
from uvsdk_server.store import audit, course, ledger, removals, schema
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database, newest_revision
from uvsdk_server.store.pairing import Pair, State, judge, look
from uvsdk_server.store.quarantine import Quarantine
from uvsdk_server.store.rows import DeploymentRow
from uvsdk_server.training import Training, check_restricted
from uvsdk_server.uploads import Uploads
from uvsdk_server.verification import Verifier


@dataclass(slots=True)
class Deployment:
    """The parts, ready to serve. Made by :meth:`open`.

    Attributes:
        clock: Unix time, which may be set.
        now: Unix time by which what is shown here expires.
    """

    settings: Settings
    database: Database
    blobs: Blobs
    keys: KeyRing
    models: Models
    releases: Releases
    training: Training
    people: People
    rounds: Rounds
    driver: Driver
    evaluations: Evaluations
    reports: Reports
    uploads: Uploads
    deletions: Deletions
    verifier: Verifier
    registrations: Allowance
    wrong_tokens: Allowance
    readiness: Readiness
    freshness: Freshness
    authorities: Authorities
    clock: Clock
    now: Clock
    metrics: Metrics
    log: Log
    _driving: asyncio.Task[None] | None = None
    _looking: asyncio.Task[None] | None = None
    _lock: int = -1

    __reduce_ex__ = stays_here("it serves; run `uvsdk serve` in the other process")

    @classmethod
    async def open(
        cls,
        settings: Settings,
        watcher: Observer,
        metrics: Metrics,
        log: Log,
        *,
        freshness: Freshness | None = None,
        clock: Clock = wall_clock,
    ) -> Self:
        """Open or make the data folder, recover what a crash left, and start moving rounds on.

        Folder and database are looked at first: where they are not of one deployment, neither is touched.

        Raises:
            SettingsError: first start without a model or a configuration, or settings that do not fit the data.
            StoreError: the folder is in use by another server, damaged, or not the database's.
            BundleError, WireError: the model or the configuration file is not one.
        """
        url = database_url(settings)
        founding = None
        if judge(settings.data, await look(url)) in ("new", "begun"):
            founding = Founding.read(settings, log)
        lock = _lock_folder(settings.data)
        database = open_database(settings)
        try:
            # Again, now that no other server of this folder can start.
            state = judge(settings.data, await look(url))
            await _pair(settings.data, database, state, founding, log, clock)
            self = await cls._assemble(
                settings, database, watcher, metrics, log, freshness or Freshness(settings.signature_window_s), clock
            )
        except BaseException:
            await database.close()
            os.close(lock)
            raise
        self._lock = lock
        await self._note_start()
        await self.deletions.start()
        await self.readiness.look()
        self._looking = asyncio.create_task(self.readiness.run(), name="readiness")
        self._driving = asyncio.create_task(self.driver.run(), name="rounds")
        self._driving.add_done_callback(self._report_end)
        return self

    @classmethod
    async def _assemble(
        cls,
        settings: Settings,
        database: Database,
        watcher: Observer,
        metrics: Metrics,
        log: Log,
        freshness: Freshness,
        clock: Clock,
    ) -> Self:
        files = KeyFolder(settings.data / "keys")
        keys = await KeyRing.open(files, database, clock())
        blobs = Blobs(settings.data / "blobs")
        config = await _settle_config(settings, database, log, clock())
        async with database.read() as connection:
            row = await ledger.deployment_row(connection)
            known = await course.of(connection)
        assert row is not None
        candidate, start_norm, round_id = await _candidate(database, blobs, row, files.at_rest)
        training = Training(
            config,
            int(row.seed),
            role_key=files.role_key() if settings.role_seed is None else roles.key_of(settings.role_seed),
            dimension=candidate.manifest.dimension,
            parameters=candidate.manifest.size,
            start_norm=start_norm,
        )
        state, optimiser = blobs.read(row.algorithm_blob), files.open_optimiser(blobs.read(row.optimiser_blob))
        training.resume(
            unpack(training.method.server.state, flat_states.nest(files.open_state(state))),
            unpack(OptimiserState, optimiser),
        )
        training.step = known.step if training.returns else 1.0
        metrics.training_step.set(training.step)
        files.adopt_state(state)
        # Everything that the database counts on has been opened: what it does not name may now be put aside.
        await _tidy(settings, database, blobs, keys, log, clock())
        models = Models(
            database,
            blobs,
            settings.data / "bundles",
            candidate,
            round_id,
            deployment=config.deployment,
            signing_key=keys.signing,
            at_rest=files.at_rest,
        )
        releases = Releases.of(
            settings,
            database,
            lambda: candidate,
            config=config,
            files=files,
            clock=clock,
            watcher=watcher,
            metrics=metrics,
            log=log,
        )
        await releases.found(candidate.version)
        await releases.current()  # damaged data are found at the start, not by whoever is verified first
        rounds = Rounds(database, blobs, keys, training, watcher=watcher, clock=clock)
        people = People(
            database,
            files,
            modality=candidate.manifest.modality,
            dimension=candidate.manifest.dimension,
            devices_per_user=settings.devices_per_user,
            dismissed=rounds.dismiss,
            evaluates=training.evaluates,
        )
        cohorts = Cohorts(database, blobs, models, files.at_rest)
        evaluations = Evaluations(rounds, models, releases, cohorts, settings=settings, metrics=metrics, log=log)
        return cls(
            settings=settings,
            database=database,
            blobs=blobs,
            keys=keys,
            models=models,
            releases=releases,
            training=training,
            people=people,
            rounds=rounds,
            driver=Driver(rounds, models, evaluations, settings=settings, metrics=metrics, log=log),
            evaluations=evaluations,
            reports=Reports(rounds, cohorts, metrics, dimension=candidate.manifest.dimension),
            uploads=Uploads(
                rounds,
                blobs,
                metrics,
                limit_bytes=settings.upload_limit_bytes,
                concurrent=settings.concurrent_uploads,
                slowest_bytes_per_s=settings.slowest_bytes_per_s,
            ),
            deletions=Deletions(rounds, settings.data, Quarantine(settings.data, days=settings.quarantine_days), log),
            verifier=Verifier(
                releases,
                people,
                AttemptGate(database, settings.retry_policies(), metrics, clock),
                metrics,
                threads=settings.verify_threads,
                capture=settings.capture(),
                fmr=settings.default_fmr,
                presentation_detector=settings.presentation_detector,
                strict_domain=settings.strict_domain,
            ),
            registrations=Allowance(settings.registrations_per_minute),
            wrong_tokens=Allowance(settings.wrong_tokens_per_minute, "registrations without a valid token"),
            readiness=Readiness(partial(_look, database, releases)),
            freshness=freshness,
            authorities=Authorities(settings.authorities, settings.host),
            clock=clock,
            now=NotBefore(clock),
            metrics=metrics,
            log=log,
        )

    async def _note_start(self) -> None:
        told = {"config": self.training.config.digest(), "version": installed_version()}
        async with self.database.write() as connection:
            await audit.append(connection, self.clock(), audit.SERVER, "server-started", **told)

    async def close(self) -> None:
        """Stop moving rounds on and let go of everything; what was accepted is durable already."""
        # Again where it was in vain: asyncio.wait_for of Python 3.11 loses a cancellation that comes with a wake().
        for task in (self._driving, self._looking):
            while task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=0.5)
        await self.deletions.close()
        await self.verifier.close()
        await self.database.close()
        os.close(self._lock)

    def validity(self) -> Validity:
        """Of what is said now."""
        now = self.clock()
        return Validity(now, now + self.settings.statement_lifetime_s)

    def _report_end(self, driving: asyncio.Task[None]) -> None:
        """Log what ended the task that moves rounds on; ``GET /readyz`` fails from then on."""
        if not driving.cancelled():
            error = driving.exception()
            assert error is not None  # run() returns only when it is cancelled
            self.log.critical("rounds stopped", error=type(error).__name__, where=where(error))

    @property
    def driving(self) -> bool:
        """Whether rounds are being moved on."""
        return self._driving is not None and not self._driving.done()


async def _look(database: Database, releases: Releases) -> None:
    """Raises where the database takes no writes, or the model that verifies does not load."""
    await database.ping()
    await asyncio.to_thread((await releases.current()).bundle.session)


def installed_version() -> str:
    """Of the package; 0 where it is run from a checkout."""
    try:
        return version("uvsdk")
    except PackageNotFoundError:
        return "0"


def open_database(settings: Settings) -> Database:
    """The database that the settings name."""
    return Database(database_url(settings))


def database_url(settings: Settings) -> str:
    """SQLAlchemy's URL of the database that the settings name."""
    return settings.database_url or f"sqlite+aiosqlite:///{settings.data / 'server.sqlite3'}"


async def check_pair(settings: Settings) -> None:
    """For commands beside the server: raise :class:`StoreError` unless its folder and database are there and paired.

    Makes and changes nothing.
    """
    found = await look(database_url(settings))
    state = judge(settings.data, found)
    if state == "new":
        raise StoreError(f"{settings.data} is not a server's data folder; start `uvsdk serve` first")
    if state != "paired" or found.revision != newest_revision():
        raise StoreError(f"start `uvsdk serve` with {settings.data} once, so that this version takes it over")


def check_change(stored: TrainingConfig, config: TrainingConfig) -> None:
    """Raise :class:`SettingsError` where a configuration cannot take the place of the one that data were made with."""
    for name in ("deployment", "modality", "backbone", "algorithm", "train"):
        if getattr(config, name) != getattr(stored, name):
            raise SettingsError(f"{name} cannot change once data exist; start another server with an empty folder")


def read_training(path: Path) -> TrainingConfig:
    """A training configuration from a ``.json`` or ``.toml`` file, settings of a recipe that it names included.

    Raises ``WireError``, ``SettingsError``, and ``UnknownNameError`` where there is no such recipe.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read the training configuration {path}: {error.strerror}") from error
    if path.suffix == ".json":
        return recipes.from_json(data)
    try:
        return TrainingConfig(**recipes.resolved(tomllib.loads(data.decode())))
    except (ValueError, TypeError) as error:
        raise WireError(f"{path} is not a training configuration: {error}") from error


def _lock_folder(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreError(f"{folder} is in use by another server; stop it first") from error
    return descriptor


@dataclass(frozen=True, slots=True)
class Founding:
    """What a first start needs, read before anything is made."""

    config: TrainingConfig
    bundle: Bundle

    @classmethod
    def read(cls, settings: Settings, log: Log) -> Self:
        """From the files that the settings name. Raises :class:`SettingsError`, ``BundleError``, ``WireError``."""
        if settings.model is None or settings.training is None:
            raise SettingsError(
                f"{settings.data} holds no deployment yet, and the first start needs a model bundle and a training "
                "configuration (--model, --training)"
            )
        trusted = None if settings.publisher is None else [read_public_key(settings.publisher)]
        config, opened = read_training(settings.training), Bundle.open(settings.model, trusted=trusted)
        bundle = opened.without_cohort()
        if bundle is not opened:
            log.warning(
                "people's embeddings (a cohort) in the model's calibration are left out of what is served",
                decides_by="the cosine" if bundle.calibration and bundle.calibration.scale == "cosine" else "the ratio",
            )
        check_restricted(config, settings.allow_restricted)
        found = (bundle.manifest.modality, bundle.manifest.backbone)
        if found != (config.modality, config.backbone):
            raise SettingsError(f"the model is {found}, the configuration says {(config.modality, config.backbone)}")
        if bundle.manifest.train != config.train:
            raise SettingsError(
                f"of the model {bundle.manifest.train!r} is trained, the configuration says train = {config.train!r}; "
                f"export the model with --train {config.train}, or change the configuration"
            )
        return cls(config, bundle)


async def _pair(
    data: Path, database: Database, state: State, founding: Founding | None, log: Log, clock: Clock
) -> None:
    """Bring the tables up, and see to it that folder and database have one id. A first start fills both.

    Wherever it is killed, the next start goes on: the file is written before the keys, those before the row, and the
    file says that it is complete after the row.
    """
    files = KeyFolder(data / "keys")
    pair = Pair.read(data) or Pair.new()
    if state in ("new", "begun"):
        assert founding is not None
        pair.write(data)
        files.make()
        await database.migrate()
        await _found(pair, founding, database, Blobs(data / "blobs"), files, clock())
    else:
        if state == "unnamed":
            pair = replace(pair, complete=True)
            pair.write(data)
        await database.migrate()
        if state == "unnamed":
            async with database.read() as connection:
                known = (await connection.execute(select(schema.users.c.user))).scalars().all()
            for user in known:
                await asyncio.to_thread(files.make_user, user)
            cohorts = await take_over(database, Blobs(data / "blobs"), files.at_rest)
            if cohorts:
                log.warning("removed people's embeddings (a cohort) from stored calibrations", models=cohorts)
            async with database.write() as connection:
                await ledger.pair_with(connection, pair.deployment_id, files.signing.public_key().public_bytes_raw())
    if not pair.complete:
        replace(pair, complete=True).write(data)


async def _found(
    pair: Pair, founding: Founding, database: Database, blobs: Blobs, files: KeyFolder, now: float
) -> None:
    """Fill an empty database from the model and the configuration."""
    config, bundle = founding.config, founding.bundle
    seed = config.seed if config.seed is not None else secrets.randbits(128)
    files.state_key_id = files.new_state_key()
    training = Training(
        config,
        seed,
        role_key=b"",  # nobody has joined
        dimension=bundle.manifest.dimension,
        parameters=bundle.manifest.size,
        start_norm=clipping.of_start(bundle.theta),
    )
    calibration = bundle.calibration
    values = {
        "base_blob": blobs.write(seal_base(bundle, files.at_rest)),
        "algorithm_blob": blobs.write(files.seal_state(pack(training.state))),
        "optimiser_blob": blobs.write(files.seal_optimiser(pack(training.optimiser))),
    }
    theta_blob = blobs.write_array(bundle.theta)
    calibration_blob = None if calibration is None else blobs.write(seal_calibration(calibration, files.at_rest))
    async with database.write() as connection:
        await connection.execute(
            insert(schema.deployment).values(
                id=1,
                config=config.to_json(),
                seed=str(seed),
                model_version=bundle.version,
                started=False,
                committed_rounds=0,
                deployment_id=pair.deployment_id,
                signing_key=files.signing.public_key().public_bytes_raw(),
                **values,
            )
        )
        await connection.execute(
            insert(schema.models).values(
                model_version=bundle.version,
                round_id=0,
                theta_blob=theta_blob,
                calibration_blob=calibration_blob,
                calibration_source=None if calibration is None else calibration.source,
                created=now,
            )
        )


async def _tidy(settings: Settings, database: Database, blobs: Blobs, keys: KeyRing, log: Log, now: float) -> None:
    """Remove what the database ordered away; put aside, and not away, what it does not know."""
    quarantine = Quarantine(settings.data, days=settings.quarantine_days)
    gone = await removals.carry_out(database, settings.data)
    if gone:
        quarantine.drop(path.rpartition("/")[2] for path in gone)
        log.info("removed what a crash left", files=len(gone))
    keys.clear_temporaries()
    async with database.read() as connection:
        wanted = await ledger.wanted_blobs(connection)
    strays = [*keys.strays(), *await asyncio.to_thread(blobs.strays, wanted)]
    try:
        taken = quarantine.take(strays, now)
    except OSError as error:  # a full disk: they lie well where they are
        log.warning("strays left in place", files=len(strays), error=type(error).__name__)
        return
    if taken:
        log.warning("put into quarantine what the database does not name", files=taken, days=settings.quarantine_days)
    expired = quarantine.expire(now)
    if expired:
        log.info("quarantine over", files=expired)


async def _settle_config(settings: Settings, database: Database, log: Log, now: float) -> TrainingConfig:
    """The stored configuration, or the changed one of the settings; a round of the former one is aborted."""
    async with database.read() as connection:
        row = await ledger.deployment_row(connection)
        newest = await ledger.newest_round(connection)
    assert row is not None
    stored = TrainingConfig.from_json(row.config)
    config = stored if settings.training is None else read_training(settings.training)
    if config == stored:
        return stored
    check_change(stored, config)
    check_restricted(config, settings.allow_restricted)
    async with database.write() as connection:
        await ledger.keep_state(connection, row.algorithm_blob, config=config.to_json())
        changed = {"former": stored.digest(), "config": config.digest()}
        await audit.append(connection, now, audit.SERVER, "configuration-changed", **changed)
        if newest is not None and newest.state not in ("committed", "aborted"):
            reason = "the training configuration was changed"
            await ledger.change_round(connection, newest.round_id, "aborted", closed=now, reason=reason)
    log.warning("training configuration changed", digest=config.digest()[:12])
    return config


async def _candidate(
    database: Database, blobs: Blobs, deployment: DeploymentRow, at_rest: AtRest
) -> tuple[Bundle, float, int]:
    """The model that training goes on from, the norm of what training started from, and the round that made it."""
    async with database.read() as connection:
        row = await ledger.model_row(connection, deployment.model_version)
    assert row is not None
    bundle = open_base(blobs.read(deployment.base_blob), at_rest)
    start_norm = clipping.of_start(bundle.theta)
    if bundle.version != row.model_version:
        bundle = bundle.with_theta(blobs.read_array(row.theta_blob))
    if bundle.version != row.model_version:
        raise StoreError("the stored parameters do not give the model version on record; restore from a backup")
    return bundle, start_norm, row.round_id
