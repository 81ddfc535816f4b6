"""Three rounds of one method between four real devices and a real server, under faults, and what must hold after.

In the second round one device is killed while it trains, and the server as it records the third update; it comes back
after the deadline has passed, closes the round with three updates, and the lost device takes part in the third.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from sklearn.datasets import load_digits

from tests.integration import roles
from tests.integration.crew import is_alive, read
from tests.integration.forked import Crew, ForkedServer, eventually
from tests.integration.harness import PEPPER, kind
from uvsdk import modality, verify
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import EdgeOnlyError
from uvsdk.federation import algorithms, streams
from uvsdk.federation.messages import Admission, Numbered, Request, TrainingConfig, UpdateHead
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON
from uvsdk.privacy.identifiers import canonical_instance, hash_instance, hash_person
from uvsdk.privacy.sealing import Envelope
from uvsdk.records.codec import unpack
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle
from uvsdk_server import observer

PEOPLE, ROUNDS, LOST_IN = 4, 3, 2
ENROLMENT, PROBES = 8, 10
FAILURE_RATE = 0.2
TOLERANCE = 2e-5
"""Of theta, each number. Devices compute the mean that they join with in onnxruntime, a simulation in torch."""

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"learning_rate": 0.001},
    "feduv": {"backbone": "digits-cnn+255"},
    "fedalc": {"algorithm_settings": {"smallest_shared": 1}},
    "fedalc_fixed": {"algorithm_settings": {"smallest_shared": 1}},
    "fedss": {"algorithm_settings": {"anchors": 20, "negatives": 8, "epoch_rounds": 4}},
}
"""What the configuration of a method has that those of the others have not."""


@dataclass(frozen=True)
class Case:
    """A method and how it is configured."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> TrainingConfig:
        """The seed is one under which a simulation lets :attr:`lost` fail in the second round, and nobody else ever."""
        values = {"backbone": "digits-cnn", "learning_rate": 0.003, **CHANGES.get(self.name, {}), **self.changes}
        return TrainingConfig(
            deployment="methods",
            modality="handwriting",
            algorithm=self.name,
            rounds=ROUNDS,
            local_steps=2,
            batch_size=4,
            optimiser="momentum",
            min_clients=3,
            deadline_s=120.0,
            seed=_losing()[0],
            **values,
        )

    @property
    def lost(self) -> str:
        """Who fails."""
        return PERSONS[_losing()[1]]


PERSONS = tuple(
    sorted((f"person {number}" for number in range(PEOPLE)), key=lambda person: roles.user_of(person, "methods"))
)
"""User ids in the order of their hashes, which is the order of everything on the server."""


@dataclass
class Run:
    """What a training left."""

    case: Case
    folder: Path
    server: ForkedServer
    model: Bundle

    @property
    def config(self) -> TrainingConfig:
        return self.case.config

    def log(self) -> str:
        logs = [self.server.folder / "log", *(self.folder / f"log {person}" for person in PERSONS)]
        return "\n".join(f"{path.name}: {read(path)[-3000:]}" for path in logs)

    def trained(self) -> Bundle:
        """The trained model, once an operator has released it, as a device downloads it."""
        self.server.promote()
        person = PERSONS[0]
        federation = roles.federation_of(self.server.url, person)
        return federation.newest_model(person, roles.store_of(self.folder, person))


