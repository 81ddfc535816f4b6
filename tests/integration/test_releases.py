"""What verifies is a release: numbered, signed, apart from what is trained, and never taken from anybody."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import alembic.command
import httpx
import numpy as np
import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, SyntheticDevice, command, kind
from tests.integration.test_server_deletion import found, traces
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import SealError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import pack, unpack
from uvsdk.release.gate import Verdict
from uvsdk.release.record import Evaluation, Policy, Release, verify_release
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Calibration
from uvsdk.scoring.record import to_bytes
from uvsdk.scoring.tail import Tail
from uvsdk_server import Settings, monitoring
from uvsdk_server.calibrations import open_base
from uvsdk_server.keys import KeyFolder
from uvsdk_server.monitoring import Metrics
from uvsdk_server.observer import Unobserved
from uvsdk_server.releases import Releases
from uvsdk_server.store import ledger
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.database import Database, migrations
from uvsdk_server.store.schema import deployment

Answer = TypeVar("Answer")

SCORES = np.linspace(-1, 0.5, 2000, dtype=np.float32)
HIGHER = np.linspace(-1, 0.6, 2000, dtype=np.float32)
GRACE_S = 30 * 86_400.0

FOUND = Evaluation(
    evaluation_id=4,
    impostors="moments",
    people=21,
    trials=84,
    fmr=0.01,
    fmr_low=0.007,
    fmr_high=0.015,
    threshold=0.31,
    fnmr=0.02,
    fnmr_low=0.01,
    fnmr_high=0.04,
    worst_fnmr=0.2,
    measured_unix_s=5.0,
)
PASSES = Verdict(True, (), -0.01, (-0.03, 0.01))
FAILS = Verdict(False, ("at a false match rate of 0.01 it rejects 9.0 % of genuine trials",), 0.05, (0.02, 0.08))


class Trained:
    """A server whose devices have trained one round; the first device's person is verified here."""

    def __init__(self, server: RunningServer, count: int = 3) -> None:
        self.server = server
        self.devices = harness.devices_of(server, count)
        self.device = self.devices[0]
        self.rounds = 0

    def train(self) -> str:
        """One more round; the candidate's version."""
        harness.play_round(self.devices, self.rounds)
        self.rounds += 1
        harness.eventually(lambda: self.server.candidate()["round_id"] == self.rounds)
        return str(self.server.candidate()["model_version"])

    def enrol(self) -> None:
        """The device hands over a template of what verifies, with the threshold of its own calibration."""
        assert self.device.hand_over(template_of(self.server, self.device)).status_code == 204

    def verified(self, cosine: float = 0.9, version: str | None = None) -> httpx.Response:
        """A probe at that cosine from the template, by default under the model that the template is of."""
        if version is None:
            newest = "SELECT model_version FROM templates WHERE user = '{}' ORDER BY received DESC"
            version = self.server.rows(newest.format(self.device.user))[0][0]
        body = {"user": self.device.user, "embedding": at(self.device, cosine), "model_version": version}
        return self.server.ask("POST", "/v1/verify", json=body)


def decisions(answers: list[httpx.Response]) -> list[dict[str, Any]]:
    """What was decided and by which threshold, but for the number of the release that said so."""
    assert all(answer.status_code == 200 for answer in answers)
    return [{name: value for name, value in answer.json().items() if name != "basis"} for answer in answers]


def template_of(server: RunningServer, device: SyntheticDevice) -> Any:
    """A template of the released bundle, as a device that follows makes it: with its threshold."""
    bundle = Bundle.from_bytes(server.ask("GET", "/v1/models/current/bundle").content)
    assert bundle.calibration is not None
    threshold = bundle.calibration.threshold(0.01)
    return harness.Template(device.direction(0), bundle.version, CONFIG.modality, 3, threshold, {})


def at(device: SyntheticDevice, cosine: float) -> list[float]:
    direction = device.direction(0).astype(np.float64)
    other = np.random.default_rng(3).standard_normal(len(direction))
    other -= (other @ direction) * direction
    other /= np.linalg.norm(other)
    return [float(value) for value in cosine * direction + np.sqrt(1 - cosine**2) * other]


