"""Evaluations over real HTTP: a better candidate is released, a worse one stays, and no report is lost."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration import evaluation_fleet, harness
from tests.integration import synthetic_evaluators as synthetic
from tests.integration.evaluation_fleet import PEOPLE, Fleet, Towards, cohort_file, seeing
from tests.integration.harness import DIMENSION, KillableServer, RunningServer, SyntheticDevice, kind
from tests.integration.numpy_devices import FixedTrainer
from tests.integration.synthetic_evaluators import SCATTER, Answers
from uvsdk.bundle import shipped
from uvsdk.errors import ServerUnreachableError
from uvsdk.release.centring import centre
from uvsdk.release.report import EvaluationReport
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle
from uvsdk_device.connection import Connection
from uvsdk_server import observer


def evaluations(server: RunningServer) -> list[dict[str, Any]]:
    """The oldest first."""
    found: list[dict[str, Any]] = server.ask("GET", "/v1/evaluations").json()["evaluations"]
    return found[::-1]


def releases(server: RunningServer) -> list[dict[str, Any]]:
    """The oldest first."""
    found: list[dict[str, Any]] = server.ask("GET", "/v1/releases").json()["releases"]
    return found[::-1]


def candidate_of(server: RunningServer) -> str:
    """The version that training goes on from."""
    return str(server.ask("GET", "/v1/models/candidate").json()["model_version"])


def training_state(device: SyntheticDevice) -> str:
    """What a device is told where no round asks it."""
    answer = device.request("GET", "/v1/rounds/current?after=1000")
    return str(answer.headers.get("uvsdk-training", "collecting"))


@dataclass
class Party:
    """Twenty people of whom eight train, and a server."""

    server: RunningServer
    devices: list[SyntheticDevice]
    answers: Answers

    @property
    def trainers(self) -> list[SyntheticDevice]:
        return synthetic.trainers_of(self.devices)

    def evaluate(self, *, after: int, devices: list[SyntheticDevice] | None = None) -> int:
        """Everybody answers the next evaluation; gives its id."""
        evaluation_id = 0
        for device in self.devices if devices is None else devices:
            header = synthetic.evaluation(device, after=after)
            assert header is not None
            told = synthetic.answer(device, header, self.answers)
            assert told.status_code == 201, told.text
            evaluation_id = header.evaluation_id
        return evaluation_id

    def train(self, *, scatter: float, after: int = 0, devices: list[SyntheticDevice] | None = None) -> str:
        """A round that makes a candidate under which samples scatter so; its version."""
        former = candidate_of(self.server)
        harness.play_round(self.trainers if devices is None else devices, after)
        harness.eventually(lambda: candidate_of(self.server) != former)
        version = candidate_of(self.server)
        self.answers.scatter[version] = scatter
        return version

    def closed(self, evaluation_id: int) -> dict[str, Any]:
        """What became of an evaluation."""
        harness.eventually(lambda: evaluations(self.server)[evaluation_id - 1]["state"] in ("closed", "failed"))
        return evaluations(self.server)[evaluation_id - 1]


@contextlib.contextmanager
def party(folder: Path, **values: Any) -> Iterator[Party]:
    """Everybody has joined, and nobody has answered yet."""
    settings = {"start_after_users": "20", **values.pop("settings", {})}
    config = values.pop("config", synthetic.EVALUATED)
    with harness.serving(folder, config=config, settings=settings, **values) as server:
        yield Party(server, synthetic.join(server), Answers({}))


def test_a_life_of_a_model(tmp_path: Path) -> None:
    """What verifies is calibrated on its own people, a better candidate follows, worse ones stay and end training."""
    config = replace(synthetic.EVALUATED, rounds=9)
    with party(tmp_path, config=config) as found:
        assert found.evaluate(after=0) == 1
        first = found.closed(1)
        assert (first["cause"], first["outcome"], first["release"]) == ("start", "calibrated", 2)
        measured = first["summary"]["released"]
        assert (measured["people"], measured["trials"], measured["fmr"]) == (12, 72, 0.01)
        assert len(found.trainers) == 8

        better = found.train(scatter=SCATTER / 2)
        assert found.evaluate(after=1) == 2
        second = found.closed(2)
        assert (second["cause"], second["outcome"], second["release"]) == ("rounds", "released", 3), second["summary"]
        assert second["summary"]["change"] <= 0
        causes = [(item["number"], item["cause"], item["model_version"] == better) for item in releases(found.server)]
        assert causes == [(1, "founding", False), (2, "calibration", False), (3, "gate", True)]
        assert releases(found.server)[-1]["evaluation"][0]["evaluation_id"] == 2

        # After a worse one training goes back to the best with half the step; three in a row, and it rests by itself.
        for round_id, step in ((2, 0.5), (3, 0.25), (4, 0.125)):
            worse = found.train(scatter=10 * SCATTER, after=round_id - 1)
            assert found.evaluate(after=round_id) == round_id + 1
            kept = found.closed(round_id + 1)
            assert (kept["cause"], kept["outcome"], kept["release"]) == ("rounds", "kept", None)
            assert any("of genuine trials" in reason for reason in kept["reasons"])
            assert kept["candidate"] == worse
            told = {"best": better, "worse": True, "returned_to": better, "centred": None, "step": step}
            assert kept["summary"]["training"] == told
            assert found.server.released()["model_version"] == better
            assert candidate_of(found.server) == better
        assert len(releases(found.server)) == 3
        harness.eventually(lambda: training_state(found.devices[0]) == "stopped")
        metrics = found.server.ask("GET", "/metrics").text
        assert 'uvsdk_evaluations_total{outcome="kept"} 3.0' in metrics
        assert 'uvsdk_reports_total{outcome="accepted"} 100.0' in metrics
        assert "uvsdk_training_stopped 1.0" in metrics
        assert "uvsdk_training_step 0.125" in metrics
        assert "uvsdk_training_returns_total 3.0" in metrics
        assert found.server.rows("SELECT count(*), count(blob) FROM reports") == [(100, 0)]

        training = found.server.ask("GET", "/v1/training").json()
        assert (training["users"], training["evaluators"]) == (8, 12)
        assert training["stopped"].startswith("3 evaluations in a row were worse than the best")

        assert found.server.ask("POST", "/v1/training/resume").status_code == 204
        harness.eventually(lambda: training_state(found.devices[0]) != "stopped")
        header = found.trainers[0].wait(after=4)
        assert header is not None
        assert (header.round_id, header.model_version) == (5, better)
        assert found.server.ask("POST", "/v1/evaluations").json()["state"] == "requested"  # once the round is over
        assert found.server.ask("POST", "/v1/evaluations").json()["evaluation_id"] == 6


def test_a_deployment_that_trains_nobody_calibrates_itself_and_again_when_it_has_grown(tmp_path: Path) -> None:
    config = replace(synthetic.EVALUATED, rounds=0, evaluation="third_moments")
    settings = {"start_after_users": "8"}
    with harness.serving(tmp_path, config=config, settings=settings) as server:
        found = Party(server, harness.devices_of(server, 7), Answers({}))
        told = server.ask("GET", "/v1/training").json()
        assert (told["users"], told["evaluators"], evaluations(server)) == (0, 7, [])
        found.devices += harness.devices_of(server, 1, first=7)
        harness.eventually(lambda: training_state(found.devices[0]) == "evaluating")
        assert found.evaluate(after=0) == 1
        first = found.closed(1)
        assert (first["cause"], first["outcome"], first["release"]) == ("start", "calibrated", 2)
        assert first["impostors"] == "third_moments"
        assert (first["summary"]["released"]["people"], first["reasons"]) == (8, [])

        found.devices += harness.devices_of(server, 4, first=8)  # half as many again
        harness.eventually(lambda: training_state(found.devices[0]) == "evaluating")
        assert found.evaluate(after=1) == 2
        second = found.closed(2)
        assert (second["cause"], second["outcome"], second["release"]) == ("people", "calibrated", 3)
        harness.eventually(lambda: training_state(found.devices[0]) == "finished")


def test_training_begins_centred_where_the_head_is_made_for_it(tmp_path: Path) -> None:
    """The first evaluation moves the start, the second measures that at once, and rounds go on from there."""
    model = export_bundle(backbones.get("digits-cnn+centred", "head").random(1))
    config = replace(synthetic.EVALUATED, backbone="digits-cnn+centred", train="head", rounds=4)
    with party(tmp_path, config=config, model=model) as found:
        began = candidate_of(found.server)
        assert found.evaluate(after=0) == 1
        told = found.closed(1)["summary"]["training"]
        harness.eventually(lambda: candidate_of(found.server) != began)
        moved = candidate_of(found.server)
        assert (told["centred"], told["returned_to"], told["step"]) == (moved, None, 1.0)
        theta = np.frombuffer(found.server.ask("GET", "/v1/models/candidate/theta").content, "<f4")
        np.testing.assert_array_equal(theta[:-DIMENSION], np.eye(DIMENSION, dtype=np.float32).ravel())
        rows = [found.answers.rows(device, began) for device in found.devices]
        means = [one.mean(axis=0, dtype=np.float64) for one in rows]
        templates = np.mean([mean / np.linalg.norm(mean) for mean in means], axis=0)
        trainers = {device.number for device in found.trainers}
        single = np.mean([mean for number, mean in enumerate(means) if number not in trainers], axis=0)
        np.testing.assert_allclose(theta[-DIMENSION:], -centre(templates, single), atol=2e-4)

        found.answers.scatter[moved] = SCATTER / 2
        assert found.evaluate(after=1) == 2
        second = found.closed(2)
        assert (second["cause"], second["outcome"]) == ("centred", "released"), second["summary"]
        assert second["summary"]["training"]["centred"] is None
        assert found.server.released()["model_version"] == moved
        harness.play_round(found.trainers, 0, parameters=len(theta))
        harness.eventually(lambda: candidate_of(found.server) != moved)


def test_what_is_no_report_of_this_device_is_refused_and_a_good_one_still_counts(tmp_path: Path) -> None:
    with party(tmp_path) as found:
        *others, other, device = found.devices  # the last only evaluate
        header = synthetic.evaluation(device)
        assert header is not None
        task = synthetic.task_of(device, header)
        report = found.answers.report(device, task)
        (moments,) = report.candidate.moments

        def refused(body: bytes, *, sender: SyntheticDevice = device) -> tuple[int, str]:
            answer = synthetic.put(sender, header, body)
            return answer.status_code, kind(answer)

        def wrong(**changes: Any) -> EvaluationReport:
            return replace(report, candidate=replace(report.candidate, **changes))

        good = synthetic.sealed(device, header, report)
        assert refused(good, sender=other) == (403, "wrong-sender")
        assert refused(synthetic.sealed(device, header, report, round_id=9)) == (409, "wrong-round")
        assert refused(synthetic.sealed(device, header, report, model_version="0" * 64)) == (409, "wrong-model")
        assert refused(synthetic.sealed(device, header, report, message_type="update")) == (400, "malformed")
        assert refused(good[:-1] + bytes([good[-1] ^ 1])) == (401, "bad-signature")
        longer = replace(moments, template=moments.template * 2)
        elsewhere = replace(report, evaluation_id=2)
        twice = report.candidate.genuine * 2
        for bad in (wrong(moments=(longer,)), wrong(genuine=twice), wrong(trials=-1), wrong(moments=()), elsewhere):
            assert refused(synthetic.sealed(device, header, bad)) == (400, "malformed")
        oversized = device.request("PUT", "/v1/evaluations/1/report", bytes(33 << 20))
        assert (oversized.status_code, kind(oversized)) == (413, "too-large")
        answer = synthetic.put(device, replace(header, evaluation_id=7), good)
        assert (answer.status_code, kind(answer)) == (409, "wrong-evaluation")

        assert synthetic.put(device, header, good).status_code == 201
        assert synthetic.put(device, header, good).status_code == 200  # an answer that was lost
        assert refused(synthetic.sealed(device, header, report)) == (409, "already-uploaded")
        found.evaluate(after=0, devices=[*others, other])
        assert found.closed(1)["arrived"] == 20
        assert synthetic.put(device, header, good).status_code == 200
        late = synthetic.sealed(other, header, report)
        assert synthetic.put(other, header, late).status_code == 409
        stranger = harness.SyntheticDevice(found.server, 77)
        assert kind(stranger.request("GET", "/v1/evaluations/1/task")) == "unknown-device"


def test_who_leaves_is_in_no_sum(tmp_path: Path) -> None:
    """And what an operator has calibrated stands, until it is given back to the evaluations."""
    with party(tmp_path) as found:
        assert found.server.released()["calibrated_by"] == "founding"
        scores = np.linspace(-0.3, 0.7, 2000, dtype=np.float32)
        own = found.server.promote(scores=scores)
        assert (own["calibrated_by"], own["cause"]) == ("operator", "calibration")

        leaver, *others = found.devices[::-1]
        found.evaluate(after=0, devices=[leaver])
        (sealed,) = found.server.rows("SELECT blob FROM reports")
        assert (found.server.data / "blobs" / sealed[0]).exists()
        assert leaver.request("DELETE", f"/v1/users/{leaver.user}").status_code == 204
        assert not (found.server.data / "blobs" / sealed[0]).exists()
        assert found.server.rows("SELECT count(*) FROM reports") == [(0,)]
        found.evaluate(after=0, devices=others[::-1])
        first = found.closed(1)
        assert (first["arrived"], first["summary"]["candidate"]["people"]) == (19, 11)
        # Eleven people could calibrate what verifies, and the operator has done so before.
        assert (first["outcome"], found.server.released()["number"]) == ("kept", own["number"])
        assert any("keeps the calibration that an operator gave it" in reason for reason in first["reasons"])

        # Given back to the evaluations, the next one replaces it.
        found.server.stop()
        found.server.settings = {**found.server.settings, "calibration_policy": "evaluations"}
        found.server.start()
        found.server.challenge, client = "", found.server.open_client()
        for device in others:
            device._client = client
        assert found.server.ask("POST", "/v1/evaluations").status_code == 202
        found.evaluate(after=1, devices=others[::-1])
        assert found.closed(2)["outcome"] == "calibrated"
        assert found.server.released()["calibrated_by"] == "evaluation"


def test_few_people_release_nothing_and_are_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(synthetic.EVALUATED, evaluation_share=0.2)
    with harness.serving(tmp_path, config=config) as server:
        found = Party(server, harness.devices_of(server, 3), Answers({}))
        version = found.train(scatter=SCATTER)
        harness.eventually(lambda: bool(evaluations(server)))
        (only,) = evaluations(server)
        assert (only["state"], only["outcome"], only["asked"]) == ("failed", "kept", 0)
        assert only["reasons"][0].startswith("0 of 3 people here only evaluate; it takes 8 of them")
        assert server.ask("GET", "/v1/models/current").json()["model_version"] != version
        candidate = server.ask("GET", "/v1/releases/candidate").json()
        assert any("only evaluate" in reason for reason in candidate["reasons"])
        assert harness.command("releases", "--data", str(server.data), "evaluations") == 0
        printed = capsys.readouterr().out
        assert printed.count("0 of 3 people here only evaluate") == 1
        assert "about 48 people in all" in printed
        assert server.ask("GET", "/v1/training").json()["outlook"] in printed
        assert harness.command("releases", "--data", str(server.data), "show") == 0
        assert re.search(r"calibrated on +\S", capsys.readouterr().out)
        assert harness.command("cohort", "--data", str(server.data), "add", str(cohort_file(tmp_path))) == 0
        assert "nothing is scored against it: this deployment evaluates by 'moments'" in capsys.readouterr().out


def test_rounds_go_on_where_too_few_are_there_to_evaluate(tmp_path: Path) -> None:
    """Four of twelve answer, one of them slowly: she is waited for, the absent eight for a tenth of the time."""
    config = replace(synthetic.EVALUATED, deadline_s=40.0)
    with party(tmp_path, config=config, settings={"absent_after": "0.1"}) as found:
        evaluators = [device for device in found.devices if device not in found.trainers]
        slow, *others = evaluators[:4]
        header = synthetic.evaluation(slow)
        assert header is not None
        report = found.answers.report(slow, synthetic.task_of(slow, header))
        assert found.evaluate(after=0, devices=others) == 1
        time.sleep(6.0)  # longer than the four seconds for which nobody else came
        assert evaluations(found.server)[0]["state"] == "collecting"
        assert synthetic.put(slow, header, synthetic.sealed(slow, header, report)).status_code == 201
        answered = time.monotonic()
        first = found.closed(1)
        assert 2.0 < time.monotonic() - answered < 25.0  # and not the forty seconds of the deadline
        assert (first["state"], first["outcome"], first["arrived"]) == ("failed", "kept", 4)
        assert first["reasons"][0] == "4 of the 12 people who only evaluate have answered, 8 are the least"
        asked = found.trainers[0].request("GET", "/v1/rounds/current?after=0&wait_s=20")
        assert asked.status_code == 200, asked.text  # a round is open


def test_a_server_killed_at_every_point_comes_to_the_same_release_once(tmp_path: Path) -> None:
    """At each point once, one after another: no acknowledged report is lost, and one release is made. Then training
    goes back to its start, killed before and after the transaction in which it does.
    """
    points = iter([*observer.EVALUATION_POINTS, "", observer.EVALUATION_APPLIED, observer.TRAINING_RETURNED, ""])
    config = replace(synthetic.EVALUATED, rounds=3, evaluate_every=2)
    server = KillableServer(tmp_path, config=config)
    server.settings = {"start_after_users": "20"}
    server.start(kill_at=next(points), kill_times=2)
    devices, kills = synthetic.join(server), 0
    found = Party(server, devices, Answers({}))

    def again() -> None:
        """Start it anew, to be killed at the next point."""
        nonlocal kills
        assert server.process is not None
        server.process.wait(timeout=120)
        kills += 1
        server.start(kill_at=next(points), kill_times=2 if kills < 3 else 1)

    def tell(device: SyntheticDevice, *, after: int) -> None:
        header, body = None, b""
        while True:
            try:
                header = header or synthetic.evaluation(device, after=after)
                assert header is not None
                report = found.answers.report(device, synthetic.task_of(device, header))
                body = body or synthetic.sealed(device, header, report)
                assert synthetic.put(device, header, body).status_code in (200, 201)
                break
            except httpx.TransportError:
                again()

    def state(number: int) -> str:
        try:
            return str(evaluations(server)[number - 1]["state"])
        except httpx.TransportError:
            again()
            return ""

    for device in devices:
        tell(device, after=0)
    harness.eventually(lambda: state(1) == "closed")
    assert kills == len(observer.EVALUATION_POINTS)
    (only,) = evaluations(server)
    assert (only["arrived"], only["outcome"], only["release"]) == (20, "calibrated", 2)
    assert [item["cause"] for item in releases(server)] == ["founding", "calibration"]

    # One of eight says anew who they are, and one leaves: the state to return to knows as well.
    assert server.process is not None
    server.process.kill()
    again()
    start = candidate_of(server)
    leaver, renewed, *others = found.trainers
    assert renewed.wait() is not None
    assert renewed.admit(samples=9).status_code == 204
    found.train(scatter=SCATTER)
    assert leaver.request("DELETE", f"/v1/users/{leaver.user}").status_code == 204
    found.devices.remove(leaver)
    worse = found.train(scatter=10 * SCATTER, after=1, devices=[renewed, *others])
    for device in found.devices:
        tell(device, after=1)
    harness.eventually(lambda: state(2) == "closed")
    assert kills == len(observer.EVALUATION_POINTS) + 3
    assert evaluations(server)[1]["candidate"] == worse
    training = {"best": start, "worse": True, "returned_to": start, "centred": None, "step": 0.5}
    assert evaluations(server)[1]["summary"]["training"] == training
    assert server.rows("SELECT step, worse, best, kept_version FROM course") == [(0.5, 1, start, None)]
    columns = {
        "deployment": ("base_blob", "algorithm_blob", "optimiser_blob"),
        "models": ("theta_blob", "calibration_blob"),
        "releases": ("calibration_blob",),
    }
    named = {
        name
        for table, chosen in columns.items()
        for row in server.rows(f"SELECT {', '.join(chosen)} FROM {table}")
        for name in row
    }
    assert {path.name for path in (server.data / "blobs").iterdir()} == named - {None}
    found.train(scatter=SCATTER, after=2, devices=[renewed, *others])
    told = server.ask("GET", "/v1/training").json()
    assert (told["users"], told["committed_rounds"], told["step"]) == (7, 3, 0.5)
    server.stop()


def test_real_devices_answer_also_after_they_were_away(tmp_path: Path) -> None:
    model = shipped().with_theta(seeing(6))
    settings = {"start_after_users": str(PEOPLE)}
    with harness.serving(tmp_path, model=model, config=evaluation_fleet.EVALUATED, settings=settings) as server:
        fleet = Fleet(server, tmp_path, Towards(seeing(32)))
        fleet.join()
        fleet.participate()
        first, last = evaluations(server)
        assert (first["cause"], first["arrived"]) == ("start", PEOPLE)
        assert (last["cause"], last["arrived"], last["outcome"]) == ("rest", PEOPLE, "released"), last["reasons"]
        assert len(fleet.answers) >= 2 * PEOPLE - 2  # the last who joined may have answered the first at once
        assert {item.state for item in fleet.answers} == {"uploaded"}
        assert server.ask("GET", "/v1/models/current").json()["model_version"] == last["candidate"]


def test_three_people_are_calibrated_against_the_operators_cohort(tmp_path: Path) -> None:
    """Nobody only evaluates: what verifies is calibrated, the candidate stays, and the reasons say what is missing."""
    file = cohort_file(tmp_path)
    config = replace(synthetic.EVALUATED, evaluation="cohort", min_clients=4)  # so that no round begins
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "3"}) as server:
        data = ["--data", str(server.data)]
        assert harness.command("cohort", *data, "add", str(file)) == 0
        assert harness.command("cohort", *data, "show") == 0
        found = Party(server, harness.devices_of(server, 3), Answers({}))
        assert found.evaluate(after=0) == 1
        first = found.closed(1)
        assert (first["cause"], first["impostors"], first["outcome"]) == ("start", "cohort", "calibrated")
        assert releases(server)[-1]["cause"] == "calibration"
        blobs = [row[0] for row in server.rows("SELECT cohort_blob FROM deployment")]
        sealed = (server.data / "blobs" / blobs[0]).read_bytes()
        assert file.read_bytes()[:64] not in sealed
        assert harness.command("cohort", *data, "remove") == 0
        assert not (server.data / "blobs" / blobs[0]).exists()
        refused = server.ask("POST", "/v1/evaluations")
        assert (refused.status_code, kind(refused)) == (409, "evaluation-off")
        assert harness.command("releases", *data, "evaluations") == 0
        assert harness.command("releases", *data, "resume") == 0


def test_a_device_that_was_away_sends_its_report_once_and_drops_one_that_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first evaluation person 0's answer is lost, and person 1 is away until it is over."""
    put, lost, over = Connection.put, list[bytes](), threading.Event()

    def through_a_tunnel(self: Connection, path: str, body: bytes, **more: bytes) -> object:
        name = threading.current_thread().name
        if path == "/v1/evaluations/1/report" and name == "person 1" and not over.wait(timeout=0.1):
            raise ServerUnreachableError("no network")
        answer = put(self, path, body, **more)
        if path == "/v1/evaluations/1/report" and name == "person 0":
            lost.append(body)
            if len(lost) == 1:
                raise ServerUnreachableError("the answer was lost")
        return answer

    config = replace(synthetic.EVALUATED, evaluation="cohort", deadline_s=8.0)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "3"}) as server:
        data = ["--data", str(server.data)]
        assert harness.command("cohort", *data, "add", str(cohort_file(tmp_path))) == 0
        server.model = shipped()
        fleet = Fleet(server, tmp_path, FixedTrainer(), count=3)
        monkeypatch.setattr(Connection, "put", through_a_tunnel)
        fleet.join(range(3))
        threads = threading.Thread(target=fleet.participate, daemon=True)
        threads.start()
        harness.eventually(lambda: [item["state"] for item in evaluations(server)][:1] == ["failed"])
        over.set()
        first = evaluations(server)[0]
        assert first["arrived"] == 2
        assert "200 impostor trials of 2 people" in first["reasons"][0]  # two people against a hundred strangers
        refused = 'uvsdk_reports_total{outcome="evaluation-closed"} 1.0'
        harness.eventually(lambda: refused in server.ask("GET", "/metrics").text)
        assert 'uvsdk_reports_total{outcome="repeated"} 1.0' in server.ask("GET", "/metrics").text
        assert len(lost) == 2
        assert lost[0] == lost[1]  # byte for byte, so that the server knows it again
        threads.join(timeout=60)
        assert not threads.is_alive()
        assert {item.state for item in fleet.answers if item.evaluation_id == 2} == {"uploaded"}
        assert server.candidate()["round_id"] == 1
