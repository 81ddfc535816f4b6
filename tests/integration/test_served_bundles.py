"""What a server serves is signed, every member and the calibration with it, and holds nobody's embedding."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.integration.harness import RunningServer, kind, serving
from tests.integration.numpy_devices import federation_of, make_store, pages
from tests.unit.test_calibrating import people as observations
from uvsdk import enroll, verify
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.archive import pack_members, read_members
from uvsdk.errors import ExchangedBundleError, StoreError, UntrustedBundleError, UvsdkError
from uvsdk.evaluation import calibrating
from uvsdk.privacy import bundle_signing
from uvsdk.scoring import Calibration, Cohort
from uvsdk.scoring.record import calibration_bytes
from uvsdk_device import Runtime
from uvsdk_device.connection import Answer, Connection
from uvsdk_device.keystore import EncryptedStore
from uvsdk_server import create_app

DIGITS = shipped()
SCORES = np.linspace(-0.3, 0.6, 2000, dtype=np.float32)
FORGED = np.linspace(-0.6, -0.4, 2000, dtype=np.float32)
MALLORY = Ed25519PrivateKey.generate()


def with_people(*, as_norm: bool = False) -> tuple[Bundle, Cohort]:
    """The shipped model, calibrated with a cohort, and that cohort."""
    seen = observations(30, kinds=())
    measured = calibrating.fit(seen, model_version="m", source="people", as_norm=as_norm, keep_cohort=True)
    calibration = replace(measured.calibration, model_version=DIGITS.version)
    assert calibration.cohort is not None
    return DIGITS.with_calibration(calibration), calibration.cohort


def found_in(data: bytes, cohort: Cohort) -> int:
    """How many embeddings ``data`` holds, whole or a quarter of one, in any precision, as they are or scaled."""
    hits = 0
    for row in cohort.embeddings.astype(np.float64):
        for scaled in (row, row / np.abs(row).max(), row / np.linalg.norm(row)):
            for kind_of in ("<f2", "<f4", "<f8", ">f4", ">f8"):
                values = scaled.astype(kind_of)
                hits += values[: max(len(values) // 4, 4)].tobytes() in data
    return hits


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(tmp_path / "server") as running:
        yield running


def bundle_of(server: RunningServer) -> bytes:
    answer = server.ask("GET", "/v1/models/current/bundle")
    assert answer.status_code == 200
    return answer.content


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


# Nobody's embedding


@pytest.mark.parametrize("as_norm", [False, True], ids=["plain", "as-norm"])
def test_no_embedding_of_the_calibration_is_served_or_kept(
    tmp_path: Path, as_norm: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model, cohort = with_people(as_norm=as_norm)
    assert found_in(model.to_bytes(), cohort) >= len(cohort.embeddings)  # the search finds what is there
    with serving(tmp_path / "server", model=model, settings={"log_level": "warning"}) as running:
        body = bundle_of(running)
        assert found_in(body, cohort) == 0
        assert found_in(everything(running.data), cohort) == 0
        served = Bundle.from_bytes(body)
    assert served.version == model.version
    assert served.calibration is not None
    assert served.calibration.cohort is None
    assert served.calibration.scale == ("cosine" if as_norm else "llr")  # AS-norm is a comparison with these people
    assert "left out of what is served" in capsys.readouterr().err


def blob(running: RunningServer, data: bytes) -> str:
    """A file as whoever can write the folder would make it: under the name that its content has."""
    name = hashlib.sha256(data).hexdigest()
    (running.data / "blobs" / name).write_bytes(data)
    return name


def run_sql(running: RunningServer, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(running.data / "server.sqlite3")) as database, database:
        database.execute(statement, values)


def stopped(folder: Path, model: Bundle = DIGITS) -> RunningServer:
    """A server that has made its folder."""
    running = RunningServer(folder, model=model)
    running.start()
    running.stop()
    return running


def test_a_folder_of_an_earlier_version_forgets_them(tmp_path: Path) -> None:
    model, cohort = with_people()
    running = stopped(tmp_path / "server", model)
    # As an earlier version kept it: in clear, with the cohort, and folder and database without an id.
    assert model.calibration is not None
    calibration = blob(running, calibration_bytes(model.calibration))
    base = blob(running, model.with_calibration(None).to_bytes())
    run_sql(running, "update models set calibration_blob = ?", calibration)
    run_sql(running, "update deployment set base_blob = ?, deployment_id = null, signing_key = null", base)
    (running.data / "deployment.json").unlink()
    for _ in range(2):
        running.start()
        try:
            body = bundle_of(running)
        finally:
            running.stop()
        assert found_in(body, cohort) == 0
        assert Bundle.from_bytes(body).version == model.version
        assert not (running.data / "blobs" / calibration).exists()
        assert found_in(everything(running.data), cohort) == 0


# Who vouches


def test_what_is_served_is_signed_by_the_deployment(server: RunningServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=DIGITS, store=store)
    federation = federation_of(server, server.token("enrol", uses=1))
    bundle = federation.newest_model("person 0", store)
    assert bundle.signed_by is not None
    assert bundle.signature is not None
    assert bundle.signature.issuer == "integration"
    # A renewed calibration is signed like everything else; the device takes it, and its template follows.
    put = server.ask(
        "PUT",
        f"/v1/models/{bundle.version}/calibration",
        content=SCORES.tobytes(),
        headers={"UVSDK-Source": "two thousand trials"},
    )
    assert put.status_code == 204
    renewed = federation.newest_model("person 0", store)
    assert renewed.version == bundle.version
    assert renewed.digest != bundle.digest
    assert renewed.calibration is not None
    template = federation.refresh_template("person 0", store)
    assert template.threshold is not None
    assert template.threshold.calibration == renewed.calibration.digest
    assert Runtime(store, renewed).verify("person 0", pages(0)[0]).threshold == template.threshold
    renewed.save(tmp_path / "renewed.uvb")
    assert Runtime(store, tmp_path / "renewed.uvb").template("person 0") == template


def test_an_implausible_calibration_is_refused(server: RunningServer) -> None:
    low = np.linspace(-1, -0.9, 1000, dtype=np.float32)
    answer = server.ask(
        "PUT", "/v1/models/current/calibration", content=low.tobytes(), headers={"UVSDK-Source": "forged"}
    )
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    assert "nobody measured these" in answer.json()["detail"]
    assert bundle_of(server)


def forged_calibration(bundle: Bundle) -> Bundle:
    return bundle.with_calibration(Calibration(FORGED, bundle.version, "forged"))


def stale_signature(bundle: Bundle) -> bytes:
    """The server's signature under a bundle that it never signed."""
    members = read_members(forged_calibration(bundle).to_bytes())
    assert bundle.signature is not None
    return pack_members(members | {"signature.json": bundle.signature.to_bytes()})


