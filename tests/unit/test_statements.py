"""Signed statements: every field is covered, and the key to seal to has the id it is given."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from uvsdk.errors import SealError
from uvsdk.federation.codec import pack
from uvsdk.federation.messages import RoundHeader, ServerStatement
from uvsdk.privacy.statements import Statement, key_id, sign_statement, verify_statement

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = np.arange(32, dtype=np.uint8)
OTHER = PUBLIC[::-1].copy()
SERVER = ServerStatement("clinic", "c" * 64, key_id(PUBLIC.tobytes()), PUBLIC, "m" * 64, ("mean",))
ROUND = RoundHeader("clinic", "fedaws", 3, "m" * 64, "c" * 64, 1.5, key_id(PUBLIC.tobytes()), PUBLIC, 20)


def test_by_hand() -> None:
    # The id is the first 16 bytes of the key's SHA-256, and the signature is over a prefix and one more SHA-256.
    assert key_id(PUBLIC.tobytes()) == hashlib.sha256(bytes(range(32))).digest()[:16].hex()
    assert sign_statement(ROUND, KEY) == KEY.sign(b"uvsdk/statement/1" + hashlib.sha256(pack(ROUND)).digest())


@pytest.mark.parametrize("statement", [SERVER, ROUND])
def test_an_honest_statement_passes(statement: Statement) -> None:
    verify_statement(statement, sign_statement(statement, KEY), KEY.public_key())


@pytest.mark.parametrize(
    "altered",
    [
        replace(SERVER, deployment="bank"),
        replace(SERVER, config_digest="d" * 64),
        replace(SERVER, server_key_id=key_id(OTHER.tobytes())),
        replace(SERVER, server_public_key=OTHER),
        replace(SERVER, server_public_key=OTHER, server_key_id=key_id(OTHER.tobytes())),
        replace(SERVER, model_version="n" * 64),
        replace(SERVER, needs=()),
    ],
)
def test_every_field_of_the_server_counts(altered: ServerStatement) -> None:
    with pytest.raises(SealError, match="nothing is sent"):
        verify_statement(altered, sign_statement(SERVER, KEY), KEY.public_key())


@pytest.mark.parametrize(
    "altered",
    [
        replace(ROUND, deployment="bank"),
        replace(ROUND, algorithm="fixed"),
        replace(ROUND, round_id=4),
        replace(ROUND, model_version="n" * 64),
        replace(ROUND, config_digest="d" * 64),
        replace(ROUND, deadline_unix_s=2.5),
        replace(ROUND, server_public_key=OTHER, server_key_id=key_id(OTHER.tobytes())),
        replace(ROUND, cohort=21),
    ],
)
def test_every_field_of_a_round_counts(altered: RoundHeader) -> None:
    with pytest.raises(SealError, match="nothing is sent"):
        verify_statement(altered, sign_statement(ROUND, KEY), KEY.public_key())


def test_another_signer_and_another_kind_do_not_pass() -> None:
    stranger = Ed25519PrivateKey.generate()
    with pytest.raises(SealError):
        verify_statement(ROUND, sign_statement(ROUND, stranger), KEY.public_key())
    with pytest.raises(SealError):
        verify_statement(SERVER, sign_statement(ROUND, KEY), KEY.public_key())
