"""``POST /v1/verify`` over real HTTP, on the shipped digits model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.builders import image_file
from tests.integration import harness
from tests.integration.harness import DIMENSION, RunningServer, SyntheticDevice, kind
from uvsdk.bundle import Bundle, shipped
from uvsdk.scoring import Calibration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"start_after_users": 1000, "pixels_limit": 10_000, "default_fmr": 0.01}
    with harness.serving(tmp_path_factory.mktemp("verify"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def device(server: RunningServer) -> SyntheticDevice:
    """A user whose template is a known direction."""
    joined = SyntheticDevice(server, 1)
    joined.join(server.token("enrol"))
    assert joined.leave_template().status_code == 204
    return joined


def at_cosine(direction: np.ndarray, cosine: float) -> list[float]:
    """A unit vector at that cosine from ``direction``."""
    other = np.random.default_rng(3).standard_normal(len(direction))
    other -= (other @ direction) * direction
    other /= np.linalg.norm(other)
    return [float(value) for value in cosine * direction + np.sqrt(1 - cosine**2) * other]


def test_an_embedding_is_accepted_from_the_threshold_on(server: RunningServer, device: SyntheticDevice) -> None:
    bundle = shipped()
    assert bundle.calibration is not None
    threshold = bundle.calibration.threshold(0.01)
    for cosine in (1.0, threshold.score + 0.01, threshold.score - 0.01, -0.5):
        body = {
            "user": device.user,
            "embedding": at_cosine(device.direction(0).astype(np.float64), cosine),
            "model_version": bundle.version,
        }
        answer = server.ask("POST", "/v1/verify", json=body)
        assert answer.status_code == 200, answer.text
        decision = answer.json()
        assert decision["accepted"] == (cosine >= threshold.score)
        assert decision["score"] == pytest.approx(cosine, abs=1e-6)
        assert decision["score"] == float(np.float32(decision["score"]))
        assert decision["threshold"]["score"] == threshold.score
        assert decision["threshold"]["trials"] == threshold.trials
        assert decision["model_version"] == bundle.version


def test_a_lower_rate_raises_the_threshold(server: RunningServer, device: SyntheticDevice) -> None:
    body = {"user": device.user, "embedding": at_cosine(device.direction(0), 0.5), "model_version": shipped().version}
    scores = [server.ask("POST", "/v1/verify", json={**body, "fmr": fmr}).json()["threshold"] for fmr in (0.01, 0.001)]
    assert scores[0]["score"] < scores[1]["score"]
    answer = server.ask("POST", "/v1/verify", json={**body, "fmr": 1e-9})
    assert (answer.status_code, kind(answer)) == (422, "threshold")
    answer = server.ask("POST", "/v1/verify", json={**body, "fmr": 0.1})
    assert (answer.status_code, kind(answer)) == (422, "laxer-rate")


def test_a_sample_is_read_like_anywhere_else(server: RunningServer) -> None:
    """The template of an image accepts that image: cosine 1."""
    ink = np.zeros((64, 64), np.uint8)
    ink[10:54, 28:36] = 255
    sample = image_file(255 - ink)
    from uvsdk.bundle.inference import embed

    writer = SyntheticDevice(server, 2)
    writer.join(server.token("enrol"))
    assert writer.leave_template(embed(sample, shipped()).embedding).status_code == 204
    body = {"user": writer.user, "sample": base64.b64encode(sample).decode()}
    answer = server.ask("POST", "/v1/verify", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["accepted"]
    assert answer.json()["score"] == pytest.approx(1.0, abs=1e-5)
    assert answer.json()["quality"]["measured"]


@pytest.mark.parametrize(
    ("sample", "status", "name"),
    [
        (b"not an image", 422, "undecodable-sample"),
        (b"", 422, "undecodable-sample"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200), 422, "undecodable-sample"),
        ("damaged avif", 422, "undecodable-sample"),
        (b"\x1aE\xdf\xa3" + bytes(200), 422, "undecodable-sample"),
        ((8, 8), 422, "no-ink"),
        ((200, 200), 413, "sample-too-large"),
    ],
)
def test_a_sample_that_cannot_be_used(
    server: RunningServer, device: SyntheticDevice, sample: bytes | str | tuple[int, int], status: int, name: str
) -> None:
    if isinstance(sample, str):
        sample = image_file(Image.new("L", (64, 64), 255), "AVIF")[:-20] + bytes(20)
    if isinstance(sample, tuple):
        sample = image_file(Image.new("L", sample, 255))
    body = {"user": device.user, "sample": base64.b64encode(sample).decode()}
    answer = server.ask("POST", "/v1/verify", json=body)
    assert (answer.status_code, kind(answer)) == (status, name), answer.text


def test_what_cannot_be_asked(server: RunningServer, device: SyntheticDevice) -> None:
    version = shipped().version
    good = {"user": device.user, "embedding": at_cosine(device.direction(0), 1.0), "model_version": version}
    cases: list[tuple[dict[str, object], int, str]] = [
        ({"user": "c" * 64}, 404, "unknown-user"),
        ({"user": "ana"}, 422, "invalid-request"),
        ({"model_version": "0" * 64}, 409, "model-mismatch"),
        ({"model_version": None}, 422, "invalid-request"),
        ({"embedding": [0.0] * DIMENSION}, 422, "sample"),
        ({"embedding": [1.0] * DIMENSION}, 422, "sample"),
        ({"embedding": [1.0]}, 409, "model-mismatch"),
        ({"embedding": []}, 422, "invalid-request"),
        ({"sample": "AAAA"}, 422, "invalid-request"),
        ({"embedding": None, "sample": "?"}, 400, "malformed"),
        ({"embedding": None}, 422, "invalid-request"),
        ({"fmr": 0}, 422, "invalid-request"),
        ({"fmr": 2}, 422, "invalid-request"),
    ]
    for change, status, name in cases:
        answer = server.ask("POST", "/v1/verify", json={**good, **change})
        assert (answer.status_code, kind(answer)) == (status, name), (change, answer.text)


@pytest.mark.parametrize(("word", "status"), [("NaN", 400), ("-Infinity", 400), ("1e999", 422)])
def test_not_a_number_is_no_embedding(server: RunningServer, device: SyntheticDevice, word: str, status: int) -> None:
    """NaN is no JSON at all; a number that no float holds is JSON, and no embedding."""
    numbers = word + ", 1.0" * (DIMENSION - 1)
    body = f'{{"user": "{device.user}", "model_version": "{shipped().version}", "embedding": [{numbers}]}}'
    answer = server.ask("POST", "/v1/verify", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    kind(answer)


def test_who_may_verify(server: RunningServer, device: SyntheticDevice) -> None:
    body = {"user": device.user, "embedding": at_cosine(device.direction(0), 1.0), "model_version": shipped().version}
    answer = server.ask("POST", "/v1/verify", token="", json=body)
    assert (answer.status_code, kind(answer)) == (401, "unauthorized")
    answer = server.ask("POST", "/v1/verify", token=server.token("enrol"), json=body)
    assert (answer.status_code, kind(answer)) == (403, "forbidden")


def test_a_deleted_user_is_unknown(server: RunningServer) -> None:
    gone = SyntheticDevice(server, 3)
    gone.join(server.token("enrol"))
    assert gone.leave_template().status_code == 204
    body = {"user": gone.user, "embedding": at_cosine(gone.direction(0), 1.0), "model_version": shipped().version}
    assert server.ask("POST", "/v1/verify", json=body).json()["accepted"]
    assert server.ask("DELETE", f"/v1/users/{gone.user}").status_code == 204
    answer = server.ask("POST", "/v1/verify", json=body)
    assert (answer.status_code, kind(answer)) == (404, "unknown-user")


def test_a_trained_model_verifies_nobody_before_it_is_calibrated_and_released(tmp_path: Path) -> None:
    with harness.serving(tmp_path) as server:
        devices = harness.devices_of(server, 3)
        assert devices[0].leave_template().status_code == 204
        harness.play_round(devices, 0)
        harness.eventually(lambda: server.candidate()["round_id"] == 1)
        version = server.candidate()["model_version"]
        released = server.ask("GET", "/v1/models/current").json()
        assert released == {"model_version": shipped().version, "round_id": 0}
        assert version != shipped().version

        def verified(model: str) -> httpx.Response:
            embedding = at_cosine(devices[0].direction(0), 1.0)
            body = {"user": devices[0].user, "embedding": embedding, "model_version": model}
            return server.ask("POST", "/v1/verify", json=body)

        assert verified(shipped().version).json()["accepted"]
        assert kind(verified(version)) == "model-mismatch"
        promoted = server.ask("POST", "/v1/releases", json={"model_version": "candidate"})
        assert (promoted.status_code, kind(promoted)) == (409, "uncalibrated")

        scores = np.linspace(-1, 0.5, 1000, dtype=np.float32)
        target = f"/v1/models/{version}/calibration"
        tag = server.ask("GET", "/v1/models/candidate/bundle").headers["etag"]
        for wrong, status in ((b"abc", 400), (b"", 422), (np.full(9, np.nan, np.float32).tobytes(), 422)):
            answer = server.ask("PUT", target, content=wrong, headers={"UVSDK-Source": "synthetic"})
            assert answer.status_code == status
            kind(answer)
        assert kind(server.ask("PUT", target, content=scores.tobytes())) == "invalid-request"
        answer = devices[0].request("PUT", target, scores.tobytes(), UVSDK_Source="synthetic")
        assert (answer.status_code, kind(answer)) == (401, "unauthorized")
        answer = server.ask("PUT", target, content=scores.tobytes(), headers={"UVSDK-Source": "synthetic"})
        assert answer.status_code == 204
        # An operator's measurement of the candidate releases it; whoever has only the former template keeps verifying.
        assert server.ask("GET", "/v1/models/current").json() == {"model_version": version, "round_id": 1}
        assert verified(shipped().version).json()["accepted"]
        answer = verified(version)
        assert (answer.status_code, kind(answer)) == (409, "model-mismatch")
        assert shipped().version in answer.json()["detail"]
        assert devices[0].leave_template().status_code == 204
        decision = verified(version).json()
        # 1,000 trials measure three in a thousand and nothing lower.
        expected = Calibration.from_scores(scores, model_version=version, source="synthetic").threshold(0.003)
        assert decision["accepted"]
        assert decision["threshold"]["score"] == expected.score

        downloaded = server.ask("GET", "/v1/models/current/bundle")
        assert downloaded.headers["etag"] != tag
        calibration = Bundle.from_bytes(downloaded.content).calibration
        assert calibration is not None
        assert calibration.source == "synthetic"
        answer = devices[0].leave_template(version="0" * 64)
        assert (answer.status_code, kind(answer)) == (409, "wrong-model")
