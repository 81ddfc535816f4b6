"""Signed requests: the example of RFC 9421, and every way in which a request is not the one that was signed."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from uvsdk.errors import SealError
from uvsdk.privacy.request_signing import (
    COVERED,
    Claim,
    Requested,
    claim_of,
    content_digest,
    sign_request,
    signature_base,
    signature_parameters,
    verify_request,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
BODY = hashlib.sha256(b"body").digest()
TARGET = "/v1/rounds/7/update?after=3&x=%20"
NOW = 1_700_000_000
HOST = "clinic.example"
REQUESTED = Requested("PUT", HOST, TARGET, BODY)


def signed(requested: Requested = REQUESTED, key_id: str = "device-1") -> dict[str, str]:
    return sign_request(requested, KEY, key_id=key_id, challenge="c0ffee", created=NOW)


def check(headers: dict[str, str], key: Ed25519PrivateKey = KEY, **changes: object) -> None:
    verify_request(headers, replace(REQUESTED, **changes), public_key=key.public_key())  # type: ignore[arg-type]


def test_rfc_9421_example_b_2_6() -> None:
    # RFC 9421: key test-key-ed25519 of appendix B.1.4, request and expected values of appendix B.2.6.
    key = Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU="))
    components = [
        ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
        ("@method", "POST"),
        ("@path", "/foo"),
        ("@authority", "example.com"),
        ("content-type", "application/json"),
        ("content-length", "18"),
    ]
    parameters = signature_parameters(
        [name for name, _ in components], {"created": 1618884473, "keyid": "test-key-ed25519"}
    )
    base = signature_base(components, parameters)
    assert base.decode() == (
        '"date": Tue, 20 Apr 2021 02:07:55 GMT\n'
        '"@method": POST\n'
        '"@path": /foo\n'
        '"@authority": example.com\n'
        '"content-type": application/json\n'
        '"content-length": 18\n'
        '"@signature-params": ("date" "@method" "@path" "@authority" "content-type" "content-length")'
        ';created=1618884473;keyid="test-key-ed25519"'
    )
    expected = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    assert base64.b64encode(key.sign(base)).decode() == expected


def test_content_digest_of_rfc_9530() -> None:
    digest = hashlib.sha256(b'{"hello": "world"}').digest()
    assert content_digest(digest) == "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
    with pytest.raises(SealError, match="32 bytes, got 5"):
        content_digest(b"short")


def test_what_is_signed_can_be_assembled_by_hand() -> None:
    headers = signed()
    parameters = headers["Signature-Input"].removeprefix("uvsdk=")
    assert parameters.startswith(
        '("@method" "@authority" "@path" "@query" "content-digest");created=1700000000;keyid="device-1";nonce="c0ffee.'
    )
    assert parameters.endswith('";alg="ed25519"')
    base = (
        '"@method": PUT\n"@authority": clinic.example\n"@path": /v1/rounds/7/update\n"@query": ?after=3&x=%20\n'
        f'"content-digest": sha-256=:{base64.b64encode(BODY).decode()}:\n"@signature-params": {parameters}'
    )
    signature = headers["Signature"]
    assert signature.startswith("uvsdk=:")
    assert signature.endswith(":")
    KEY.public_key().verify(base64.b64decode(signature[7:-1]), base.encode())


def test_a_signed_request_verifies_whatever_the_case_of_header_names() -> None:
    headers = signed()
    check(headers)
    check({name.lower(): value for name, value in headers.items()} | {"accept": "*/*"})
    claim = claim_of(headers)
    assert claim == Claim("device-1", claim.nonce, "c0ffee", NOW)
    assert claim.nonce.startswith("c0ffee.")


def test_an_absent_query_is_signed_as_absent() -> None:
    headers = signed(Requested("GET", HOST, "/v1/x", BODY))
    check(headers, method="GET", target="/v1/x")
    with pytest.raises(SealError):
        check(headers, method="GET", target="/v1/x?a")


def test_components_in_another_order_are_accepted() -> None:
    order = ("content-digest", "@query", "@path", "@authority", "@method")
    values = {
        "@authority": HOST,
        "@method": "GET",
        "@path": "/x",
        "@query": "?",
        "content-digest": content_digest(BODY),
    }
    parameters = signature_parameters(order, {"alg": "ed25519", "nonce": "c.n", "keyid": "d", "created": NOW})
    signature = KEY.sign(signature_base([(name, values[name]) for name in order], parameters))
    headers = {
        "Content-Digest": values["content-digest"],
        "Signature-Input": f"sig1={parameters}",
        "Signature": f"sig1=:{base64.b64encode(signature).decode()}:",
    }
    check(headers, method="GET", target="/x")


@pytest.mark.parametrize(
    "other",
    [
        {"method": "POST"},
        {"target": "/v1/rounds/8/update?after=3&x=%20"},
        {"target": "/v1/rounds/7/update?after=4&x=%20"},
        {"target": "/v1/rounds/7/update"},
        {"target": "http://example.com/v1/rounds/7/update?after=3&x=%20"},
        {"body_sha256": hashlib.sha256(b"another").digest()},
        {"body_sha256": b""},
        {"authority": "mallory.example"},
        {"authority": "clinic.example:8080"},
        {"authority": ""},
        {"key": Ed25519PrivateKey.from_private_bytes(bytes(32))},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_request_another_server_another_key(other: dict[str, object]) -> None:
    headers = signed()
    with pytest.raises(SealError):
        check(headers, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Content-Digest", "Signature-Input", "Signature"])
def test_every_header_is_needed_once_and_every_flipped_character_matters(name: str) -> None:
    headers = signed()
    for position in range(len(headers[name])):
        changed = headers[name][:position] + chr(ord(headers[name][position]) ^ 1) + headers[name][position + 1 :]
        with pytest.raises(SealError):
            check({**headers, name: changed})
        with pytest.raises(SealError):
            check({**headers, name: headers[name][:position]})
    with pytest.raises(SealError, match="missing"):
        check({key: value for key, value in headers.items() if key != name})
    with pytest.raises(SealError, match="twice"):
        check({**headers, name.lower(): headers[name]})
    with pytest.raises(SealError, match="characters"):
        check({**headers, name: "x" * 3000})


def resigned(components: tuple[str, ...], parameters: dict[str, int | str]) -> dict[str, str]:
    """Headers that are well signed and yet not what a server accepts."""
    values = {
        "@method": "GET",
        "@authority": HOST,
        "@path": "/x",
        "@query": "?",
        "content-digest": content_digest(BODY),
        "date": "now",
    }
    text = signature_parameters(components, parameters)
    signature = KEY.sign(signature_base([(name, values[name]) for name in components], text))
    return {
        "Content-Digest": values["content-digest"],
        "Signature-Input": f"uvsdk={text}",
        "Signature": f"uvsdk=:{base64.b64encode(signature).decode()}:",
    }


GOOD: dict[str, int | str] = {"created": NOW, "keyid": "d", "nonce": "c.n", "alg": "ed25519"}


def test_the_helper_makes_headers_that_verify() -> None:
    check(resigned(COVERED, GOOD), method="GET", target="/x")


@pytest.mark.parametrize(
    ("components", "parameters"),
    [
        (("@method", "@authority", "@path", "@query"), GOOD),
        (("@method", "@authority", "@path", "content-digest"), GOOD),
        (("@method", "@path", "@query", "content-digest"), GOOD),
        ((*COVERED, "date"), GOOD),
        ((*COVERED, "@method"), GOOD),
        (COVERED, {**GOOD, "alg": "hmac-sha256"}),
        (COVERED, {**GOOD, "expires": NOW}),
        (COVERED, {**GOOD, "created": "1700000000"}),
        (COVERED, {**GOOD, "keyid": 7}),
        (COVERED, {**GOOD, "nonce": ""}),
        (COVERED, {**GOOD, "nonce": 7}),
        (COVERED, {**GOOD, "nonce": "no-challenge"}),
        (COVERED, {**GOOD, "nonce": "c."}),
        (COVERED, {key: value for key, value in GOOD.items() if key != "nonce"}),
        (COVERED, {key: value for key, value in GOOD.items() if key != "created"}),
    ],
    ids=str,
)
def test_signatures_over_less_or_other_things_are_refused(
    components: tuple[str, ...], parameters: dict[str, int | str]
) -> None:
    with pytest.raises(SealError):
        check(resigned(components, parameters), method="GET", target="/x")


def test_a_parameter_given_twice_is_refused() -> None:
    headers = signed()
    with pytest.raises(SealError, match="twice"):
        claim_of({**headers, "Signature-Input": headers["Signature-Input"] + ';keyid="other"'})


@pytest.mark.parametrize("key_id", ['a"b', "a\\b", "a\nb", "é"])
def test_a_key_id_that_would_break_the_header_is_refused(key_id: str) -> None:
    with pytest.raises(SealError):
        signed(key_id=key_id)


@pytest.mark.parametrize("target", ["", "x", "/a#b", "/é", '/a\n"@method": GET'])
def test_a_target_that_cannot_be_signed_is_refused(target: str) -> None:
    with pytest.raises(SealError):
        signed(replace(REQUESTED, target=target))


def test_two_signatures_have_two_nonces() -> None:
    assert signed()["Signature-Input"] != signed()["Signature-Input"]
