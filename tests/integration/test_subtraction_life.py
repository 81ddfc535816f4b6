"""A deployment that compares without its domain's mean once that was measured to be better: every way decides alike."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.builders import page
from tests.integration import harness, synthetic_evaluators
from tests.integration.evaluation_fleet import HANDWRITING, seeing, signs
from tests.integration.harness import CONFIG, PEPPER, RunningServer, SyntheticDevice, eventually
from tests.integration.numpy_devices import federation_of, make_store, token_of
from tests.integration.test_one_answer import TOKEN, agent
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.enroll import enroll
from uvsdk.identify import identify
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.release.report import EvaluationReport, EvaluationTask, report_on
from uvsdk.scoring.cells import names
from uvsdk.scoring.compensation import Compensation
from uvsdk_device import EncryptedStore, Federation, Runtime
from uvsdk_device.agent import AgentSettings, create_app
from uvsdk_device.membership import forget_here
from uvsdk_device.releases import read_standing

OTHERS = 50
TREMOR = 3.0
ADA = "person 0"
PROBE = signs(0, noise=TREMOR / 2, count=6)[5]
CENTRED = replace(
    CONFIG, rounds=0, optimiser="sgd", evaluation_share=0.9, evaluate_every=1, centring="measured", deadline_s=400.0
)
SETTINGS = {"start_after_users": str(OTHERS + 1), "embedding_probes": True}
CELLS = len(names(HANDWRITING.cells))


def shifted() -> Float32:
    """Parameters under which everybody's page is much like everybody else's: a bias that says nothing of a hand."""
    theta = seeing(32).copy()
    theta[-32] += 5.0
    return theta


@dataclass
class Deployment:
    """Ada's device, fifty others, and what they say of themselves; hands that shake."""

    server: RunningServer
    model: Bundle
    store: EncryptedStore
    others: list[SyntheticDevice]

    @property
    def federation(self) -> Federation:
        return federation_of(self.server, server_verification=True)

    def rows(self, device: SyntheticDevice) -> Float32:
        """Embeddings of five pages of one of the others."""
        pages = signs(1 + device.number, noise=TREMOR)
        views = [HANDWRITING.prepare(sample, self.model).features for sample in pages]
        return self.model.embeddings([HANDWRITING.views(item, self.model.manifest.preprocessing) for item in views])

    def answer(self, device: SyntheticDevice, after: int) -> EvaluationTask:
        """One of the others answers the next evaluation; gives what it was asked."""
        header = synthetic_evaluators.evaluation(device, after=after)
        assert header is not None
        task = synthetic_evaluators.task_of(device, header)
        centrings = [None, *([Compensation.centring(task.centre)] if len(task.centre) else [])]
        whole, *centred = (
            report_on(
                self.rows(device),
                model_version=self.model.version,
                impostors="moments",
                evaluates=task.evaluates,
                strangers=task.cohort,
                cells=CELLS,
                centring=centring,
            )
            for centring in centrings
        )
        report = EvaluationReport(header.evaluation_id, whole, (), 5, centred=tuple(centred))
        body = synthetic_evaluators.sealed(device, header, report)
        told = synthetic_evaluators.put(device, header, body)
        assert told.status_code == 201, told.text
        return task

    def evaluated(self, number: int, *, meanwhile: Callable[[], object]) -> tuple[EvaluationTask, dict[str, Any]]:
        """Everybody answers evaluation ``number``; what was asked, and what became of it."""
        eventually(lambda: (self.newest()["evaluation_id"], self.newest()["state"]) == (number, "collecting"))
        tasks = [self.answer(device, number - 1) for device in self.others[:-1]]
        meanwhile()
        assert self.newest()["state"] == "collecting"
        tasks.append(self.answer(self.others[-1], number - 1))
        self.federation.participate(ADA, self.store, until_finished=False)
        eventually(lambda: self.newest()["state"] in ("closed", "failed"))
        assert self.newest()["arrived"] == OTHERS + 1
        return tasks[-1], self.newest()

    def newest(self) -> dict[str, Any]:
        """The newest evaluation."""
        listed = self.server.ask("GET", "/v1/evaluations").json()["evaluations"]
        return listed[0] if listed else {"evaluation_id": 0, "state": "none"}