TAMPERED: dict[str, Callable[[Bundle], bytes]] = {
    "the calibration": lambda bundle: forged_calibration(bundle).to_bytes(),
    "the calibration, under the old signature": stale_signature,
    "the calibration, signed by somebody else": lambda bundle: (
        forged_calibration(bundle).sign(MALLORY, issuer="integration").to_bytes()
    ),
    "no calibration": lambda bundle: bundle.with_calibration(None).to_bytes(),
    "the parameters": lambda bundle: bundle.with_theta(bundle.theta * np.float32(2)).to_bytes(),
    "the graph": lambda bundle: Bundle(bundle.manifest, bundle.theta, {"embedding": b"another"}).to_bytes(),
    "no signature": lambda bundle: bundle.with_calibration(bundle.calibration).to_bytes(),
    "a byte behind": lambda bundle: bundle.to_bytes() + b"\0",
    "a flipped bit": lambda bundle: bundle.to_bytes()[:-1000] + b"\1" + bundle.to_bytes()[-999:],
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_is_altered_on_the_way_or_on_the_disk_is_not_used(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=DIGITS, store=store)
    federation = federation_of(server, server.token("enrol", uses=1))
    genuine = federation.newest_model("person 0", store)
    tampered = TAMPERED[name](genuine)
    # On the disk: fetched again, whatever the entity tag says.
    (kept,) = (store.folder / "models").glob("release-*.uvb")
    kept.write_bytes(tampered)
    again = federation.newest_model("person 0", store)
    assert (again.digest, again.signed_by) == (genuine.digest, genuine.signed_by)
    assert kept.read_bytes() == genuine.to_bytes()
    # And handed over as a model, the store does not work with it.
    kept.with_name("other.uvb").write_bytes(tampered)
    if name != "no signature":  # the same bundle, which is accepted already
        with pytest.raises(UvsdkError) as refused:
            Runtime(store, kept.with_name("other.uvb"))
        assert isinstance(refused.value, ExchangedBundleError) or "bundle" in str(refused.value)
    # On the way: refused, and nothing of it is kept.
    for path in kept.parent.glob("*.uvb"):
        path.unlink()
    asked = Connection.get

    def altered(self: Connection, path: str, **rest: Any) -> Answer:
        answer = asked(self, path, **{**rest, "etag": None} if path.endswith("/bundle") else rest)
        return replace(answer, body=tampered) if path.endswith("/bundle") else answer

    monkeypatch.setattr(Connection, "get", altered)
    with pytest.raises(UvsdkError, match=r"sign|cannot be used"):
        federation.newest_model("person 0", store)
    with pytest.raises(UvsdkError, match=r"sign|cannot be used"):
        federation.refresh_template("person 0", store)
    assert not list(kept.parent.glob("*.uvb"))
    template = store.template("person 0")
    assert verify(pages(0)[0], template, model=genuine).threshold.score > 0


def test_a_device_of_another_deployment_is_not_convinced(server: RunningServer, tmp_path: Path) -> None:
    """The signature of one server says nothing to a device that approved another."""
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=DIGITS, store=store)
    federation_of(server, server.token("enrol", uses=1)).newest_model("person 0", store)
    with serving(tmp_path / "other") as other:
        body = bundle_of(other)
    (kept,) = (store.folder / "models").glob("release-*.uvb")
    kept.write_bytes(body)
    assert federation_of(server).newest_model("person 0", store).signature != Bundle.from_bytes(body).signature


