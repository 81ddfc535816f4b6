"""FLAC (RFC 9639): how many samples there are, from the last frame, because encoders to a pipe write none or guess."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.modality.voice import lengths

# STREAMINFO (8.2) is the first block; in it stand the block size, 36 bits of samples, and an MD5 of them.
_SMALLEST, _LARGEST, _TOTAL, _SUM = slice(8, 10), slice(10, 12), slice(21, 26), slice(26, 42)
_TOTAL_BITS = 36
_HEADER_BYTES = 42
# A frame's header has at most this many bytes (9.1).
_FRAME_HEADER_BYTES = 16
# Candidates looked at from the end: two bytes that look like a header's come up once in 32 kB of sound.
_LOOKS = 64


@dataclass(frozen=True, slots=True)
class Stream:
    """A FLAC made ready to be decoded to its end.

    Args:
        data: with no count of samples; libFLAC then decodes to the end, and finds a frame that is cut.
        samples: per channel, that its header says there are; 0 where it does not.
        counted: whether the last frame says the same.
        checksum: MD5 of the samples; empty where there is none.
    """

    data: bytes
    samples: int
    counted: bool
    checksum: bytes


def stream(data: bytes) -> Stream:
    """Raises :class:`uvsdk.errors.UndecodableSampleError` where it ends before its first frame."""
    end = lengths.without_tags(data)
    if len(data) < _HEADER_BYTES:
        raise lengths.cut_short("its header is not whole")
    total = int.from_bytes(data[_TOTAL], "big") & ((1 << _TOTAL_BITS) - 1)
    checksum = data[_SUM] if any(data[_SUM]) else b""
    if data[4] & 0x7F:  # another block comes first; libFLAC says what it thinks of that
        return Stream(data, total, False, checksum)
    rewritten = b"".join((data[:21], bytes([data[21] & 0xF0]), bytes(4), memoryview(data)[26:end]))
    return Stream(rewritten, total, bool(total) and _last_sample(data, end) == total, checksum)


def _last_sample(data: bytes, end: int) -> int | None:
    """Where the last frame ends, in samples; ``None`` where it is not found."""
    place = end
    for _ in range(_LOOKS):
        place = data.rfind(b"\xff", _HEADER_BYTES, place)
        if place < 0:
            return None
        found = _frame_end(data, place)
        if found is not None:
            return found
    return None


def _frame_end(data: bytes, place: int) -> int | None:
    """The sample behind the frame whose header is at ``place``; ``None`` where there is no header."""
    head = data[place : place + _FRAME_HEADER_BYTES]
    if len(head) < 6 or head[1] & 0xFE != 0xF8 or head[3] & 1:
        return None
    size_code, rate_code = head[2] >> 4, head[2] & 15
    # The number is coded like a character of UTF-8, of up to 36 bits.
    extra = 0 if head[4] < 0x80 else 7 - (~head[4] & 0xFF).bit_length()
    if size_code == 0 or rate_code == 15 or extra not in (0, 1, 2, 3, 4, 5, 6) or 0x80 <= head[4] < 0xC0:
        return None
    number = head[4] & (0x7F if not extra else 0x3F >> extra)
    for byte in head[5 : 5 + extra]:
        number = number << 6 | byte & 0x3F
    after = 5 + extra
    size_bytes = {6: 1, 7: 2}.get(size_code, 0)
    size = _block_size(size_code) if not size_bytes else int.from_bytes(head[after : after + size_bytes], "big") + 1
    after += size_bytes + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if after >= len(head) or _crc8(head[:after]) != head[after]:
        return None
    if head[1] & 1:  # the number is that of the first sample, else that of the frame
        return number + size
    return number * int.from_bytes(data[_LARGEST], "big") + size if data[_SMALLEST] == data[_LARGEST] else None


def _block_size(code: int) -> int:
    return 192 if code == 1 else 144 << code if code < 6 else 1 << code


def _crc8(data: bytes) -> int:
    """Of a frame's header: polynomial x^8 + x^2 + x + 1."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ 0x07) & 0xFF if value & 0x80 else value << 1
    return value