@contextmanager
def training(case: Case, folder: Path, crew: Crew) -> Iterator[Run]:
    """Train, with a device and the server killed on the way; the server still runs inside the block."""
    settings = {"start_after_users": str(PEOPLE), "allow_restricted": case.name}
    model = model_of(case.config.backbone, case.config.train)
    crew.fork("prepare", folder / "log", name=case.name, dimension=model.manifest.dimension)
    server = ForkedServer(folder / "server", config=case.config, model=model, settings=settings, crew=crew)
    server.start(kill_at=observer.UPLOAD_RECORDED, kill_times=PEOPLE + PEOPLE - 1)
    run = Run(case, folder, server, model)
    devices = {}
    try:
        for person in PERSONS:
            token = server.token("enrol", user=roles.user_of(person, run.config.deployment))
            np.save(folder / f"{person}.npy", samples_of(person)[: ENROLMENT + 1])
            devices[person] = start_device(run, person, token, dies_in=LOST_IN if person == case.lost else 0)
        eventually(lambda: not is_alive(server.pid))
        if is_alive(devices[case.lost]):  # the server died before this device had its task
            os.kill(devices[case.lost], signal.SIGKILL)
        assert not (folder / f"told {case.lost}.json").exists(), run.log()
        server.pass_the_deadline()
        server.start()
        eventually(lambda: server.candidate()["round_id"] >= LOST_IN)
        devices[case.lost] = start_device(run, case.lost, token)
        eventually(lambda: not any(is_alive(pid) for pid in devices.values()))
        yield run
    except AssertionError as error:
        raise AssertionError(f"{error}\n{run.log()}") from error
    finally:
        for pid in devices.values():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        server.stop()


def start_device(run: Run, person: str, token: str, *, dies_in: int = 0) -> int:
    assert run.server.crew is not None
    return run.server.crew.fork(
        "device",
        run.folder / f"log {person}",
        url=run.server.url,
        folder=str(run.folder),
        user_id=person,
        token=token,
        deployment=run.config.deployment,
        seed=run.config.seed,
        samples=str(run.folder / f"{person}.npy"),
        model=str(run.server.model_file),
        dies_in=dies_in,
    )


def check_rounds(run: Run) -> None:
    """Every round was committed, the second without the lost device."""
    rounds = run.server.rows("SELECT round_id, state, accepted FROM rounds ORDER BY round_id")
    counts = [PEOPLE - (round_id == LOST_IN) for round_id in range(1, ROUNDS + 1)]
    tellings = {person: json.loads((run.folder / f"told {person}.json").read_text()) for person in PERSONS}
    assert rounds == [(place + 1, "committed", count) for place, count in enumerate(counts)], tellings
    for person, told in tellings.items():
        rounds_told = [round_id for round_id, state, _ in told if state in ("uploaded", "queued")]
        assert rounds_told == ([3] if person == run.case.lost else [1, 2, 3]), told


def check_model(run: Run) -> None:
    """The same seed gives the same model as a simulation, up to :data:`TOLERANCE`."""
    assert run.server.crew is not None
    users = {roles.user_of(person, run.config.deployment): person for person in PERSONS}
    features = {user: np.stack(roles.store_of(run.folder, person).features(person)) for user, person in users.items()}
    np.savez(run.folder / "features.npz", **features)
    result = run.folder / "simulated.npz"
    pid = run.server.crew.fork(
        "simulation",
        run.folder / "log of the simulation",
        config=run.config.to_json(),
        model=str(run.server.model_file),
        features=str(run.folder / "features.npz"),
        identities={user: identity_of(person, features[user]) for user, person in users.items()},
        failure_rate=FAILURE_RATE,
        result=str(result),
    )
    eventually(lambda: not is_alive(pid))
    assert result.exists(), read(run.folder / "log of the simulation")
    with np.load(result) as simulated:
        assert simulated["participants"].tolist() == [PEOPLE, PEOPLE - 1, PEOPLE]
        wanted = simulated["theta"]
    theta = run.trained().theta
    assert float(np.abs(theta - run.model.theta).max()) > 20 * TOLERANCE, "nothing was learned: nothing is compared"
    np.testing.assert_allclose(theta, wanted, rtol=0, atol=TOLERANCE)


def identity_of(person: str, features: Array) -> list[str]:
    """What that person's device says of itself, where the method asks: the link, and the hashes of the samples."""
    hashes = {hash_instance(canonical_instance(item), deployment="methods", pepper=PEPPER) for item in features}
    return [hash_person(person, deployment="methods", pepper=PEPPER), *(item.hex() for item in sorted(hashes))]


