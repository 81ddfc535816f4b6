"""The server's own keys, files of mode 0600 in a folder of mode 0700.

* ``signing.key``: Ed25519, made at the first start; devices pin its public key.
* ``at-rest.key``: AES-256-GCM, made at the first start, for what is nobody's own and to wrap the next two.
* ``user-NAME.key``: one for each user, wrapped: what the database holds of a user is encrypted under it. NAME is an
  HMAC of the user's hashed id.
* ``state-ID.key``: wrapped, for the algorithm's state, which holds vectors of many users; replaced when one leaves.
* ``hpke-ID.key``: X25519, named by the hash of its public key, rotated; an old one is destroyed once no open round
  needs it (SPEC 11.3).

None of them is in the database or the blobs, so a copy of those is worth nothing without this folder: when a user
leaves, their key and the state's are destroyed here, and no copy made before can be read any more. Only a first start
makes the first two; where one is missing later, everything stops until it is restored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from sqlalchemy import insert, select, update

from uvsdk.errors import StoreError
from uvsdk.federation.statements import Statement, Validity, sign_statement
from uvsdk.privacy.identifiers import key_id
from uvsdk.records.transfer import stays_here
from uvsdk_server.clocks import Ageing
from uvsdk_server.store import audit
from uvsdk_server.store.database import Database
from uvsdk_server.store.rows import every
from uvsdk_server.store.schema import server_keys

_NONCE_BYTES = 12
_KEY_BYTES = 32
_WRAPPED_BYTES = _NONCE_BYTES + _KEY_BYTES + 16
_STATE: Final = "algorithm-state"
_OPTIMISER: Final = "optimiser-state"
_STATE_MAGIC: Final = b"UVK1"
_STATE_ID_BYTES = 16
_NEW = ".new"


class AtRest:
    """Encryption of what lies in the database and the blobs, bound to a purpose."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    __reduce_ex__ = stays_here("it holds the key of what lies in the database")

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
                "something stored does not open with its key; was a key file replaced (at-rest.key?), or the row "
                "damaged?"
            ) from error

    def __repr__(self) -> str:
        return "AtRest(...)"


