"""WAV and its kin (RIFF, RIFX, RF64, BW64) and AIFF, rewritten where their lengths do not hold.

Chunks are four letters, a length of 32 bits and the content, padded to an even place (IBM and Microsoft, "Multimedia
Programming Interface and Data Specifications 1.0", 1991; EBU Tech 3306 for the 64-bit lengths). Files whose lengths
hold are handed on as they are, byte for byte.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from uvsdk.errors import UndecodableSampleError
from uvsdk.modality.voice import lengths

RIFF = (b"RIFF", b"RIFX", b"RF64", b"BW64")
MPEG_TAGS = (0x0050, 0x0055)
"""Sound in the frames of :mod:`uvsdk.modality.voice.mpeg`: layers I and II, layer III."""
# Registered format tags (RFC 2361) that libsndfile decodes.
_READ_TAGS = (0x0001, 0x0002, 0x0003, 0x0006, 0x0007, 0x0011, 0x0031, 0x0038, 0x0040)
_EXTENSIBLE = 0xFFFE
# Lengths of 32 bits where a chunk of 64-bit lengths has the right ones.
_ELSEWHERE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Chunk:
    """Place and length of the content, which may reach over the end of the file."""

    kind: bytes
    place: int
    length: int


@dataclass(frozen=True, slots=True)
class Wave:
    """One WAV.

    Args:
        data: what libsndfile is given.
        tag: the registered kind of encoding.
        sound: its content, where libsndfile does not decode that kind; empty otherwise.
        rest: another WAV that was appended to it; empty where there is none.
    """

    data: bytes
    tag: int
    sound: bytes = b""
    rest: bytes = b""

    @property
    def is_read(self) -> bool:
        """Whether libsndfile decodes it."""
        return self.tag in _READ_TAGS


def wave(data: bytes) -> Wave:
    """The first WAV in ``data``.

    Raises:
        UndecodableSampleError: no format, no sound, or cut short.
    """
    order = ">" if data[:4] == b"RIFX" else "<"
    chunks = list(_chunks(data, order, b"data"))
    layout = next((chunk for chunk in chunks if chunk.kind == b"fmt " and chunk.length >= 14), None)
    sound = chunks[-1] if chunks and chunks[-1].kind == b"data" else None
    if layout is None or sound is None or layout.place + 14 > len(data):
        raise UndecodableSampleError("the recording is a wav without its format or its sound; send the whole file")
    tag, _, rate, per_second, block = struct.unpack_from(f"{order}HHIIH", data, layout.place)
    if tag == _EXTENSIBLE and layout.length >= 26:
        (tag,) = struct.unpack_from(f"{order}H", data, layout.place + 24)
    declared, whole = sound.length, struct.unpack_from(f"{order}I", data, 4)[0]
    plain = data[:4] in (b"RIFF", b"RIFX")
    if not plain:
        declared, whole = _long_lengths(data, declared, whole)
    if tag in (0x0001, 0x0003, 0x0006, 0x0007):
        per_second = block * rate
    there = len(data) - sound.place
    length = lengths.of_sound(declared, there, whole, len(data) - 8, per_second)
    after = sound.place + length
    rest = b""
    if length < there and not _is_chunk(data, after + length % 2, order) and not _is_chunk(data, after, order):
        if not lengths.is_tag(data, after):
            # The header is from before the recorder went on.
            length = lengths.without_tags(data) - sound.place
    elif length < there:
        rest = _appended(data, after, order)
    if tag not in _READ_TAGS:
        return Wave(b"", tag, data[sound.place : sound.place + length], rest)
    # libsndfile stumbles over some chunks, also behind the sound, and needs none but these.
    if plain and length == sound.length and there <= length + length % 2 and _is_plain(chunks):
        return Wave(data, tag)
    return Wave(_rewritten(data, order, layout, sound.place, length), tag, rest=rest)


def aiff(data: bytes) -> bytes:
    """An AIFF or AIFF-C whose lengths hold.

    Raises:
        UndecodableSampleError: no format, no sound, or cut short.
    """
    chunks = list(_chunks(data, ">", b"SSND"))
    layout = next((chunk for chunk in chunks if chunk.kind == b"COMM" and chunk.length >= 18), None)
    sound = chunks[-1] if chunks and chunks[-1].kind == b"SSND" else None
    if sound is None or layout is None or layout.place + 18 > len(data) or sound.place + 8 > len(data):
        if layout is not None or sound is None or sound.length <= len(data) - sound.place:
            return data  # libsndfile finds a format behind the sound, and says what is missing
        raise lengths.cut_short("its format is missing")
    channels, frames, bits = struct.unpack_from(">HIH", data, layout.place)
    frame_bytes = channels * -(-bits // 8)
    per_second = frame_bytes * _extended(data[layout.place + 8 : layout.place + 18])
    there, whole = len(data) - sound.place, struct.unpack_from(">I", data, 4)[0]
    length = lengths.of_sound(sound.length, there, whole, len(data) - 8, per_second)
    if length < there and not lengths.is_tag(data, sound.place + length):
        after = sound.place + length
        if not _is_chunk(data, after + length % 2, ">") and not _is_chunk(data, after, ">"):
            length = lengths.without_tags(data) - sound.place
    encoding = data[layout.place + 18 : layout.place + 22] if data[8:12] == b"AIFC" else b"NONE"
    if encoding in _AIFF_PLAIN:
        counted = (length - 8) // max(frame_bytes, 1)
    else:
        counted = (length - 8) // _GSM_BYTES * _GSM_FRAMES if encoding == b"GSM " and not frames else frames
    if length == sound.length and counted == frames:
        return data
    end = sound.place + length
    return b"".join(
        (
            data[:4],
            struct.pack(">I", end - 8),
            data[8 : layout.place + 2],
            struct.pack(">I", min(max(counted, 0), _ELSEWHERE)),
            data[layout.place + 6 : sound.place - 4],
            struct.pack(">I", length),
            data[sound.place : end],
        )
    )


# GSM 06.10 in AIFF-C: bytes and samples of a packet.
_GSM_BYTES, _GSM_FRAMES = 33, 160
# Kinds of AIFF-C in which every sample has the same number of bytes.
_AIFF_PLAIN = (
    b"NONE",
    b"sowt",
    b"twos",
    b"raw ",
    b"fl32",
    b"FL32",
    b"fl64",
    b"FL64",
    b"in24",
    b"in32",
    b"23ni",
    b"42ni",
)


def _chunks(data: bytes, order: str, last: bytes) -> Iterator[Chunk]:
    """The chunks up to and with the first of kind ``last``."""
    place = 12
    for _ in range(lengths.MOST_CHUNKS):
        if place + 8 > len(data):
            return
        kind, length = struct.unpack_from(f"{order}4sI", data, place)
        yield Chunk(kind, place + 8, length)
        if kind == last:
            return
        following = place + 8 + length + length % 2
        if length % 2 and not _is_chunk(data, following, order) and _is_chunk(data, following - 1, order):
            following -= 1  # a writer that does not pad
        if following + 8 > len(data) or not _is_chunk(data, following, order):
            # A length that leads nowhere; the sound is looked for by name.
            found = data.find(last, place + 8)
            if found < 0:
                return
            following = found
        place = following


def _is_chunk(data: bytes, place: int, order: str) -> bool:
    """Whether a chunk that fits the file, or the sound, lies at ``place``, or nothing that could be sound."""
    if place + 8 > len(data):
        return True
    kind, length = struct.unpack_from(f"{order}4sI", data, place)
    if kind in (b"data", b"SSND", b"RIFF", b"RIFX"):
        return True
    return all(0x20 <= letter < 0x7F for letter in kind) and place + 8 + length <= len(data)


def _is_plain(chunks: list[Chunk]) -> bool:
    """Whether there are format, perhaps a count of samples, and sound, each where the one before it ends, padded."""
    return [chunk.kind for chunk in chunks if (chunk.kind, chunk.length) != (b"fact", 4)] == [b"fmt ", b"data"] and all(
        before.place + before.length + before.length % 2 + 8 == chunk.place for before, chunk in pairwise(chunks)
    )


def _long_lengths(data: bytes, declared: int, whole: int) -> tuple[int, int]:
    """Those of the chunk ds64, where the short ones say that they stand there."""
    if data[12:16] != b"ds64" or len(data) < 36:
        return declared, whole
    long_whole, long_declared = struct.unpack_from("<QQ", data, 20)
    return (
        int(long_declared) if declared == _ELSEWHERE else declared,
        int(long_whole) if whole == _ELSEWHERE else whole,
    )


def _appended(data: bytes, after: int, order: str) -> bytes:
    """A second WAV behind the first one's chunks (``cat a.wav b.wav``)."""
    place = after + (after & 1)
    for _ in range(lengths.MOST_CHUNKS):
        if place + 12 > len(data):
            break
        if data[place : place + 4] in RIFF and data[place + 8 : place + 12] == b"WAVE":
            return data[place:]
        (length,) = struct.unpack_from(f"{order}I", data, place + 4)
        place += 8 + length + length % 2
    return b""


def _rewritten(data: bytes, order: str, layout: Chunk, place: int, length: int) -> bytes:
    """Format and sound alone, with lengths that hold."""
    fmt = data[layout.place : min(layout.place + layout.length, place - 8)]
    fmt += bytes(len(fmt) % 2)
    head = b"RIFX" if order == ">" else b"RIFF"
    return b"".join(
        (
            struct.pack(f"{order}4sI4s4sI", head, 20 + len(fmt) + length + length % 2, b"WAVE", b"fmt ", len(fmt)),
            fmt,
            struct.pack(f"{order}4sI", b"data", length),
            data[place : place + length],
            bytes(length % 2),
        )
    )


def _extended(value: bytes) -> float:
    """An IEEE 754 number of 80 bits, in which AIFF holds its rate.

    >>> _extended(bytes.fromhex("400cfa00000000000000"))
    16000.0
    """
    exponent = int.from_bytes(value[:2], "big") & 0x7FFF
    return math.ldexp(int.from_bytes(value[2:10], "big"), min(exponent, 16_500) - 16_383 - 63)
