"""Rounds over real HTTP: from registration to a committed model, deadlines, quorum, retention."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, RunningServer, kind
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import SettingsError
from uvsdk.federation import aggregation
from uvsdk_server.training import check_restricted


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[harness.SyntheticDevice]]]:
    """A server whose four devices have trained three rounds with plain averaging."""
    config = replace(CONFIG, optimiser="sgd")
    # Without start_after_users the first round could open before the fourth device has joined.
    settings = {"keep_models": "2", "start_after_users": "4"}
    with harness.serving(tmp_path_factory.mktemp("finished"), config=config, settings=settings) as server:
        devices = harness.devices_of(server, 4)
        after = 0
        for _ in range(3):
            after = harness.play_round(devices, after)
        harness.eventually(lambda: training_state(devices[0]) == "finished")
        yield server, devices


def training_state(device: harness.SyntheticDevice) -> str:
    answer = device.request("GET", "/v1/rounds/current")
    return answer.headers.get("uvsdk-training", "collecting")


def test_the_model_moves_by_the_weighted_mean_of_the_updates(
    finished: tuple[RunningServer, list[harness.SyntheticDevice]],
) -> None:
    server, devices = finished
    theta = shipped().theta
    ordered = sorted(devices, key=lambda device: device.user)
    weights = aggregation.sample_weights([3 + device.number for device in ordered], server.config)
    for round_id in (1, 2, 3):
        deltas = [device.delta(round_id, len(theta)) for device in ordered]
        mean = np.zeros_like(theta)
        for weight, delta in zip(weights, deltas, strict=True):
            mean += np.float32(weight) * delta
        theta = theta + mean
    downloaded = np.frombuffer(server.ask("GET", "/v1/models/candidate/theta").content, "<f4")
    assert downloaded == pytest.approx(theta, abs=1e-6)


def test_the_bundle_is_whole_and_of_the_version_it_claims(
    finished: tuple[RunningServer, list[harness.SyntheticDevice]],
) -> None:
    server, devices = finished
    current = server.candidate()
    assert current["round_id"] == 3
    answer = devices[0].request("GET", "/v1/models/candidate/bundle")
    bundle = Bundle.from_bytes(answer.content)
    assert bundle.version == current["model_version"]
    assert bundle.theta.tobytes() == server.ask("GET", "/v1/models/candidate/theta").content


def test_an_entity_tag_saves_the_download(finished: tuple[RunningServer, list[harness.SyntheticDevice]]) -> None:
    server, devices = finished
    for path in ("theta", "bundle"):
        tag = server.ask("GET", f"/v1/models/candidate/{path}").headers["etag"]
        again = devices[0].request("GET", f"/v1/models/candidate/{path}", If_None_Match=tag)
        assert (again.status_code, again.content) == (304, b"")
        other = devices[0].request("GET", f"/v1/models/candidate/{path}", If_None_Match='"another"')
        assert other.status_code == 200


def test_only_the_newest_models_are_kept(finished: tuple[RunningServer, list[harness.SyntheticDevice]]) -> None:
    server, _ = finished
    assert server.rows("SELECT round_id FROM models ORDER BY round_id") == [(0,), (2,), (3,)]
    # The one that verifies is not forgotten, however many rounds come after it.
    answer = server.ask("GET", f"/v1/models/{shipped().version}/theta")
    assert answer.content == shipped().theta.tobytes()
    ((gone,),) = server.rows("SELECT result_version FROM rounds WHERE round_id = 1")
    answer = server.ask("GET", f"/v1/models/{gone}/theta")
    assert (answer.status_code, kind(answer)) == (404, "unknown-model")


def test_uploads_are_forgotten_after_the_commit(finished: tuple[RunningServer, list[harness.SyntheticDevice]]) -> None:
    server, _ = finished
    (left,) = server.rows("SELECT count(*), count(blob), count(head_sealed) FROM uploads")
    (named,) = server.rows("SELECT base_blob, algorithm_blob, optimiser_blob FROM deployment")
    kept = server.rows("SELECT theta_blob FROM models UNION SELECT calibration_blob FROM releases")
    kept += server.rows(
        "SELECT algorithm_blob FROM course UNION SELECT optimiser_blob FROM course"
    )  # of the best so far
    assert left == (12, 0, 0)  # the receipts stay, so that a late retry is recognised
    assert {path.name for path in (server.data / "blobs").iterdir()} == {*named, *(name for (name,) in kept)}


def test_after_the_commit_an_update_is_told_that_it_is_late(
    finished: tuple[RunningServer, list[harness.SyntheticDevice]],
) -> None:
    _server, devices = finished
    key = devices[0].sealing.public_key().public_bytes_raw()
    header = harness.RoundHeader("integration", "fedaws", 3, "m" * 64, "", 0.0, "k", key, 4, 1.0)
    late = devices[0].update(header)
    answer = devices[0].upload(header, late)
    assert (answer.status_code, kind(answer)) == (409, "wrong-model")
    answer = devices[0].upload(replace(header, round_id=9), late)
    assert (answer.status_code, kind(answer)) == (409, "wrong-round")


def test_a_task_is_sealed_to_the_device_and_holds_its_own_row(tmp_path: Path) -> None:
    with harness.serving(tmp_path) as server:
        devices = harness.devices_of(server, 3)
        headers = [device.wait() for device in devices]
        vectors = [device.task(header).vector for device, header in zip(devices, headers, strict=True) if header]
        means = np.stack([device.direction(0) for device in devices]).astype(np.float64)
        centred = means - means.mean(axis=0)
        # the shrinking of all means by 0.8 cancels in the direction
        expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
        assert np.stack(vectors) == pytest.approx(expected, abs=1e-5)
        stranger = harness.SyntheticDevice(server, 77)
        answer = stranger.request("GET", "/v1/rounds/1/task")
        assert (answer.status_code, kind(answer)) == (401, "unknown-device")


def test_waiting_devices_hear_of_a_round_when_it_opens(tmp_path: Path) -> None:
    with harness.serving(tmp_path) as server:
        token = server.token("enrol", uses=3)
        devices = [harness.SyntheticDevice(server, number) for number in range(3)]
        for device in devices[:2]:
            device.join(token)
        heard: list[float] = []

        def listen() -> None:
            assert devices[0].wait(wait_s=25) is not None
            heard.append(time.monotonic())

        thread = threading.Thread(target=listen)
        thread.start()
        time.sleep(0.5)
        assert not heard
        devices[2].join(token)
        joined = time.monotonic()
        thread.join(timeout=20)
        assert heard
        assert heard[0] - joined < 5


def test_a_deadline_without_quorum_aborts_and_changes_nothing(tmp_path: Path) -> None:
    config = replace(CONFIG, deadline_s=4.0)  # one upload fits in on a busy machine
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "4"}) as server:
        devices = harness.devices_of(server, 4)
        before = server.candidate()
        header = devices[0].wait()
        assert header is not None
        assert devices[0].upload(header, devices[0].update(header)).status_code == 201
        next_header = devices[0].wait(after=header.round_id, wait_s=20)
        assert next_header is not None
        assert next_header.round_id == 2
        assert server.candidate() == before
        late = devices[1].upload(header, devices[1].update(header))
        assert (late.status_code, kind(late)) == (410, "round-closed")


def test_a_deadline_with_quorum_commits_without_the_slow(tmp_path: Path) -> None:
    config = replace(CONFIG, deadline_s=6.0, rounds=1)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "4"}) as server:
        devices = harness.devices_of(server, 4)
        header = devices[0].wait()
        assert header is not None
        for device in devices[:3]:
            assert device.upload(header, device.update(header)).status_code == 201
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        harness.eventually(lambda: training_state(devices[0]) == "finished")


def test_nobody_waits_for_a_device_whose_update_was_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, deadline_s=600.0)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "4"}) as server:
        devices = harness.devices_of(server, 4)
        headers = [device.wait() for device in devices]
        for device, header in zip(devices[:3], headers[:3], strict=True):
            assert header is not None
            assert device.upload(header, device.update(header)).status_code == 201
        spoiled = devices[3].delta(1, harness.P).copy()
        spoiled[5] = np.nan
        assert headers[3] is not None
        answer = devices[3].upload(headers[3], devices[3].update(headers[3], delta=spoiled))
        assert (answer.status_code, kind(answer)) == (422, "invalid-update")
        # The deadline is ten minutes away; the three others are a quorum of four.
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        assert server.rows("select accepted from rounds where round_id = 1") == [(3,)]


def test_updates_that_all_grow_are_shortened_and_cost_no_round(tmp_path: Path) -> None:
    config = replace(CONFIG, optimiser="sgd")
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "6"}) as server:
        devices = harness.devices_of(server, 6)
        after = harness.play_round(devices, 0)
        announced = []
        for _ in range(2):
            for device in devices:
                header = device.wait(after=after)
                assert header is not None
                grown = device.delta(header.round_id, harness.P) * np.float32(50)
                answer = device.upload(header, device.update(header, delta=grown))
                assert answer.status_code == 201, answer.text
            after = header.round_id
            announced.append(header.clip_norm)
        harness.eventually(lambda: server.candidate()["round_id"] == 3)
        # Three times the median of .1, and then of what counted of the 5 that were sent.
        assert announced == [pytest.approx(0.3, rel=1e-3), pytest.approx(0.9, rel=1e-3)]
        theta = np.frombuffer(server.ask("GET", "/v1/models/candidate/theta").content, "<f4")
        expected = shipped().theta.astype(np.float64)
        for round_id, longest in ((1, 0.1), (2, 0.3), (3, 0.9)):
            expected += np.mean([d.delta(round_id, harness.P) * (longest / 0.1) for d in devices], axis=0)
        np.testing.assert_allclose(theta, expected, atol=1e-4)


def test_one_device_of_twenty_moves_the_model_by_its_share_of_what_the_round_announced(tmp_path: Path) -> None:
    """It claims 1,000 samples and ignores the announced norm, in the first round, later, and after an aborted one."""
    config = replace(CONFIG, optimiser="sgd", rounds=4)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "20"}) as server:
        honest = harness.devices_of(server, 19)
        enemy = harness.SyntheticDevice(server, 19)
        assert enemy.register(server.token("enrol", uses=1)).status_code == 201
        assert enemy.admit(samples=1000).status_code == 204
        theta, after = shipped().theta.astype(np.float64), 0
        for factor in (1e9, -1000.0, 10.0):
            for device in honest:
                header = device.wait(after=after)
                assert header is not None
                assert device.upload(header, device.update(header)).status_code == 201
            round_id = header.round_id
            claimed = replace(enemy.head(header, harness.P), samples=1000)
            poison = enemy.delta(round_id, harness.P) * np.float32(factor)
            assert enemy.upload(header, enemy.update(header, delta=poison, head=claimed)).status_code == 201
            harness.eventually(lambda: server.candidate()["round_id"] == round_id)  # noqa: B023
            moved = np.frombuffer(server.ask("GET", "/v1/models/candidate/theta").content, "<f4").astype(np.float64)
            of_others = np.sum([device.delta(round_id, harness.P) for device in honest], axis=0) / 20
            assert np.linalg.norm(moved - theta - of_others) <= header.clip_norm / 20 + 1e-4
            assert header.clip_norm <= (10.0 if round_id == 1 else 0.31)
            theta, after = moved, round_id
        assert server.rows("select distinct samples from uploads order by 1") == [(5,), (1000,)]  # of the admissions
        assert np.linalg.norm(theta) < np.linalg.norm(shipped().theta) + 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_number_of_samples_is_fixed_at_admission(tmp_path: Path, weighting: str) -> None:
    config = replace(CONFIG, optimiser="sgd", weighting=weighting, rounds=1)
    with harness.serving(tmp_path, config=config, settings={"start_after_users": "3"}) as server:
        token = server.token("enrol", uses=3)
        devices = [harness.SyntheticDevice(server, number) for number in range(3)]
        for device, samples in zip(devices, (10, 20, 30), strict=True):
            assert device.register(token).status_code in (200, 201)
            assert device.admit(samples=samples).status_code == 204
        header = devices[0].wait()
        assert header is not None
        assert devices[0].admit(samples=1000).status_code == 204  # in the middle of the round
        for device in devices:
            head = replace(device.head(header, harness.P), samples=999)
            assert device.upload(header, device.update(header, head=head)).status_code == 201
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        moved = np.frombuffer(server.ask("GET", "/v1/models/candidate/theta").content, "<f4") - shipped().theta
        weights = [1 / 6, 2 / 6, 3 / 6] if weighting == "samples" else [1 / 3] * 3
        expected = np.sum([w * d.delta(1, harness.P) for w, d in zip(weights, devices, strict=True)], axis=0)
        np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_what_was_announced_survives_a_restart_and_an_aborted_round(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, config=replace(CONFIG, optimiser="sgd"), settings={"keep_rounds": 1})
    server.start()
    devices = harness.devices_of(server, 3)
    harness.play_round(devices, 0)
    header = devices[0].wait(after=1)
    assert header is not None
    assert header.clip_norm == pytest.approx(0.3, rel=1e-3)
    server.stop()
    server.config = replace(server.config, learning_rate=0.01)  # aborts the open round
    server.start()
    again = harness.SyntheticDevice(server, 0).wait(after=2)
    assert again is not None
    assert again.clip_norm == header.clip_norm
    server.stop()


def test_a_server_that_would_not_clip_does_not_start() -> None:
    with pytest.raises(SettingsError, match="one device could"):
        check_restricted(replace(CONFIG, clipping="off"), ())


def test_a_cohort_is_drawn_from_the_seed(tmp_path: Path) -> None:
    config = replace(CONFIG, cohort_size=3)
    asked = []
    for run in ("a", "b"):
        with harness.serving(tmp_path / run, config=config, settings={"start_after_users": "6"}) as server:
            devices = harness.devices_of(server, 6)
            harness.eventually(lambda: any(device.wait(wait_s=0) for device in devices))  # noqa: B023
            asked.append([device.number for device in devices if device.wait(wait_s=0)])
            outsider = next(device for device in devices if device.number not in asked[-1])
            header = next(header for device in devices if (header := device.wait(wait_s=0)))
            answer = outsider.upload(header, outsider.update(header))
            assert (answer.status_code, kind(answer)) == (403, "not-selected")
    assert len(asked[0]) == 3
    assert asked[0] == asked[1]


def test_a_changed_configuration_aborts_the_open_round(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.start()
    devices = harness.devices_of(server, 3)
    header = devices[0].wait()
    assert header is not None
    server.stop()
    server.config = replace(CONFIG, learning_rate=0.01)
    server.start()
    again = [harness.SyntheticDevice(server, number) for number in range(3)]
    renewed = again[0].wait(after=1)
    assert renewed is not None
    assert renewed.config_digest == server.config.digest() != header.config_digest
    server.stop()
