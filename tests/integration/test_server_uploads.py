"""Every way an update can be wrong, over real HTTP: a 4xx problem document, and the model unchanged."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.integration import harness
from tests.integration.harness import CONFIG, DIMENSION, P, RunningServer, SyntheticDevice, kind
from uvsdk.federation.algorithms.fedaws import payload as fedaws
from uvsdk.federation.messages import RoundHeader
from uvsdk.privacy.sealing import seal
from uvsdk.records.codec import pack


@dataclass
class Room:
    """A server that collects, with its devices; number 0 to 3 attack, the others are there for the cohort."""

    server: RunningServer
    devices: list[SyntheticDevice]
    header: RoundHeader


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    config = replace(CONFIG, deadline_s=3600)
    with harness.serving(
        tmp_path_factory.mktemp("uploads"), config=config, settings={"start_after_users": "8"}
    ) as server:
        devices = harness.devices_of(server, 8)
        header = devices[0].wait()
        assert header is not None
        yield Room(server, devices, header)


@pytest.fixture(autouse=True)
def _unchanged(room: Room) -> Iterator[None]:
    """Whatever a test sends, the model stays, nothing is left on the disk, and the round still collects."""
    before = room.server.candidate()
    yield
    assert room.server.candidate() == before
    assert not list((room.server.data / "blobs").glob(".tmp-*"))
    assert room.devices[7].wait(wait_s=0) is not None


def refused(room: Room, body: bytes, status: int, name: str, *, device: int = 0) -> None:
    answer = room.devices[device].upload(room.header, body)
    assert (answer.status_code, kind(answer)) == (status, name), answer.text


def test_tampered(room: Room) -> None:
    body = bytearray(room.devices[0].update(room.header))
    body[len(body) // 2] ^= 1
    refused(room, bytes(body), 401, "bad-signature")


def test_tampered_and_signed_again(room: Room) -> None:
    """A device that signs garbage is told that it does not open."""
    device = room.devices[0]
    body = bytearray(device.update(room.header))
    body[len(body) // 2] ^= 1
    body[-64:] = device.signing.sign(b"uvsdk/envelope/1" + hashlib.sha256(bytes(body[:-64])).digest())
    refused(room, bytes(body), 400, "unsealable")


def test_truncated(room: Room) -> None:
    body = room.devices[0].update(room.header)
    for length in (0, 3, 100, len(body) // 2, len(body) - 1):
        refused(room, body[:length], 400, "malformed")


def test_lengthened(room: Room) -> None:
    refused(room, room.devices[0].update(room.header) + b"x", 400, "malformed")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(room: Room, value: float) -> None:
    delta = room.devices[0].delta(1, P)
    delta[P // 3] = value
    refused(room, room.devices[0].update(room.header, delta=delta), 422, "invalid-update")


@pytest.mark.parametrize("parameters", [0, 1, P - 1, P + 1, 2 * P])
def test_wrong_shape(room: Room, parameters: int) -> None:
    delta = np.full(parameters, 1e-3, np.float32)
    head = room.devices[0].head(room.header, P)
    refused(room, room.devices[0].update(room.header, delta=delta, head=head), 422, "invalid-update")


def test_wrong_number_in_the_head(room: Room) -> None:
    head = room.devices[0].head(room.header, P - 1)
    refused(room, room.devices[0].update(room.header, head=head), 422, "invalid-update")


def test_a_delta_cut_elsewhere(room: Room) -> None:
    raw = room.devices[0].delta(1, P).tobytes()
    refused(room, room.devices[0].update(room.header, chunks=[raw[:400], raw[400:]]), 422, "invalid-update")


def test_bytes_that_are_no_float32(room: Room) -> None:
    refused(room, room.devices[0].update(room.header, chunks=[b"x" * (4 * P - 1)]), 422, "invalid-update")


@pytest.mark.parametrize(
    ("change", "status", "name"),
    [
        ({"round_id": 2}, 409, "wrong-round"),
        ({"model_version": "0" * 64}, 409, "wrong-model"),
        ({"algorithm": "positive_only"}, 409, "wrong-algorithm"),
        ({"deployment": "elsewhere"}, 409, "wrong-deployment"),
        ({"recipient_key_id": "another"}, 409, "wrong-key"),
        ({"sender": "0" * 32}, 403, "wrong-sender"),
        ({"message_type": "admission"}, 400, "malformed"),
        ({"direction": "down"}, 400, "malformed"),
    ],
)
def test_sealed_for_another_place(room: Room, change: dict[str, object], status: int, name: str) -> None:
    device = room.devices[0]
    binding = replace(device.binding(room.header), **change)  # type: ignore[arg-type]
    refused(room, device.update(room.header, binding=binding), status, name)


@pytest.mark.parametrize("change", [{"round_id": 2}, {"model_version": "0" * 64}, {"algorithm": "fixed"}])
def test_another_place_inside_the_seal(room: Room, change: dict[str, object]) -> None:
    device = room.devices[0]
    head = replace(device.head(room.header, P), **change)  # type: ignore[arg-type]
    refused(room, device.update(room.header, head=head), 422, "invalid-update")


@pytest.mark.parametrize("samples", [0, -5])
def test_no_samples(room: Room, samples: int) -> None:
    head = replace(room.devices[0].head(room.header, P), samples=samples)
    refused(room, room.devices[0].update(room.header, head=head), 422, "invalid-update")


@pytest.mark.parametrize(
    "vector", [np.zeros(DIMENSION), np.full(DIMENSION, np.nan), np.ones(DIMENSION), np.eye(1, DIMENSION + 1)[0]]
)
def test_a_class_vector_that_is_none(room: Room, vector: np.ndarray) -> None:
    payload = pack(fedaws.Payload(vector.astype(np.float32)))
    head = replace(room.devices[0].head(room.header, P), payload=payload)
    refused(room, room.devices[0].update(room.header, head=head), 422, "invalid-update")


def test_pickle(room: Room) -> None:
    """As the body, as the head inside the seal, and as the algorithm's payload."""
    evil = pickle.dumps({"delta": [1.0] * 100})
    device = room.devices[0]
    refused(room, evil, 400, "malformed")
    refused(room, device.update(room.header, head=evil), 400, "malformed")
    head = replace(device.head(room.header, P), payload=evil)
    refused(room, device.update(room.header, head=head), 400, "malformed")


