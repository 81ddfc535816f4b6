"""Keyed hashes in place of user ids, of persons and of samples (SPEC 3.6, 11.4).

A server that stores only these cannot list its users to whoever steals its database: without the pepper a guess at
an id cannot be checked. It does not stop someone who holds the pepper from trying every id they can think of. The
server never holds the pepper, so it cannot test whether somebody has a certain sample; it does see which devices hold
the same one.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import struct
import unicodedata
from typing import Final

import numpy as np

from uvsdk.arrays import Array, Float, Float64
from uvsdk.errors import SampleError, SettingsError

PEPPER_BYTES: Final = 16
"""Shortest pepper: 128 bits, beyond guessing."""

KEY_ID_DIGITS: Final = 32
"""128 bits: finding a second key of a given id takes 2^128 tries."""

_FEATURE_STEPS = 128
_EMBEDDING_STEP = 2.0**-6
_EXACT = ("b", "i", "u")


def key_id(public_key: bytes) -> str:
    """The name of a public key: the first 32 hexadecimal digits of the SHA-256 of its 32 raw bytes.

    >>> key_id(bytes(32))
    '66687aadf862bd776c8fc18b8e9f8e20'
    """
    return hashlib.sha256(public_key).hexdigest()[:KEY_ID_DIGITS]


def hash_user_id(user_id: str, *, deployment: str, pepper: bytes) -> str:
    """HMAC-SHA-256 under ``pepper`` of ``"uid/1"``, the deployment and the NFC-lowercase id, as 64 hex digits.

    Each part is preceded by its length in bytes (u32, little endian; SPEC 11.4 writes them side by side), so that
    no id can be read as the end of another deployment's name.

    Args:
        user_id: as the application knows the person; spelling variants of case and of Unicode composition are one id.
        deployment: name of the deployment, so that ids of two deployments cannot be joined.
        pepper: at least 16 secret bytes, see :func:`new_pepper`: all of the file that devices are given, its last line
            end included.

    Raises:
        SettingsError: an empty id or deployment, text that is not valid Unicode, or a pepper that is not bytes or too
            short.

    >>> hash_user_id("Ana", deployment="clinic", pepper=bytes(16)) == hash_user_id(
    ...     "ana", deployment="clinic", pepper=bytes(16)
    ... )
    True
    """
    return _keyed(pepper, b"uid/1", deployment, canonical_user_id(user_id).encode()).hexdigest()


def hash_person(person_id: str, *, deployment: str, pepper: bytes) -> str:
    """What links the identities of one person (voice and face, two devices): 64 hex digits.

    Formed as :func:`hash_user_id` is, under the word ``"person/1"``, so that a person's hash is nobody's user hash. It
    tells the server which of its users are one person, and no more.

    Raises:
        SettingsError: as :func:`hash_user_id`.
    """
    return _keyed(pepper, b"person/1", deployment, canonical_user_id(person_id).encode()).hexdigest()


def hash_instance(canonical: bytes, *, deployment: str, pepper: bytes) -> bytes:
    """HMAC-SHA-256 of one sample's canonical bytes under the cohort's key, 32 bytes (SPEC 3.6, choices 1 and 2).

    The cohort's key is an HMAC-SHA-256 under the pepper of ``"instances/1"`` and the deployment: devices of one
    deployment share it, the server does not know it, and one device that tells it to the server breaks this. S2 hashes
    without any key, which lets whoever has a sample ask who else has it.

    Args:
        canonical: :func:`canonical_instance` of the sample's stored features, or :func:`canonical_embedding`.
        deployment: name of the deployment, so that samples of two deployments cannot be joined.
        pepper: at least 16 secret bytes, the same that user ids are hashed under.

    Raises:
        SettingsError: empty bytes, an empty deployment, or a pepper that is too short.

    >>> one = canonical_instance(np.arange(6, dtype=np.uint8))
    >>> len(hash_instance(one, deployment="clinic", pepper=bytes(16)))
    32
    """
    if not canonical:
        raise SettingsError("the canonical bytes of a sample cannot be empty; make them with canonical_instance()")
    key = _keyed(pepper, b"instances/1", deployment).digest()
    return hmac.new(key, canonical, hashlib.sha256).digest()


def canonical_instance(features: Array) -> bytes:
    """The bytes that two devices agree on when they hold the same sample (the ``content`` form of SPEC 3.6).

    The sample is what a modality stores at enrolment (:attr:`uvsdk.modality.contract.Prepared.features`). Integers
    (pixels, PCM) stand as they are, little endian. Floats (mel frames) are divided by 2^e, the least power of two that
    is not below their largest magnitude, and rounded to 1/128 as int16: far coarser than the differences between
    processors and libraries, far finer than those between recordings. Kind and shape stand in front. A person recorded
    by two microphones has two samples that never agree; that link is :func:`hash_person`'s.

    Raises:
        SampleError: no number in it, a number that is not finite, or a dtype that is neither integer nor float.

    >>> canonical_instance(np.array([1.0, -0.5])) == canonical_instance(np.array([1.0, -0.5 + 1e-7]))
    True
    """
    if features.size == 0 or features.dtype.kind not in (*_EXACT, "f"):
        raise SampleError(f"features of dtype {features.dtype} and shape {features.shape} cannot be hashed")
    shape = struct.pack(f"<{features.ndim + 1}I", features.ndim, *features.shape)
    if features.dtype.kind in _EXACT:
        kind = f"{features.dtype.kind}{features.dtype.itemsize}".encode()
        plain = np.ascontiguousarray(features, features.dtype.newbyteorder("<"))
        return kind + shape + plain.tobytes()
    values = features.astype(np.float64)
    largest = float(np.abs(values).max())
    if not np.isfinite(largest):
        raise SampleError("features hold NaN or infinity, so they cannot be hashed")
    fraction, exponent = math.frexp(largest)  # largest = fraction 2^exponent, 0.5 <= fraction < 1, or 0
    exponent -= int(fraction == 0.5)
    scaled: Float64 = np.ldexp(values, -exponent) * _FEATURE_STEPS
    return b"q7" + struct.pack("<i", exponent) + shape + np.rint(scaled).astype("<i2").tobytes()


def canonical_embedding(embedding: Float) -> bytes:
    """A unit embedding rounded to 2^-6 as int16, little endian: the ``embedding`` form of SPEC 3.6.

    S2 hashes g(x) of the first model as it is, where one differing last bit makes another hash. With differences of
    1e-6 and d = 64, rounding leaves about 0.4 % of pairs that should agree and do not. All devices must hash with the
    same model.

    Raises:
        SampleError: not a finite vector of at most unit length (within 1e-3).
    """
    values = np.asarray(embedding, np.float64)
    if values.ndim != 1 or not 0.0 < float(np.linalg.norm(values)) <= 1.0 + 1e-3:
        raise SampleError(f"an embedding to hash is a unit vector, got shape {values.shape}")
    return b"e6" + struct.pack("<I", len(values)) + np.rint(values / _EMBEDDING_STEP).astype("<i2").tobytes()


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


def _keyed(pepper: bytes, word: bytes, deployment: str, *parts: bytes) -> hmac.HMAC:
    """HMAC-SHA-256 under ``pepper`` of the parts, each after its length in bytes (u32, little endian)."""
    if not isinstance(pepper, bytes):
        raise SettingsError(f"a pepper is bytes, got {type(pepper).__name__}; read its file with read_bytes()")
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
    message = b"".join(struct.pack("<I", len(part)) + part for part in (word, name, *parts))
    return hmac.new(pepper, message, hashlib.sha256)


def new_pepper() -> bytes:
    """32 secret bytes from the operating system. Whoever loses them can no longer find anyone by id."""
    return secrets.token_bytes(32)