class KeyFolder:
    """The key files but those of HPKE, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._signing: Ed25519PrivateKey | None = None
        self._at_rest: AtRest | None = None
        self._name_key = b""
        self.state_key_id = ""

    def names(self) -> list[str]:
        """Every key file there is."""
        return [path.name for path in self._folder.glob("*.key")]

    def path(self, name: str) -> Path:
        """Where the file of that name lies."""
        return self._folder / name

    def check(self, *, hpke: Collection[str], signing_key: bytes | None = None, begun: bool = False) -> None:
        """Raise :class:`StoreError` unless the keys that a database counts on are here; reads only.

        Args:
            hpke: ids of the HPKE keys that are not retired.
            signing_key: the deployment's public key, ``None`` where the database does not know it.
            begun: the first start has not come to its end, so that what else is missing is still to be made.
        """
        for name in hpke:
            private_key = X25519PrivateKey.from_private_bytes(self._read(f"hpke-{name}.key"))
            if key_id(private_key.public_key().public_bytes_raw()) != name:
                raise StoreError(f"hpke-{name}.key does not hold the key of that name; restore it from a backup")
        if begun:
            return
        self._read("at-rest.key")
        if signing_key not in (None, self.signing.public_key().public_bytes_raw()):
            raise StoreError(
                "signing.key is not the key that this deployment's devices trust; restore it from a backup, for "
                "they refuse a server with another one"
            )

    def make(self) -> None:
        """The first start: make the keys that are missing."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for name in ("signing.key", "at-rest.key"):
            if not self.path(name).exists():
                write_key_file(self.path(name), secrets.token_bytes(_KEY_BYTES))

    @property
    def signing(self) -> Ed25519PrivateKey:
        """What the server signs with."""
        if self._signing is None:
            self._signing = Ed25519PrivateKey.from_private_bytes(self._read("signing.key"))
        return self._signing

    @property
    def at_rest(self) -> AtRest:
        """For what is nobody's own."""
        if self._at_rest is None:
            self._at_rest = AtRest(self._read("at-rest.key"))
        return self._at_rest

    # The state between rounds: the algorithm's may hold everybody's vector, the optimiser's comes from their updates

    def new_state_key(self) -> str:
        """Make a key for the algorithm's state, and give its id; :attr:`state_key_id` stays what it is."""
        name = secrets.token_hex(_STATE_ID_BYTES)
        self._write_wrapped(_state_file(name))
        return name

    def seal_state(self, data: bytes, key_id: str = "") -> bytes:
        """The packed state of the algorithm, under the current key or the one named."""
        name = key_id or self.state_key_id
        return _STATE_MAGIC + bytes.fromhex(name) + self._wrapped(_state_file(name)).seal(data, _STATE)

    def seal_optimiser(self, data: bytes) -> bytes:
        """The packed state of the optimiser."""
        return self.at_rest.seal(data, _OPTIMISER)

    def open_optimiser(self, sealed: bytes) -> bytes:
        """Undo :meth:`seal_optimiser`. Raises :class:`StoreError`."""
        return self.at_rest.open(sealed, _OPTIMISER)

    def open_state(self, sealed: bytes) -> bytes:
        """Undo :meth:`seal_state`. Raises :class:`StoreError`."""
        name = _state_key_of(sealed)
        if not name:  # of a version that had no such keys
            return self.at_rest.open(sealed, _STATE)
        return self._wrapped(_state_file(name)).open(sealed[len(_STATE_MAGIC) + _STATE_ID_BYTES :], _STATE)

    def adopt_state(self, sealed: bytes) -> None:
        """Go on with the key that the current state is sealed under, or with a new one where it has none."""
        self.state_key_id = _state_key_of(sealed) or self.new_state_key()

    def state_file(self, key_id: str) -> str:
        """Name of the file of a key of the algorithm's state."""
        return _state_file(key_id)

    # Users

    def user_file(self, user: str) -> str:
        """Name of the file of a user's key; says nothing of the user to whoever lacks ``at-rest.key``."""
        if not self._name_key:
            self._name_key = HKDFExpand(SHA256(), _KEY_BYTES, info=b"uvsdk user keys/1").derive(
                self._read("at-rest.key")
            )
        return f"user-{hmac.new(self._name_key, user.encode(), hashlib.sha256).hexdigest()[:32]}.key"

    def role_key(self) -> bytes:
        """What roles are drawn under (:mod:`uvsdk.federation.roles`)."""
        return HKDFExpand(SHA256(), _KEY_BYTES, info=b"uvsdk roles/1").derive(self._read("at-rest.key"))

    def make_user(self, user: str) -> None:
        """Make a new user's key, before the first row of theirs; the one that is there stays."""
        name = self.user_file(user)
        if not self.path(name).exists():
            self._write_wrapped(name)

    def user(self, user: str) -> UserSeal:
        """What a user's rows are sealed with. Raises :class:`StoreError` where the key file is missing."""
        return UserSeal(self._wrapped(self.user_file(user)), self.at_rest)

    def mark(self, user: str, what: str = "") -> str:
        """What the audit log calls a user, or something of theirs: 32 hexadecimal digits.

        It is an HMAC under the user's own key: once that is destroyed, nobody can tell whose it was, nor by trying
        every id. Empty where there is no key: nobody of that id is known here.
        """
        name = self.user_file(user)
        if not self.path(name).exists():
            return ""
        own = self.at_rest.open(self._read(name, _WRAPPED_BYTES), name)
        key = HKDFExpand(SHA256(), _KEY_BYTES, info=b"uvsdk audit marks/1").derive(own)
        return hmac.new(key, (what or user).encode(), hashlib.sha256).hexdigest()[:32]

    # Files

    def _wrapped(self, name: str) -> AtRest:
        return AtRest(self.at_rest.open(self._read(name, _WRAPPED_BYTES), name))

    def _write_wrapped(self, name: str) -> None:
        write_key_file(self.path(name), self.at_rest.seal(secrets.token_bytes(_KEY_BYTES), name))

    def _read(self, name: str, length: int = _KEY_BYTES) -> bytes:
        try:
            key = self.path(name).read_bytes()
        except FileNotFoundError as error:
            raise StoreError(
                f"the key file {name} is missing from {self._folder}; restore it from a backup: no other key opens "
                "what it sealed, and none is made in its place"
            ) from error
        if len(key) != length:
            raise StoreError(f"the key file {name} has {len(key)} bytes, expected {length}; restore it from a backup")
        return key

    def __repr__(self) -> str:
        return f"KeyFolder({str(self._folder)!r})"


class UserSeal:
    """Encryption of one user's rows under a key of their own; opens those of a version without such keys as well."""

    def __init__(self, own: AtRest, shared: AtRest) -> None:
        self._own = own
        self._shared = shared

    def seal(self, data: bytes, purpose: str) -> bytes:
        """As :meth:`AtRest.seal`."""
        return self._own.seal(data, purpose)

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """As :meth:`AtRest.open`."""
        try:
            return self._own.open(sealed, purpose)
        except StoreError:
            return self._shared.open(sealed, purpose)


