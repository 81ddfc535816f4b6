"""A deployment whose devices evaluate: real devices of people who write, each in a thread, over a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import page
from tests.integration.harness import CONFIG, RunningServer, command
from tests.integration.numpy_devices import federation_of, make_store, token_of
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.enroll import enroll
from uvsdk.federation.algorithms.fedaws.payload import Payload
from uvsdk.records.codec import pack
from uvsdk.training.participation import TrainingJob, TrainingResult
from uvsdk_device import EncryptedStore
from uvsdk_device.evaluations import EvaluationDone

HANDWRITING = modality.get("handwriting")

PEOPLE = 20
TRAINERS = 9
"""Of :data:`PEOPLE`, with this seed: the first eight, and one more."""

EVALUATED = replace(
    CONFIG, rounds=1, optimiser="sgd", clipping="fixed", clip_norm=1e6, evaluation_share=0.9, evaluate_every=1
)


def signs(person: int, *, noise: float = 1.5, count: int = 5) -> list[np.ndarray]:
    """Pages of one hand: a sign of its own, each time written with a tremor."""
    rng = np.random.default_rng((7, person))
    sign = rng.uniform(0, 16, (6, 6))
    return [np.pad(np.clip(sign + rng.normal(0, noise, (6, 6)), 0, 16), 1) for _ in range(count)]


@cache
def seeing(directions: int) -> Float32:
    """Parameters of a linear layer with so many outputs that are not zero: the more, the better hands are told apart.

    The mean over people is moved near zero, so that scores of strangers are near normal in so few dimensions.
    """
    bundle = shipped()
    theta = bundle.theta.copy()
    weights = np.random.default_rng(3).standard_normal((32, 32, 16))
    weights -= weights.mean(axis=2, keepdims=True)  # hands differ by where ink is, and not by how much there is
    weights[directions:] = 0.0
    theta[-32 * 512 - 32 : -32] = 0.05 * weights.reshape(-1)
    theta[-32:] = 0.0
    views = [
        HANDWRITING.prepare(page, bundle).features for person in range(100, 160) for page in signs(person, count=1)
    ]
    rows = bundle.with_theta(theta).embeddings(
        [HANDWRITING.views(item, bundle.manifest.preprocessing) for item in views]
    )
    mean = rows.mean(axis=0)
    theta[-32:] = -1.2 * mean / np.linalg.norm(mean)
    return theta


def cohort_file(folder: Path) -> Path:
    """Twenty hands of five pages each, as `uvsdk cohort make` writes them."""
    for person in range(200, 220):
        pages = folder / "people" / str(person)
        pages.mkdir(parents=True)
        for number, sign in enumerate(signs(person)):
            (pages / f"{number}.png").write_bytes(page(sign))
    shipped().save(folder / "start.uvb")
    file = folder / "cohort.uvc"
    made = ["make", str(folder / "people"), "-m", str(folder / "start.uvb"), "-o", str(file), "--source", "nobody"]
    assert command("cohort", *made) == 0
    return file


@dataclass
class Towards:
    """A trainer that moves theta to one place, whatever it is given, and sends ``payload``, or a vector as FedAwS."""

    theta: Float32
    payload: bytes | None = None

    def train(self, job: TrainingJob, rng: np.random.Generator) -> TrainingResult:
        row = np.eye(32, dtype=np.float32)[rng.integers(32)]
        payload = pack(Payload(row)) if self.payload is None else self.payload
        return TrainingResult(self.theta - job.theta, len(job.features), payload, {}, 0.5)


@dataclass
class Fleet:
    """People with a device each."""

    server: RunningServer
    folder: Path
    trainer: Any
    count: int = PEOPLE
    stores: list[EncryptedStore] = field(default_factory=list)
    answers: list[EvaluationDone] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    @property
    def model(self) -> Bundle:
        """What the server began with."""
        assert self.server.model is not None
        return self.server.model

    def join(self, people: Sequence[int] | None = None) -> None:
        """Enrol and join, one after another, without taking part."""
        for person in range(self.count) if people is None else people:
            self.stores.append(make_store(self.folder, person))
            name = f"person {person}"
            federation = federation_of(self.server, token_of(self.server, name), trainer=self.trainer)
            result = enroll(name, signs(person), model=self.model, store=self.stores[-1], federation=federation)
            assert result.participation is not None, result
            assert result.participation.state in ("joined", "trained"), result.participation

    def participate(self, people: Sequence[int] | None = None, **values: Any) -> None:
        """Everybody takes part until training rests."""

        def run(person: int) -> None:
            try:
                federation_of(self.server, trainer=self.trainer, **values).participate(
                    f"person {person}", self.stores[person], evaluated=self.answers.append
                )
            except BaseException as error:  # noqa: BLE001 - looked at in the test's own thread
                self.errors.append(error)

        chosen = range(self.count) if people is None else people
        threads = [threading.Thread(target=run, args=(person,), name=f"person {person}") for person in chosen]
        for thread in threads:
            thread.start()
            time.sleep(0.01)
        for thread in threads:
            thread.join(timeout=100)
            assert not thread.is_alive()
        assert not self.errors, self.errors
