"""What is sealed opens once, where it belongs, as it was, and in no other way."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import struct
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.errors import SealError, WireError
from uvsdk.privacy import sealing
from uvsdk.privacy.sealing import (
    CHUNK_BYTES,
    OVERHEAD_BYTES,
    SUITES,
    Binding,
    Digests,
    Envelope,
    RunningDigest,
    new_nonce,
    seal,
    seal_and_digest,
    seal_parts,
)

RECIPIENT = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SENDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
BINDING = Binding("clinic", "up", "update", "fedaws", 7, "ab" * 32, "device-1", "key-1", "0123456789abcdef" * 2)
CHUNKS = (b"head", b"", b"delta of theta")


def sealed(chunks: tuple[bytes, ...] = CHUNKS, binding: Binding = BINDING) -> bytes:
    return seal(chunks, binding, recipient=RECIPIENT.public_key(), signing_key=SENDER)


def opened(data: bytes) -> list[bytes]:
    envelope = Envelope.parse(data)
    envelope.verify(SENDER.public_key())
    return list(envelope.open(RECIPIENT))


def with_header(data: bytes, header: bytes) -> bytes:
    """The same envelope under another header, signed again: what a sender with a valid key could forge."""
    (length,) = struct.unpack("<I", data[4:8])
    before = b"UVS1" + struct.pack("<I", len(header)) + header + data[8 + length : -64]
    return before + SENDER.sign(b"uvsdk/envelope/1" + hashlib.sha256(before).digest())


def header_of(data: bytes) -> dict[str, object]:
    (length,) = struct.unpack("<I", data[4:8])
    header = json.loads(data[8 : 8 + length])
    assert isinstance(header, dict)
    return header


def canonical(header: dict[str, object]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@given(chunks=st.lists(st.binary(max_size=300), min_size=1, max_size=5), suite=st.sampled_from(SUITES))
@settings(deadline=None, max_examples=50)
def test_open_of_seal_is_the_message(chunks: list[bytes], suite: str) -> None:
    binding = dataclasses.replace(BINDING, suite=suite)
    data = sealed(tuple(chunks), binding)
    envelope = Envelope.parse(data)
    envelope.verify(SENDER.public_key())
    assert list(envelope.open(RECIPIENT)) == chunks
    assert envelope.binding == binding
    assert envelope.chunk_lengths == tuple(len(chunk) for chunk in chunks)
    assert envelope.digest == hashlib.sha256(data).hexdigest()
    # magic 4, length 4, header, chunks with 48 bytes each, signature 64
    (length,) = struct.unpack("<I", data[4:8])
    assert len(data) == 8 + length + sum(len(chunk) + OVERHEAD_BYTES for chunk in chunks) + 64


def test_any_flipped_bit_raises() -> None:
    data = sealed()
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises((SealError, WireError)):
                opened(bytes(changed))


def test_any_flipped_bit_of_a_chunk_is_noticed_without_the_signature() -> None:
    data = sealed()
    (length,) = struct.unpack("<I", data[4:8])
    # Bit 255 of an X25519 public key is ignored by the curve (RFC 7748), but HPKE hashes the bytes as sent.
    for position in range(8 + length, len(data) - 64):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(SealError):
                list(Envelope.parse(changed).open(RECIPIENT))


def test_truncation_at_every_length_and_any_addition_raises() -> None:
    data = sealed()
    for length in range(len(data)):
        with pytest.raises(WireError):
            Envelope.parse(data[:length])
    for extra in (b"\0", b"x" * 48, data):
        with pytest.raises(WireError):
            Envelope.parse(data + extra)


OTHERS: dict[str, object] = {
    "deployment": "clinic2",
    "direction": "down",
    "message_type": "task",
    "algorithm": "fixed",
    "round_id": 8,
    "model_version": "cd" * 32,
    "sender": "device-2",
    "recipient_key_id": "key-2",
    "nonce": "f" * 32,
    "suite": "chacha20-poly1305",
}


def test_every_binding_field_has_a_case() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(Binding)}


@pytest.mark.parametrize("field", sorted(OTHERS))
def test_changing_a_binding_field_fails_to_open_even_when_signed_again(field: str) -> None:
    data = sealed()
    header = header_of(data)
    assert header[field] != OTHERS[field]
    header[field] = OTHERS[field]
    envelope = Envelope.parse(with_header(data, canonical(header)))
    envelope.verify(SENDER.public_key())
    for index in range(len(CHUNKS)):
        with pytest.raises(SealError, match="does not open"):
            envelope.open_chunk(index, RECIPIENT)


def test_the_forging_helper_itself_makes_envelopes_that_open() -> None:
    data = sealed()
    assert opened(with_header(data, canonical(header_of(data)))) == list(CHUNKS)


def test_fields_cannot_run_into_each_other() -> None:
    one = dataclasses.replace(BINDING, sender="ab", recipient_key_id="c")
    two = dataclasses.replace(BINDING, sender="a", recipient_key_id="bc")
    assert one.info(0, 1) != two.info(0, 1)


def test_info_by_hand() -> None:
    binding = Binding("d", "up", "update", "", 1, "m", "s", "k", "00" * 16)
    parts = [b"uvsdk/1", b"d", b"up", b"update", b"", b"\1" + bytes(7), b"m", b"s", b"k", b"\1\0"]
    parts += [b"\2\0\0\0", b"\3\0\0\0", bytes(16)]
    assert binding.info(2, 3) == b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def test_reordered_chunks_do_not_open() -> None:
    chunks = (b"first", b"other")
    data = sealed(chunks)
    (length,) = struct.unpack("<I", data[4:8])
    start, size = 8 + length, 5 + OVERHEAD_BYTES
    swapped = data[:start] + data[start + size : start + 2 * size] + data[start : start + size] + data[-64:]
    swapped = with_header(swapped, canonical(header_of(data)))
    with pytest.raises(SealError, match="chunk 1 of 2"):
        opened(swapped)


def test_a_dropped_last_chunk_does_not_open_even_when_signed_again() -> None:
    data = sealed((b"first", b"other"))
    header = header_of(data)
    header["chunk_lengths"] = [5]
    shorter = with_header(data[: -64 - 5 - OVERHEAD_BYTES] + data[-64:], canonical(header))
    with pytest.raises(SealError, match="does not open"):
        opened(shorter)


def test_moved_lengths_do_not_open() -> None:
    data = sealed((b"first", b"other"))
    header = header_of(data)
    header["chunk_lengths"] = [4, 6]
    with pytest.raises(SealError, match="does not open"):
        opened(with_header(data, canonical(header)))


def test_signature_by_another_key_and_opening_by_another_key() -> None:
    envelope = Envelope.parse(sealed())
    with pytest.raises(SealError, match="signature"):
        envelope.verify(Ed25519PrivateKey.generate().public_key())
    with pytest.raises(SealError, match="sealed to another key"):
        next(envelope.open(X25519PrivateKey.generate()))


def test_an_encapsulated_point_of_low_order_is_a_seal_error() -> None:
    data = sealed()
    (length,) = struct.unpack("<I", data[4:8])
    changed = data[: 8 + length] + bytes(32) + data[8 + length + 32 :]
    with pytest.raises(SealError):
        Envelope.parse(changed).open_chunk(0, RECIPIENT)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"sender": None},
        {"sender": 3},
        {"sender": "two\nlines"},
        {"sender": "x" * 257},
        {"round_id": -1},
        {"round_id": True},
        {"round_id": 1.0},
        {"round_id": 1 << 63},
        {"direction": "sideways"},
        {"message_type": "gossip"},
        {"nonce": "0" * 31},
        {"nonce": "G" * 32},
        {"chunk_lengths": []},
        {"chunk_lengths": "4"},
        {"chunk_lengths": [4, 0, -14]},
        {"chunk_lengths": [4, 0, True]},
        {"chunk_lengths": [4, 0, CHUNK_BYTES + 1]},
        {"chunk_lengths": [0] * 1025},
        {"chunk_lengths": [4, 0, 15]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_header_that_is_not_ours_is_refused(change: dict[str, object]) -> None:
    data = sealed()
    with pytest.raises(WireError):
        Envelope.parse(with_header(data, canonical({**header_of(data), **change})))


def test_a_missing_field_is_refused() -> None:
    data = sealed()
    for field in header_of(data):
        header = header_of(data)
        del header[field]
        with pytest.raises(WireError):
            Envelope.parse(with_header(data, canonical(header)))


def test_a_header_that_is_not_canonical_is_refused() -> None:
    data = sealed()
    good = canonical(header_of(data))
    spaced = json.dumps(header_of(data), sort_keys=True).encode()
    twice = b'{"algorithm":"fixed",' + good[1:]
    unsorted = json.dumps(dict(reversed(header_of(data).items())), separators=(",", ":")).encode()
    escaped = good.replace(b'"clinic"', b'"cl\\u0069nic"')
    exponent = good.replace(b'"round_id":7', b'"round_id":7e0')
    for header in (
        spaced,
        twice,
        unsorted,
        escaped,
        exponent,
        b"[]",
        b"null",
        b"",
        b"{",
        b"\xff",
        b"[" * 60000,
        b"NaN",
    ):
        with pytest.raises(WireError):
            Envelope.parse(with_header(data, header))
    surrogate = good.replace(b'"clinic"', b'"\\ud800"')
    with pytest.raises(WireError):
        Envelope.parse(with_header(data, surrogate))


def test_an_unknown_suite_is_a_seal_error() -> None:
    data = sealed()
    with pytest.raises(SealError, match="rot13"):
        Envelope.parse(with_header(data, canonical({**header_of(data), "suite": "rot13"})))
    with pytest.raises(SealError, match="rot13"):
        dataclasses.replace(BINDING, suite="rot13")


@pytest.mark.parametrize("garbage", [b"", b"UVS1", b"UVS2" + bytes(100), b"UVS1\xff\xff\xff\xff" + bytes(100)])
def test_garbage_is_a_wire_error(garbage: bytes) -> None:
    with pytest.raises(WireError):
        Envelope.parse(garbage)


@given(garbage=st.binary(max_size=300))
@settings(deadline=None)
def test_bytes_after_the_magic_never_raise_anything_else(garbage: bytes) -> None:
    with pytest.raises((WireError, SealError)):
        Envelope.parse(b"UVS1" + garbage)


def test_limits_of_seal() -> None:
    with pytest.raises(SealError, match="1 to 1024"):
        sealed(())
    with pytest.raises(SealError, match="1 to 1024"):
        sealed((b"",) * 1025)
    with pytest.raises(SealError, match="split it"):
        sealed((bytes(CHUNK_BYTES + 1),))
    assert opened(sealed((bytes(CHUNK_BYTES),))) == [bytes(CHUNK_BYTES)]


def test_a_mapped_file_opens_by_chunk(tmp_path: Path) -> None:
    delta = np.arange(6, dtype=np.float32)
    path = tmp_path / "envelope"
    with path.open("wb") as written:
        chunks: list[bytes | memoryview] = [b"head", delta[:4].data, delta[4:].data]
        for part in seal_parts(chunks, BINDING, recipient=RECIPIENT.public_key(), signing_key=SENDER):
            written.write(part)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with Envelope.parse(mapped) as envelope:
            envelope.verify(SENDER.public_key())
            assert np.frombuffer(envelope.open_chunk(2, RECIPIENT), np.float32).tolist() == [4.0, 5.0]
            assert envelope.open_chunk(0, RECIPIENT) == b"head"
            with pytest.raises(IndexError):
                envelope.open_chunk(3, RECIPIENT)
        assert envelope.binding == BINDING


def test_an_error_lets_go_of_a_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "envelope"
    path.write_bytes(sealed()[:-1])
    with (
        pytest.raises(WireError),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        Envelope.parse(mapped)
    path.write_bytes(sealed())
    with (
        pytest.raises(SealError),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        Envelope.parse(mapped) as envelope,
    ):
        envelope.open_chunk(0, X25519PrivateKey.generate())


@given(pieces=st.lists(st.binary(max_size=200), max_size=12))
def test_a_running_digest_does_not_depend_on_the_cut(pieces: list[bytes]) -> None:
    running, data = RunningDigest(), b"".join(pieces)
    for piece in pieces:
        running.update(piece)
    signed, whole = hashlib.sha256(data[:-64]).digest(), hashlib.sha256(data).digest()
    assert running.digests() == Digests(signed, whole)


def test_the_digest_that_comes_with_the_seal_is_that_of_the_envelope() -> None:
    data, digest = seal_and_digest(CHUNKS, BINDING, recipient=RECIPIENT.public_key(), signing_key=SENDER)
    assert digest == hashlib.sha256(data).digest()
    assert Envelope.parse(data).digest == digest.hex()
    assert opened(data) == list(CHUNKS)


def test_digests_that_are_known_stand_for_a_pass_over_the_message() -> None:
    data = sealed()
    running = RunningDigest()
    running.update(data)
    envelope = Envelope.parse(data, running.digests())
    envelope.verify(SENDER.public_key())
    assert envelope.digest == hashlib.sha256(data).hexdigest()
    of_another = Envelope.parse(data, Digests(bytes(32), bytes(32)))
    with pytest.raises(SealError, match="signature"):
        of_another.verify(SENDER.public_key())


def test_each_sealing_and_each_nonce_is_new() -> None:
    assert sealed() != sealed()
    assert new_nonce() != new_nonce()
    assert dataclasses.replace(BINDING, nonce=new_nonce()).nonce != BINDING.nonce


def test_repr_names_no_sender_and_no_key() -> None:
    assert repr(Envelope.parse(sealed())) == "Envelope(update, round 7, 3 chunks, 18 bytes)"


def test_exports_exist() -> None:
    assert all(hasattr(sealing, name) for name in sealing.__all__)
