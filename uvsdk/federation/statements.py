"""What a server says in the open and stands behind: the deployment it is, the round and the evaluation it runs.

A statement travels as JSON beside its :class:`Validity` and its signature. The signature is Ed25519 over
``b"uvsdk/statement/2"``, the SHA-256 of the statement packed by :mod:`uvsdk.records.codec`, whose header names the
class, so that a statement of one kind never passes for one of another, and the two times as big-endian doubles. Nobody
between a device and its server can exchange the key that the device is about to seal to: the key stands in the
statement, and its id is a function of it. Nor can anybody keep a statement and show it once the key is retired: it
expires.

>>> from uvsdk.federation.messages import ServerStatement
>>> key, public = Ed25519PrivateKey.generate(), bytes(range(32))
>>> said = ServerStatement("clinic", "c" * 64, key_id(public), public, "m" * 64, ("mean",), ("clinic.example",))
>>> hour = Validity(1000.0, 4600.0)
>>> verify_statement(said, hour, sign_statement(said, hour, key), key.public_key(), now=1200.0)
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import SealError
from uvsdk.federation.messages import EvaluationHeader, RoundHeader, ServerStatement
from uvsdk.privacy.identifiers import key_id
from uvsdk.records.codec import pack

CLOCK_SKEW_S: Final = 300.0
"""How far the clocks of a server and of a device may differ, either way."""

_SIGNED = b"uvsdk/statement/2"

Statement = ServerStatement | RoundHeader | EvaluationHeader


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a statement holds: seconds since 1970, by the server's clock."""

    issued_unix_s: float
    expires_unix_s: float

    def __post_init__(self) -> None:
        if not -math.inf < self.issued_unix_s < self.expires_unix_s < math.inf:
            raise SealError(
                f"a statement is issued before it expires, got {self.issued_unix_s} and {self.expires_unix_s}"
            )

    def check(self, now: float) -> None:
        """Raise :class:`SealError` where this is over, or has not begun, for a clock within :data:`CLOCK_SKEW_S`."""
        if not self.issued_unix_s - CLOCK_SKEW_S <= now <= self.expires_unix_s + CLOCK_SKEW_S:
            when = now - self.issued_unix_s
            raise SealError(
                f"what the server says was signed {abs(when):.0f} s {'ago' if when > 0 else 'from now'} and is not "
                "valid at this time, so nothing is sent; is the clock of this device, or of the server, right? If both "
                "are, something in between repeats an old answer"
            )


def sign_statement(statement: Statement, validity: Validity, key: Ed25519PrivateKey) -> bytes:
    """The signature that goes with ``statement``, 64 bytes."""
    return key.sign(_message(statement, validity))


def verify_statement(
    statement: Statement, validity: Validity, signature: bytes, key: Ed25519PublicKey, *, now: float
) -> None:
    """Check that the owner of ``key`` says so, now, and that the sealing key has the id it is given.

    Args:
        statement: as received.
        validity: as received.
        signature: as received.
        key: the server's signing key that this device knows.
        now: seconds since 1970, by the device's clock.

    Raises:
        SealError: it does not, it said so too long ago, or the statement was altered on its way.
    """
    if key_id(statement.server_public_key) != statement.server_key_id:
        raise SealError(
            "the key to seal to does not have the id it was given; something between here and the server has "
            "exchanged one of them, so nothing is sent"
        )
    try:
        key.verify(signature, _message(statement, validity))
    except InvalidSignature as error:
        raise SealError(
            "the server's key, or what comes with it, is not signed by the server's signing key; something between "
            "here and the server has altered it, so nothing is sent"
        ) from error
    validity.check(now)


def _message(statement: Statement, validity: Validity) -> bytes:
    times = struct.pack(">dd", validity.issued_unix_s, validity.expires_unix_s)
    return _SIGNED + hashlib.sha256(pack(statement)).digest() + times
