"""Devices that answer evaluations by numpy alone: what they say of a model is drawn, good or bad as a test has it."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from tests.integration import harness
from tests.integration.harness import CONFIG, DIMENSION, RunningServer, SyntheticDevice
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.federation import roles
from uvsdk.federation.messages import EvaluationHeader
from uvsdk.federation.statements import Validity, verify_statement
from uvsdk.privacy.sealing import Binding, Envelope, new_nonce, seal
from uvsdk.records.codec import pack, unpack
from uvsdk.release.report import EvaluationReport, EvaluationTask, ModelReport, report_on
from uvsdk.scoring.cells import names

TRAINERS, EVALUATORS = 8, 12
SCATTER = 0.04
"""Of samples about their person, in each of 32 dimensions, where a model is good; ten times that is bad."""

EVALUATED = replace(CONFIG, rounds=1, optimiser="sgd", evaluation_share=0.999, evaluate_every=1, deadline_s=400.0)


@dataclass
class Answers:
    """How samples scatter under a model, by version; :data:`SCATTER` under any other."""

    scatter: dict[str, float]

    def rows(self, device: SyntheticDevice, version: str) -> Float32:
        """float32 (6, d), unit rows."""
        rng = np.random.default_rng((3, device.number))
        person = rng.standard_normal(DIMENSION) / np.sqrt(DIMENSION)
        rows = person + self.scatter.get(version, SCATTER) * rng.standard_normal((6, DIMENSION))
        unit: Float32 = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def report(self, device: SyntheticDevice, task: EvaluationTask) -> EvaluationReport:
        """What a device says."""
        versions = [task.candidate] + [task.released] * (task.released != task.candidate)
        models = [self._model(device, task, version) for version in versions]
        return EvaluationReport(task.evaluation_id, models[0], tuple(models[1:]), 6)

    def _model(self, device: SyntheticDevice, task: EvaluationTask, version: str) -> ModelReport:
        strangers = task.cohort if version == task.candidate else task.released_cohort
        return report_on(
            self.rows(device, version),
            model_version=version,
            impostors=task.impostors,  # type: ignore[arg-type]
            evaluates=task.evaluates,
            strangers=strangers,
            cells=len(names(modality.get(CONFIG.modality).cells)),
            cells_of=[(0,)] * len(self.rows(device, version)),
        )


def join(server: RunningServer, count: int = TRAINERS + EVALUATORS) -> list[SyntheticDevice]:
    """Devices in the order in which they join."""
    return harness.devices_of(server, count)


def trainers_of(devices: Sequence[SyntheticDevice]) -> list[SyntheticDevice]:
    """Those who train."""
    config = devices[0].server.config
    assert config.seed is not None
    chosen = roles.split([device.user for device in devices], seed=config.seed, config=config)
    return [device for device in devices if device.user not in chosen]


def evaluation(device: SyntheticDevice, *, after: int = 0, wait_s: float = 20.0) -> EvaluationHeader | None:
    """The evaluation that asks a device; ``None`` where none does within the time."""
    ends = time.monotonic() + wait_s
    while True:
        left = max(0.0, ends - time.monotonic())
        target = f"/v1/rounds/current?after=100000&evaluated={after}&wait_s={left:.1f}"
        state = device.request("GET", target).headers.get("uvsdk-training")
        answer = device.request("GET", f"/v1/evaluations/current?after={after}")
        if answer.status_code == 200:
            assert state == "evaluating"
            return read(answer, device)
        if left == 0.0 or state in ("finished", "stopped"):
            return None


def read(answer: httpx.Response, device: SyntheticDevice) -> EvaluationHeader:
    """A header, proven to be the server's."""
    values = answer.json()
    values["server_public_key"] = base64.b64decode(values["server_public_key"])
    signature = base64.b64decode(values.pop("signature"))
    validity = Validity(values.pop("issued_unix_s"), values.pop("expires_unix_s"))
    header = EvaluationHeader(**values)
    verify_statement(header, validity, signature, device.server_signing_key(), now=time.time())
    return header


def task_of(device: SyntheticDevice, header: EvaluationHeader) -> EvaluationTask:
    """This device's task, proven to be the server's."""
    answer = device.request("GET", f"/v1/evaluations/{header.evaluation_id}/task")
    assert answer.status_code == 200, answer.text
    envelope = Envelope.parse(answer.content)
    envelope.verify(device.server_signing_key())
    return unpack(EvaluationTask, b"".join(envelope.open(device.sealing)))


def sealed(device: SyntheticDevice, header: EvaluationHeader, report: EvaluationReport, **changes: object) -> bytes:
    """A report as it is sent; fields of its binding may be replaced."""
    binding = Binding(
        deployment=header.deployment,
        direction="up",
        message_type="evaluation-report",
        algorithm=header.algorithm,
        round_id=header.evaluation_id,
        model_version=header.candidate,
        sender=device.device_id,
        recipient_key_id=header.server_key_id,
        nonce=new_nonce(),
    )
    recipient = X25519PublicKey.from_public_bytes(header.server_public_key)
    chosen = replace(binding, **changes)  # type: ignore[arg-type]
    return seal([pack(report)], chosen, recipient=recipient, signing_key=device.signing)


def put(device: SyntheticDevice, header: EvaluationHeader, body: bytes) -> httpx.Response:
    """Hand in a sealed report."""
    return device.request("PUT", f"/v1/evaluations/{header.evaluation_id}/report", body)


def answer(device: SyntheticDevice, header: EvaluationHeader, answers: Answers) -> httpx.Response:
    """Answer an evaluation."""
    return put(device, header, sealed(device, header, answers.report(device, task_of(device, header))))
