"""Signed statements: every field is covered, and the key to seal to has the id it is given."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from uvsdk.errors import SealError
from uvsdk.federation.messages import RoundHeader, ServerStatement
from uvsdk.federation.statements import CLOCK_SKEW_S, Statement, Validity, sign_statement, verify_statement
from uvsdk.privacy.identifiers import key_id
from uvsdk.records.codec import pack

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = bytes(range(32))
OTHER = PUBLIC[::-1]
SERVER = ServerStatement("clinic", "c" * 64, key_id(PUBLIC), PUBLIC, "m" * 64, ("mean",), ("clinic.example",))
ROUND = RoundHeader("clinic", "fedaws", 3, "m" * 64, "c" * 64, 1.5, key_id(PUBLIC), PUBLIC, 20, 0.5)
NOW = 1_700_000_000.0
HOUR = Validity(NOW, NOW + 3600)


def check(statement: Statement, signature: bytes, *, validity: Validity = HOUR, now: float = NOW) -> None:
    verify_statement(statement, validity, signature, KEY.public_key(), now=now)


def test_by_hand() -> None:
    # The id is the first 16 bytes of the key's SHA-256; the signature is over a prefix, one more SHA-256 and two times.
    assert key_id(PUBLIC) == hashlib.sha256(bytes(range(32))).digest()[:16].hex()
    signed = b"uvsdk/statement/2" + hashlib.sha256(pack(ROUND)).digest() + struct.pack(">dd", NOW, NOW + 3600)
    assert sign_statement(ROUND, HOUR, KEY) == KEY.sign(signed)


@pytest.mark.parametrize("statement", [SERVER, ROUND])
def test_an_honest_statement_passes(statement: Statement) -> None:
    check(statement, sign_statement(statement, HOUR, KEY))


@pytest.mark.parametrize(
    "altered",
    [
        replace(SERVER, deployment="bank"),
        replace(SERVER, config_digest="d" * 64),
        replace(SERVER, server_key_id=key_id(OTHER)),
        replace(SERVER, server_public_key=OTHER),
        replace(SERVER, server_public_key=OTHER, server_key_id=key_id(OTHER)),
        replace(SERVER, model_version="n" * 64),
        replace(SERVER, needs=()),
        replace(SERVER, authorities=("clinic.example", "bank.example")),
    ],
)
def test_every_field_of_the_server_counts(altered: ServerStatement) -> None:
    with pytest.raises(SealError, match="nothing is sent"):
        check(altered, sign_statement(SERVER, HOUR, KEY))


@pytest.mark.parametrize(
    "altered",
    [
        replace(ROUND, deployment="bank"),
        replace(ROUND, algorithm="fixed"),
        replace(ROUND, round_id=4),
        replace(ROUND, model_version="n" * 64),
        replace(ROUND, config_digest="d" * 64),
        replace(ROUND, deadline_unix_s=2.5),
        replace(ROUND, server_public_key=OTHER, server_key_id=key_id(OTHER)),
        replace(ROUND, cohort=21),
    ],
)
def test_every_field_of_a_round_counts(altered: RoundHeader) -> None:
    with pytest.raises(SealError, match="nothing is sent"):
        check(altered, sign_statement(ROUND, HOUR, KEY))


def test_another_signer_and_another_kind_do_not_pass() -> None:
    stranger = Ed25519PrivateKey.generate()
    with pytest.raises(SealError):
        check(ROUND, sign_statement(ROUND, HOUR, stranger))
    with pytest.raises(SealError):
        check(SERVER, sign_statement(ROUND, HOUR, KEY))


@pytest.mark.parametrize("statement", [SERVER, ROUND])
def test_a_statement_expires_and_clocks_may_differ_by_five_minutes(statement: Statement) -> None:
    signature = sign_statement(statement, HOUR, KEY)
    assert CLOCK_SKEW_S == 300
    for now in (NOW - 300, NOW, NOW + 3600, NOW + 3900):
        check(statement, signature, now=now)
    for now in (NOW - 301, NOW + 3901, NOW + 1e9, math.nan):
        with pytest.raises(SealError, match="clock"):
            check(statement, signature, now=now)


@pytest.mark.parametrize("validity", [Validity(NOW - 1, NOW + 3600), Validity(NOW, NOW + 3601)])
def test_nobody_extends_a_statement(validity: Validity) -> None:
    with pytest.raises(SealError, match="nothing is sent"):
        check(SERVER, sign_statement(SERVER, HOUR, KEY), validity=validity)


@pytest.mark.parametrize("times", [(NOW, NOW), (NOW, NOW - 1), (math.nan, NOW), (NOW, math.inf), (-math.inf, NOW)])
def test_a_validity_has_an_end_after_its_beginning(times: tuple[float, float]) -> None:
    with pytest.raises(SealError):
        Validity(*times)
