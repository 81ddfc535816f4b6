"""The versions of the model: the candidate that training goes on from in memory, the last few as files to download.

Which of them verifies is :mod:`uvsdk_server.releases`.

What is downloaded is signed by the deployment's key, the calibration with it, and holds nobody's embedding: a cohort
never gets past :meth:`uvsdk.bundle.Bundle.without_cohort`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import delete, select, update

from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.errors import StoreError
from uvsdk.rest.problems import Problem
from uvsdk.scoring.record import read_calibration
from uvsdk_server import calibrations
from uvsdk_server.keys import AtRest
from uvsdk_server.store import course, ledger
from uvsdk_server.store import releases as store
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database
from uvsdk_server.store.rows import Model, every
from uvsdk_server.store.schema import deployment, models


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
        candidate: Bundle,
        round_id: int,
        *,
        deployment: str,
        signing_key: Ed25519PrivateKey,
        at_rest: AtRest,
    ) -> None:
        """``candidate`` has no calibration, which lies beside it; ``round_id`` is the round that made it."""
        self._deployment = deployment
        self._signing_key = signing_key
        self._at_rest = at_rest
        self._database = database
        self._blobs = blobs
        self._cache: Final = cache
        self._building = asyncio.Lock()
        self.candidate = candidate
        self.round_id = round_id
        cache.mkdir(mode=0o700, exist_ok=True)
        for stale in cache.iterdir():
            stale.unlink()

    async def knows(self, version: str) -> bool:
        """Whether ``version`` is one of those that are kept."""
        async with self._database.read() as connection:
            return await ledger.model_row(connection, version) is not None

    async def bundle_file(self, version: str) -> Download:
        """The whole bundle of ``version`` (or ``candidate``), with what it was last calibrated with.

        Raises :class:`Problem` 404.
        """
        row = await self._find(version)
        etag = f"{row.model_version}-{(row.calibration_blob or 'uncalibrated')[:16]}"
        path = self._cache / f"{etag}.uvb"
        async with self._building:
            if not path.exists():
                await asyncio.to_thread(self._build, row, path)
        return Download(path, f'"{etag}"')

    async def theta_file(self, version: str) -> Download:
        """theta of ``version`` (or ``candidate``), raw little-endian float32. Raises :class:`Problem` 404."""
        row = await self._find(version)
        return Download(self._blobs.path(row.theta_blob), f'"{row.model_version}"')

    def adopt(self, bundle: Bundle, round_id: int) -> None:
        """Make a committed bundle the candidate."""
        self.candidate = bundle
        self.round_id = round_id

    async def forget(self, keep: int) -> None:
        """Drop all but the newest ``keep`` versions, the candidate, the best so far and those of kept releases.

        Their files go as well.
        """
        async with self._database.write() as connection:
            trained = await store.held_deployment(connection)
            known = await course.of(connection)
            named = {row.model_version for row in await store.kept(connection)}
            named |= {trained.model_version, *filter(None, (known.best, known.kept_version))}
            rows = await every(connection, Model, select(models).order_by(models.c.round_id.desc()))
            gone = [row for row in rows[keep:] if row.model_version not in named]
            for row in gone:
                await connection.execute(delete(models).where(models.c.model_version == row.model_version))
            blobs = [blob for row in gone for blob in (row.theta_blob, row.calibration_blob)]
            spent = await ledger.order_unnamed(connection, *blobs)
        if spent:
            self._blobs.remove(*spent)
        for row in gone:
            for path in self._cache.glob(f"{row.model_version}-*"):
                path.unlink(missing_ok=True)

    async def _find(self, version: str) -> Model:
        async with self._database.read() as connection:
            row = await ledger.model_row(connection, self.candidate.version if version == "candidate" else version)
        if row is None:
            raise Problem("unknown-model", "no such model version is kept here; ask for models/current")
        return row

    def _build(self, row: Model, path: Path) -> None:
        bundle = self.candidate
        if row.model_version != bundle.version:
            bundle = bundle.with_theta(self._blobs.read_array(row.theta_blob))
        if row.calibration_blob is not None:
            sealed = self._blobs.read(row.calibration_blob)
            source = row.calibration_source or ""
            bundle = bundle.with_calibration(
                calibrations.open_calibration(sealed, self._at_rest, bundle, source=source)
            )
        bundle.without_cohort().sign(self._signing_key, issuer=self._deployment).save(path)


async def take_over(database: Database, blobs: Blobs, at_rest: AtRest) -> int:
    """Seal what an earlier version kept in clear, without the cohorts it kept with it; gives how many there were.

    Killed anywhere, it goes on at the next start.
    """
    cohorts = 0
    async with database.read() as connection:
        base = (await connection.execute(select(deployment.c.base_blob))).scalar_one()
        rows = await every(connection, Model, select(models).where(models.c.calibration_blob.is_not(None)))
    data = await asyncio.to_thread(blobs.read, base)
    sealed = _opens(data, at_rest, calibrations.BASE)
    bundle = calibrations.open_base(data, at_rest) if sealed else Bundle.from_bytes(data)
    if not sealed:
        blob = await asyncio.to_thread(blobs.write, calibrations.seal_base(bundle, at_rest))
        async with database.write() as connection:
            await connection.execute(update(deployment).values(base_blob=blob))
            await ledger.order_blobs(connection, base)
        await asyncio.to_thread(blobs.remove, base)
    conditions = modality.get(bundle.manifest.modality).conditions
    for row in rows:
        assert row.calibration_blob is not None  # asked for above
        data = await asyncio.to_thread(blobs.read, row.calibration_blob)
        if _opens(data, at_rest, f"{calibrations.CALIBRATION}{row.model_version}"):
            continue
        source = row.calibration_source or ""
        calibration = read_calibration(data, model_version=row.model_version, source=source, conditions=conditions)
        cohorts += calibration.cohort is not None
        blob = await asyncio.to_thread(
            blobs.write, calibrations.seal_calibration(calibration.without_cohort(), at_rest)
        )
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
