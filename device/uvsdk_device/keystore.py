"""The device's encrypted store: enrolments, keys, memories, registrations and the upload queue in one folder.

::

    store.json            the wrapped data key (uvsdk_device.wrapping)
    lock                  held while anything is written; readers need none, every write is a rename
    shared/               records of the whole store
    users/<hmac>/         everything of one user: deleting it is one rename
    models/               downloaded model bundles, in clear: they are nobody's secret

File names are HMACs under a key of the store: whoever finds the folder learns how many users there are and
how large their records are, not who they are. Deleting unlinks files; whether the disk still holds their
ciphertext is the disk's affair, so protect the whole folder's key if that matters.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from uvsdk.arrays import Array, Bool
from uvsdk.errors import StoreError, StoreFullError, UnknownUserError, UvsdkError, WireError
from uvsdk.privacy.identifiers import canonical_user_id
from uvsdk.records.codec import pack, unpack
from uvsdk.records.transfer import stays_here
from uvsdk.scoring.conditions import Conditions
from uvsdk.system.forking import in_child
from uvsdk.templates.storage import Store, same_arrays
from uvsdk.templates.template import Template
from uvsdk_device import acceptance, kept_templates, sample_conditions, trained
from uvsdk_device.records import (
    TEMPORARY_SUFFIX,
    Address,
    decrypt,
    disk_errors,
    encrypt,
    overwrite,
    sync_folder,
    write_durably,
)
from uvsdk_device.wrapping import ScryptCost, WrappedKey, new_data_key, unwrap, wrap

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle

ATTEMPTS = "attempts"
"""Record of failed attempts (:mod:`uvsdk_device.attempts`): of a user, or of the device where it has no user."""
AGEING = "ageing"
"""Records of the later versions of a user's templates (:mod:`uvsdk_device.ageing`); void with another enrolment."""
_ENROLMENT = "enrolment"
_STORE = "store"
_TRIED = 8
_OURS = ("lock", "store.json", "users", "shared", "models", "agent-token")
_TRASH = ".trash-"
_ENROLMENT_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Features:
    """What an enrolment keeps for training and re-embedding; keys are the samples' positions."""

    arrays: dict[str, Array]


@dataclass(frozen=True, slots=True, repr=False)
class StoredEnrolment:
    """One enrolment, read at one moment.

    Args:
        enrolment_id: drawn when the person enrolled; of one that an earlier version stored it is empty.
        template: the one in use, or last in use: others of the same samples lie beside it.
        features: of its samples.
        conditions: of each of them; empty in one that an earlier version stored.
    """

    enrolment_id: bytes
    template: Template
    features: tuple[Array, ...]
    conditions: tuple[Conditions, ...] = ()


