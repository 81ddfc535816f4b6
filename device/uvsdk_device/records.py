"""Files of encrypted sections, each written so that a reader finds all of one version or all of another.

Layout: ``b"UVR1"`` · 32-byte salt · ``u16`` section count · one ``u64`` ciphertext length per section · the
sections (little endian). Each file has its own AES-256-GCM key, HKDF-SHA256 of the store's record key with
the salt, so a nonce is only the section's index and none ever repeats. The associated data of a section
holds the header and the record's :class:`Address`: a file that is moved to another name, or whose sections
are exchanged or counted differently, does not open. An older version of the same record put back in its
place does open; nothing inside the folder can tell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from uvsdk.errors import StoreError, StoreFullError

TEMPORARY_SUFFIX = ".tmp"
_MAGIC = b"UVR1"
_SALT_BYTES = 32
_TAG_BYTES = 16
_FIXED_BYTES = len(_MAGIC) + _SALT_BYTES + 2
_SECTOR_BYTES = 512
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """What a record is and whose; bound into its encryption.

    Args:
        purpose: kind of record, e.g. ``enrolment``.
        name: which one of that kind, empty where there is only one.
        user: user id in clear, empty for what belongs to the whole store.
    """

    purpose: str
    name: str = ""
    user: str = ""

    def to_bytes(self) -> bytes:
        """The three parts, each with its length before it, so that no two addresses share their bytes."""
        parts = [part.encode() for part in (self.purpose, self.name, self.user)]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def encrypt(sections: Sequence[bytes | memoryview], address: Address, key: bytes) -> list[bytes]:
    """The parts of a record's file, in order; ``key`` is the store's record key (32 bytes)."""
    salt = os.urandom(_SALT_BYTES)
    lengths = [len(section) + _TAG_BYTES for section in sections]
    header = _MAGIC + salt + struct.pack(f"<H{len(lengths)}Q", len(lengths), *lengths)
    cipher = _cipher(key, salt)
    associated = header + address.to_bytes()
    return [header, *(cipher.encrypt(_nonce(i), bytes(section), associated) for i, section in enumerate(sections))]


def decrypt(path: Path, address: Address, key: bytes, *, first: int = 0, count: int | None = None) -> list[bytes]:
    """Sections ``first`` to ``first + count`` of a record's file, without reading the others.

    Raises:
        FileNotFoundError: there is no such record.
        StoreError: the file was damaged, or it is another record's.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_FIXED_BYTES)
        if len(start) < _FIXED_BYTES or start[: len(_MAGIC)] != _MAGIC:
            raise _damaged(address)
        (sections,) = struct.unpack("<H", start[-2:])
        table = file.read(8 * sections)
        if len(table) < 8 * sections:
            raise _damaged(address)
        lengths = struct.unpack(f"<{sections}Q", table)
        header = start + table
        if len(header) + sum(lengths) != size:
            raise _damaged(address)
        cipher = _cipher(key, start[len(_MAGIC) : -2])
        associated = header + address.to_bytes()
        file.seek(sum(lengths[:first]), os.SEEK_CUR)
        last = sections if count is None else min(first + count, sections)
        try:
            return [cipher.decrypt(_nonce(i), file.read(lengths[i]), associated) for i in range(first, last)]
        except InvalidTag as error:
            raise _damaged(address) from error


def write_durably(path: Path, parts: Sequence[bytes], *, check: Callable[[Path], None] | None = None) -> None:
    """Put ``parts`` in ``path``: a crash or a full disk at any moment leaves the old file or the new one.

    The caller holds the store's lock, so one temporary name per file is enough and a leftover is stale.

    Args:
        path: the file.
        parts: its new content.
        check: reads the new file before it takes the old one's place, and raises where it will not do.

    Raises:
        StoreFullError: no space; the old file is as it was, as it is after an error of ``check``.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with disk_errors():
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor that was opened with mode 0600
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            if check is not None:
                check(temporary)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def overwrite(path: Path, parts: Sequence[bytes], *, durable: bool) -> None:
    """Put ``parts`` over a file of exactly their length, for small records that change often (2 ms, not 14).

    A disk writes a sector whole, so a power cut leaves the old content or the new; where the file is absent or has
    another length, this is :func:`write_durably`. The caller holds the store's lock, and so do readers.

    Args:
        path: the file.
        parts: at most 512 bytes together.
        durable: wait for the disk; without, a power cut may bring the old content back.
    """
    content = b"".join(parts)
    with disk_errors():
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return write_durably(path, parts)
        try:
            if len(content) <= _SECTOR_BYTES and os.fstat(descriptor).st_size == len(content):
                os.pwrite(descriptor, content, 0)
                if durable:
                    os.fsync(descriptor)
                return None
        finally:
            os.close(descriptor)
    return write_durably(path, parts)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn the operating system's ways of saying "full" into :class:`StoreFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(
                f"no space left for the store ({error.strerror}); nothing stored was lost: free some and try again"
            ) from error
        raise StoreError(f"the store's folder cannot be written: {error.strerror}") from error


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt=salt, info=b"uvsdk record/1").derive(key))


def _nonce(index: int) -> bytes:
    return struct.pack("<Q4x", index)


def _damaged(address: Address) -> StoreError:
    return StoreError(
        f"the stored {address.purpose} does not open: its file was damaged or came from elsewhere; "
        "restore it from a backup, or delete it and enrol again"
    )
