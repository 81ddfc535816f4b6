"""Keyed hashes in place of user ids (SPEC 11.4).

A server that stores only these cannot list its users to whoever steals its database: without the pepper a guess at
an id cannot be checked. It does not stop someone who holds the pepper from trying every id they can think of.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import unicodedata
from typing import Final

from uvsdk.errors import SettingsError

PEPPER_BYTES: Final = 16
"""Shortest pepper: 128 bits, beyond guessing."""


def hash_user_id(user_id: str, *, deployment: str, pepper: bytes) -> str:
    """HMAC-SHA-256 under ``pepper`` of ``"uid/1"``, the deployment and the NFC-lowercase id, as 64 hex digits.

    Each part is preceded by its length in bytes (u32, little endian; SPEC 11.4 writes them side by side), so that
    no id can be read as the end of another deployment's name.

    Args:
        user_id: as the application knows the person; spelling variants of case and of Unicode composition are one id.
        deployment: name of the deployment, so that ids of two deployments cannot be joined.
        pepper: at least 16 secret bytes, see :func:`new_pepper`.

    Raises:
        SettingsError: an empty id or deployment, text that is not valid Unicode, or a pepper that is too short.

    >>> hash_user_id("Ana", deployment="clinic", pepper=bytes(16)) == hash_user_id(
    ...     "ana", deployment="clinic", pepper=bytes(16)
    ... )
    True
    """
    if len(pepper) < PEPPER_BYTES:
        raise SettingsError(
            f"a pepper has at least {PEPPER_BYTES} bytes, got {len(pepper)}; make one with new_pepper()"
        )
    if not deployment:
        raise SettingsError("a user id and a deployment name cannot be empty")
    try:
        name = deployment.encode()
    except UnicodeEncodeError:
        raise SettingsError("a deployment name is valid Unicode; got half of a surrogate pair") from None
    parts = (b"uid/1", name, canonical_user_id(user_id).encode())
    message = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return hmac.new(pepper, message, hashlib.sha256).hexdigest()


def canonical_user_id(user_id: str) -> str:
    """The one spelling that stands for all that differ in case or in Unicode composition only.

    Whatever looks people up by id, a server or a store, uses this, so that one person is one everywhere.

    Raises:
        SettingsError: an empty id, or text that is not valid Unicode.

    >>> canonical_user_id("Ana")
    'ana'
    """
    if not user_id:
        raise SettingsError("a user id cannot be empty")
    # Lowercasing can undo composition (U+0130 becomes i and a combining dot), hence NFC on both sides of it.
    canonical = unicodedata.normalize("NFC", unicodedata.normalize("NFC", user_id).lower())
    try:
        canonical.encode()
    except UnicodeEncodeError:  # the error quotes the id, so it is not chained
        raise SettingsError("a user id is valid Unicode; got half of a surrogate pair") from None
    return canonical


def new_pepper() -> bytes:
    """32 secret bytes from the operating system. Whoever loses them can no longer find anyone by id."""
    return secrets.token_bytes(32)


__all__ = ["PEPPER_BYTES", "canonical_user_id", "hash_user_id", "new_pepper"]