def test_object_array(room: Room) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    device = room.devices[0]
    refused(room, file.getvalue(), 400, "malformed")
    refused(room, device.update(room.header, head=file.getvalue()), 400, "malformed")
    message = pack(device.head(room.header, P)).replace(b'"|u1"', b'"|O8"')
    refused(room, device.update(room.header, head=message), 400, "malformed")


def test_signed_by_another_key(room: Room) -> None:
    device = room.devices[0]
    recipient = harness.X25519PublicKey.from_public_bytes(room.header.server_public_key)
    chunks = [pack(device.head(room.header, P)), device.delta(1, P).tobytes()]
    body = seal(chunks, device.binding(room.header), recipient=recipient, signing_key=Ed25519PrivateKey.generate())
    refused(room, body, 401, "bad-signature")


def test_a_request_of_another_device(room: Room) -> None:
    """Device 1 cannot hand in what device 0 sealed, nor sign a request in its name."""
    body = room.devices[0].update(room.header)
    refused(room, body, 403, "wrong-sender", device=1)
    answer = room.devices[1].request("PUT", "/v1/rounds/1/update", body, key_id=room.devices[0].device_id)
    assert (answer.status_code, kind(answer)) == (401, "bad-signature")


def test_a_body_that_was_not_signed(room: Room) -> None:
    device = room.devices[0]
    body = device.update(room.header)
    signed = device.signed("PUT", "/v1/rounds/1/update", body + b"x")
    answer = room.server.clients[0].put(f"{room.server.url}/v1/rounds/1/update", content=body, headers=signed)
    assert (answer.status_code, kind(answer)) == (401, "bad-signature")


def test_a_signature_over_a_challenge_of_another_time(room: Room) -> None:
    device = room.devices[0]
    signed = device.signed("GET", "/v1/rounds/current", challenge="0" * 32)
    answer = room.server.clients[0].get(f"{room.server.url}/v1/rounds/current", headers=signed)
    assert (answer.status_code, kind(answer)) == (401, "stale-challenge")


def test_too_large(room: Room) -> None:
    refused(room, b"UVS1" + bytes(4 * P + (3 << 20)), 413, "too-large")


def test_a_norm_that_no_training_gives(room: Room) -> None:
    delta = room.devices[0].delta(1, P) * np.float32(1e14)
    refused(room, room.devices[0].update(room.header, delta=delta), 422, "invalid-update")


def test_more_samples_than_a_device_can_hold(room: Room) -> None:
    for samples in (1_000_001, 10**30):
        head = replace(room.devices[0].head(room.header, P), samples=samples)
        refused(room, room.devices[0].update(room.header, head=head), 422, "invalid-update")


def test_a_retry_is_the_same_answer_and_a_replay_is_refused(room: Room) -> None:
    device = room.devices[6]
    binding = device.binding(room.header)
    body = device.update(room.header, binding=binding)
    assert device.upload(room.header, body).status_code == 201
    assert device.upload(room.header, body).status_code == 200
    refused(room, device.update(room.header, binding=binding), 409, "replayed-nonce", device=6)
    refused(room, device.update(room.header), 409, "already-uploaded", device=6)


def test_random_mutations_never_break_the_server(room: Room) -> None:
    """200 mutations of a valid envelope: bytes flipped, cut, doubled, inserted; every answer is a problem below 500."""
    rng = np.random.default_rng(11)
    device = room.devices[0]
    valid = device.update(room.header)
    for _ in range(200):
        body = bytearray(valid)
        for _ in range(int(rng.integers(1, 4))):
            # half of the mutations fall on the header, where most of the parsing is
            place = int(rng.integers(0, 600 if rng.random() < 0.5 else len(body)))
            match int(rng.integers(0, 4)):
                case 0:
                    body[place % len(body)] ^= int(rng.integers(1, 256))
                case 1:
                    del body[place : place + int(rng.integers(1, 50))]
                case 2:
                    body[place:place] = rng.bytes(int(rng.integers(1, 50)))
                case _:
                    body[place:place] = body[place : place + 40]
        answer = device.upload(room.header, bytes(body))
        assert 400 <= answer.status_code < 500, answer.text
        kind(answer)
