"""Offline verification from the encrypted store, and the agent in front of it, on a model done by hand."""

from __future__ import annotations

import base64
import contextlib
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette

from tests.builders import on_loopback
from tests.modality_graphs import register
from tests.unit.conftest import IMPOSTORS, MakeBundle, Numbers
from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk.errors import ExchangedBundleError, ModelMismatchError, SettingsError, ThresholdError, UnknownUserError
from uvsdk.modality import Capture, Prepared, Sample
from uvsdk.scoring import Requirement, assess
from uvsdk.templates.attempts import RetryPolicy
from uvsdk.templates.template import Template
from uvsdk_device.agent import AgentSettings, agent_token, create_app
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import forget_here
from uvsdk_device.reembedding import remake
from uvsdk_device.runtime import Runtime

TOKEN = "the-token"


@pytest.fixture
def bundle(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


class Picky(Numbers):
    """Numbers with a quality: a sample of length below 0.5 is poor, and what is below 0.9 is not for ``strict``."""

    def prepare(self, sample: Sample, bundle: object, *, capture: Capture | None = None) -> Prepared:
        found = super().prepare(sample, bundle)
        length = Requirement("length", "length", "", (0.5, np.inf), (0.9, np.inf), "write larger")
        policy = (capture or Capture()).quality
        return replace(found, quality=assess(found.quality.measured, [length], policy=policy))


def enrol(store: EncryptedStore, bundle: Bundle) -> None:
    """Ana points along x, Bea along y; their samples differ a little along z."""
    enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store)
    enroll("bea", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=bundle, store=store)


def test_the_right_person_is_accepted_and_another_is_not(store: EncryptedStore, bundle: Bundle) -> None:
    enrol(store, bundle)
    runtime = Runtime(store, bundle)
    # Ana's template is (1, 0, 0), so a probe (3, 4, 0) scores 3/5; 1 % of the impostors score above about 0.49.
    assert runtime.verify("ana", b"2 0 0").score == pytest.approx(1.0)
    decision = runtime.verify("ana", b"3 4 0", fmr=0.01)
    assert decision.score == pytest.approx(0.6)
    assert decision.accepted
    assert not runtime.verify("ana", b"0 1 0").accepted
    with pytest.raises(UnknownUserError):
        runtime.verify("cleo", b"1 0 0")


def test_a_newer_model_makes_the_template_again_once(
    store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle
) -> None:
    enrol(store, bundle)
    newer = identity_bundle(IMPOSTORS, name="newer")
    assert newer.version != bundle.version
    with pytest.raises(ExchangedBundleError, match="another model version"):
        Runtime(store, newer)
    store.accept_model(newer)
    assert Runtime(store, newer).verify("ana", b"1 0 0").accepted
    renewed = store.template("ana")
    assert renewed.model_version == newer.version
    assert renewed.threshold is not None
    # Nobody named a rate, so it is the strictest that the newer model's 1,000 trials measure.
    assert (renewed.threshold.fmr, renewed.threshold.by_default) == (0.003, True)
    assert len(store.features("ana")) == 3


def test_a_rate_that_was_named_stays_with_a_newer_model_and_a_default_follows_it(
    store: EncryptedStore, identity_bundle: MakeBundle
) -> None:
    older, newer = identity_bundle(IMPOSTORS), identity_bundle(IMPOSTORS[::2], name="newer")
    enrol(store, older)
    enroll("cleo", [b"0 0 1", b"0 0.1 1", b"0 -0.1 1"], model=older, store=store, fmr=0.01)
    store.accept_model(newer)
    runtime = Runtime(store, newer)
    # 500 trials measure six in a thousand: the default is laxer now, and returns with a model that has more trials.
    assert [runtime.rate(user) for user in ("ana", "cleo")] == [0.006, 0.01]
    assert [Runtime(store, older).rate(user) for user in ("ana", "cleo")] == [0.003, 0.01]
    enroll("cleo", [b"0 0 1", b"0 0.1 1", b"0 -0.1 1"], model=older, store=store, fmr=0.003)
    with pytest.raises(ThresholdError, match="needs at least 1000"):
        runtime.rate("cleo")