def calibrate(server: RunningServer, version: str, scores: Float32 = SCORES) -> httpx.Response:
    target = f"/v1/models/{version}/calibration"
    return server.ask("PUT", target, content=scores.tobytes(), headers={"UVSDK-Source": "synthetic"})


def numbers(server: RunningServer) -> list[tuple[int, str]]:
    return [(item["number"], item["cause"]) for item in server.ask("GET", "/v1/releases").json()["releases"]]


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Trained]:
    with harness.serving(tmp_path, settings={"start_after_users": 3, "default_fmr": 0.01}) as server:
        yield Trained(server)


def test_the_first_release_is_what_the_server_began_with(trained: Trained) -> None:
    server, bundle = trained.server, shipped().without_cohort()
    answer = trained.device.request("GET", "/v1/releases/current").json()
    assert bundle.calibration is not None
    expected = {
        "deployment": "integration",
        "number": 1,
        "model_version": bundle.version,
        "bundle": bundle.digest,
        "calibration": bundle.calibration.digest,
        "replaces": 0,
        "round_id": 0,
        "algorithm": "fedaws",
        "config_digest": server.config.digest(),
        "cause": "founding",
        "evaluation": [],
        "kept": True,
        "refusals": 0,
    }
    assert {name: answer[name] for name in expected} == expected
    release = unpack(Release, base64.b64decode(answer["record"]))
    key, signature = trained.device.server_signing_key(), base64.b64decode(answer["signature"])
    assert pack(release) == base64.b64decode(answer["record"])
    verify_release(release, signature, key)
    with pytest.raises(SealError):
        verify_release(replace(release, bundle="0" * 64), signature, key)
    file = server.ask("GET", "/v1/releases/1/bundle")
    served = Bundle.from_bytes(file.content, trusted=[key])
    assert served.digest == release.bundle
    again = server.ask("GET", "/v1/releases/1/bundle", headers={"If-None-Match": file.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.ask("GET", "/v1/models/current/bundle").content == file.content
    for missing in ("/v1/releases/2", "/v1/releases/2/bundle"):
        assert kind(server.ask("GET", missing)) == "unknown-release"


def test_a_candidate_becomes_a_release_and_is_rolled_back_bit_for_bit(trained: Trained) -> None:
    server = trained.server
    trained.enrol()
    before = decisions([trained.verified(cosine) for cosine in (0.9, 0.4, 0.1)])
    assert [item["accepted"] for item in before] == [True, True, False]
    version = trained.train()
    assert decisions([trained.verified(cosine) for cosine in (0.9, 0.4, 0.1)]) == before
    candidate = server.ask("GET", "/v1/releases/candidate").json()
    assert (candidate["model_version"], candidate["calibrated"], candidate["verdict"]) == (version, False, None)
    assert candidate["reasons"] == ["it has not been evaluated yet, and no operator has calibrated it"]
    refused = server.ask("POST", "/v1/releases", json={"model_version": version})
    assert (refused.status_code, kind(refused)) == (409, "uncalibrated")
    refused = server.ask("POST", "/v1/releases", json={"model_version": "0" * 64})
    assert (refused.status_code, kind(refused)) == (404, "unknown-model")

    # An operator's measurement, here a whole calibration that names its people, releases the candidate.
    tail = Tail(0.0, 0.1, 50, 40, 1e-4, np.zeros((0, 2)))
    record = Calibration(tail.values(), version, "fifty people", people=90, measured_unix_s=7.0, tail=tail)
    assert kind(server.ask("PUT", f"/v1/models/{shipped().version}/calibration", content=to_bytes(record))) == (
        "invalid-request"
    )
    assert server.ask("PUT", "/v1/models/candidate/calibration", content=to_bytes(record)).status_code == 204
    assert server.released()["calibration"] == record.digest
    assert numbers(server) == [(2, "operator"), (1, "founding")]
    assert server.ask("GET", "/v1/releases/candidate").json()["reasons"] == []
    # The device has not followed: its person is verified as ever.
    assert decisions([trained.verified(cosine) for cosine in (0.9, 0.4, 0.1)]) == before
    assert "uvsdk_former_release_verifications_total 3.0" in server.ask("GET", "/metrics").text
    trained.enrol()
    renewed = decisions([trained.verified(cosine) for cosine in (0.9, 0.4, 0.1)])
    assert {item["model_version"] for item in renewed} == {version}
    assert renewed[0]["threshold"]["score"] == record.threshold(0.01).score

    # Again, nothing is made.
    repeated = server.ask("POST", "/v1/releases", json={"model_version": version})
    assert (repeated.status_code, repeated.json()["number"]) == (201, 2)
    rolled = server.ask("POST", "/v1/releases/roll-back", json={})
    assert rolled.status_code == 201
    assert (rolled.json()["number"], rolled.json()["replaces"], rolled.json()["cause"]) == (3, 2, "roll-back")
    first = server.ask("GET", "/v1/releases/1").json()
    assert rolled.json()["bundle"] == first["bundle"]
    assert decisions([trained.verified(cosine, shipped().version) for cosine in (0.9, 0.4, 0.1)]) == before
    assert (
        decisions([trained.verified(cosine, version) for cosine in (0.9, 0.4, 0.1)]) == renewed
    )  # an integrator behind
    file = server.ask("GET", "/v1/releases/3/bundle")
    assert Bundle.from_bytes(file.content).digest == first["bundle"]
    for number in (1, 3):  # where it is already, and not one further back
        assert server.ask("POST", "/v1/releases/roll-back", json={"number": number}).json()["number"] == 3
    nothing = server.ask("POST", "/v1/releases/roll-back", json={})
    assert (nothing.status_code, kind(nothing)) == (404, "unknown-release")
    assert kind(server.ask("POST", "/v1/releases/roll-back", json={"number": 9})) == "unknown-release"


def test_a_roll_back_holds_what_would_be_released_until_an_operator_promotes(trained: Trained) -> None:
    server = trained.server
    trained.train()
    server.promote(scores=SCORES)
    server.ask("POST", "/v1/releases/roll-back", json={})
    version = trained.train()
    assert calibrate(server, version).status_code == 204
    assert numbers(server)[0] == (3, "roll-back")
    candidate = server.ask("GET", "/v1/releases/candidate").json()
    assert (candidate["policy"], candidate["held"]) == ("manual", True)
    assert candidate["reasons"] == [
        "it is calibrated and has not been evaluated",
        "an operator has rolled back, so that an operator promotes the next one",
    ]
    assert server.promote(version)["number"] == 4
    candidate = server.ask("GET", "/v1/releases/candidate").json()
    assert (candidate["policy"], candidate["held"], candidate["reasons"]) == ("automatic", False, [])
    # Twice back is two steps back, not back and forth.
    trained.train()
    server.promote(scores=SCORES)
    steps = [server.ask("POST", "/v1/releases/roll-back", json={}).json()["bundle"] for _ in range(2)]
    assert steps == [server.ask("GET", f"/v1/releases/{number}").json()["bundle"] for number in (4, 1)]


@pytest.mark.parametrize("policy", ["manual", "frozen"])
def test_who_releases(tmp_path: Path, policy: str) -> None:
    settings = {"start_after_users": 3, "release_policy": policy}
    with harness.serving(tmp_path, settings=settings) as server:
        trained = Trained(server)
        version = trained.train()
        assert calibrate(server, version).status_code == 204  # kept, and no more
        assert numbers(server) == [(1, "founding")]
        assert server.ask("PUT", "/v1/releases/policy", json={"policy": "automatic"}).json() == {"policy": policy}
        answer = server.ask("POST", "/v1/releases", json={"model_version": version})
        recalibrated = calibrate(server, version if policy == "manual" else shipped().version, HIGHER)
        if policy == "manual":
            assert answer.json()["number"] == 2
            assert recalibrated.status_code == 204
            assert numbers(server)[0] == (3, "calibration")
            assert server.ask("PUT", "/v1/releases/policy", json={"policy": "frozen"}).json() == {"policy": "frozen"}
            assert kind(calibrate(server, version)) == "release-frozen"
            assert server.ask("POST", "/v1/releases/roll-back", json={"number": 1}).json()["number"] == 4
            assert server.ask("PUT", "/v1/releases/policy", json={"policy": "automatic"}).json() == {"policy": policy}
        else:
            assert (answer.status_code, kind(answer)) == (409, "release-frozen")
            assert (recalibrated.status_code, kind(recalibrated)) == (409, "release-frozen")
            assert "releases are frozen" in server.ask("GET", "/v1/releases/candidate").json()["reasons"]


def test_a_former_template_verifies_within_the_grace_and_not_after(trained: Trained) -> None:
    server = trained.server
    trained.enrol()
    version = trained.train()
    server.promote(scores=SCORES)
    server.change("UPDATE releases SET created = created - ?", GRACE_S - 60)
    assert trained.verified().json()["model_version"] == shipped().version
    server.change("UPDATE releases SET created = created - ?", 61)
    for asked in (shipped().version, version):
        answer = trained.verified(version=asked)
        expected = "model-mismatch" if asked == shipped().version else "template-outdated"
        assert (answer.status_code, kind(answer)) == (409, expected)
    trained.enrol()
    assert trained.verified().json()["model_version"] == version


def test_a_new_calibration_is_a_release_and_the_former_one_decides_until_the_device_follows(trained: Trained) -> None:
    server, bundle = trained.server, shipped()
    trained.enrol()
    assert bundle.calibration is not None
    former = trained.verified().json()["threshold"]
    assert calibrate(server, "current", HIGHER).status_code == 204
    assert numbers(server) == [(2, "calibration"), (1, "founding")]
    assert trained.verified().json()["threshold"] == former
    trained.enrol()
    expected = Calibration.from_scores(HIGHER, model_version=bundle.version, source="synthetic").threshold(0.01)
    assert trained.verified().json()["threshold"]["score"] == expected.score
    assert server.rows("SELECT count(*) FROM templates") == [(2,)]
    server.ask("POST", "/v1/releases/roll-back", json={})
    assert trained.verified().json()["threshold"] == former


def test_old_releases_are_let_go_of_unless_somebody_is_verified_by_them(tmp_path: Path) -> None:
    settings = {"start_after_users": 1000, "keep_releases": 2}
    with harness.serving(tmp_path, settings=settings) as server:
        trained = Trained(server, 1)
        trained.enrol()
        for step in range(3):
            assert calibrate(server, "current", np.linspace(-1, 0.5 + step / 100, 2000, dtype=np.float32)).is_success
        kept = [item["kept"] for item in server.ask("GET", "/v1/releases").json()["releases"]]
        assert kept == [True, True, False, True]  # the oldest, for its person's template is of it
        assert trained.verified().status_code == 200
        gone = server.ask("POST", "/v1/releases/roll-back", json={"number": 2})
        assert (gone.status_code, kind(gone)) == (404, "unknown-release")
        assert kind(server.ask("GET", "/v1/releases/2/bundle")) == "unknown-release"
        assert server.ask("GET", "/v1/releases/2").status_code == 200
        trained.enrol()
        server.change("DELETE FROM templates WHERE received < (SELECT max(received) FROM templates)")
        assert calibrate(server, "current").is_success
        kept = [item["kept"] for item in server.ask("GET", "/v1/releases").json()["releases"]]
        assert kept == [True, True, False, False, False]
        names = {name for (name,) in server.rows("SELECT calibration_blob FROM releases WHERE kept")}
        named = server.rows("SELECT base_blob, algorithm_blob, optimiser_blob, theta_blob FROM deployment, models")
        assert {path.name for path in (server.data / "blobs").iterdir()} == {*names, *named[0]}


def test_a_deletion_takes_the_templates_of_every_release_and_the_refusals(trained: Trained) -> None:
    server, device = trained.server, trained.device
    trained.enrol()
    calibrate(server, "current", HIGHER)
    trained.enrol()
    for _ in range(2):  # its first answer was lost: it is counted once
        assert device.request("POST", "/v1/releases/2/refusal").status_code == 204
    assert server.released()["refusals"] == 1
    assert kind(device.request("POST", "/v1/releases/3/refusal")) == "unknown-release"
    wanted = traces(server, device.user)
    assert len(wanted) == 4  # the id as text and raw, two templates
    assert server.ask("DELETE", f"/v1/users/{device.user}").status_code == 204
    assert found(server, wanted) == []
    assert server.rows("SELECT (SELECT count(*) FROM templates) + (SELECT count(*) FROM refusals)") == [(0,)]
    assert server.released()["refusals"] == 0


def test_nobody_is_refused_while_rounds_and_releases_go_on(tmp_path: Path) -> None:
    """Somebody verifies without pause through rounds, releases and roll-backs, and is accepted every time."""
    with harness.serving(tmp_path, settings={"start_after_users": 3}) as server:
        trained = Trained(server)
        trained.enrol()
        server.ask("GET", "/healthz")
        stop, answers = threading.Event(), list[tuple[int, bool]]()
        token = server.token("verify", "scores", "embeddings")

        def verify() -> None:
            body = {"user": trained.device.user, "embedding": at(trained.device, 0.9)}
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                while not stop.is_set():
                    answer = client.post("/v1/verify", json={**body, "model_version": shipped().version})
                    answers.append((answer.status_code, answer.status_code == 200 and answer.json()["accepted"]))

        thread = threading.Thread(target=verify)
        thread.start()
        try:
            for _ in range(2):
                trained.train()
                server.promote(scores=SCORES)
                trained.enrol()
            server.ask("POST", "/v1/releases/roll-back", json={})
            server.ask("POST", "/v1/releases/roll-back", json={})
            calibrate(server, "current", HIGHER)
        finally:
            stop.set()
            thread.join(60)
        assert set(answers) == {(200, True)}
        assert len(answers) > 10


# What an evaluation calls


def beside(
    server: RunningServer, work: Callable[[Releases], Awaitable[Answer]], policy: Policy = "automatic"
) -> Answer:
    """The releases of a server's folder, in another process's place."""

    async def run() -> Answer:
        settings = Settings.model_validate({**server.settings, "data": server.data, "release_policy": policy})
        database = Database(f"sqlite+aiosqlite:///{server.data}/server.sqlite3")
        try:
            async with database.read() as connection:
                row = await ledger.deployment_row(connection)
            assert row is not None
            files, base = KeyFolder(server.data / "keys"), Blobs(server.data / "blobs").read(row.base_blob)
            return await work(
                Releases.of(
                    settings,
                    database,
                    lambda: open_base(base, files.at_rest),
                    config=TrainingConfig.from_json(row.config),
                    files=files,
                    clock=lambda: 1e9,
                    watcher=Unobserved(),
                    metrics=Metrics(),
                    log=monitoring.logger("error"),
                )
            )
        finally:
            await database.close()

    return asyncio.run(run())


def test_what_an_evaluation_finds_is_kept_shown_and_released_in_one_transaction(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    server = trained.server
    version = trained.train()
    calibration = Calibration.from_scores(SCORES, model_version=version, source="21 devices", people=21)

    def considered(
        verdict: Verdict, also: Callable[[AsyncConnection], Awaitable[None]] | None = None, policy: Policy = "automatic"
    ) -> Release | None:
        return beside(
            server,
            lambda releases: releases.consider(version, verdict, calibration=calibration, evaluation=FOUND, also=also),
            policy,
        )

    assert considered(FAILS) is None
    answer = server.ask("GET", "/v1/releases/candidate").json()
    assert answer["reasons"] == list(FAILS.reasons)
    assert answer["verdict"]["change"] == [{"change": 0.05, "low": 0.02, "high": 0.08}]
    assert answer["verdict"]["evaluation"][0]["people"] == 21
    assert answer["calibrated"]
    assert command("releases", "--data", str(server.data), "show", "candidate") == 0
    shown = capsys.readouterr().out
    assert "rejects 9.0 % of genuine trials" in shown
    assert "fails" in shown
    assert "+5.0% [+2.0%, +8.0%]" in shown
    assert considered(PASSES, policy="manual") is None
    assert numbers(server) == [(1, "founding")]

    async def fails(connection: AsyncConnection) -> None:
        await connection.execute(text("UPDATE deployment SET seed = '9'"))
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        considered(PASSES, fails)
    assert numbers(server) == [(1, "founding")]
    assert server.rows("SELECT seed FROM deployment") == [("7",)]
    blobs = {path.name for path in (server.data / "blobs").iterdir()}

    async def closed(connection: AsyncConnection) -> None:
        await connection.execute(update(deployment).values(seed="8"))

    released = considered(PASSES, closed)
    assert released is not None
    assert (released.number, released.cause, released.evaluation) == (2, "gate", (FOUND,))
    assert released.calibration == calibration.digest
    assert server.rows("SELECT seed FROM deployment") == [("8",)]
    assert server.released()["number"] == 2  # of which the running server was told by nobody
    assert server.ask("GET", "/v1/models/current").json()["model_version"] == version
    assert len(blobs) >= len({path.name for path in (server.data / "blobs").iterdir()})
    # The same model under a calibration of later: the cause says so.
    later = replace(calibration, source="24 devices")
    again = beside(server, lambda releases: releases.consider(version, PASSES, calibration=later))
    assert again is not None
    assert (again.number, again.cause, again.evaluation) == (3, "calibration", ())
    with pytest.raises(Problem, match="no such model version"):
        beside(server, lambda releases: releases.consider("0" * 64, PASSES))


def test_the_command_works_beside_the_server(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    server, data = trained.server, str(trained.server.data)
    trained.enrol()
    version = trained.train()
    assert command("releases", "--data", data, "show", "candidate") == 0
    assert "not released  it has not been evaluated yet" in capsys.readouterr().out
    with pytest.raises(Exception, match="has no impostor scores yet"):
        command("releases", "--data", data, "promote", "candidate")
    assert server.ask("PUT", "/v1/releases/policy", json={"policy": "manual"}).json() == {"policy": "manual"}
    assert calibrate(server, version).status_code == 204
    assert command("releases", "--data", data, "policy") == 0
    assert capsys.readouterr().out == "manual\n"
    assert command("releases", "--data", data, "promote", "candidate") == 0
    assert capsys.readouterr().out == f"release 2 verifies: model {version[:12]}, operator\n"
    assert server.released()["number"] == 2
    assert trained.verified().json()["accepted"]
    trained.enrol()
    assert trained.verified().json()["model_version"] == version
    assert command("releases", "--data", data, "list") == 0
    header, newest, first = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["number", "cause", "model"]
    assert newest.split()[:3] == ["*", "2", "operator"]
    assert first.split()[:2] == ["1", "founding"]
    assert command("releases", "--data", data, "show", "1") == 0
    assert "1 of integration: kept" in capsys.readouterr().out
    assert command("releases", "--data", data, "show") == 0
    assert "2 of integration: verifies" in capsys.readouterr().out
    assert command("releases", "--data", data, "roll-back") == 0
    assert server.released()["cause"] == "roll-back"
    assert command("releases", "--data", data, "policy", "frozen") == 0
    assert kind(server.ask("POST", "/v1/releases", json={"model_version": version})) == "release-frozen"
    for wrong, reason in (
        (("show", "ana"), "is neither"),
        (("show", "9"), "is not known here"),
        (("roll-back", "9"), "is not known here"),
        (("list", "--limit", "0"), "from 1 to"),
        (("promote", "0" * 64), "no such model version"),
    ):
        with pytest.raises(Exception, match=reason):
            command("releases", "--data", data, *wrong)


# What was before


def test_a_folder_of_before_releases_begins_with_the_model_that_verified(tmp_path: Path) -> None:
    """Its model becomes release 1 with its calibration, its templates stay."""
    server = RunningServer(tmp_path, settings={"start_after_users": 3})
    server.start()
    trained = Trained(server)
    version = trained.train()
    calibrate(server, version)
    trained.enrol()
    (before,) = decisions([trained.verified()])
    assert before["model_version"] == version
    server.stop()

    def downgrade(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        alembic.command.downgrade(config, "0010")

    async def run() -> None:
        database = Database(f"sqlite+aiosqlite:///{server.data}/server.sqlite3")
        async with database.engine.connect() as connection:
            await connection.run_sync(downgrade)
            await connection.commit()
        await database.close()

    asyncio.run(run())
    assert server.rows("SELECT template_version FROM users WHERE template_sealed IS NOT NULL") == [(version,)]
    server.start()
    try:
        released = server.released()
        assert (released["number"], released["cause"], released["round_id"]) == (1, "founding", 1)
        assert released["model_version"] == version
        assert decisions([trained.verified(version=version)]) == [before]
        trained.device = SyntheticDevice(server, 0)
        record, signature = (base64.b64decode(released[name]) for name in ("record", "signature"))
        verify_release(unpack(Release, record), signature, trained.device.server_signing_key())
        trained.enrol()  # in the place of the one that named no calibration
        assert server.rows("SELECT count(*), max(length(calibration)) FROM templates") == [(1, 64)]
    finally:
        server.stop()
