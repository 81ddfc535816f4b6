"""Hashed user ids, with the message assembled by hand."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from uvsdk.errors import SettingsError
from uvsdk.privacy.identifiers import canonical_user_id, hash_user_id, new_pepper

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
