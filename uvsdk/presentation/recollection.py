"""What a device keeps of a person's earlier samples, so that none of them is accepted a second time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, UInt8
from uvsdk.errors import SettingsError, TemplateFormatError, WireError
from uvsdk.modality.contract import Captured
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.presentation.fingerprint import (
    BITS,
    FACE_BITS,
    FRAMES_PER_S,
    KEY_BYTES,
    FacePrint,
    VoicePrint,
    face_print,
    voice_prints,
)
from uvsdk.presentation.sealed import seal, unseal
from uvsdk.records.codec import pack, unpack

CAPACITY: Final = 64
"""Samples of each modality that are remembered unless the caller says otherwise; the oldest is forgotten first."""

REMEMBERED_S: Final = 30
"""Seconds of a recording that are remembered, from its start: at most 3 kB."""

_MAGIC = b"UVR1"


@dataclass(frozen=True, slots=True, eq=False)
class Recollection:
    """Fingerprints of the samples that were seen before, of one person on one device.

    It holds no sound, no picture and no embedding. Its fingerprints are nevertheless personal data: with the key in
    it, they say roughly what was said. :meth:`to_bytes` encrypts all of it.

    Args:
        key: 32 secret bytes that choose what the fingerprints measure; another person or device has another.
        voices: the oldest first.
        faces: the oldest first.
        capacity: of each at most.
    """

    key: bytes = field(repr=False)
    voices: tuple[VoicePrint, ...] = ()
    faces: tuple[FacePrint, ...] = ()
    capacity: int = CAPACITY

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise SettingsError(f"a fingerprint key has {KEY_BYTES} bytes, got {len(self.key)}; use Recollection.new()")
        if self.capacity < 1:
            raise SettingsError(f"a recollection holds at least one sample, got a capacity of {self.capacity}")
        if max(len(self.voices), len(self.faces)) > self.capacity:
            raise SettingsError(f"a recollection of {self.capacity} samples was given more")

    @classmethod
    def new(cls, capacity: int = CAPACITY) -> Recollection:
        """An empty one, with a key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES), capacity=capacity)

    def remember(self, captured: Captured) -> Recollection:
        """The recollection with one more sample, the oldest forgotten where it is full; this one stays as it is.

        Every sample that was looked at is worth remembering: those of the enrolment, and every probe whether it was
        accepted or not, for what was sent once may have been overheard.

        Raises:
            SettingsError: samples of that modality cannot be remembered.
        """
        if isinstance(captured, CapturedVoice):
            print_ = voice_prints(captured.pcm, self.key)[0]
            kept = VoicePrint(print_.bits[: REMEMBERED_S * FRAMES_PER_S].copy())
            return replace(self, voices=(*self.voices, kept)[-self.capacity :])
        if isinstance(captured, CapturedFace):
            return replace(self, faces=(*self.faces, face_print(captured.chip, self.key))[-self.capacity :])
        raise SettingsError(f"a {captured.modality} sample cannot be remembered, only voice and face")

    def to_bytes(self, key: bytes) -> bytes:
        """Encrypt under a key of 32 bytes (:func:`uvsdk.templates.template.new_key`); two calls
        never give the same bytes.

        Raises:
            SettingsError: a key of another length.
        """
        frames = _stacked([item.bits for item in self.voices], BITS)
        body = _Body(
            key=self.key,
            capacity=self.capacity,
            frames=tuple(len(item.bits) for item in self.voices),
            voiced=np.packbits(frames.any(axis=1)),
            voices=np.packbits(frames > 0, axis=None),
            faces=np.packbits(_stacked([item.bits[None] for item in self.faces], FACE_BITS) > 0, axis=None),
        )
        return seal(_MAGIC, pack(body), key=key)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: bytes) -> Recollection:
        """Decrypt what :meth:`to_bytes` made.

        Raises:
            TemplateFormatError: not a recollection, cut short, changed, or encrypted with another key.
            SettingsError: a key that has not 32 bytes.
        """
        plain = unseal(_MAGIC, data, key=key, what="recollection")
        try:
            return unpack(_Body, plain).recollection()
        except (WireError, SettingsError, ValueError) as error:
            raise TemplateFormatError(f"the recollection decrypts and yet holds something else: {error}") from error


@dataclass(frozen=True, slots=True)
class _Body:
    """What is encrypted.

    Args:
        key: 32 bytes.
        capacity: samples of each modality.
        frames: per recording, how many frames its fingerprint has.
        voiced: one bit per frame of all recordings, whether there was speech.
        voices: 32 bits per frame.
        faces: 256 bits per face.
    """

    key: bytes
    capacity: int
    frames: tuple[int, ...]
    voiced: UInt8
    voices: UInt8
    faces: UInt8

    def recollection(self) -> Recollection:
        if any(count < 0 for count in self.frames):
            raise WireError("a fingerprint of fewer frames than none")
        total = sum(self.frames)
        signs = _signs(self.voices, total * BITS).reshape(total, BITS)
        signs[~_unpacked(self.voiced, total)] = 0.0
        bounds = np.cumsum([0, *self.frames], dtype=np.int64).tolist()
        voices = tuple(VoicePrint(signs[start:end].copy()) for start, end in pairwise(bounds))
        if self.faces.ndim != 1 or len(self.faces) * 8 % FACE_BITS:
            raise WireError("faces that are not whole fingerprints")
        faces = _signs(self.faces, len(self.faces) * 8).reshape(-1, FACE_BITS)
        return Recollection(self.key, voices, tuple(FacePrint(row.copy()) for row in faces), self.capacity)


def _stacked(rows: list[Float32], width: int) -> Float32:
    return np.concatenate(rows) if rows else np.zeros((0, width), np.float32)


def _unpacked(packed: UInt8, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    if packed.dtype != np.uint8 or packed.ndim != 1 or len(packed) != -(-count // 8):
        raise WireError(f"{count} bits are not in an array {packed.dtype} {packed.shape}")
    return np.unpackbits(packed, count=count).astype(np.bool_)


def _signs(packed: UInt8, count: int) -> Float32:
    return np.where(_unpacked(packed, count), np.float32(1), np.float32(-1))
