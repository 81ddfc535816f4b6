"""The audit log as it leaves the server: signed heads, and the files of ``uvsdk audit export``.

A file is lines of JSON: one for each entry (:class:`uvsdk_server.store.audit.Entry`), and as the last one the head with
its signature and the public key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import StoreError
from uvsdk_server.store.audit import GENESIS, Entry, Head, verify_chain


@dataclass(frozen=True, slots=True)
class SignedHead:
    """How far a deployment's log goes, by its own word.

    Args:
        deployment: its name.
        head: number and digest of the last entry.
        key: raw Ed25519 public key, 32 bytes.
        signature: of :func:`sign_head`, 64 bytes.
    """

    deployment: str
    head: Head
    key: bytes
    signature: bytes

    @classmethod
    def of(cls, deployment: str, head: Head, key: Ed25519PrivateKey) -> Self:
        """Signed by ``key``."""
        return cls(deployment, head, key.public_key().public_bytes_raw(), sign_head(deployment, head, key))

    def line(self) -> str:
        """One line of JSON."""
        said = {
            "deployment": self.deployment,
            "head": self.head.number,
            "digest": self.head.digest,
            "key": base64.b64encode(self.key).decode(),
            "signature": base64.b64encode(self.signature).decode(),
        }
        return json.dumps(said, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_line(cls, line: str) -> Self:
        """The inverse of :meth:`line`. Raises ``ValueError`` for anything else."""
        found = json.loads(line)
        types = {"deployment": str, "head": int, "digest": str, "key": str, "signature": str}
        if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != types:
            raise ValueError("this is no head of an audit log")
        raw = [base64.b64decode(found[name], validate=True) for name in ("key", "signature")]
        return cls(found["deployment"], Head(found["head"], found["digest"]), *raw)

    def check(self) -> None:
        """Raise :class:`StoreError` unless the signature is by :attr:`key`."""
        try:
            key = Ed25519PublicKey.from_public_bytes(self.key)
            key.verify(self.signature, _signed(self.deployment, self.head))
        except (InvalidSignature, ValueError) as error:
            raise StoreError("the audit log's head is not signed by the key that it names") from error


def sign_head(deployment: str, head: Head, key: Ed25519PrivateKey) -> bytes:
    """The signature of a deployment over how far its log goes, 64 bytes."""
    return key.sign(_signed(deployment, head))


def exported(entries: Iterable[Entry], signed: SignedHead) -> str:
    """The text of an export, which ends with a line feed."""
    return "\n".join((*(entry.line() for entry in entries), signed.line(), ""))


def verify_export(text: str) -> tuple[list[Entry], SignedHead]:
    """Follow every entry of an export up to its head; gives both, and the head's key is still to be compared.

    Raises:
        StoreError: the file is none, is cut, or an entry was changed, removed or put in between.
    """
    *lines, last = text.splitlines() or [""]
    try:
        signed = SignedHead.of_line(last)
        entries = [Entry.of_line(line) for line in lines]
    except (ValueError, binascii.Error) as error:
        raise StoreError("this is no whole export of an audit log: make it anew with `uvsdk audit export`") from error
    signed.check()
    found = verify_chain(entries)
    if found != signed.head:
        raise StoreError(f"the export ends at entry {found.number} and its head says {signed.head.number}: it was cut")
    return entries, signed


def covers(entries: Iterable[Entry], kept: SignedHead) -> None:
    """Raise :class:`StoreError` unless a log goes on from a head that was kept."""
    digests = {entry.number: entry.digest for entry in entries} | {0: GENESIS}
    if digests.get(kept.head.number) != kept.head.digest:
        raise StoreError(
            f"this log does not go on from the head that was kept at entry {kept.head.number}: it was cut or written "
            "anew since"
        )


def _signed(deployment: str, head: Head) -> bytes:
    return f"uvsdk audit head/1\n{deployment}\n{head.number}\n{head.digest}\n".encode()