@dataclass
class Ways:
    """Device, agent and REST; the agent follows the store as a process of its own does."""

    deployment: Deployment
    agent: httpx.Client
    rest_token: str

    def decided(self) -> list[tuple[float, float, bool]]:
        """Score, threshold and verdict of ada's probe and of a stranger's, the same in every way."""
        found = []
        for probe, genuine in ((PROBE, True), (signs(300, noise=TREMOR)[0], False)):
            image = page(probe)
            local = Runtime(self.deployment.store, retry=None).verify(ADA, image)
            own = (local.score, local.threshold.score, local.accepted)
            config = self.deployment.server.config
            user = hash_user_id(ADA, deployment=config.deployment, pepper=PEPPER)
            body = {"sample": base64.b64encode(image).decode()}
            told = [
                self.agent.post("/v1/verify", json={**body, "user": ADA}),
                self.deployment.server.ask("POST", "/v1/verify", token=self.rest_token, json={**body, "user": user}),
            ]
            for answer in told:
                assert answer.status_code == 200, answer.text
                values = answer.json()
                assert (values["score"], values["threshold"]["score"], values["accepted"]) == own
            assert local.accepted == genuine
            found.append(own)
        return found


def test_a_domains_mean_comes_out_where_it_is_measured_to_be_better(tmp_path: Path) -> None:
    model = shipped().with_theta(shifted())
    with harness.serving(tmp_path, model=model, config=CENTRED, settings=SETTINGS) as server:
        store = make_store(tmp_path, 0)
        federation = federation_of(server, token_of(server, ADA), server_verification=True)
        enroll(ADA, signs(0, noise=TREMOR), model=model, store=store, federation=federation)
        found = Deployment(server, model, store, harness.devices_of(server, OTHERS))
        forget = partial(forget_here, store=store)
        app = create_app(Runtime(store, retry=None), token=TOKEN, settings=AgentSettings(scores=True), forget=forget)
        with agent(app) as client:
            ways = Ways(found, client, server.token("verify", "scores"))

            # The first evaluation tells the mean, of fifty-one people; decisions are of embeddings as they are.
            task, first = found.evaluated(1, meanwhile=lambda: None)
            assert len(task.centre) == 0
            assert (first["outcome"], first["release"], first["summary"]["centring"]) == ("calibrated", 2, None)
            found.federation.follow_release(ADA, store)
            whole = ways.decided()

            # The second asks for both, and finds that fewer genuine trials are rejected without the mean.
            assert server.ask("POST", "/v1/evaluations").status_code == 202
            during: list[list[tuple[float, float, bool]]] = []
            task, second = found.evaluated(2, meanwhile=lambda: during.append(ways.decided()))
            assert during == [whole]
            told = second["summary"]["centring"]
            assert told["chosen"], told
            assert told["centred_fnmr"] < told["fnmr"]
            assert told["interval"][1] < 0.0
            assert (second["outcome"], second["release"]) == ("calibrated", 3)
            found.federation.follow_release(ADA, store)
            adopted = read_standing(store, "handwriting").adopted[0].release
            assert (adopted.number, adopted.cause) == (3, "calibration")
            calibration = Runtime(store, retry=None).bundle.calibration
            assert calibration is not None
            assert calibration.centre is not None
            assert np.array_equal(calibration.centre, task.centre)
            assert np.linalg.norm(task.centre) > 0.8  # most of what an embedding is says nothing of its person
            centred = ways.decided()
            assert centred != whole
            runtime = Runtime(store, retry=None)
            assert identify(page(PROBE), runtime.gallery(), model=runtime.bundle).user_id == ADA

            # Back, and bit for bit what it was; then to the centred release again.
            for number, expected in ((2, whole), (3, centred)):
                assert server.ask("POST", "/v1/releases/roll-back", json={"number": number}).status_code == 201
                found.federation.follow_release(ADA, store)
                assert ways.decided() == expected