def check_what_was_sent(run: Run) -> None:
    """Opened with the server's key: what ``payload.py`` names, the delta, and nothing else."""
    keys = {
        path.stem.removeprefix("hpke-"): X25519PrivateKey.from_private_bytes(path.read_bytes())
        for path in (run.server.data / "keys").glob("hpke-*.key")
    }
    half = algorithms.server(run.case.name)
    settings = algorithms.settings(run.case.name, run.config.algorithm_settings)
    needs, request = half.needs(settings), algorithms.request(run.case.name)
    for person in PERSONS:
        found = dict[str, int]()
        for path in sorted((run.folder / f"sent {person}").iterdir()):
            envelope = Envelope.parse(path.read_bytes())
            binding = envelope.binding
            found[binding.message_type] = found.get(binding.message_type, 0) + 1
            first, *rest = envelope.open(keys[binding.recipient_key_id])
            if binding.message_type == "update":
                head = unpack(UpdateHead, first)
                assert fields_of(head.payload) == {item.name for item in dataclasses.fields(half.payload)}
                unpack(half.payload, head.payload)
                assert sum(len(chunk) for chunk in rest) == 4 * run.model.manifest.size
                continue
            assert rest == []
            if binding.message_type == "admission":
                check_admission(unpack(Admission, unpack(Numbered, first).body), needs)
            elif binding.message_type == "request":
                assert request is not None
                body = unpack(Request, first).body
                assert fields_of(body) == {item.name for item in dataclasses.fields(request.request)}
            else:
                raise AssertionError(f"a device sent a {binding.message_type}")
        # A message that was answered by a dead server is sent again as it was, so there may be more than one a round.
        assert set(found) == {"admission", "update"} | ({"request"} if request is not None else set())


def check_admission(admission: Admission, needs: frozenset[str]) -> None:
    assert (admission.mean.size > 0) == (MEAN in needs)
    assert (admission.instances.size > 0) == bool(needs & {INSTANCES, EMBEDDED})
    assert bool(admission.person) == (PERSON in needs)
    assert admission.classes == ()


def fields_of(packed: bytes) -> set[str]:
    """The fields that a packed message really holds, read without its class."""
    length = int.from_bytes(packed[4:8], "little")
    return set(json.loads(packed[8 : 8 + length])["fields"])


def check_verification(run: Run) -> None:
    """Each person is accepted on the own device, and by the server where it may; strangers are not."""
    bundle = run.trained()
    calibrate(run, bundle)
    allowed = algorithms.server(run.case.name).verifies_on_server
    genuine, foreign, over_rest = [], [], []
    for number, person in enumerate(PERSONS):
        store = roles.store_of(run.folder, person)
        federation = roles.federation_of(run.server.url, person, server_verification=allowed)
        template = federation.refresh_template(person, store)
        model = federation.newest_model(person, store)
        probes = samples_of(person)[ENROLMENT + 1 :]
        others = samples_of(PERSONS[(number + 1) % PEOPLE])[ENROLMENT + 1 :]
        genuine += [verify(probe, template, model=model).accepted for probe in probes]
        foreign += [verify(probe, template, model=model).accepted for probe in others]
        over_rest += [ask_server(run, person, model, probes[0]), ask_server(run, person, model, others[0])]
        if not allowed:
            check_refusals(run, person)
    assert np.mean(genuine) >= 0.8, f"{np.mean(genuine):.2f} of genuine probes were accepted"
    assert np.mean(foreign) <= 0.2, f"{np.mean(foreign):.2f} of foreign probes were accepted"
    if allowed:
        assert np.mean(over_rest[::2]) >= 0.75
        assert np.mean(over_rest[1::2]) <= 0.25


def check_refusals(run: Run, person: str) -> None:
    """Where no template may leave the device: the device says so, and so does the server to whoever asks."""
    store = roles.store_of(run.folder, person)
    federation = roles.federation_of(run.server.url, person, server_verification=True)
    for attempt in (federation.refresh_template, federation.participate):
        with pytest.raises(EdgeOnlyError, match=run.case.name):
            attempt(person, store)