def test_a_deployments_rate_is_that_of_people_who_were_enrolled_without_one(identity_bundle: MakeBundle) -> None:
    """A model without calibration gives no threshold, and so keeps no rate; whoever has one keeps it."""
    bundle, features = identity_bundle(IMPOSTORS), [np.array([1, 0, 0], np.float32)]
    bare = Template(np.array([1, 0, 0], np.float32), "older", "numbers", 1)
    for fmr, expected in ((None, (0.003, True)), (0.01, (0.01, False))):
        limit = remake(bare, features, bundle, fmr=fmr).threshold
        assert limit is not None
        assert (limit.fmr, limit.by_default) == expected
    calibration = bundle.calibration
    assert calibration is not None
    named = replace(bare, threshold=calibration.threshold(0.02))
    limit = remake(named, features, bundle, fmr=0.01).threshold
    assert limit is not None
    assert limit.fmr == 0.02


def test_calibration_that_comes_later_gives_the_template_its_threshold(
    store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle
) -> None:
    uncalibrated = identity_bundle()
    enrol(store, uncalibrated)
    with pytest.raises(ThresholdError):
        Runtime(store, uncalibrated).verify("ana", b"1 0 0")
    with pytest.raises(ThresholdError, match="no calibration"):
        Runtime(store, uncalibrated).verify("ana", b"1 0 0", fmr=0.01)
    with pytest.raises(ExchangedBundleError, match=r"the same model version, impostors\.f32 differ"):
        Runtime(store, bundle)
    store.accept_model(bundle)
    assert Runtime(store, bundle).verify("ana", b"1 0 0").accepted


def test_without_features_another_model_is_a_mismatch(
    store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle
) -> None:
    template = Template(np.array([1, 0, 0], np.float32), bundle.version, "numbers", 1)
    store.save_enrolment("ana", template, [])
    with pytest.raises(ModelMismatchError, match="enrol again"):
        Runtime(store, identity_bundle(name="newer")).verify("ana", b"1 0 0")


