"""The versions of the model: the current one in memory, the last few as files to download.

What is downloaded is signed by the deployment's key, the calibration with it, and holds nobody's embedding: a cohort
never gets past :meth:`uvsdk.bundle.Bundle.without_cohort`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import delete, select, update

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, StoreError
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Calibration
from uvsdk.scoring.plausibility import check
from uvsdk.scoring.record import calibration_bytes, read_calibration
from uvsdk_server.keys import AtRest
from uvsdk_server.store import ledger
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database
from uvsdk_server.store.rows import Model, every
from uvsdk_server.store.schema import deployment, models

_BASE: Final = "model/base"
_CALIBRATION: Final = "model/calibration/"


@dataclass(frozen=True, slots=True)
class Download:
    """A file to send and its entity tag."""

    path: Path
    etag: str


class Models:
    """Model versions of one deployment, all with the graphs of the bundle it started from."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        cache: Path,
        current: Bundle,
        round_id: int,
        *,
        deployment: str,
        signing_key: Ed25519PrivateKey,
        at_rest: AtRest,
    ) -> None:
        """``current`` carries its calibration, where it has one; ``round_id`` is the round that made it."""
        self._deployment = deployment
        self._signing_key = signing_key
        self._at_rest = at_rest
        self._database = database
        self._blobs = blobs
        self._cache: Final = cache
        self._building = asyncio.Lock()
        self.current = current
        self.round_id = round_id
        cache.mkdir(mode=0o700, exist_ok=True)
        for stale in cache.iterdir():
            stale.unlink()

    async def knows(self, version: str) -> bool:
        """Whether ``version`` is one of those that are kept."""
        async with self._database.read() as connection:
            return await ledger.model_row(connection, version) is not None

    async def bundle_file(self, version: str) -> Download:
        """The whole bundle of ``version`` (or ``current``). Raises :class:`Problem` 404."""
        row = await self._find(version)
        etag = f"{row.model_version}-{(row.calibration_blob or 'uncalibrated')[:16]}"
        path = self._cache / f"{etag}.uvb"
        async with self._building:
            if not path.exists():
                await asyncio.to_thread(self._build, row, path)
        return Download(path, f'"{etag}"')

    async def theta_file(self, version: str) -> Download:
        """theta of ``version`` (or ``current``), raw little-endian float32. Raises :class:`Problem` 404."""
        row = await self._find(version)
        return Download(self._blobs.path(row.theta_blob), f'"{row.model_version}"')

    async def calibrate(self, version: str, scores: Float32, source: str) -> None:
        """Give ``version`` its impostor scores. Raises :class:`Problem` 404, 422."""
        if not len(scores) or not np.isfinite(scores).all() or float(np.abs(scores).max()) > 1 + 1e-5:
            raise Problem("invalid-request", "impostor scores are cosines: at least one, finite, in [-1, 1]")
        row = await self._find(version)
        calibration = Calibration.from_scores(scores, model_version=row.model_version, source=source)
        try:
            check(calibration)
        except BundleError as error:
            raise Problem("invalid-request", str(error)) from error
        blob = await asyncio.to_thread(self._blobs.write, seal_calibration(calibration, self._at_rest))
        async with self._database.write() as connection:
            await connection.execute(
                update(models)
                .where(models.c.model_version == row.model_version)
                .values(calibration_blob=blob, calibration_source=source)
            )
            shared = set((await connection.execute(select(models.c.calibration_blob))).scalars())
            old = None if row.calibration_blob in shared else row.calibration_blob
            await ledger.order_blobs(connection, old)
        self._blobs.remove(old)
        if row.model_version == self.current.version:
            self.current = self.current.with_calibration(calibration)

    def adopt(self, bundle: Bundle, round_id: int) -> None:
        """Make a committed bundle the current one."""
        if bundle.version != self.current.version:  # the same parameters keep their calibration
            self.current = bundle
        self.round_id = round_id

    async def forget(self, keep: int) -> None:
        """Drop all but the newest ``keep`` versions, files included."""
        async with self._database.write() as connection:
            rows = await every(connection, Model, select(models).order_by(models.c.round_id.desc()))
            for row in rows[keep:]:
                await connection.execute(delete(models).where(models.c.model_version == row.model_version))
            kept = {row.theta_blob for row in rows[:keep]} | {row.calibration_blob for row in rows[:keep]}
            old = [blob for row in rows[keep:] for blob in (row.theta_blob, row.calibration_blob) if blob not in kept]
            await ledger.order_blobs(connection, *old)
        if old:
            self._blobs.remove(*old)
        for row in rows[keep:]:
            for path in self._cache.glob(f"{row.model_version}-*"):
                path.unlink(missing_ok=True)

    async def _find(self, version: str) -> Model:
        async with self._database.read() as connection:
            row = await ledger.model_row(connection, self.current.version if version == "current" else version)
        if row is None:
            raise Problem("unknown-model", "no such model version is kept here; ask for models/current")
        return row

    def _build(self, row: Model, path: Path) -> None:
        bundle = self.current
        if row.model_version != bundle.version:
            bundle = bundle.with_theta(self._blobs.read_array(row.theta_blob))
        if row.calibration_blob is not None and bundle.calibration is None:
            sealed = self._blobs.read(row.calibration_blob)
            source = row.calibration_source or ""
            bundle = bundle.with_calibration(open_calibration(sealed, self._at_rest, bundle, source=source))
        bundle.without_cohort().sign(self._signing_key, issuer=self._deployment).save(path)


