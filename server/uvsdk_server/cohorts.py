"""The operator's cohort of features: sealed at rest, and embedded under the models of an evaluation."""

from __future__ import annotations

import asyncio
from typing import Final

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.arrays import Float32
from uvsdk.release.cohort import FeatureCohort
from uvsdk.rest.problems import Problem
from uvsdk_server.keys import AtRest
from uvsdk_server.models import Models
from uvsdk_server.store import audit, ledger
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database
from uvsdk_server.store.schema import deployment

_PURPOSE: Final = "cohort"
_KEPT: Final = 2
"""Models of which rows are held in memory: the candidate's and the released one's."""


def seal_cohort(cohort: FeatureCohort, at_rest: AtRest) -> bytes:
    """As it is kept."""
    return at_rest.seal(cohort.to_bytes(), _PURPOSE)


def open_cohort(data: bytes, at_rest: AtRest) -> FeatureCohort:
    """The inverse of :func:`seal_cohort`. Raises :class:`StoreError`, :class:`WireError`."""
    return FeatureCohort.from_bytes(at_rest.open(data, _PURPOSE))


async def put_cohort(connection: AsyncConnection, blob: str | None, rows: int, *, now: float, by: str) -> str | None:
    """Name another cohort, or none; gives the blob of the former one, which is ordered away.

    ``by`` is who hands it over at ``now``, as the audit log names them.
    """
    row = await ledger.deployment_row(connection)
    assert row is not None  # since the first start
    await connection.execute(update(deployment).values(cohort_blob=blob, cohort_rows=rows))
    if blob is None:
        await audit.append(connection, now, by, "cohort-removed")
    else:
        await audit.append(connection, now, by, "cohort-replaced", rows=rows, blob=blob)
    if row.cohort_blob == blob:
        return None
    await ledger.order_blobs(connection, row.cohort_blob)
    return row.cohort_blob


class Cohorts:
    """The cohort under the models that are asked for."""

    def __init__(self, database: Database, blobs: Blobs, models: Models, at_rest: AtRest) -> None:
        self._database = database
        self._blobs = blobs
        self._models = models
        self._at_rest = at_rest
        self._lock = asyncio.Lock()
        self._rows: dict[tuple[str, str], Float32] = {}

    async def size(self) -> int:
        """How many strangers there are; 0 without a cohort."""
        async with self._database.read() as connection:
            row = await ledger.deployment_row(connection)
        return 0 if row is None or row.cohort_blob is None else row.cohort_rows

    async def rows(self, version: str) -> Float32:
        """float32 (n, d), unit: the strangers under a model version that is kept; computed once.

        Raises:
            Problem: 410, the cohort, or the model, has been removed meanwhile.
            BundleError: the model gives what is no embedding.
        """
        async with self._lock:
            async with self._database.read() as connection:
                trained = await ledger.deployment_row(connection)
                model = await ledger.model_row(connection, version)
            if trained is None or trained.cohort_blob is None or model is None:
                raise Problem("evaluation-closed", "the strangers of that evaluation are no longer here")
            key = (trained.cohort_blob, version)
            if key not in self._rows:
                self._rows[key] = await asyncio.to_thread(
                    self._embedded, trained.cohort_blob, version, model.theta_blob
                )
                while len(self._rows) > _KEPT:
                    del self._rows[next(iter(self._rows))]
            return self._rows[key]

    def _embedded(self, cohort_blob: str, version: str, theta_blob: str) -> Float32:
        bundle = self._models.candidate
        if bundle.version != version:
            bundle = bundle.with_theta(self._blobs.read_array(theta_blob))
        return open_cohort(self._blobs.read(cohort_blob), self._at_rest).embedded(bundle)
