"""Whether a sound file holds all the bytes that its own header promises; libsndfile reads cut files without a word."""

from __future__ import annotations

import struct

# Lengths that writers to a pipe put where they could not know it.
_UNKNOWN_LENGTHS = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF + 36, 0xFFFFFFFF - 36)


def is_cut_short(data: bytes) -> bool:
    """Whether the container promises more bytes than there are. Kinds that declare no length are taken as whole."""
    kind = data[:4]
    if kind in (b"RIFF", b"RIFX") and data[8:12] == b"WAVE":
        return _chunks_end_early(data, b"data", "<" if kind == b"RIFF" else ">")
    if kind == b"RF64":
        return _rf64_ends_early(data)
    if kind == b"riff":
        return _w64_ends_early(data)
    if kind == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return _chunks_end_early(data, b"SSND", ">")
    if kind in (b".snd", b"dns."):
        return _au_ends_early(data, ">" if kind == b".snd" else "<")
    if kind == b"caff":
        return _caf_ends_early(data)
    if kind == b"OggS":
        return _ogg_ends_early(data)
    return False


def _chunks_end_early(data: bytes, wanted: bytes, order: str) -> bool:
    """RIFF and IFF: four letters, a length of 32 bits, the content, padded to an even place."""
    position = 12
    while position + 8 <= len(data):
        kind, length = struct.unpack_from(f"{order}4sI", data, position)
        if kind == wanted:
            return length not in _UNKNOWN_LENGTHS and position + 8 + length > len(data)
        position += 8 + length + length % 2
    return True


def _rf64_ends_early(data: bytes) -> bool:
    """RIFF with lengths of 64 bits in a chunk of their own (EBU Tech 3306): the file's, the data's, the samples'."""
    if data[12:16] != b"ds64" or len(data) < 36:
        return True
    (length,) = struct.unpack_from("<Q", data, 28)
    place = data.find(b"data", 36)
    return place < 0 or (length not in _UNKNOWN_LENGTHS and place + 8 + int(length) > len(data))


def _w64_ends_early(data: bytes) -> bool:
    """Sony's Wave64: chunks named by 16 bytes, then their whole length of 64 bits, padded to a multiple of 8."""
    position = 40
    while position + 24 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position + 16)
        if data[position : position + 4] == b"data":
            return position + int(length) > len(data)
        position += max(24, (int(length) + 7) // 8 * 8)
    return True


def _au_ends_early(data: bytes, order: str) -> bool:
    if len(data) < 12:
        return True
    offset, length = struct.unpack_from(f"{order}II", data, 4)
    return length not in _UNKNOWN_LENGTHS and offset + length > len(data)


def _caf_ends_early(data: bytes) -> bool:
    """Apple's Core Audio Format: lengths of 64 bits, -1 where the writer could not know it."""
    position = 8
    while position + 12 <= len(data):
        kind, length = struct.unpack_from(">4sq", data, position)
        if kind == b"data":
            return int(length) >= 0 and position + 12 + int(length) > len(data)
        if length < 0:
            return True
        position += 12 + length
    return True


def _ogg_ends_early(data: bytes) -> bool:
    """The last page must be whole (RFC 3533, section 6). Published files often lack the flag that marks it as last."""
    start = data.rfind(b"OggS")
    table = start + 27
    if table > len(data):
        return True
    segments = data[table : table + data[start + 26]]
    return len(segments) < data[start + 26] or table + len(segments) + sum(segments) > len(data)