def seal_base(bundle: Bundle, at_rest: AtRest) -> bytes:
    """Graphs, preprocessing and detector as they are kept: whoever can write the folder or the database and does not
    have the key can exchange none of it, nor a calibration."""
    return at_rest.seal(bundle.with_calibration(None).to_bytes(), _BASE)


def open_base(data: bytes, at_rest: AtRest) -> Bundle:
    """The inverse of :func:`seal_base`. Raises :class:`StoreError` where it was sealed by nobody here."""
    return Bundle.from_bytes(at_rest.open(data, _BASE))


def seal_calibration(calibration: Calibration, at_rest: AtRest) -> bytes:
    """A calibration as it is kept: bound to its model version."""
    return at_rest.seal(calibration_bytes(calibration), f"{_CALIBRATION}{calibration.model_version}")


def open_calibration(data: bytes, at_rest: AtRest, bundle: Bundle, *, source: str) -> Calibration:
    """The inverse of :func:`seal_calibration`, for ``bundle``. Raises :class:`StoreError`, :class:`BundleError`."""
    kept = at_rest.open(data, f"{_CALIBRATION}{bundle.version}")
    conditions = modality.get(bundle.manifest.modality).conditions
    return read_calibration(kept, model_version=bundle.version, source=source, conditions=conditions)


async def take_over(database: Database, blobs: Blobs, at_rest: AtRest) -> int:
    """Seal what an earlier version kept in clear, without the cohorts it kept with it; gives how many there were.

    Killed anywhere, it goes on at the next start.
    """
    cohorts = 0
    async with database.read() as connection:
        base = (await connection.execute(select(deployment.c.base_blob))).scalar_one()
        rows = await every(connection, Model, select(models).where(models.c.calibration_blob.is_not(None)))
    data = await asyncio.to_thread(blobs.read, base)
    sealed = _opens(data, at_rest, _BASE)
    bundle = open_base(data, at_rest) if sealed else Bundle.from_bytes(data)
    if not sealed:
        blob = await asyncio.to_thread(blobs.write, seal_base(bundle, at_rest))
        async with database.write() as connection:
            await connection.execute(update(deployment).values(base_blob=blob))
            await ledger.order_blobs(connection, base)
        await asyncio.to_thread(blobs.remove, base)
    conditions = modality.get(bundle.manifest.modality).conditions
    for row in rows:
        assert row.calibration_blob is not None  # asked for above
        data = await asyncio.to_thread(blobs.read, row.calibration_blob)
        if _opens(data, at_rest, f"{_CALIBRATION}{row.model_version}"):
            continue
        source = row.calibration_source or ""
        calibration = read_calibration(data, model_version=row.model_version, source=source, conditions=conditions)
        cohorts += calibration.cohort is not None
        blob = await asyncio.to_thread(blobs.write, seal_calibration(calibration.without_cohort(), at_rest))
        async with database.write() as connection:
            changed = update(models).where(models.c.model_version == row.model_version)
            await connection.execute(changed.values(calibration_blob=blob))
            await ledger.order_blobs(connection, row.calibration_blob)
        await asyncio.to_thread(blobs.remove, row.calibration_blob)
    return cohorts


def _opens(data: bytes, at_rest: AtRest, purpose: str) -> bool:
    try:
        at_rest.open(data, purpose)
    except StoreError:
        return False
    return True
