"""The store's data key at rest: wrapped by a key from a passphrase or from the operating system's keyring.

``store.json`` holds the wrapped key and how to unwrap it, never a key in clear. Because records are
encrypted under the data key, changing the passphrase rewrites this one small file.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import unicodedata
from dataclasses import asdict, dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from uvsdk.errors import StoreError, StoreLockedError

FORMAT = "uvsdk-store/1"
KEYRING_SERVICE = "uvsdk"
_KEY_BYTES = 32
_MEMORY_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class ScryptCost:
    """Cost of one passphrase guess (RFC 7914); the default is OWASP's N = 2^15, r = 8, p = 3: 32 MiB, 0.2 s.

    Args:
        n: CPU and memory cost, a power of two.
        r: block size.
        p: parallelism.
    """

    n: int = 1 << 15
    r: int = 8
    p: int = 3

    def __post_init__(self) -> None:
        if self.n < 1 << 12 or self.n & (self.n - 1) or self.r < 8 or not 1 <= self.p <= 64:
            raise StoreError(f"scrypt cost n={self.n}, r={self.r}, p={self.p} is too low or not valid")
        # A tampered store.json must not make opening it exhaust the machine.
        if 128 * self.n * self.r > _MEMORY_LIMIT:
            raise StoreError(f"scrypt cost n={self.n}, r={self.r} would take more than {_MEMORY_LIMIT >> 20} MiB")


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """What ``store.json`` says. Byte fields are base64.

    Args:
        store: random name of the store, its account in the keyring.
        protection: ``passphrase`` or ``keyring``.
        cost: scrypt's cost; not used for ``keyring``.
        salt: scrypt's salt.
        nonce: of AES-256-GCM.
        wrapped: the encrypted data key; all other fields are its associated data.
    """

    store: str
    protection: str
    cost: ScryptCost
    salt: str
    nonce: str
    wrapped: str

    def to_json(self) -> bytes:
        """The content of ``store.json``."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> WrappedKey:
        """Read :meth:`to_json`'s form. Raises :class:`StoreError` for anything else."""
        try:
            values = json.loads(data)
            if values.pop("format") != FORMAT:
                raise StoreError(f"store.json is not of the format {FORMAT}; is this version of uvsdk too old for it?")
            return cls(**{**values, "cost": ScryptCost(**values["cost"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"store.json is damaged: {error}; restore it from a backup") from error

    def associated_data(self) -> bytes:
        """Everything but the ciphertext, so that no field can be exchanged."""
        fields = (FORMAT, self.store, self.protection, self.cost.n, self.cost.r, self.cost.p, self.salt)
        return json.dumps(fields).encode()


def wrap(data_key: bytes, *, passphrase: str | None, store: str = "", cost: ScryptCost | None = None) -> WrappedKey:
    """Wrap ``data_key`` under ``passphrase``, or under the keyring's key where that is ``None``.

    Raises:
        StoreLockedError: no passphrase and no keyring.
    """
    salt = _text(os.urandom(16))
    kind = "keyring" if passphrase is None else "passphrase"
    draft = WrappedKey(store or secrets.token_hex(16), kind, cost or ScryptCost(), salt, _text(os.urandom(12)), "")
    if passphrase is None:
        key = _keyring_key(draft.store, create=True)
    else:
        if not passphrase:
            raise StoreLockedError("the passphrase is empty; give one of at least one character")
        key = _passphrase_key(draft, passphrase)
    wrapped = AESGCM(key).encrypt(_bytes(draft.nonce), data_key, draft.associated_data())
    return WrappedKey(draft.store, draft.protection, draft.cost, draft.salt, draft.nonce, _text(wrapped))


def unwrap(wrapped: WrappedKey, *, passphrase: str | None) -> bytes:
    """The data key. Raises :class:`StoreLockedError` for a wrong or missing passphrase or keyring entry."""
    if wrapped.protection == "passphrase":
        if passphrase is None:
            raise StoreLockedError("this store is protected by a passphrase and none was given")
        key = _passphrase_key(wrapped, passphrase)
        hint = "the passphrase is wrong, or store.json was changed"
    elif wrapped.protection == "keyring":
        if passphrase is not None:
            raise StoreLockedError("this store is protected by the operating system's keyring, not by a passphrase")
        key = _keyring_key(wrapped.store, create=False)
        hint = "the keyring's key is not this store's, or store.json was changed"
    else:
        raise StoreError(f"store.json names the protection {wrapped.protection!r}; expected passphrase or keyring")
    try:
        return AESGCM(key).decrypt(_bytes(wrapped.nonce), _bytes(wrapped.wrapped), wrapped.associated_data())
    except (InvalidTag, ValueError) as error:
        raise StoreLockedError(hint) from error


def new_data_key() -> bytes:
    """32 bytes from the operating system."""
    return os.urandom(_KEY_BYTES)


def _passphrase_key(wrapped: WrappedKey, passphrase: str) -> bytes:
    cost = wrapped.cost
    # The same letters typed on two keyboards can be different code points.
    try:
        secret = unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:  # the error quotes the passphrase, so it is not chained
        raise StoreLockedError("the passphrase is not valid Unicode; is it in the terminal's encoding?") from None
    return Scrypt(_bytes(wrapped.salt), _KEY_BYTES, cost.n, cost.r, cost.p).derive(secret)


def _keyring_key(store: str, *, create: bool) -> bytes:
    # Imported here: the keyring looks for its backends when it is imported, and most stores have a passphrase.
    try:
        import keyring

        found = keyring.get_password(KEYRING_SERVICE, store)
        if found is None and create:
            keyring.set_password(KEYRING_SERVICE, store, _text(os.urandom(_KEY_BYTES)))
            found = keyring.get_password(KEYRING_SERVICE, store)
    except Exception as error:
        raise StoreLockedError(
            "the operating system's keyring cannot be used here; pass a passphrase instead "
            f"(--passphrase-file, or UVSDK_PASSPHRASE): {type(error).__name__}"
        ) from error
    if found is None:
        raise StoreLockedError("the keyring has no key for this store; it was made by another account or machine")
    return _bytes(found)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise StoreError("store.json is damaged: not base64; restore it from a backup") from error
