"""What of a person's presentations is kept, encrypted: AES-256-GCM behind a magic that is authenticated with it."""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from uvsdk.errors import SettingsError, TemplateFormatError

KEY_BYTES: Final = 32
_MAGIC_BYTES, _NONCE_BYTES, _TAG_BYTES = 4, 12, 16


def seal(magic: bytes, plain: bytes, *, key: bytes) -> bytes:
    """``magic`` (4 bytes), a nonce from the operating system, the ciphertext. Two calls never give the same bytes.

    Raises:
        SettingsError: a key that has not 32 bytes.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return magic + nonce + _cipher(key).encrypt(nonce, plain, magic)


def unseal(magic: bytes, data: bytes | memoryview, *, key: bytes, what: str) -> bytes:
    """The inverse of :func:`seal`.

    Args:
        magic: what the bytes must begin with.
        data: sealed bytes.
        key: 32 bytes.
        what: what errors call it, e.g. ``"recollection"``.

    Raises:
        TemplateFormatError: another magic, cut short, changed, or encrypted with another key.
        SettingsError: a key that has not 32 bytes.
    """
    whole, cipher = bytes(data), _cipher(key)
    if whole[:_MAGIC_BYTES] != magic or len(whole) < _MAGIC_BYTES + _NONCE_BYTES + _TAG_BYTES:
        raise TemplateFormatError(f"not a {what}: {len(whole)} bytes, expected the magic {magic!r} and a ciphertext")
    nonce, rest = whole[_MAGIC_BYTES : _MAGIC_BYTES + _NONCE_BYTES], whole[_MAGIC_BYTES + _NONCE_BYTES :]
    try:
        return cipher.decrypt(nonce, rest, magic)
    except InvalidTag as error:
        raise TemplateFormatError(
            f"the {what} does not decrypt: the key is not the one it was saved with, or the bytes were damaged; try "
            "the right key, else enrol again"
        ) from error


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"a key has {KEY_BYTES} bytes, got {len(key)}; make one with uvsdk.templates.template.new_key()"
        )
    return AESGCM(key)