# What the server itself starts from


def test_the_server_asks_for_the_publisher(tmp_path: Path) -> None:
    key = bundle_signing.new_private_key(tmp_path / "key")
    (tmp_path / "key.pub").write_bytes(bundle_signing.public_pem(key.public_key()))
    asked = {"publisher": tmp_path / "key.pub"}
    with serving(tmp_path / "signed", model=DIGITS.sign(key), settings=asked) as running:
        assert bundle_of(running)
    for name, model in {"unsigned": DIGITS, "other": forged_calibration(DIGITS).sign(MALLORY)}.items():
        with pytest.raises(UntrustedBundleError):
            opened(RunningServer(tmp_path / name, model=model, settings=asked))


def test_what_was_exchanged_in_folder_and_database_is_noticed(tmp_path: Path) -> None:
    running = stopped(tmp_path / "server")
    ((calibration, base),) = running.rows("select calibration_blob, base_blob from models, deployment")
    for name in (calibration, base):
        path = running.data / "blobs" / name
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        with pytest.raises(StoreError, match="damaged on disk"):
            opened(running)
        path.write_bytes(kept)
    # With rows that name the new files: neither of them was sealed under the server's key.
    forged = DIGITS.calibration
    assert forged is not None
    run_sql(
        running,
        "update releases set calibration_blob = ?",
        blob(running, calibration_bytes(replace(forged, impostor=FORGED))),
    )
    with pytest.raises(StoreError, match="does not open with its key"):
        opened(running)
    run_sql(running, "update releases set calibration_blob = ?", calibration)
    run_sql(running, "update deployment set base_blob = ?", blob(running, DIGITS.with_calibration(None).to_bytes()))
    with pytest.raises(StoreError, match="does not open with its key"):
        opened(running)
    # A calibration that the server did seal, under another model version or in the place of the model.
    run_sql(running, "update deployment set base_blob = ?", calibration)
    with pytest.raises(StoreError, match="does not open with its key"):
        opened(running)
    run_sql(running, "update deployment set base_blob = ?", base)
    opened(running)


def opened(server: RunningServer) -> None:
    """Open and close the server in this thread, so that its error is seen."""

    async def run() -> None:
        server.prepare()
        app = create_app(server._settings())
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(run())


def test_a_store_that_joined_works_with_both(server: RunningServer, tmp_path: Path) -> None:
    """The bundle it was enrolled with, and the one the server signed."""
    store: EncryptedStore = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=DIGITS, store=store)
    newest = federation_of(server, server.token("enrol", uses=1)).newest_model("person 0", store)
    for model in (DIGITS, newest):
        assert Runtime(store, model).verify("person 0", pages(0)[0]).accepted
    with pytest.raises(ExchangedBundleError):
        Runtime(store, forged_calibration(newest))
