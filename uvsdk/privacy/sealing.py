"""Sealed messages: HPKE (RFC 9180) chunk by chunk, bound to one place in the protocol, signed by the sender.

An envelope is, in order::

    b"UVS1"                      magic and version
    u32 little endian            length of the header
    header                       canonical JSON: the fields of Binding, and chunk_lengths (bytes of plaintext)
    chunks                       each enc (32) || ciphertext || tag (16), HPKE single-shot to the recipient
    64 bytes                     Ed25519 by the sender over b"uvsdk/envelope/1" || SHA-256(everything before)

HPKE is Mode_Base, DHKEM(X25519, HKDF-SHA256) / HKDF-SHA256 / AES-128-GCM or ChaCha20-Poly1305. The library's
interface is single-shot and takes no associated data, so all that a chunk is bound to goes into ``info``, as
RFC 9180 section 8.1 asks of single-shot use. Base mode does not authenticate a sender; the signature does.

A chunk is at most :data:`CHUNK_BYTES` and opens on its own, so that a reader who maps a file needs the memory of
one chunk, whatever the size of the message.

>>> recipient, sender = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
>>> binding = Binding("clinic", "up", "update", "fedaws", 7, "m" * 64, "device-1", "key-1", new_nonce())
>>> data = seal([b"head", b"delta"], binding, recipient=recipient.public_key(), signing_key=sender)
>>> envelope = Envelope.parse(data)
>>> envelope.verify(sender.public_key())
>>> list(envelope.open(recipient))
[b'head', b'delta']
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Final, NoReturn, Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from uvsdk.errors import SealError, WireError

CHUNK_BYTES: Final = 4 << 20
"""Largest plaintext of one chunk: 1 Mi float32 (SPEC 11.1)."""

CHUNKS_LIMIT: Final = 1024
"""Most chunks of one envelope: 4 GiB, a thousand million parameters."""

OVERHEAD_BYTES: Final = 48
"""What sealing adds to each chunk: an X25519 public key (32) and an authentication tag (16)."""

SUITES: Final = ("aes-128-gcm", "chacha20-poly1305")
"""AES where the processor has instructions for it, ChaCha20 where it has not."""

_DIRECTIONS = ("up", "down")
_MESSAGE_TYPES = (
    *("admission", "template", "update", "invitation", "request", "task"),
    *("evaluation-task", "evaluation-report"),
)
_MAGIC = b"UVS1"
_SIGNED = b"uvsdk/envelope/1"
_SIGNATURE_BYTES = 64
_HEADER_LIMIT = 1 << 16
_TEXT_LIMIT = 256
_NONCE = re.compile(r"[0-9a-f]{32}")
_SUITE_IDS = {"aes-128-gcm": 0x0001, "chacha20-poly1305": 0x0003}  # RFC 9180 section 7.3
_HPKE = {
    "aes-128-gcm": Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM),
    "chacha20-poly1305": Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
}

Buffer = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True, slots=True)
class Binding:
    """The one place in the protocol where a message may be opened; changing any field makes it unreadable.

    Args:
        deployment: name of the deployment.
        direction: ``up`` (device to server) or ``down``.
        message_type: ``admission``, ``template``, ``update``, ``invitation``, ``request``, ``task``,
            ``evaluation-task`` or ``evaluation-report``.
        algorithm: registry name; empty where none is concerned.
        round_id: the round, or the evaluation; 0 for a message outside both.
        model_version: version of the model it was made with.
        sender: device id, or the server's name for itself.
        recipient_key_id: which of the recipient's keys opens it.
        nonce: 32 hexadecimal digits from :func:`new_nonce`; a replay repeats it.
        suite: one of :data:`SUITES`.

    Raises:
        WireError: a field outside its range.
        SealError: a suite this version does not have.
    """

    deployment: str
    direction: str
    message_type: str
    algorithm: str
    round_id: int
    model_version: str
    sender: str
    recipient_key_id: str
    nonce: str
    suite: str = "aes-128-gcm"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "round_id":
                if type(value) is not int or not 0 <= value < 1 << 63:
                    raise WireError("round_id is not an integer from 0 to 2^63 - 1")
            elif type(value) is not str or len(value) > _TEXT_LIMIT or not value.isprintable():
                raise WireError(f"{field.name} is not printable text of at most {_TEXT_LIMIT} characters")
        if self.suite not in SUITES:
            raise SealError(f"suite {self.suite!r} is not known here; expected one of {SUITES}. Is the peer newer?")
        if self.direction not in _DIRECTIONS:
            raise WireError(f"direction {self.direction!r} is not one of {_DIRECTIONS}")
        if self.message_type not in _MESSAGE_TYPES:
            raise WireError(f"message type {self.message_type!r} is not one of {_MESSAGE_TYPES}")
        if not _NONCE.fullmatch(self.nonce):
            raise WireError("a nonce is 32 lower-case hexadecimal digits; make one with new_nonce()")

    def info(self, chunk_index: int, chunk_count: int) -> bytes:
        """HPKE's ``info`` of one chunk (SPEC 11.1): every part preceded by its length, so none runs into the next."""
        parts = (
            b"uvsdk/1",
            self.deployment.encode(),
            self.direction.encode(),
            self.message_type.encode(),
            self.algorithm.encode(),
            struct.pack("<Q", self.round_id),
            self.model_version.encode(),
            self.sender.encode(),
            self.recipient_key_id.encode(),
            struct.pack("<H", _SUITE_IDS[self.suite]),
            struct.pack("<I", chunk_index),
            struct.pack("<I", chunk_count),
            bytes.fromhex(self.nonce),
        )
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def new_nonce() -> str:
    """16 bytes from the operating system, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def seal(
    chunks: Sequence[bytes | memoryview],
    binding: Binding,
    *,
    recipient: X25519PublicKey,
    signing_key: Ed25519PrivateKey,
) -> bytes:
    """Seal ``chunks`` to ``recipient`` as one envelope.

    Args:
        chunks: 1 to :data:`CHUNKS_LIMIT` contiguous buffers of at most :data:`CHUNK_BYTES` bytes each.
        binding: where it may be opened.
        recipient: the key that will open it.
        signing_key: the sender's.

    Raises:
        SealError: no chunk, too many, or one that is too long.
    """
    return seal_and_digest(chunks, binding, recipient=recipient, signing_key=signing_key)[0]


def seal_and_digest(
    chunks: Sequence[bytes | memoryview],
    binding: Binding,
    *,
    recipient: X25519PublicKey,
    signing_key: Ed25519PrivateKey,
) -> tuple[bytes, bytes]:
    """The same envelope and its SHA-256, 32 bytes, at the price of the one pass that signing needs anyway."""
    running = RunningDigest()
    parts = seal_parts(chunks, binding, recipient=recipient, signing_key=signing_key, running=running)
    return b"".join(parts), running.digests().whole


def seal_parts(
    chunks: Sequence[bytes | memoryview],
    binding: Binding,
    *,
    recipient: X25519PublicKey,
    signing_key: Ed25519PrivateKey,
    running: RunningDigest | None = None,
) -> Iterator[bytes]:
    """The same envelope piece by piece, for a writer who would rather not hold all of it (see :func:`seal`).

    ``running``, a new one, has seen the whole envelope when the last piece has been taken.
    """
    views = [memoryview(chunk) for chunk in chunks]
    lengths = [view.nbytes for view in views]
    if not 1 <= len(lengths) <= CHUNKS_LIMIT:
        raise SealError(f"an envelope has 1 to {CHUNKS_LIMIT} chunks, got {len(lengths)}")
    if max(lengths) > CHUNK_BYTES:
        raise SealError(f"a chunk holds at most {CHUNK_BYTES} bytes, got {max(lengths)}; split it")
    header = _canonical({**asdict(binding), "chunk_lengths": lengths})
    prefix = _MAGIC + struct.pack("<I", len(header)) + header
    running = running or RunningDigest()
    running.update(prefix)
    yield prefix
    suite = _HPKE[binding.suite]
    for index, view in enumerate(views):
        # A view without bytes cannot be cast; HPKE wants bytes, whatever the item type was.
        plain = view.cast("B") if view.nbytes else b""
        sealed = suite.encrypt(plain, recipient, info=binding.info(index, len(views)))
        running.update(sealed)
        yield sealed
    signature = signing_key.sign(_SIGNED + running.digests().whole)
    running.update(signature)
    yield signature


@dataclass(frozen=True, slots=True)
class Digests:
    """SHA-256 of an envelope, 32 bytes each: of what its signature covers, and of the whole."""

    signed: bytes
    whole: bytes


class RunningDigest:
    """Both digests of an envelope in one pass, while it arrives in pieces of any size.

    >>> running = RunningDigest()
    >>> for piece in (bytes(50), bytes(30), bytes(20)):
    ...     running.update(piece)
    >>> running.digests() == Digests(hashlib.sha256(bytes(36)).digest(), hashlib.sha256(bytes(100)).digest())
    True
    """

    __slots__ = ("_hasher", "_held")

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._held = b""  # the last bytes so far, which may be the signature

    def update(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        with memoryview(piece) as view:
            if len(view) < _SIGNATURE_BYTES:
                self._held += view
                surplus = max(0, len(self._held) - _SIGNATURE_BYTES)
                self._hasher.update(self._held[:surplus])
                self._held = self._held[surplus:]
            else:
                self._hasher.update(self._held)
                self._hasher.update(view[:-_SIGNATURE_BYTES])
                self._held = bytes(view[-_SIGNATURE_BYTES:])

    def digests(self) -> Digests:
        """As if what was taken so far were an envelope."""
        whole = self._hasher.copy()
        whole.update(self._held)
        return Digests(self._hasher.digest(), whole.digest())


class Envelope:
    """A sealed message over a buffer that is not copied: bytes, or a mapped file.

    Nothing in it may be believed before :meth:`verify` and :meth:`open` have both passed; :attr:`binding` only says
    which keys to try, and :meth:`open` proves it. Where the buffer is a mapped file, :meth:`close` (or ``with``)
    lets go of it.
    """

    __slots__ = ("_data", "_digests", "_offsets", "binding", "chunk_lengths")

    def __init__(
        self,
        data: memoryview,
        binding: Binding,
        chunk_lengths: tuple[int, ...],
        offset: int,
        digests: Digests | None = None,
    ) -> None:
        """Made by :meth:`parse`, which checks that the lengths add up."""
        self.binding: Final = binding
        self.chunk_lengths: Final = chunk_lengths
        self._data = data
        self._digests = digests
        self._offsets = [offset]
        for length in chunk_lengths:
            self._offsets.append(self._offsets[-1] + length + OVERHEAD_BYTES)

    @classmethod
    def parse(cls, data: Buffer, digests: Digests | None = None) -> Self:
        """Read the header. Costs nothing in proportion to the size of the message.

        Args:
            data: the message.
            digests: what a :class:`RunningDigest` found of these very bytes, so that :meth:`verify` and
                :attr:`digest` need no pass over them.

        Raises:
            WireError: not an envelope: cut short, too long, or a header that is not exactly what :func:`seal` writes.
            SealError: sealed with a suite this version does not have.
        """
        view = memoryview(data).cast("B")
        try:
            return cls._parse(view, digests)
        except BaseException:
            view.release()  # the traceback would keep it, and a mapped file could not be closed
            raise

    @classmethod
    def _parse(cls, view: memoryview, digests: Digests | None) -> Self:
        if len(view) < 8 or view[:4] != _MAGIC:
            raise WireError(f"not a sealed message: expected the magic {_MAGIC!r}")
        (length,) = struct.unpack("<I", view[4:8])
        if length > _HEADER_LIMIT or len(view) < 8 + length:
            raise WireError(f"a sealed message of {len(view)} bytes cannot hold a header of {length}")
        binding, lengths = _read_header(bytes(view[8 : 8 + length]))
        envelope = cls(view, binding, lengths, 8 + length, digests)
        expected = envelope._offsets[-1] + _SIGNATURE_BYTES
        if len(view) != expected:
            raise WireError(f"a sealed message of {expected} bytes by its header has {len(view)}; was it cut short?")
        return envelope

    @property
    def digest(self) -> str:
        """SHA-256 of the whole envelope, hexadecimal: the same digest is the same message, sent again."""
        return self._hash().whole.hex()

    def verify(self, public_key: Ed25519PublicKey) -> None:
        """Check the sender's signature. Raises :class:`SealError` where it is not by ``public_key``."""
        try:
            public_key.verify(bytes(self._data[-_SIGNATURE_BYTES:]), _SIGNED + self._hash().signed)
        except InvalidSignature as error:
            raise SealError(
                "the signature is not by the sender's key: the message was changed, or another key signed it"
            ) from error

    def open(self, private_key: X25519PrivateKey) -> Iterator[bytes]:
        """Open chunk after chunk, holding one at a time; act on none before the last has passed.

        Raises:
            SealError: see :meth:`open_chunk`.
        """
        for index in range(len(self.chunk_lengths)):
            yield self.open_chunk(index, private_key)

    def open_chunk(self, index: int, private_key: X25519PrivateKey) -> bytes:
        """Open one chunk alone.

        Raises:
            SealError: a bit was flipped, chunks changed places, the binding is not the one it was sealed with, or
                ``private_key`` is not the recipient's.
            IndexError: no such chunk.
        """
        count = len(self.chunk_lengths)
        if not 0 <= index < count:
            raise IndexError(f"chunk {index} of {count}")
        info = self.binding.info(index, count)
        try:
            with self._data[self._offsets[index] : self._offsets[index + 1]] as sealed:
                return _HPKE[self.binding.suite].decrypt(sealed, private_key, info=info)
        except (InvalidTag, ValueError) as error:  # ValueError: an encapsulated key that is a point of low order
            raise SealError(
                f"chunk {index + 1} of {count} does not open: it was changed, it belongs elsewhere, or it was sealed "
                "to another key"
            ) from error

    def close(self) -> None:
        """Let go of the buffer; only :attr:`binding` and :attr:`chunk_lengths` can be read afterwards."""
        self._data.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Envelope({self.binding.message_type}, round {self.binding.round_id}, "
            f"{len(self.chunk_lengths)} chunks, {sum(self.chunk_lengths)} bytes)"
        )

    def _hash(self) -> Digests:
        if self._digests is None:
            running = RunningDigest()
            running.update(self._data)
            self._digests = running.digests()
        return self._digests