@dataclass(frozen=True, slots=True)
class HpkeKey:
    """When a key was made, and when it was destroyed."""

    key_id: str
    created: float
    retired: float | None


class KeyRing:
    """The keys, loaded.

    Attributes:
        files: the key files.
        current_id: id of the HPKE key that is in use.
    """

    def __init__(self, files: KeyFolder) -> None:
        """Made by :meth:`open`."""
        self._hpke: dict[str, X25519PrivateKey] = {}
        self.files = files
        self.signing = files.signing
        self.at_rest = files.at_rest
        self.current_id = ""
        self._ageing = Ageing(0.0)

    @classmethod
    async def open(cls, files: KeyFolder, database: Database, now: float) -> Self:
        """Read the keys that the database counts on; the first HPKE key is made where it has never had one."""
        ring = cls(files)
        async with database.read() as connection:
            rows = await every(connection, HpkeKey, select(server_keys).order_by(server_keys.c.created))
        files.check(hpke=[row.key_id for row in rows if row.retired is None])
        for row in rows:
            if row.retired is None:
                ring._hpke[row.key_id] = X25519PrivateKey.from_private_bytes(ring._path(row.key_id).read_bytes())
                ring.current_id, ring._ageing = row.key_id, Ageing(row.created)
            else:
                ring._path(row.key_id).unlink(missing_ok=True)  # a crash kept it from being destroyed
        if not ring.current_id:
            await ring.rotate(database, now)
        return ring

    async def rotate(self, database: Database, now: float) -> None:
        """Make a new current HPKE key; old ones still open what was sealed to them."""
        private_key = X25519PrivateKey.generate()
        name = key_id(private_key.public_key().public_bytes_raw())
        write_key_file(self._path(name), private_key.private_bytes_raw())
        async with database.write() as connection:
            await connection.execute(insert(server_keys).values(key_id=name, created=now))
            await audit.append(connection, now, audit.SERVER, "key-made", key=name)
        self._hpke[name] = private_key
        self.current_id, self._ageing = name, Ageing(now)

    def age_s(self) -> float:
        """Of the current HPKE key; infinite where it seems to come from the future."""
        return self._ageing.age_s()

    async def retire(self, database: Database, needed: Collection[str], now: float) -> None:
        """Destroy every key that is neither current nor in ``needed``."""
        for name in set(self._hpke) - {self.current_id} - set(needed):
            async with database.write() as connection:
                await connection.execute(update(server_keys).where(server_keys.c.key_id == name).values(retired=now))
            self._path(name).unlink(missing_ok=True)
            del self._hpke[name]

    def clear_temporaries(self) -> None:
        """Remove what a crash left half-written: nothing was ever sealed with it."""
        for path in self.files.path("").glob(f"*{_NEW}"):
            path.unlink()

    def strays(self) -> list[Path]:
        """Files of HPKE and state keys that nothing in the database stands for."""
        wanted = {self._path(name).name for name in self._hpke} | {_state_file(self.files.state_key_id)}
        return [
            self.files.path(name)
            for name in self.files.names()
            if name.startswith(("hpke-", "state-")) and name not in wanted
        ]

    def hpke(self, name: str) -> X25519PrivateKey | None:
        """The private key of that id, ``None`` where it is unknown or already destroyed."""
        return self._hpke.get(name)

    def public(self, name: str) -> bytes:
        """Raw public key, 32 bytes, of a key that is still held."""
        return self._hpke[name].public_key().public_bytes_raw()

    def stand_behind(self, statement: Statement, validity: Validity) -> bytes:
        """The signature under which devices believe ``statement`` for a while."""
        return sign_statement(statement, validity, self.signing)

    def _path(self, name: str) -> Path:
        return self.files.path(f"hpke-{name}.key")

    def __repr__(self) -> str:
        return f"KeyRing(current {self.current_id}, {len(self._hpke)} HPKE keys)"


def _state_key_of(sealed: bytes) -> str:
    start = len(_STATE_MAGIC)
    return sealed[start : start + _STATE_ID_BYTES].hex() if sealed.startswith(_STATE_MAGIC) else ""


def _state_file(key_id: str) -> str:
    return f"state-{key_id}.key"


def write_key_file(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 durably and in one step."""
    temporary = path.with_name(path.name + _NEW)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
