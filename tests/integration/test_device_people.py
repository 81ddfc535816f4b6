"""Four people, each a real device process, and a real server: enrol, three rounds, verify everywhere, forget.

Every digit stands for a person; the images are the ones scikit-learn ships.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.builders import image_file
from tests.integration.harness import CONFIG, PEPPER, ROOT, RunningServer, serving
from tests.integration.numpy_devices import token_of
from uvsdk import modality
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.errors import ServerRefusedError, ServerUnreachableError, UnknownUserError
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk_device import EncryptedStore, Federation, Runtime

PEOPLE = 4
ENROLMENT, PROBES = 8, 10
PASSPHRASE = "only a test"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "server", "device")),
    "OMP_NUM_THREADS": "1",
    "UVSDK_PASSPHRASE": PASSPHRASE,
}
COMMAND = """
import argparse, sys
from uvsdk.errors import UvsdkError
from uvsdk_device.commands import COMMANDS
command = next(command for command in COMMANDS if command.name == sys.argv[1])
parser = argparse.ArgumentParser()
command.configure(parser)
try:
    sys.exit(command.run(parser.parse_args(sys.argv[2:])))
except UvsdkError as error:
    sys.exit(f"{error}")
"""


def png(image: Float64) -> bytes:
    return image_file((image * 15).astype(np.uint8))


@pytest.fixture(scope="module")
def images() -> dict[int, list[bytes]]:
    """Ten digits' images as PNG."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    count = ENROLMENT + PROBES
    return {digit: [png(image) for image in digits.images[digits.target == digit][-count:]] for digit in range(10)}


def start_device(
    server: RunningServer, folder: Path, person: int, images: list[bytes], token: str
) -> subprocess.Popen[str]:
    files = []
    for number, data in enumerate(images[:ENROLMENT]):
        files.append(folder / f"{person}-{number}.png")
        files[-1].write_bytes(data)
    command = [sys.executable, str(Path(__file__).with_name("device_process.py"))]
    command += ["--user", f"person {person}", "--store", str(folder / f"store-{person}"), "--passphrase", PASSPHRASE]
    command += ["--server", server.url, "--token", token, "--pepper", PEPPER.decode(), *map(str, files)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, images: dict[int, list[bytes]]
) -> Iterator[tuple[RunningServer, Path, list[dict[str, object]]]]:
    """The server after three rounds, the devices' folder and what each device reported."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("people")
    config = replace(CONFIG, local_steps=4, optimiser="sgd", algorithm_settings={"margin_positive": 0.9})
    with serving(folder / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as server:
        tokens = [token_of(server, f"person {person}") for person in range(PEOPLE)]
        processes = [start_device(server, folder, person, images[person], tokens[person]) for person in range(PEOPLE)]
        try:
            outputs = [process.communicate(timeout=120) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        for process, (_, errors) in zip(processes, outputs, strict=True):
            assert process.returncode == 0, errors
        reports = [json.loads(output) for output, _ in outputs]
        yield server, folder, reports


def federation_of(server: RunningServer) -> Federation:
    return Federation(server.url, pepper=PEPPER, server_verification=True, patience_s=5.0)


def operator_of(server: RunningServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.operator}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False)


def store_of(folder: Path, person: int) -> EncryptedStore:
    return EncryptedStore.open(folder / f"store-{person}", passphrase=PASSPHRASE)


def embeddings(bundle: Bundle, samples: list[bytes]) -> Float32:
    reader = modality.get("handwriting")
    preprocessing = bundle.manifest.preprocessing
    features = [reader.prepare(sample, bundle).features for sample in samples]
    return np.stack([bundle.embedding(reader.views(item, preprocessing)) for item in features])


def calibrate(server: RunningServer, bundle: Bundle, images: dict[int, list[bytes]]) -> None:
    """Impostor scores of the six digits that nobody is: each one's template against the images of the five others."""
    rows = {digit: embeddings(bundle, images[digit]) for digit in range(PEOPLE, 10)}
    scores = []
    for digit, mine in rows.items():
        template = mine[:ENROLMENT].mean(axis=0)
        template /= np.linalg.norm(template)
        scores += [other @ template for owner, other in rows.items() if owner != digit]
    body = np.concatenate(scores).astype("<f4").tobytes()
    with operator_of(server) as client:
        answer = client.put(
            f"/v1/models/{bundle.version}/calibration", content=body, headers={"UVSDK-Source": "digits 4 to 9"}
        )
        assert answer.status_code == 204, answer.text


def test_every_device_takes_part_in_every_round(
    trained: tuple[RunningServer, Path, list[dict[str, object]]],
) -> None:
    _, _, reports = trained
    for report in reports:
        rounds = report["rounds"]
        assert isinstance(rounds, list)
        assert [(state, samples) for _, state, samples, _ in rounds] == [("uploaded", ENROLMENT)] * CONFIG.rounds
        assert all(np.isfinite(loss) for *_, loss in rounds)


