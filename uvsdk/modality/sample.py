"""What a person may hand in, and how much of it is read at most."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol, TypeAlias

from PIL import Image

from uvsdk.arrays import Array, UInt8
from uvsdk.errors import SampleTooLargeError, SettingsError, UndecodableSampleError
from uvsdk.scoring import QualityPolicy


class ArrayLike(Protocol):
    """What numpy can read as an array: a numpy array, or a tensor of torch, which need not be known here."""

    def __array__(self) -> Array:
        """The values as numpy has them."""
        ...


Sample: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | tuple[ArrayLike, int] | UInt8 | Image.Image
"""A path, the bytes of a file, a file open for reading bytes, ``(pcm, sample rate)`` as soundfile and
``torchaudio.load`` give it, an image as an array, or a Pillow image."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a sample may be. Each limit is checked before the memory it guards is taken.

    Args:
        max_bytes: of the encoded file. 32 MiB holds two minutes of 16-bit stereo at 48 kHz.
        max_pixels: of the decoded image. 40 million is above what phone cameras store by default.
        max_seconds: of the decoded recording.
    """

    max_bytes: int = 32 << 20
    max_pixels: int = 40_000_000
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_pixels < 1 or not self.max_seconds > 0:
            raise SettingsError(f"limits on samples are positive, got {self}")


FacesRule: TypeAlias = Literal["single", "largest", "only"]

QUALITY_POLICIES: Final[tuple[QualityPolicy, ...]] = ("off", "standard", "strict")
"""From the laxest to the strictest."""
FACES_RULES: Final[tuple[FacesRule, ...]] = ("largest", "single", "only")
"""From the laxest to the strictest."""


@dataclass(frozen=True, slots=True)
class Capture:
    """How a sample is taken.

    Args:
        quality: what a sample must reach before it is matched, see :data:`uvsdk.scoring.QualityPolicy`.
        faces: whose face is meant where a picture has several. ``single``: the one face that is clearly the largest
            (a passer-by in the background does not count, nor one beside a person who fills the middle), else
            :class:`SeveralFacesError`. ``largest``: the largest, of near equals the one nearest the middle, which may
            be a smaller one: for collections of photographs, not for doors. ``only``: any second face is a
            :class:`SeveralFacesError`. It is never "whichever matches": that would let a bystander unlock.
        limits: how large a sample may be.
    """

    quality: QualityPolicy = "standard"
    faces: FacesRule = "single"
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.quality not in QUALITY_POLICIES:
            raise SettingsError(f"quality is strict, standard or off, got {self.quality!r}")
        if self.faces not in FACES_RULES:
            raise SettingsError(f"faces is single, largest or only, got {self.faces!r}")

    def narrow(self, *, quality: QualityPolicy | None = None, faces: FacesRule | None = None) -> Capture:
        """As a caller asks for it, who may be stricter than whoever operates the service and never laxer.

        Raises:
            SettingsError: laxer, or no such policy or rule.

        >>> Capture().narrow(quality="strict").quality
        'strict'
        >>> Capture(faces="only").narrow(faces="largest")
        Traceback (most recent call last):
          ...
        uvsdk.errors.SettingsError: faces 'largest' is laxer than 'only', which is in force here; leave it out
        """
        asked = replace(self, quality=quality or self.quality, faces=faces or self.faces)
        for name, order, mine, theirs in (
            ("quality", QUALITY_POLICIES, self.quality, asked.quality),
            ("faces", FACES_RULES, self.faces, asked.faces),
        ):
            if order.index(theirs) < order.index(mine):
                raise SettingsError(f"{name} {theirs!r} is laxer than {mine!r}, which is in force here; leave it out")
        return asked


def read_bytes(sample: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO, limits: Limits) -> bytes:
    """The encoded bytes of a path, a buffer or an open file (from where it stands), never more than the limit.

    Raises:
        UndecodableSampleError: nothing there, not a regular file, not readable, opened as text, or empty.
        SampleTooLargeError: more than ``limits.max_bytes``.
    """
    if isinstance(sample, bytes | bytearray | memoryview):
        size = sample.nbytes if isinstance(sample, memoryview) else len(sample)
        _check_size(size, limits)
        data = bytes(sample)
    elif isinstance(sample, str | os.PathLike):
        data = _read_path(Path(sample), limits)
    else:
        data = _read_open(sample, limits)
    if not data:
        raise UndecodableSampleError("the file is empty (0 bytes); record or photograph again")
    return data


def _read_path(path: Path, limits: Limits) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise UndecodableSampleError(f"{path} is {what}; name one recording or picture")
        _check_size(status.st_size, limits)
        with path.open("rb") as file:
            return _read_open(file, limits)
    except FileNotFoundError as error:
        raise UndecodableSampleError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        # ValueError: a NUL character in the path.
        raise UndecodableSampleError(f"{path!s} cannot be read: {error}") from error


def _read_open(file: BinaryIO, limits: Limits) -> bytes:
    """Read to the end, in pieces, so that an endless stream stops one byte past the limit."""
    kept = io.BytesIO()
    while True:
        try:
            piece = file.read(min(_READ_BYTES, limits.max_bytes + 1 - kept.tell()))
        except (OSError, ValueError) as error:
            raise UndecodableSampleError(f"the open file cannot be read: {error}") from error
        if not isinstance(piece, bytes | bytearray):
            raise UndecodableSampleError("the open file gives text, not bytes; open it with mode 'rb'")
        if not piece:
            return kept.getvalue()
        kept.write(piece)
        _check_size(kept.tell(), limits, at_least=True)


def _check_size(size: int, limits: Limits, *, at_least: bool = False) -> None:
    if size > limits.max_bytes:
        got = "more than that" if at_least else f"{size:,} bytes"
        raise SampleTooLargeError(f"a sample may have {limits.max_bytes:,} bytes, got {got}; send a shorter one")