def test_fifty_threads_never_cross(store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle) -> None:
    """Each thread verifies as one user with a probe of its own angle; every score is that angle's cosine."""
    enrol(store, bundle)
    # Another model, so that they also meet at the re-embedding; no policy, for half of the probes are rejected.
    newer = identity_bundle(IMPOSTORS, name="newer")
    store.accept_model(newer)
    runtime = Runtime(store, newer, retry=None)

    def verify(me: int) -> None:
        angle = me / 50 * np.pi / 2
        cosine, sine = np.cos(angle), np.sin(angle)
        for _ in range(4):
            user, expected = ("ana", cosine) if me % 2 else ("bea", sine)
            decision = runtime.verify(user, f"{cosine} {sine} 0".encode())
            assert decision.score == pytest.approx(expected, abs=1e-5)

    with ThreadPoolExecutor(50) as pool:
        for finished in [pool.submit(verify, me) for me in range(50)]:
            finished.result()


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[httpx.Client]:
    """The app on a real socket, and a client with its token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with on_loopback(app) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        yield client


@pytest.fixture
def agent(store: EncryptedStore, bundle: Bundle) -> Iterator[httpx.Client]:
    enrol(store, bundle)
    settings = AgentSettings(body_limit_bytes=2000)
    forget = partial(forget_here, store=store)
    with serving(create_app(Runtime(store, bundle), token=TOKEN, settings=settings, forget=forget)) as client:
        yield client


def asked(user: str = "ana", sample: bytes = b"1 0 0", **more: object) -> dict[str, object]:
    return {"user": user, "sample": base64.b64encode(sample).decode(), **more}


def problem(response: httpx.Response, *extensions: str) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", *extensions}
    assert body["status"] == response.status_code
    return response.status_code, body["type"].removeprefix("urn:uvsdk:problem:")


def test_the_agent_verifies_and_forgets(agent: httpx.Client, bundle: Bundle, store: EncryptedStore) -> None:
    assert agent.get("/healthz").json() == {"status": "ok", "model_version": bundle.version, "modality": "numbers"}
    answer = agent.post("/v1/verify", json=asked()).json()
    assert answer["accepted"] is True
    assert answer["model_version"] == bundle.version
    # Nothing that a template could be computed from, and no seconds.
    shown = {"accepted", "fmr", "score", "llr", "threshold", "model_version", "quality", "presentations", "basis"}
    assert set(answer) == shown
    assert (answer["score"], answer["llr"], answer["threshold"]) == (None, None, None)
    assert (answer["basis"]["reasons"], answer["basis"]["statistics"]) == (None, None)
    assert answer["basis"]["fmr"] == answer["fmr"]
    assert agent.post("/v1/verify", json=asked(sample=b"0 1 0")).json()["accepted"] is False
    assert problem(agent.post("/v1/verify", json=asked(fmr=0.1))) == (422, "laxer-rate")
    assert agent.post("/v1/verify", json=asked(fmr=0.003)).json()["accepted"]
    store.put("device", [b"keys"], name="a server", user="ana")
    assert problem(agent.delete("/v1/users/ana")) == (409, "still-registered")
    assert "ana" in store.users()
    store.drop("device", name="a server", user="ana")
    assert agent.delete("/v1/users/ana").status_code == 204
    assert problem(agent.post("/v1/verify", json=asked())) == (404, "unknown-user")
    assert problem(agent.delete("/v1/users/ana")) == (404, "unknown-user")


def test_an_agent_that_is_told_to_tells_scores_and_counts_every_answer(store: EncryptedStore, bundle: Bundle) -> None:
    enrol(store, bundle)
    runtime = Runtime(store, bundle)
    app = create_app(
        runtime, token=TOKEN, settings=AgentSettings(scores=True), forget=partial(forget_here, store=store)
    )
    with serving(app) as client:
        answer = client.post("/v1/verify", json=asked()).json()
        assert answer["score"] == pytest.approx(1.0)
        assert set(answer["threshold"]) == {"score", "fmr", "trials", "interval", "scale"}
        assert (answer["threshold"]["scale"], answer["llr"], answer["presentations"]) == ("cosine", None, [])
        statuses = [client.post("/v1/verify", json=asked()).status_code for _ in range(20)]
    assert statuses == [200] * 19 + [429]


def test_the_agent_answers_every_failure_with_a_problem_document(agent: httpx.Client) -> None:
    assert problem(agent.post("/v1/verify", json=asked(sample=b""))) == (422, "no-ink")
    assert problem(agent.post("/v1/verify", json=asked(sample=b"x"))) == (422, "undecodable-sample")
    assert problem(agent.post("/v1/verify", json=asked(fmr=1e-6))) == (422, "threshold")
    for body in (b"", b"{", b"[]", b"{}", b'{"user": "ana", "sample": "!"}', b'{"user": 1, "sample": ""}'):
        assert problem(agent.post("/v1/verify", content=body)) == (400, "malformed")
    for wrong in ({"quality": "loose"}, {"quality": ["off"]}, {"faces": "any"}, {"faces": 1}, {"fmr": True}):
        assert problem(agent.post("/v1/verify", json=asked(**wrong))) == (400, "malformed")
    for laxer in ({"quality": "off"}, {"faces": "largest"}):
        assert problem(agent.post("/v1/verify", json=asked(**laxer))) == (422, "invalid-request")
    assert problem(agent.post("/v1/verify", json=asked(other=1))) == (400, "malformed")
    assert problem(agent.post("/v1/verify", json=asked(sample=bytes(2000)))) == (413, "too-large")
    assert problem(agent.post("/v1/verify", content=iter([bytes(1500)] * 2))) == (413, "too-large")
    assert problem(agent.get("/nothing")) == (404, "not-found")
    assert problem(agent.get("/v1/verify")) == (405, "method-not-allowed")


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer wrong", "Basic dGhlLXRva2Vu", "Bearer the-token-and-more"])
def test_the_agent_wants_its_token(agent: httpx.Client, value: str) -> None:
    headers = {"Authorization": value}
    assert problem(agent.post("/v1/verify", json=asked(), headers=headers)) == (401, "unauthorized")
    assert problem(agent.delete("/v1/users/ana", headers=headers)) == (401, "unauthorized")
    assert agent.get("/healthz", headers=headers).status_code == 200


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    token = agent_token(tmp_path)
    assert len(token) >= 32
    assert agent_token(tmp_path) == token
    assert [path.name for path in tmp_path.iterdir()] == ["agent-token"]
    assert stat.S_IMODE((tmp_path / "agent-token").stat().st_mode) == 0o600


def test_the_agent_listens_on_this_machine_unless_told_otherwise() -> None:
    assert AgentSettings().host == "127.0.0.1"
    with pytest.raises(SettingsError, match="allow-remote"):
        AgentSettings("0.0.0.0")
    AgentSettings("0.0.0.0", allow_remote=True)


def test_the_agent_makes_who_fails_wait_and_then_stops(store: EncryptedStore, bundle: Bundle) -> None:
    enrol(store, bundle)
    policy = RetryPolicy(free_failures=2, first_delay_s=30.0, disabled_at=3)
    now = [1000.0]
    runtime = Runtime(store, bundle, retry=policy, clock=lambda: now[0])
    with serving(create_app(runtime, token=TOKEN, forget=partial(forget_here, store=store))) as client:
        for _ in range(2):
            assert client.post("/v1/verify", json=asked(sample=b"0 1 0")).json()["accepted"] is False
        answer = client.post("/v1/verify", json=asked())
        assert problem(answer) == (429, "too-many-attempts")
        assert answer.headers["retry-after"] == "30"
        now[0] += 30.5
        assert client.post("/v1/verify", json=asked(sample=b"0 1 0")).json()["accepted"] is False
        now[0] += 1e9
        answer = client.post("/v1/verify", json=asked())
        assert problem(answer) == (423, "disabled")
        assert "uvsdk attempts reset" in answer.json()["detail"]
        assert "ana" not in answer.json()["detail"]


def test_the_agent_takes_samples_as_its_operator_says_or_stricter(
    store: EncryptedStore, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("numbers", Picky().record(), monkeypatch)
    enrol(store, bundle)
    for policy, sample, asks, expected in (
        ("standard", b"0.4 0 0", {}, (422, "low-quality")),
        ("standard", b"0.6 0 0", {}, 200),
        ("standard", b"0.6 0 0", {"quality": "strict"}, (422, "low-quality")),
        ("off", b"0.4 0 0", {}, 200),
        ("off", b"0.4 0 0", {"quality": "standard"}, (422, "low-quality")),
        ("strict", b"0.6 0 0", {"quality": "standard"}, (422, "invalid-request")),
    ):
        settings = AgentSettings(capture=Capture(quality=policy))  # type: ignore[arg-type]
        runtime = Runtime(store, bundle)
        app = create_app(runtime, token=TOKEN, settings=settings, forget=partial(forget_here, store=store))
        with serving(app) as client:
            answer = client.post("/v1/verify", json=asked(sample=sample, **asks))
        if isinstance(expected, int):
            assert answer.status_code == expected, answer.text
            advice = answer.json()["quality"]["advice"]
            assert bool(advice) == (sample != b"1 0 0"), (policy, advice)
        elif expected[1] == "low-quality":
            assert problem(answer, "measured") == expected
            assert answer.json()["measured"] == {"length": pytest.approx(float(sample.split()[0]))}
            assert "write larger" in answer.json()["detail"]
        else:
            assert problem(answer) == expected
