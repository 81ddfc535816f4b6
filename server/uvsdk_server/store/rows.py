"""Rows as records: what a query gives becomes a frozen dataclass whose fields have the names of its columns.

Attributes of SQLAlchemy's own rows have no types; these have, so that a wrong column is found before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection

_Record = TypeVar("_Record")

RoundState: TypeAlias = Literal["open", "selected", "collecting", "aggregating", "committed", "aborted"]
EvaluationState: TypeAlias = Literal["requested", "collecting", "judging", "closed", "failed"]


async def first(connection: AsyncConnection, record: Callable[..., _Record], query: Executable) -> _Record | None:
    """The first row of a query as a ``record``."""
    row = (await connection.execute(query)).first()
    return None if row is None else record(**row._mapping)


async def every(connection: AsyncConnection, record: Callable[..., _Record], query: Executable) -> list[_Record]:
    """Each row of a query as a ``record``."""
    return [record(**row._mapping) for row in await connection.execute(query)]


@dataclass(frozen=True, slots=True)
class DeploymentRow:
    """What is trained here, and the blobs that hold how far it has come; the one row has the id 1."""

    id: int
    config: str
    seed: str
    model_version: str
    base_blob: str
    algorithm_blob: str
    optimiser_blob: str
    started: bool
    committed_rounds: int
    deployment_id: str | None
    signing_key: bytes | None
    released: int | None
    release_policy: str | None
    stopped: str | None
    cohort_blob: str | None
    cohort_rows: int


@dataclass(frozen=True, slots=True)
class Model:
    """One version of the model that is kept, the round that made it, and what was measured of it."""

    model_version: str
    round_id: int
    theta_blob: str
    calibration_blob: str | None
    calibration_source: str | None
    created: float
    judged: bytes | None


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One release; ``kept`` while its parameters and its calibration are here, which ``bundle`` is the digest of."""

    number: int
    model_version: str
    bundle: str
    calibration: str
    calibration_blob: str | None
    calibration_source: str | None
    record: bytes
    signature: bytes
    created: float
    kept: bool


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """One user's template under one model version and calibration."""

    user: str
    model_version: str
    calibration: str
    sealed: bytes
    received: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round; ``deadline`` is set from when it collects on, ``closed`` once it is committed or aborted."""

    round_id: int
    state: RoundState
    model_version: str
    config_digest: str
    server_key_id: str
    seed: str
    cohort: int
    quorum: int
    opened: float
    deadline: float | None
    closed: float | None
    accepted: int
    result_version: str | None
    reason: str | None
    clip_norm: float | None
    norm_median: float | None


@dataclass(frozen=True, slots=True)
class Joining:
    """A user whose admission is not yet in the algorithm's state; ``anew`` where the state may hold somebody else."""

    user: str
    admission_sealed: bytes
    anew: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may train, and n_i of its user."""

    device_id: str
    user: str
    samples: int


@dataclass(frozen=True, slots=True)
class Member:
    """One device's place in a cohort, and what it asked for there."""

    round_id: int
    device_id: str
    user: str
    request_sealed: bytes | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """One accepted update as the database knows it; ``head_sealed`` and ``blob`` go when the round closes."""

    round_id: int
    device_id: str
    user: str
    nonce: str
    digest: str
    norm: float
    samples: int
    head_sealed: bytes | None
    blob: str | None
    received: float


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One evaluation; a requested one has neither a candidate nor a deadline yet.

    ``committed_rounds`` counts those behind the candidate, ``cohort_rows`` the strangers in each task. ``outcome`` and
    ``release`` say what came of it, ``summary`` what was measured. ``centre`` is float32 (d,), little endian, what is
    subtracted in the second report on the released model, ``None`` where none is asked for; ``verifies_centred`` says
    whether what verified when it began did so without a centre.
    """

    evaluation_id: int
    state: EvaluationState
    cause: str
    candidate: str
    released: str
    impostors: str
    config_digest: str
    server_key_id: str
    committed_rounds: int
    cohort_rows: int
    opened: float
    deadline: float | None
    closed: float | None
    asked: int
    arrived: int
    outcome: str | None
    release: int | None
    summary: str | None
    centre: bytes | None = field(default=None, repr=False)
    verifies_centred: bool = False


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One accepted report as the database knows it; ``blob`` goes when the evaluation closes."""

    evaluation_id: int
    device_id: str
    user: str
    nonce: str
    digest: str
    evaluates: bool
    blob: str | None
    received: float


@dataclass(frozen=True, slots=True)
class Respondent:
    """A device that is asked when a model is evaluated, and whether its user never trains."""

    device_id: str
    user: str
    evaluates: bool