def ask_server(run: Run, person: str, model: Bundle, sample: Array) -> bool:
    """``POST /v1/verify`` with an embedding."""
    embedding = embeddings(model, [sample])[0]
    body = {
        "user": roles.user_of(person, run.config.deployment),
        "embedding": [float(value) for value in embedding],
        "model_version": model.version,
    }
    answer = run.server.ask("POST", "/v1/verify", json=body)
    if algorithms.server(run.case.name).verifies_on_server:
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["accepted"])
    assert (answer.status_code, kind(answer)) == (403, "edge-only")
    return False


def calibrate(run: Run, bundle: Bundle) -> None:
    """Impostor scores of the six digits that nobody is, each one's mean against the images of the five others."""
    rows = {digit: embeddings(bundle, digits(digit)[:20]) for digit in range(PEOPLE, 10)}
    scores = []
    for digit, mine in rows.items():
        mean = mine[:ENROLMENT].mean(axis=0)
        scores += [other @ (mean / np.linalg.norm(mean)) for owner, other in rows.items() if owner != digit]
    answer = run.server.ask(
        "PUT",
        f"/v1/models/{bundle.version}/calibration",
        content=np.concatenate(scores).astype("<f4").tobytes(),
        headers={"UVSDK-Source": "digits 4 to 9"},
    )
    assert answer.status_code == 204, answer.text


def check_operators_view(run: Run) -> None:
    """What ``GET /v1/training`` says."""
    answer = run.server.ask("GET", "/v1/training").json()
    assert (answer["algorithm"], answer["committed_rounds"], answer["users"]) == (run.case.name, ROUNDS, PEOPLE)
    assert answer["verifies_on_server"] == algorithms.server(run.case.name).verifies_on_server
    assert isinstance(answer["report"], dict)


def embeddings(bundle: Bundle, samples: list[Array] | Array) -> Float32:
    """Unit embeddings (n, d)."""
    reader = modality.get("handwriting")
    preprocessing = bundle.manifest.preprocessing
    features = [reader.prepare(sample, bundle).features for sample in samples]
    return np.stack([bundle.embedding(reader.views(item, preprocessing)) for item in features])


@cache
def digits(digit: int) -> Array:
    """Images of one digit, 8 x 8 each, ink 0 to 16, as scikit-learn ships them."""
    found = load_digits()
    images: Array = found.images[found.target == digit]
    return images


def samples_of(person: str) -> Array:
    """That person's pages: to enrol, one of them shared with the next person, and after those the probes."""
    digit = int(person.rpartition(" ")[2])
    own, shared = digits(digit)[-(ENROLMENT + PROBES) :], digits(digit // 2 * 2)[:1]
    return np.concatenate([own[:ENROLMENT], shared, own[ENROLMENT:]])


@cache
def model_of(backbone: str, train: str = "all") -> Bundle:
    """The model to start from: the shipped one, and under a head, or trained in part, one with its trunk."""
    if "+" not in backbone and train == "all":
        return shipped().with_calibration(None)
    module = backbones.get(backbone).random()
    start = backbones.flatten(module)
    start[: shipped().manifest.size] = shipped().theta
    backbones.unflatten(module, start)
    return export_bundle(module if train == "all" else backbones.get(backbone, train)(module))


@cache
def _losing() -> tuple[int, int]:
    """A seed, and the place of the one device that a simulation lets fail under it, in the second round only."""
    for seed in range(1, 100_000):
        lost = [np.flatnonzero(_draws(seed, round_id) < FAILURE_RATE) for round_id in range(1, ROUNDS + 1)]
        if [len(found) for found in lost] == [int(round_id == LOST_IN) for round_id in range(1, ROUNDS + 1)]:
            return seed, int(lost[LOST_IN - 1][0])
    raise AssertionError("no seed loses one device alone")


def _draws(seed: int, round_id: int) -> Array:
    stream = streams.server_stream(streams.round_seed(seed, round_id), streams.DROPOUT)
    return stream.random(PEOPLE)