def _read_header(raw: bytes) -> tuple[Binding, tuple[int, ...]]:
    try:
        header = json.loads(raw, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if not isinstance(header, dict):
            raise WireError("the header of a sealed message is a JSON object")
        if _canonical(header) != raw:
            raise WireError("the header of a sealed message is not in canonical form")
    except (ValueError, RecursionError) as error:
        raise WireError("the header of a sealed message is not JSON") from error
    expected = {field.name for field in fields(Binding)} | {"chunk_lengths"}
    if set(header) != expected:
        raise WireError(f"a header has the fields {sorted(expected)}; {len(set(header) ^ expected)} differ")
    lengths = header.pop("chunk_lengths")
    if not isinstance(lengths, list) or not 1 <= len(lengths) <= CHUNKS_LIMIT:
        raise WireError(f"chunk_lengths is not a list of 1 to {CHUNKS_LIMIT} lengths")
    if not all(type(length) is int and 0 <= length <= CHUNK_BYTES for length in lengths):
        raise WireError(f"a chunk length is not an integer from 0 to {CHUNK_BYTES}")
    return Binding(**header), tuple(lengths)


def _canonical(header: dict[str, object]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _without_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    pairs = list(pairs)
    if len({key for key, _ in pairs}) != len(pairs):
        raise WireError("the header of a sealed message names a field twice")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise WireError(f"the header of a sealed message holds {name}")


__all__ = [
    "CHUNKS_LIMIT",
    "CHUNK_BYTES",
    "OVERHEAD_BYTES",
    "SUITES",
    "Binding",
    "Digests",
    "Envelope",
    "RunningDigest",
    "new_nonce",
    "seal",
    "seal_and_digest",
    "seal_parts",
]
