"""What a server says in the open and stands behind: the deployment it is, and the round it runs.

A statement travels as JSON beside its signature. The signature is Ed25519 over ``b"uvsdk/statement/1"`` and the
SHA-256 of the statement packed by :mod:`uvsdk.federation.codec`, whose header names the class, so that a statement
of one kind never passes for one of another. Nobody between a device and its server can exchange the key that the
device is about to seal to: the key stands in the statement, and its id is a function of it.

>>> from uvsdk.federation.messages import ServerStatement
>>> import numpy as np
>>> key, public = Ed25519PrivateKey.generate(), np.arange(32, dtype=np.uint8)
>>> said = ServerStatement("clinic", "c" * 64, key_id(public.tobytes()), public, "m" * 64, ("mean",))
>>> verify_statement(said, sign_statement(said, key), key.public_key())
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import SealError
from uvsdk.federation.codec import pack
from uvsdk.federation.messages import RoundHeader, ServerStatement

KEY_ID_DIGITS: Final = 32
"""128 bits: finding a second key of a given id takes 2^128 tries."""

_SIGNED = b"uvsdk/statement/1"

Statement = ServerStatement | RoundHeader


def key_id(public_key: bytes) -> str:
    """The name of a public key: the first 32 hexadecimal digits of the SHA-256 of its 32 raw bytes.

    >>> key_id(bytes(32))
    '66687aadf862bd776c8fc18b8e9f8e20'
    """
    return hashlib.sha256(public_key).hexdigest()[:KEY_ID_DIGITS]


def sign_statement(statement: Statement, key: Ed25519PrivateKey) -> bytes:
    """The signature that goes with ``statement``, 64 bytes."""
    return key.sign(_message(statement))


def verify_statement(statement: Statement, signature: bytes, key: Ed25519PublicKey) -> None:
    """Check that the owner of ``key`` says so, and that the sealing key has the id it is given.

    Raises:
        SealError: it does not, or the statement was altered on its way.
    """
    if key_id(statement.server_public_key.tobytes()) != statement.server_key_id:
        raise SealError(
            "the key to seal to does not have the id it was given; something between here and the server has "
            "exchanged one of them, so nothing is sent"
        )
    try:
        key.verify(signature, _message(statement))
    except InvalidSignature as error:
        raise SealError(
            "the server's key, or what comes with it, is not signed by the server's signing key; something between "
            "here and the server has altered it, so nothing is sent"
        ) from error


def _message(statement: Statement) -> bytes:
    return _SIGNED + hashlib.sha256(pack(statement)).digest()


__all__ = ["KEY_ID_DIGITS", "Statement", "key_id", "sign_statement", "verify_statement"]