class EncryptedStore:
    """A folder of encrypted records; implements :class:`uvsdk.templates.storage.Store`.

    User ids that differ in case or Unicode composition only are one person; an id that is empty or not valid Unicode
    is a ``SettingsError`` wherever one is taken.

    Safe to share between threads, with forked children, and its folder between processes. Make one with :meth:`open`.
    """

    def __init__(self, folder: Path, data_key: bytes, lock: FolderLock) -> None:
        self._folder = folder
        self._lock = lock
        self._data_key = data_key
        self._record_key = _derive(data_key, "records")
        self._name_key = _derive(data_key, "names")
        self._template_key = _derive(data_key, "templates")

    __reduce_ex__ = stays_here("it holds the store's key; call EncryptedStore.open() in each process")

    def __repr__(self) -> str:
        return f"EncryptedStore({str(self._folder)!r})"

    @property
    def folder(self) -> Path:
        """Where the store lies."""
        return self._folder

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        passphrase: str | None = None,
        cost: ScryptCost | None = None,
        create: bool = True,
    ) -> EncryptedStore:
        """Open the store in ``folder``, or make one there if the folder is absent or empty.

        Args:
            folder: made with mode 0700.
            passphrase: protects the store; ``None`` leaves that to the operating system's keyring.
            cost: scrypt's cost of a new store.
            create: whether to make one where there is none; otherwise a wrong folder is left as it is.

        Raises:
            StoreLockedError: wrong passphrase; no keyring, or no key in it.
            StoreFullError: no space for a new store.
            StoreError: the folder holds something else, a damaged store, or another store's ``store.json``; or there
                is none and none is to be made.
        """
        path = Path(folder)
        if not create and not (path / "store.json").exists():
            raise StoreError(f"there is no store in {path}; name the folder that was enrolled in, or enrol first")
        with disk_errors():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            foreign = [item.name for item in path.iterdir() if not _is_ours(item.name)]
            if foreign and not (path / "store.json").exists():
                raise StoreError(f"{path} is not a store and not empty (it has {foreign[0]!r}); name an empty folder")
            path.chmod(0o700)
        lock = FolderLock(path / "lock")
        with lock:
            key_file = path / "store.json"
            if key_file.exists():
                wrapped = WrappedKey.from_json(key_file.read_bytes())
                data_key = unwrap(wrapped, passphrase=passphrase)
            else:
                if any((path / name).exists() for name in ("users", "shared")):
                    raise StoreError(f"{path} has records and no store.json, so no key; restore that file")
                data_key = new_data_key()
                wrapped = wrap(data_key, passphrase=passphrase, cost=cost)
                write_durably(key_file, [wrapped.to_json()])
            store = cls(path, data_key, lock)
            store._check_own(wrapped.store)
            store._prepare()
            store._note_own(wrapped.store)
        return store

    def change_passphrase(self, passphrase: str | None, *, cost: ScryptCost | None = None) -> None:
        """Protect the store by another passphrase, or by the keyring (``None``). No record is rewritten."""
        with self._lock:
            key_file = self._folder / "store.json"
            store = WrappedKey.from_json(key_file.read_bytes()).store
            wrapped = wrap(self._data_key, passphrase=passphrase, store=store, cost=cost)
            write_durably(key_file, [wrapped.to_json()])

    # Models

    def check_model(self, bundle: Bundle) -> bool:
        """Whether this store works with ``bundle`` already (:mod:`uvsdk_device.acceptance`).

        Raises:
            ExchangedBundleError: it works with others, and nobody has accepted this one.
        """
        return acceptance.check_model(self, bundle)

    def accept_model(self, bundle: Bundle) -> None:
        """Work with ``bundle`` from now on: a new model or calibration that is meant to be. Templates follow it."""
        acceptance.accept_model(self, bundle)

    def fresh_samples(self, user_id: str, features: Sequence[Array], model_version: str) -> Bool:
        """Which of a user's ``features`` that model was made without (:mod:`uvsdk_device.trained`), bool (n,)."""
        return trained.fresh_samples(self, user_id, features, model_version)

    # Enrolments

    def save_enrolment(
        self, user_id: str, template: Template, features: Sequence[Array], conditions: Sequence[Conditions] = ()
    ) -> None:
        """Keep a template and the features it was made of, in one atomic step, and forget the user's failed attempts.

        ``conditions`` are those of each sample, numbers by name; without them the template's averages stand for all.

        A crash at any moment leaves the user's old enrolment or this one, and only what reads as it was given takes the
        old one's place.

        Raises:
            StoreFullError: nothing was changed.
            StoreError: it does not read back, or cannot be kept at all; nothing was changed.
        """
        with self._lock:
            enrolment_id = secrets.token_bytes(_ENROLMENT_ID_BYTES)
            self._keep_enrolment(user_id, StoredEnrolment(enrolment_id, template, tuple(features), tuple(conditions)))
            self.drop_all(AGEING, user=user_id)  # later versions of a template that is gone
            kept_templates.drop(self, user_id)
            self.drop(ATTEMPTS, user=user_id)  # whoever enrols has identified the person in another way

    def _keep_enrolment(self, user_id: str, given: StoredEnrolment) -> None:
        canonical_user_id(user_id)  # refuses what cannot be anybody's id
        arrays = {f"{position:06d}": array for position, array in enumerate(given.features)}
        try:
            packed = pack(_Features(arrays))
        except WireError as error:
            raise StoreError(f"these features cannot be stored: {error}") from error
        taken = sample_conditions.packed(given.conditions, samples=len(given.features))
        template = given.template
        sections = (user_id.encode(), template.to_bytes(self._template_key), packed, given.enrolment_id, taken)
        binding = self._binding(Address(_ENROLMENT, "", user_id))

        def check(file: Path) -> None:
            try:
                _, data, kept, _, told = decrypt(file, binding, self._record_key)
                read = Template.from_bytes(data, self._template_key), _in_order(unpack(_Features, kept))
                measured = sample_conditions.unpacked(told)
            except UvsdkError as error:
                raise StoreError(
                    f"the enrolment does not read back as it was written ({error}); nothing was changed in the store"
                ) from error
            same = read[0] == template and same_arrays(read[1], given.features)
            if not same or measured != tuple(map(dict, given.conditions)):
                raise StoreError("the enrolment reads back as something else; nothing was changed in the store")

        self._put(Address(_ENROLMENT, "", user_id), sections, check)

    def template(self, user_id: str) -> Template:
        """The user's template. Raises :class:`UnknownUserError`."""
        _, data = self._enrolment(user_id, first=0, count=2)
        return Template.from_bytes(data, self._template_key)

    def features(self, user_id: str) -> tuple[Array, ...]:
        """The features of the user's enrolment, in their order. Raises :class:`UnknownUserError`."""
        data, *_ = self._enrolment(user_id, first=2, count=None)
        return _in_order(unpack(_Features, data))

    def conditions(self, user_id: str) -> tuple[Conditions, ...]:
        """Of each sample of the user's enrolment; empty where none were kept. Raises :class:`UnknownUserError`."""
        return sample_conditions.unpacked(*self._enrolment(user_id, first=4, count=1))

    def enrolment(self, user_id: str) -> StoredEnrolment:
        """Template and features of one enrolment, whoever enrols meanwhile. Raises :class:`UnknownUserError`."""
        _, data, features, *rest = self._enrolment(user_id, first=0, count=None)
        template = Template.from_bytes(data, self._template_key)
        kept = _in_order(unpack(_Features, features))
        return StoredEnrolment(rest[0] if rest else b"", template, kept, sample_conditions.unpacked(*rest[1:]))

    def update_template(self, user_id: str, make: Callable[[tuple[Array, ...]], Template]) -> Template:
        """Put ``make(features)`` in the template's place and keep that one beside it; nobody enrols in between."""
        with self._lock:
            known = self.enrolment(user_id)
            template = make(known.features)
            self._use(user_id, known, template)
        return template

    def use_template(self, user_id: str, template: Template, *, enrolment_id: bytes) -> bool:
        """The same with a template that was made before, of that enrolment; false where the person enrolled anew."""
        with self._lock:
            known = self.enrolment(user_id)
            if known.enrolment_id != enrolment_id:
                return False
            self._use(user_id, known, template)
        return True

    def _use(self, user_id: str, known: StoredEnrolment, template: Template) -> None:
        if known.template == template:
            return
        # First the one beside, so that a kill in between loses neither.
        kept_templates.keep(self, user_id, known.template, enrolment_id=known.enrolment_id)
        (name,) = self._enrolment(user_id, first=0, count=1)
        # Under the spelling it was enrolled with.
        self._keep_enrolment(name.decode(), replace(known, template=template))

    def keep_template(self, user_id: str, template: Template, *, enrolment_id: bytes) -> bool:
        """Keep a template of another model beside the one in use; false where the person enrolled anew meanwhile."""
        with self._lock:
            if self._enrolment_id(user_id) != enrolment_id:
                return False
            kept_templates.keep(self, user_id, template, enrolment_id=enrolment_id)
        return True

    def template_for(self, user_id: str, fits: Callable[[Template], bool]) -> Template | None:
        """The user's template that ``fits``, the one in use before those beside it; ``None`` where none does.

        Raises:
            UnknownUserError: not enrolled here.
        """
        template = self.template(user_id)
        if fits(template):
            return template
        with self._lock:  # what is in use and what lies beside it change places
            template = self.template(user_id)
            if fits(template):
                return template
            beside = kept_templates.read(self, user_id, enrolment_id=self._enrolment_id(user_id))
        return next((item for item in beside if fits(item)), None)

    def templates(self, user_id: str) -> tuple[Template, ...]:
        """All of the user's templates, the one in use first. Raises :class:`UnknownUserError`."""
        with self._lock:
            enrolment_id = self._enrolment_id(user_id)
            return self.template(user_id), *kept_templates.read(self, user_id, enrolment_id=enrolment_id)

    def _enrolment_id(self, user_id: str) -> bytes:
        found = self._enrolment(user_id, first=3, count=1)
        return found[0] if found else b""

    def delete(self, user_id: str) -> None:
        """Forget everything of one user: enrolment, keys, memories, registrations and queued uploads, at once.

        Raises:
            UnknownUserError: nothing is stored of such a user.
        """
        folder = self._user_folder(user_id)
        trash = folder.with_name(_TRASH + secrets.token_hex(8))
        with self._lock, disk_errors():
            try:
                folder.rename(trash)
            except FileNotFoundError as error:
                raise UnknownUserError("nobody of that name is enrolled on this device") from error
            sync_folder(trash.parent)
            shutil.rmtree(trash)

    def users(self) -> tuple[str, ...]:
        """Everyone who is enrolled here, spelled as when they last were, sorted."""
        found = []
        for folder in (self._folder / "users").iterdir():
            if folder.name.startswith(_TRASH):
                continue
            with contextlib.suppress(FileNotFoundError):
                found.append(self._user_in(folder))
        return tuple(sorted(found))

    # Records of any kind

    def put(self, purpose: str, sections: Sequence[bytes | memoryview], *, name: str = "", user: str = "") -> None:
        """Write a record durably and atomically.

        Raises:
            StoreFullError: the old record is still in place.
            UnknownUserError: not an enrolment, and the user is not (or no longer) enrolled: what runs on after
                a deletion must not bring anything of that user back.
        """
        self._put(Address(purpose, name, user), sections)

    def _put(
        self, address: Address, sections: Sequence[bytes | memoryview], check: Callable[[Path], None] | None = None
    ) -> None:
        path = self._path(address)
        parts = encrypt(sections, self._binding(address), self._record_key)
        with self._lock:
            if address.user and address.purpose != _ENROLMENT and not (path.parent / _ENROLMENT).exists():
                raise UnknownUserError("nobody of that name is enrolled on this device; enrol first")
            if not path.parent.exists():
                with disk_errors():
                    path.parent.mkdir(mode=0o700)
                    sync_folder(path.parent.parent)
            write_durably(path, parts, check=check)

    def overwrite(self, purpose: str, section: bytes, *, user: str = "", durable: bool = True) -> None:
        """Write a record of one short section, always of one length, in place: counters, at a tenth of :meth:`put`.

        The caller holds :meth:`lock`, and whoever reads it does.

        Args:
            purpose: as for :meth:`put`.
            section: at most a few hundred bytes.
            user: as for :meth:`put`.
            durable: wait for the disk; without, a power cut may bring the record before this one back.

        Raises:
            StoreFullError, UnknownUserError: as :meth:`put` does.
        """
        address = Address(purpose, "", user)
        path = self._path(address)
        with self._lock:
            if not path.exists():
                self.put(purpose, [section], user=user)
            else:
                overwrite(path, encrypt([section], self._binding(address), self._record_key), durable=durable)

    def get(
        self, purpose: str, *, name: str = "", user: str = "", first: int = 0, count: int | None = None
    ) -> list[bytes]:
        """Sections of a record, from ``first`` on. Raises :class:`KeyError` where there is no such record."""
        address = Address(purpose, name, user)
        try:
            return decrypt(self._path(address), self._binding(address), self._record_key, first=first, count=count)
        except FileNotFoundError as error:
            raise KeyError(purpose) from error

    def drop(self, purpose: str, *, name: str = "", user: str = "") -> None:
        """Remove a record, if it is there, so that it stays away after a power cut."""
        path = self._path(Address(purpose, name, user))
        with self._lock, disk_errors():
            if path.exists():
                path.unlink()
                sync_folder(path.parent)

    def drop_all(self, purpose: str, *, user: str) -> None:
        """Remove every record of a kind of one user, whatever its name."""
        folder = self._user_folder(user)
        with self._lock, disk_errors():
            found = [item for item in folder.iterdir() if item.name.split(".")[0] == purpose]
            for path in found:
                path.unlink()
            if found:
                sync_folder(folder)

    def numbers(self, purpose: str, *, user: str = "") -> list[int]:
        """The names of the records of a kind whose names are decimal numbers, ascending."""
        folder = self._path(Address(purpose, "0", user)).parent
        if not folder.is_dir():
            return []
        prefix = f"{purpose}."
        names = [item.name[len(prefix) :] for item in folder.iterdir() if item.name.startswith(prefix)]
        return sorted(int(name) for name in names if name.isdecimal())

    def holds(self, purpose: str, *, user: str = "") -> bool:
        """Whether there is any record of that kind."""
        folder = self._path(Address(purpose, "", user)).parent
        return folder.is_dir() and any(item.name.split(".")[0] == purpose for item in folder.iterdir())

    def size(self, purpose: str, *, name: str = "", user: str = "") -> int:
        """Bytes of a record's file, 0 where there is none."""
        path = self._path(Address(purpose, name, user))
        return path.stat().st_size if path.exists() else 0

    def pseudonym(self, name: str) -> str:
        """A name that stands for ``name`` in this store and says nothing of it, 16 hexadecimal digits."""
        return self._hashed("hidden", name)[:16]

    def lock(self) -> FolderLock:
        """The lock that writers hold, for steps that read and then write: ``with store.lock(): ...``."""
        return self._lock

    def _check_own(self, name: str) -> None:
        """Raise :class:`StoreError` where ``store.json`` is another store's, before anything is written with its key.

        Its name is kept under its key. One damaged record is no proof: as long as anybody's enrolment opens, it fits.
        """
        try:
            (known,) = self.get(_STORE)
            if known == name.encode():
                return
            noted = True
        except KeyError:  # new, or made by an earlier version
            noted = False
        except StoreError:
            noted = True
        enrolments = [item for item in (self._folder / "users").glob(f"*/{_ENROLMENT}") if item.parent.name[:1] != "."]
        for enrolment in enrolments[:_TRIED]:
            with contextlib.suppress(StoreError):
                self._user_in(enrolment.parent)
                return
        if noted or len(enrolments) > 1:
            raise StoreError(
                f"store.json in {self._folder} is another store's: its key opens nothing of what lies there; restore "
                "the right one from a backup. Nothing was changed"
            )

    def _note_own(self, name: str) -> None:
        """Keep the store's name under its key, so that another ``store.json`` is known for what it is."""
        if not self.size(_STORE):
            with contextlib.suppress(StoreFullError):  # a full disk keeps nobody from verifying
                self.put(_STORE, [name.encode()])

    def _prepare(self) -> None:
        """Make the folders and clear what a killed writer left; the lock is held, so a leftover is stale."""
        with disk_errors():
            for name in ("users", "shared", "models"):
                (self._folder / name).mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder)
            for trash in (self._folder / "users").glob(_TRASH + "*"):
                shutil.rmtree(trash)
            for temporary in [*self._folder.glob(f"**/*{TEMPORARY_SUFFIX}"), *(self._folder / "models").glob(".*")]:
                temporary.unlink()

    def _enrolment(self, user_id: str, *, first: int, count: int | None) -> list[bytes]:
        canonical_user_id(user_id)  # an empty one would name the records of the whole store
        try:
            return self.get(_ENROLMENT, user=user_id, first=first, count=count)
        except KeyError as error:
            raise UnknownUserError("nobody of that name is enrolled on this device; enrol first") from error

    def _user_in(self, folder: Path) -> str:
        """Whose folder it is. The name is inside its first section, which is bound to the folder's name."""
        binding = Address(_ENROLMENT, "", folder.name)
        (name,) = decrypt(folder / _ENROLMENT, binding, self._record_key, count=1)
        return name.decode()

    def _binding(self, address: Address) -> Address:
        user = self._user_folder(address.user).name if address.user else ""
        return Address(address.purpose, address.name, user)

    def _user_folder(self, user_id: str) -> Path:
        return self._folder / "users" / self._hashed("user", canonical_user_id(user_id))

    def _path(self, address: Address) -> Path:
        folder = self._user_folder(address.user) if address.user else self._folder / "shared"
        if not address.name:
            return folder / address.purpose
        # Numbers carry no secret and give the queue its order; every other name is hidden.
        name = address.name if address.name.isdecimal() else self._hashed(address.purpose, address.name)[:32]
        return folder / f"{address.purpose}.{name}"

    def _hashed(self, kind: str, name: str) -> str:
        return hmac.digest(self._name_key, kind.encode() + b"\0" + name.encode(), "sha256").hex()


