"""The server's own keys, files of mode 0600 in a folder of mode 0700.

* ``signing.key``: Ed25519, made at the first start; devices pin its public half.
* ``at-rest.key``: AES-256-GCM, for templates, class matrices and heads of updates in the database and the blobs.
* ``hpke-ID.key``: X25519, named by the hash of its public half, rotated; an old one is destroyed once no open round
  needs it (SPEC 11.3).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import insert, select, update

from uvsdk.errors import StoreError
from uvsdk.privacy.statements import Statement, key_id, sign_statement
from uvsdk_server.store.database import Database
from uvsdk_server.store.schema import server_keys

_NONCE_BYTES = 12


class AtRest:
    """Encryption of what lies in the database and the blobs, bound to a purpose."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, data: bytes, purpose: str) -> bytes:
        """Nonce and ciphertext; ``purpose`` (e.g. ``"template/USER/VERSION"``) must be named again to open it."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, purpose.encode())

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Undo :meth:`seal`. Raises :class:`StoreError` where it was damaged or is for another purpose."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
        except (InvalidTag, ValueError) as error:  # ValueError: too short to hold a nonce
            raise StoreError(
                "something stored does not open with at-rest.key; was the key file replaced, or the row damaged?"
            ) from error

    def __repr__(self) -> str:
        return "AtRest(...)"


class KeyRing:
    """The keys, loaded."""

    def __init__(self, folder: Path, signing: Ed25519PrivateKey, at_rest: AtRest) -> None:
        """Made by :meth:`open`."""
        self._folder = folder
        self._hpke: dict[str, X25519PrivateKey] = {}
        self.signing = signing
        self.at_rest = at_rest
        self.current_id = ""
        self.created = 0.0

    @classmethod
    async def open(cls, folder: Path, database: Database, now: float) -> Self:
        """Read the keys of ``folder``, making those that are missing."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        ring = cls(
            folder,
            Ed25519PrivateKey.from_private_bytes(_read_or_make(folder / "signing.key")),
            AtRest(_read_or_make(folder / "at-rest.key")),
        )
        async with database.read() as connection:
            query = select(server_keys).where(server_keys.c.retired.is_(None)).order_by(server_keys.c.created)
            rows = (await connection.execute(query)).all()
        for row in rows:
            private_key = X25519PrivateKey.from_private_bytes(_read(ring._path(row.key_id)))
            if key_id(private_key.public_key().public_bytes_raw()) != row.key_id:
                raise StoreError(f"hpke-{row.key_id}.key does not hold the key of that name; restore it from a backup")
            ring._hpke[row.key_id] = private_key
            ring.current_id, ring.created = row.key_id, row.created
        for stray in folder.glob("hpke-*.key"):
            if stray.stem.removeprefix("hpke-") not in ring._hpke:
                stray.unlink()
        if not ring.current_id:
            await ring.rotate(database, now)
        return ring

    async def rotate(self, database: Database, now: float) -> None:
        """Make a new current HPKE key; old ones still open what was sealed to them."""
        private_key = X25519PrivateKey.generate()
        name = key_id(private_key.public_key().public_bytes_raw())
        _write(self._path(name), private_key.private_bytes_raw())
        async with database.write() as connection:
            await connection.execute(insert(server_keys).values(key_id=name, created=now))
        self._hpke[name] = private_key
        self.current_id, self.created = name, now

    async def retire(self, database: Database, needed: Collection[str], now: float) -> None:
        """Destroy every key that is neither current nor in ``needed``."""
        for name in set(self._hpke) - {self.current_id} - set(needed):
            async with database.write() as connection:
                await connection.execute(update(server_keys).where(server_keys.c.key_id == name).values(retired=now))
            self._path(name).unlink(missing_ok=True)
            del self._hpke[name]

    def hpke(self, name: str) -> X25519PrivateKey | None:
        """The private key of that id, ``None`` where it is unknown or already destroyed."""
        return self._hpke.get(name)

    def public(self, name: str) -> bytes:
        """Raw public half, 32 bytes, of a key that is still held."""
        return self._hpke[name].public_key().public_bytes_raw()

    def stand_behind(self, statement: Statement) -> bytes:
        """The signature under which devices believe ``statement``."""
        return sign_statement(statement, self.signing)

    def _path(self, name: str) -> Path:
        return self._folder / f"hpke-{name}.key"

    def __repr__(self) -> str:
        return f"KeyRing(current {self.current_id}, {len(self._hpke)} HPKE keys)"


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        _write(path, secrets.token_bytes(32))
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreError(
            f"the key file {path.name} is missing; restore it, what it sealed is lost without it"
        ) from error
    if len(key) != 32:
        raise StoreError(f"the key file {path.name} has {len(key)} bytes, expected 32; restore it from a backup")
    return key


def _write(path: Path, key: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
