"""Who stands behind a model bundle: a deployment's server for what it serves, a publisher for what is handed out.

The signature is Ed25519 over ``b"uvsdk/bundle/1"`` and the SHA-256 of a :class:`BundleStatement` packed by
:mod:`uvsdk.records.codec`. The statement names the digest of the whole bundle, so every member and every word of the
manifest is covered, and beside it the model version and the digest of the calibration, so that one can be told from the
other without the file. It travels inside the bundle as the member ``signature.json``.

A signature proves who made a bundle, not that it is the newest one of theirs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from uvsdk.errors import BundleError, SettingsError, UntrustedBundleError
from uvsdk.privacy.identifiers import key_id
from uvsdk.records.codec import pack

_SIGNED: Final = b"uvsdk/bundle/1"
_ISSUER_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class BundleStatement:
    """What a signature says.

    Args:
        issuer: who says so, in words: the name of a deployment, or what a publisher calls itself; may be empty.
        bundle: :attr:`uvsdk.bundle.Bundle.digest`.
        model_version: what templates are bound to.
        calibration: :attr:`uvsdk.scoring.Calibration.digest`; empty where the bundle has none.
    """

    issuer: str
    bundle: str
    model_version: str
    calibration: str


@dataclass(frozen=True, slots=True)
class BundleSignature:
    """A signature as it travels: without the statement, which follows from the bundle.

    Args:
        issuer: as in the statement.
        public_key: 32 raw bytes; whether it is anybody's whom the reader trusts is the reader's to know.
        signature: 64 bytes.
    """

    issuer: str
    public_key: bytes
    signature: bytes

    @property
    def key_id(self) -> str:
        """The name of the key (:func:`uvsdk.privacy.identifiers.key_id`)."""
        return key_id(self.public_key)

    def to_bytes(self) -> bytes:
        """The member ``signature.json``."""
        values = {
            "issuer": self.issuer,
            "public_key": base64.b64encode(self.public_key).decode(),
            "signature": base64.b64encode(self.signature).decode(),
        }
        return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BundleSignature:
        """The inverse of :meth:`to_bytes`, byte for byte. Raises :class:`BundleError` for anything else."""
        try:
            values = json.loads(data)
            read = cls(
                values["issuer"],
                base64.b64decode(values["public_key"], validate=True),
                base64.b64decode(values["signature"], validate=True),
            )
            whole = isinstance(read.issuer, str) and len(read.public_key) == 32 and len(read.signature) == 64
            if whole and len(read.issuer) <= _ISSUER_LIMIT and read.to_bytes() == data:
                return read
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BundleError("signature.json is not the signature of a bundle; fetch the bundle again") from error
        raise BundleError("signature.json is not the signature of a bundle; fetch the bundle again")

    def check(self, statement: BundleStatement) -> None:
        """Raises :class:`UntrustedBundleError` unless the owner of the key says exactly this."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(self.signature, _message(statement))
        except (InvalidSignature, ValueError) as error:
            raise UntrustedBundleError(
                f"the bundle is not the one that the key {self.key_id[:12]} signed: it was altered afterwards, or the "
                "signature was taken from another one; fetch it again"
            ) from error


def sign(statement: BundleStatement, key: Ed25519PrivateKey) -> BundleSignature:
    """The signature by ``key``. Raises :class:`SettingsError` where the issuer's name is too long."""
    if len(statement.issuer) > _ISSUER_LIMIT:
        raise SettingsError(f"an issuer's name has at most {_ISSUER_LIMIT} characters, got {len(statement.issuer)}")
    return BundleSignature(statement.issuer, key.public_key().public_bytes_raw(), key.sign(_message(statement)))


def new_private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """A new key, kept in ``path`` (PEM, mode 0600), which must not exist. Raises :class:`SettingsError`."""
    key = Ed25519PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor that was opened with mode 0600
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SettingsError(f"cannot write the key {path}: {error.strerror}; a key never replaces a file") from error
    return key


def read_private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """An Ed25519 key in PEM without a passphrase. Raises :class:`SettingsError` for anything else."""
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{path} holds no Ed25519 private key in PEM; make one with `uvsdk bundle key`") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path} holds a key of another kind; bundles are signed with Ed25519")
    return key


def public_pem(key: Ed25519PublicKey) -> bytes:
    """What :func:`read_public_key` reads."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    """An Ed25519 public key in PEM. Raises :class:`SettingsError` for anything else."""
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{path} holds no Ed25519 public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SettingsError(f"{path} holds a key of another kind; bundles are signed with Ed25519")
    return key


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read the key {path}: {error.strerror}") from error


def _message(statement: BundleStatement) -> bytes:
    return _SIGNED + hashlib.sha256(pack(statement)).digest()