class FolderLock:
    """A lock among processes (``flock``) and threads; a thread may take it again while it holds it.

    A forked child holds nothing: not what another thread of its parent held, nor what the thread that forked did.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.RLock()
        self._depth = 0
        self._descriptor = -1
        in_child(self, FolderLock._renew)

    __reduce_ex__ = stays_here("it is of this process; open the store in the other one")

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._depth == 0:
                with disk_errors():
                    descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._descriptor = descriptor  # known while it waits, so that a child forked meanwhile closes its copy
                try:
                    _flock(descriptor)
                except BaseException:
                    self._descriptor = -1
                    raise
            self._depth += 1
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._depth == 0:
            return  # taken by the parent, before a fork
        self._depth -= 1
        if self._depth == 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                # Closing would not release it while a forked child has a copy of the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)
        self._threads.release()

    def _renew(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # the parent's copy goes on holding the lock
        self._threads, self._depth, self._descriptor = threading.RLock(), 0, -1


def _flock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise StoreError("the store's folder is on a file system without locks; put it on a local disk") from error
        raise
    except BaseException:
        os.close(descriptor)
        raise


def _in_order(features: _Features) -> tuple[Array, ...]:
    return tuple(features.arrays[position] for position in sorted(features.arrays))


def _derive(data_key: bytes, use: str) -> bytes:
    return HKDFExpand(SHA256(), 32, info=f"uvsdk store/1 {use}".encode()).derive(data_key)


def _is_ours(name: str) -> bool:
    return name in _OURS or name.endswith(TEMPORARY_SUFFIX)


def require_encrypted(store: Store) -> EncryptedStore:
    """``store``, which training needs to be an encrypted one. Raises :class:`StoreError`."""
    if not isinstance(store, EncryptedStore):
        raise StoreError(
            f"training keeps keys and a queue, which {type(store).__name__} has no place for; use EncryptedStore.open()"
        )
    return store
