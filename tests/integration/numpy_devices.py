"""Real devices of the tests, with a trainer that needs no torch: the same person gives the same updates each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.builders import open_store
from tests.integration.harness import PEPPER, RunningServer
from uvsdk.federation.algorithms.fedaws.payload import Payload
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.records.codec import pack
from uvsdk.training.participation import TrainingJob, TrainingResult
from uvsdk_device import EncryptedStore, Federation
from uvsdk_device.queue import Backoff


@dataclass
class FixedTrainer:
    """Moves theta by a small random step; ``broken`` gives a delta that is not a number."""

    broken: bool = False
    jobs: list[TrainingJob] = field(default_factory=list)

    def train(self, job: TrainingJob, rng: np.random.Generator) -> TrainingResult:
        self.jobs.append(job)
        delta = rng.standard_normal(len(job.theta)).astype(np.float32) * np.float32(1e-4)
        if self.broken:
            delta[0] = np.nan
        row = np.eye(32, dtype=np.float32)[len(job.features)]
        memory = {"rounds": np.array([job.round_id], np.int64)}
        return TrainingResult(delta, len(job.features), pack(Payload(row)), memory, 0.5)


def make_store(folder: Path, person: int) -> EncryptedStore:
    return open_store(folder / f"store-{person}")


def pages(person: int) -> list[np.ndarray]:
    """Pages of one hand: a sign of its own on empty paper, a little different each time."""
    rng = np.random.default_rng(person)
    sign = rng.uniform(4, 16, (6, 6))
    return [np.pad(sign + rng.uniform(0, 0.5, (6, 6)), 1) for _ in range(3 + person)]


def token_of(server: RunningServer, user_id: str) -> str:
    """An enrolment token for one person."""
    return server.token("enrol", user=hash_user_id(user_id, deployment=server.config.deployment, pepper=PEPPER))


def federation_of(server: RunningServer, token: str = "", **values: object) -> Federation:
    settings = {"trainer": FixedTrainer(), "patience_s": 60.0, "backoff": Backoff(0.1, 0.5), **values}
    return Federation(server.url, enrolment_token=token, pepper=PEPPER, **settings)  # type: ignore[arg-type]