def test_people_are_told_apart_offline_over_the_agent_and_by_the_server_until_they_leave(
    trained: tuple[RunningServer, Path, list[dict[str, object]]], images: dict[int, list[bytes]]
) -> None:
    server, folder, _ = trained
    federation = federation_of(server)
    model = folder / "newest.uvb"
    bundle = Bundle.from_bytes(server.ask("GET", "/v1/models/candidate/bundle").content)
    calibrate(server, bundle, images)
    calibrated = federation.newest_model("person 0", store_of(folder, 0))
    assert calibrated.version == bundle.version
    assert calibrated.calibration is not None
    calibrated.save(model)
    genuine = impostor = 0
    for person in range(PEOPLE):
        store = store_of(folder, person)
        template = federation.refresh_template(f"person {person}", store)
        assert template.model_version == bundle.version
        assert template.threshold is not None
        runtime = Runtime(store, model, retry=None)  # a measurement: hundreds of impostors
        for other in range(PEOPLE):
            accepted = sum(runtime.verify(f"person {person}", probe).accepted for probe in images[other][ENROLMENT:])
            genuine, impostor = (genuine + accepted, impostor) if other == person else (genuine, impostor + accepted)
    # 40 genuine and 120 impostor trials against thresholds for a false match rate of 1 %.
    assert genuine >= 24
    assert impostor <= 6
    probe, stranger = pick(Runtime(store_of(folder, 0), model, retry=None), images)
    check_command(folder, model, images[0][-1])
    check_agent(folder, model, probe, stranger)
    check_server(server, probe, stranger)
    check_forgotten(server, folder, model, probe)


def pick(runtime: Runtime, images: dict[int, list[bytes]]) -> tuple[bytes, bytes]:
    """A probe of person 0 that is accepted, and one of another person that is not."""
    probe = next(item for item in images[0][ENROLMENT:] if runtime.verify("person 0", item).accepted)
    stranger = next(item for item in images[1][ENROLMENT:] if not runtime.verify("person 0", item).accepted)
    return probe, stranger


def check_command(folder: Path, model: Path, probe: bytes) -> None:
    file = folder / "probe.png"
    file.write_bytes(probe)
    command = [sys.executable, "-c", COMMAND, "verify"]
    common = ["--store", str(folder / "store-0"), "--model", str(model), "--json"]
    statuses = []
    for user, passphrase in (("person 0", PASSPHRASE), ("person 9", PASSPHRASE), ("person 0", "wrong")):
        done = subprocess.run(
            [*command, user, str(file), *common],
            capture_output=True,
            text=True,
            env={**ENVIRONMENT, "UVSDK_PASSPHRASE": passphrase},
        )
        statuses.append(done.returncode)
        assert user not in done.stderr
        if done.returncode != 1:
            assert json.loads(done.stdout)["accepted"] is (done.returncode == 0)
    assert statuses[0] in (0, 3)
    assert statuses[1:] == [1, 1]


def check_agent(folder: Path, model: Path, probe: bytes, stranger: bytes) -> None:
    command = [sys.executable, "-c", COMMAND, "agent", "--store", str(folder / "store-0")]
    command += ["--model", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as agent:
        assert agent.stdout is not None
        url = agent.stdout.readline().split()[2].rstrip(",")
        token = (folder / "store-0" / "agent-token").read_text()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
            for sample, accepted in ((probe, True), (stranger, False)):
                body = {"user": "person 0", "sample": base64.b64encode(sample).decode()}
                answer = client.post("/v1/verify", json=body)
                assert answer.json()["accepted"] is accepted, answer.text
        agent.terminate()


def check_server(server: RunningServer, probe: bytes, stranger: bytes) -> None:
    user = hash_user_id("person 0", deployment=CONFIG.deployment, pepper=PEPPER)
    headers = {"Authorization": f"Bearer {server.token('verify')}"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        for sample, accepted in ((probe, True), (stranger, False)):
            body = {"user": user, "sample": base64.b64encode(sample).decode()}
            answer = client.post("/v1/verify", json=body)
            assert answer.status_code == 200, answer.text
            if accepted:
                assert answer.json()["accepted"] is True


def check_forgotten(server: RunningServer, folder: Path, model: Path, probe: bytes) -> None:
    store = store_of(folder, 0)
    with pytest.raises(ServerUnreachableError):
        Federation("http://127.0.0.1:9", pepper=PEPPER).forget("person 0", store)
    assert store.users() == ("person 0",)
    federation_of(server).forget("person 0", store)
    assert store.users() == ()
    with pytest.raises(UnknownUserError):
        Runtime(store, model).verify("person 0", probe)
    user = hash_user_id("person 0", deployment=CONFIG.deployment, pepper=PEPPER)
    with operator_of(server) as client:
        body = {"user": user, "sample": base64.b64encode(probe).decode()}
        assert client.post("/v1/verify", json=body).status_code == 404
    # The other device's word does not delete a third person.
    other = store_of(folder, 1)
    with pytest.raises(ServerRefusedError):
        Federation(server.url, pepper=b"another pepper, other ids").forget("person 1", other)
    assert other.users() == ("person 1",)
