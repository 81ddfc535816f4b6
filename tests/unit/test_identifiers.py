"""Hashed user ids, persons and samples, with the messages assembled by hand."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np
import pytest

import uvsdk
from uvsdk import cli
from uvsdk.errors import SampleError, SettingsError
from uvsdk.privacy.identifiers import (
    canonical_embedding,
    canonical_instance,
    canonical_user_id,
    hash_instance,
    hash_person,
    hash_user_id,
    new_pepper,
)

PEPPER = bytes(range(16))


def test_by_hand() -> None:
    # Three parts, each after its length as four little-endian bytes: "uid/1", "clinic", "ana".
    message = b"\x05\0\0\0uid/1" + b"\x06\0\0\0clinic" + b"\x03\0\0\0ana"
    # HMAC written out (RFC 2104): the key padded to a block of 64 bytes, xored with 0x36 inside and 0x5c outside.
    padded = PEPPER + bytes(48)
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + message).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded) + inner).hexdigest()
    assert hash_user_id("ana", deployment="clinic", pepper=PEPPER) == outer
    assert outer == hmac.new(PEPPER, message, "sha256").hexdigest()
    # The same, once and for all: whoever changes the message changes every stored id.
    assert outer == "98de2b67f669dd67c04939a7152762a6e6924ef0465c8b58443dc267cc78ef29"


def test_case_and_composition_are_one_id() -> None:
    forms = ("José", "josé", "JOSÉ", "Jose\N{COMBINING ACUTE ACCENT}", "JOSE\N{COMBINING ACUTE ACCENT}")
    assert len({hash_user_id(form, deployment="d", pepper=PEPPER) for form in forms}) == 1
    # U+0130 lowercases to i and a combining dot above.
    dotted = {hash_user_id(form, deployment="d", pepper=PEPPER) for form in ("\u0130", "i\N{COMBINING DOT ABOVE}")}
    assert len(dotted) == 1


def test_the_canonical_spelling_is_its_own() -> None:
    for form in ("José", "JOSE\N{COMBINING ACUTE ACCENT}", "\u0130pek", "ΣΟΦΊΑΣ"):
        canonical = canonical_user_id(form)
        assert canonical_user_id(canonical) == canonical
        assert canonical_user_id(form.upper()) == canonical_user_id(form.upper().lower())
    assert canonical_user_id("JOSE\N{COMBINING ACUTE ACCENT}") == "jos\u00e9"
    for bad in ("", "secret\ud800"):
        with pytest.raises(SettingsError) as caught:
            canonical_user_id(bad)
        assert "secret" not in str(caught.value)


def test_the_command_prints_what_the_function_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The pepper is the whole file, as for a device: a line's end in it counts.
    for pepper in (PEPPER, PEPPER + b"\n"):
        (tmp_path / "pepper").write_bytes(pepper)
        command = ["id", "hash", "Jose\N{COMBINING ACUTE ACCENT}", "--deployment", "clinic"]
        assert cli.main([*command, "--pepper-file", str(tmp_path / "pepper")]) == 0
        hashed = uvsdk.hash_user_id("jos\u00e9", deployment="clinic", pepper=pepper)
        assert capsys.readouterr().out == f"{hashed}\n"


def test_a_line_end_that_was_taken_along_is_no_other_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pepper").write_bytes(PEPPER)
    for user, deployment, told in (("ada\n", "clinic", "user id"), ("ada", "cli\x7fnic", "deployment name")):
        command = ["id", "hash", user, "--deployment", deployment, "--pepper-file", str(tmp_path / "pepper")]
        assert cli.main(command) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"the {told} has the control character" in printed.err
        assert "ada" not in printed.err


def test_a_pepper_is_bytes() -> None:
    with pytest.raises(SettingsError, match="a pepper is bytes, got str; read its file with read_bytes"):
        hash_user_id("ada", deployment="clinic", pepper="0123456789abcdef")  # type: ignore[arg-type]


def test_parts_cannot_run_into_each_other() -> None:
    assert hash_user_id("bc", deployment="a", pepper=PEPPER) != hash_user_id("c", deployment="ab", pepper=PEPPER)


def test_pepper_deployment_and_id_all_matter() -> None:
    base = hash_user_id("ana", deployment="clinic", pepper=PEPPER)
    assert hash_user_id("ana", deployment="clinic", pepper=PEPPER + b"\0x") != base
    assert hash_user_id("ana", deployment="bank", pepper=PEPPER) != base
    assert hash_user_id("ann", deployment="clinic", pepper=PEPPER) != base


@pytest.mark.parametrize(
    ("user_id", "deployment", "pepper"),
    [("", "d", PEPPER), ("u", "", PEPPER), ("u", "d", PEPPER[:15]), ("u", "d", b""), ("secret\ud800", "d", PEPPER)],
)
def test_refusals_do_not_quote_the_id(user_id: str, deployment: str, pepper: bytes) -> None:
    with pytest.raises(SettingsError) as caught:
        hash_user_id(user_id, deployment=deployment, pepper=pepper)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_new_peppers_differ() -> None:
    assert len(new_pepper()) == 32
    assert new_pepper() != new_pepper()


def test_a_persons_hash_is_nobodys_user_hash() -> None:
    linked = hash_person("ana", deployment="clinic", pepper=PEPPER)
    message = b"\x08\0\0\0person/1" + b"\x06\0\0\0clinic" + b"\x03\0\0\0ana"
    assert linked == hmac.new(PEPPER, message, "sha256").hexdigest()
    assert linked == hash_person("ANA", deployment="clinic", pepper=PEPPER)
    assert linked != hash_user_id("ana", deployment="clinic", pepper=PEPPER)


def test_an_instances_hash_by_hand() -> None:
    # The cohort's key first: "instances/1" and the deployment under the pepper.
    key = hmac.new(PEPPER, b"\x0b\0\0\0instances/1" + b"\x06\0\0\0clinic", "sha256").digest()
    # Two by three pixels: kind u1, then 2 axes of 2 and 3, then the pixels.
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    canonical = b"u1" + b"\x02\0\0\0\x02\0\0\0\x03\0\0\0" + bytes(range(6))
    assert canonical_instance(pixels) == canonical
    expected = hmac.new(key, canonical, "sha256").digest()
    assert hash_instance(canonical, deployment="clinic", pepper=PEPPER) == expected


def test_an_instances_hash_depends_on_key_deployment_and_content() -> None:
    base = hash_instance(b"x", deployment="clinic", pepper=PEPPER)
    assert len(base) == 32
    assert hash_instance(b"x", deployment="bank", pepper=PEPPER) != base
    assert hash_instance(b"x", deployment="clinic", pepper=PEPPER + b"y") != base
    assert hash_instance(b"y", deployment="clinic", pepper=PEPPER) != base
    for canonical, deployment, pepper in ((b"", "d", PEPPER), (b"x", "", PEPPER), (b"x", "d", PEPPER[:15])):
        with pytest.raises(SettingsError):
            hash_instance(canonical, deployment=deployment, pepper=pepper)


def test_pixels_agree_whatever_their_order_in_memory() -> None:
    pixels = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert canonical_instance(np.asfortranarray(pixels)) == canonical_instance(pixels)
    assert canonical_instance(pixels.astype(">i2")) == canonical_instance(pixels)
    assert canonical_instance(pixels.T.copy()) != canonical_instance(pixels)  # the same bytes in another shape


def test_floats_by_hand() -> None:
    # Largest magnitude 3, so 2^e = 4: 3, -1.5 and 0.02 become 0.75, -0.375 and 0.005, in 1/128: 96, -48 and 1.
    values = np.array([3.0, -1.5, 0.02], np.float32)
    assert (
        canonical_instance(values)
        == b"q7" + b"\x02\0\0\0" + b"\x01\0\0\0\x03\0\0\0" + np.array([96, -48, 1], "<i2").tobytes()
    )
    # A largest magnitude of exactly 2^e needs no larger one: 128 is the most that is reached.
    assert canonical_instance(np.array([2.0]))[-2:] == np.array([128], "<i2").tobytes()
    assert canonical_instance(np.zeros(3))[-6:] == bytes(6)


def test_floats_agree_up_to_rounding_of_another_processor() -> None:
    rng = np.random.default_rng(0)
    agree = 0
    for _ in range(50):
        frames = rng.exponential(1.0, (160, 40)).astype(np.float32)
        other = (frames * (1 + rng.uniform(-6e-8, 6e-8, frames.shape))).astype(np.float32)
        agree += canonical_instance(frames) == canonical_instance(other)
        assert canonical_instance(frames) != canonical_instance(rng.permutation(frames))
    assert agree >= 48


@pytest.mark.parametrize("bad", [np.empty(0), np.array([1.0, np.nan]), np.array([np.inf]), np.array(["a"])])
def test_features_that_cannot_be_hashed(bad: np.ndarray) -> None:
    with pytest.raises(SampleError):
        canonical_instance(bad)


def test_the_embedding_form() -> None:
    # 2^-6 = 0.015625: 0.6 is 38.4 steps, 0.8 is 51.2.
    canonical = canonical_embedding(np.array([0.6, -0.8], np.float32))
    assert canonical == b"e6" + b"\x02\0\0\0" + np.array([38, -51], "<i2").tobytes()
    for bad in (np.array([np.nan, 1.0]), np.array([2.0, 0.0]), np.zeros(3), np.eye(2)):
        with pytest.raises(SampleError):
            canonical_embedding(bad)


def test_the_embedding_form_rarely_splits_what_is_equal() -> None:
    # SPEC 3.6: differences of 1e-6 at d = 64 and a step of 2^-6 part about 0.4 % of the pairs.
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((4000, 64))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    parted = sum(canonical_embedding(row) != canonical_embedding(row + rng.uniform(-1e-6, 1e-6, 64)) for row in rows)
    assert parted / 4000 < 0.012
