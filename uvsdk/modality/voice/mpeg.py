"""MPEG audio (mp3 and its older layers) as clean, counted frames.

The format has no length. Decoders guess one from the file's size or believe a frame that the encoder wrote (Xing, Info,
VBRI), and read no further; both are wrong for what came through a pipe or carries a cover. So the frames are counted
here (ISO/IEC 11172-3, 2.4.1.3), whatever lies before, between and behind them is left out, and the count is written
where libmpg123 looks for it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from uvsdk.modality.voice import lengths

# Bits per second / 1000, by whether it is version 1, and layer; index 0 (free format) and 15 are not read.
_KBITS = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 0),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 0),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 0),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
# Version 1; version 2 halves them, version 2.5 (a common extension) halves them again.
_RATES = (44_100, 48_000, 32_000)
# What a decoder must find in a row before it believes that frames begin here.
_IN_A_ROW = 3
_TAGGED_BYTES = 16
_MOST_JUNK = 1 << 16
# What could be a header: eleven bits, a layer, a bit rate, a sample rate. Of noise, one place in 5,000 could.
_SYNC = re.compile(rb"\xff[\xe2-\xe7\xf2-\xff](?=[\x10-\xef])")
_MOST_LOOKS = 100_000
# Layer I at 448 kbit/s and 32 kHz.
_MOST_FRAME_BYTES = 2016
# ISO/IEC 11172-3, 2.4.2.7: 576 coefficients in pairs.
_MOST_BIG_VALUES = 288


@dataclass(frozen=True, slots=True)
class Header:
    """The four bytes before each frame.

    Args:
        version_1: else version 2 or 2.5, with half as many samples in a layer III frame.
        layer: 1, 2 or 3.
        rate: samples per second.
        channels: 1 or 2.
        checked: a checksum of two bytes follows the header.
        size: of the whole frame, in bytes.
    """

    version_1: bool
    layer: int
    rate: int
    channels: int
    checked: bool
    size: int

    @property
    def kind(self) -> tuple[bool, int, int, int]:
        """What may not change within one stream."""
        return self.version_1, self.layer, self.rate, self.channels

    @property
    def samples(self) -> int:
        """Per channel, in one frame."""
        return 384 if self.layer == 1 else 576 if self.layer == 3 and not self.version_1 else 1152

    @property
    def side_bytes(self) -> int:
        """Of layer III's side information."""
        if self.version_1:
            return 17 if self.channels == 1 else 32
        return 9 if self.channels == 1 else 17


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames of one kind in a row.

    Args:
        data: what a decoder is given.
        length: what it is told that ``data`` has, so that the count it guesses is not too small.
        samples: per channel, that it makes of it at least.
    """

    data: bytes
    length: int
    samples: int


def header(data: bytes, place: int) -> Header | None:
    """The header at ``place``; ``None`` where there is none."""
    if place + 4 > len(data) or data[place] != 0xFF or data[place + 1] & 0xE0 != 0xE0:
        return None
    second, third = data[place + 1], data[place + 2]
    version, layer = second >> 3 & 3, 4 - (second >> 1 & 3)
    if version == 1 or layer == 4 or third >> 2 & 3 == 3:
        return None
    kbits = _KBITS[version == 3, layer][third >> 4]
    if not kbits:
        return None
    rate = _RATES[third >> 2 & 3] >> {3: 0, 2: 1, 0: 2}[version]
    padding = third >> 1 & 1
    if layer == 1:
        size = (12_000 * kbits // rate + padding) * 4
    else:
        size = (72_000 if layer == 3 and version != 3 else 144_000) * kbits // rate + padding
    return Header(version == 3, layer, rate, 1 if data[place + 3] >> 6 == 3 else 2, not second & 1, size)


def behind_tags(data: bytes) -> int:
    """Where an ID3v2 tag (https://id3.org/id3v2.4.0-structure) in front, or several, ends; 0 where there is none."""
    place = 0
    for _ in range(lengths.MOST_CHUNKS):
        if data[place : place + 3] != b"ID3" or len(data) < place + 10 or max(data[place + 6 : place + 10]) >= 0x80:
            break
        size = 0
        for byte in data[place + 6 : place + 10]:
            size = size << 7 | byte
        place += 10 + size + (10 if data[place + 5] & 0x10 else 0)
    return min(place, len(data))


def is_free_format(data: bytes, place: int) -> bool:
    """Whether the header at ``place`` says that frames have a size of their own (ISO/IEC 11172-3, 2.4.2.3)."""
    if place + 4 > len(data) or data[place + 2] & 0xF0:
        return False
    return header(data[place : place + 2] + bytes([data[place + 2] | 0x10, data[place + 3]]), 0) is not None


def streams(data: bytes, most_s: float) -> list[Stream]:
    """The frames of each kind that follow each other, in order; empty where there are not three in a row.

    Args:
        data: the file.
        most_s: seconds that may come out; of what lasts four times as long and more, the rest is not counted.

    Raises:
        UndecodableSampleError: cut short.
    """
    runs: list[list[tuple[int, Header]]] = []
    heard_s, all_s = 0.0, 4 * most_s + 60
    for place, head in _frames(data):
        if not runs or head.kind != runs[-1][-1][1].kind:
            runs.append([])
        runs[-1].append((place, head))
        heard_s += head.samples / head.rate
        if heard_s > all_s:
            break
    # One or two frames are 0.05 s, or no sound at all.
    runs = [run for run in runs if len(run) >= _IN_A_ROW]
    lengths.check_parts(len(runs))
    return [_stream(data, run, whole=heard_s <= all_s) for run in runs]


def _frames(data: bytes) -> Iterator[tuple[int, Header]]:
    """Place and header of each whole frame."""
    start = behind_tags(data)
    if start >= len(data) and data.startswith(b"ID3"):
        start = 10  # the tag's length is wrong
    start += len(data) - start - len(data[start:].lstrip(b"\0"))
    # As far as libmpg123 looks for the first frame; behind a tag to the end, because a cover may be longer.
    stop = len(data) if data.startswith(b"ID3") else min(len(data), start + _MOST_JUNK)
    looks = iter(range(_MOST_LOOKS))
    place, last = _resynchronised(data, start, stop, looks), None
    while place < len(data):
        head = header(data, place)
        if head is None or ((last is None or head.kind != last.kind) and not _begins(data, place)):
            place = _resynchronised(data, place + 1, len(data), looks)
            last = None
            continue
        if place + head.size > len(data):
            return
        yield place, head
        place, last = place + head.size, head


def _resynchronised(data: bytes, place: int, stop: int, looks: Iterator[int]) -> int:
    """Where frames go on before ``stop``; the end of ``data`` where they do not."""
    while (found := _SYNC.search(data, place, stop)) is not None and next(looks, None) is not None:
        if _begins(data, found.start()):
            return found.start()
        place = found.start() + 1
    return len(data)


def _begins(data: bytes, place: int) -> bool:
    """Whether several frames of one kind, or the last ones of the file, lie here."""
    kind = None
    for _ in range(_IN_A_ROW):
        head = header(data, place)
        if head is None or (kind is not None and head.kind != kind):
            return False
        kind, place = head.kind, place + head.size
        if place >= len(data):
            break
    return place <= len(data)


def _stream(data: bytes, frames: list[tuple[int, Header]], *, whole: bool) -> Stream:
    """One kind's frames, its count of them made right; ``whole`` where there are no more.

    Raises:
        UndecodableSampleError: the encoder counted more frames, and more bytes, than there are.
    """
    (start, head), (last_place, last) = frames[0], frames[-1]
    end = last_place + last.size
    count, size = len(frames), sum(frame.size for _, frame in frames)
    pieces = [data[place : place + frame.size] for place, frame in frames]
    silenced = head.layer == 3 and _silence_undecodable(pieces, frames, data)
    marked = _counted(pieces[0], head, count - 1, size, whole=whole)
    if marked is not None:
        counted = marked != pieces[0]
        pieces[0] = marked
        count -= 1
        # Encoders cut what they added themselves, at most 4095 samples (12 bits) at either end, and decoders 529.
        samples, length = count * head.samples - 2 * 4095 - 529, size
    else:
        # A decoder guesses from the first frame's size, so the length that it is told grows until that holds.
        counted, samples = False, count * head.samples
        length = max(size, (count + 2) * max(frame.size for _, frame in frames))
    untouched = not (silenced or counted) and start == 0 and end == len(data) == size
    return Stream(data if untouched else b"".join(pieces), length, samples)


def _counted(frame: bytes, head: Header, count: int, size: int, *, whole: bool) -> bytes | None:
    """The frame in which encoders count (Xing or Info), with this count of others and size of all; ``None`` if none.

    Raises:
        UndecodableSampleError: it counts more of both.
    """
    place = 4 + head.side_bytes
    if head.layer != 3 or frame[place : place + 4] not in (b"Xing", b"Info") or len(frame) < place + _TAGGED_BYTES:
        return None
    flags, frames, total = struct.unpack_from(">III", frame, place + 4)
    if not flags & 1:
        return None
    if not flags & 2:
        return frame if frames == count else frame[: place + 8] + struct.pack(">I", count) + frame[place + 12 :]
    missing_s = (frames - count) * head.samples / head.rate
    if whole and missing_s > lengths.TOLERANCE_S and size < total < frames * _MOST_FRAME_BYTES:
        raise lengths.cut_short(f"{count:,} of {frames:,} frames are there")
    return frame[: place + 8] + struct.pack(">II", count, size) + frame[place + 16 :]


def _silence_undecodable(pieces: list[bytes], frames: list[tuple[int, Header]], data: bytes) -> bool:
    """Make frames silent whose bits cannot be followed; whether there was one.

    Each frame may begin with bits that lie in the ones before it (the bit reservoir, ISO/IEC 11172-3, 2.4.2.7). The
    first frames of what was cut out of a stream, or that follow a gap, lack them, and the last one before a gap may
    itself be cut; libmpg123 writes to standard error about each.
    """
    reservoir, found, expected = 0, False, frames[0][0]
    for index, (piece, (place, head)) in enumerate(zip(pieces, frames, strict=True)):
        start = 6 if head.checked else 4
        end = start + head.side_bytes
        if place != expected:
            reservoir = 0
        expected = place + head.size
        torn = index + 1 < len(frames) and frames[index + 1][0] != expected and not _is_between(data, expected)
        behind, bits, possible = _side_information(piece[start:end], head)
        own = head.size - end
        if torn or not possible or behind > reservoir or bits > 8 * (own + behind):
            pieces[index] = piece[:start] + bytes(head.side_bytes) + piece[end:]
            found = True
        reservoir = min(reservoir + max(own, 0), 511 if head.version_1 else 255)
    return found


def _is_between(data: bytes, place: int) -> bool:
    """Whether a tag or nought lies at ``place``, as between files that were put behind each other."""
    return data.startswith((b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"\0\0\0\0"), place)


def _side_information(side: bytes, head: Header) -> tuple[int, int, bool]:
    """How many bytes before the frame its bits begin, how many bits they are, and whether it can be followed."""
    value, width = int.from_bytes(side, "big"), 8 * len(side)
    if head.version_1:
        behind, place, granules, block = value >> (width - 9), 9 + (5 if head.channels == 1 else 3), 2, 59
        place += 4 * head.channels
    else:
        behind, place, granules, block = value >> (width - 8), 8 + head.channels, 1, 63
    scale_bits = 4 if head.version_1 else 9
    bits, possible = 0, True
    for _ in range(granules * head.channels):
        granule = value >> (width - place - block) & ((1 << block) - 1)
        bits += granule >> (block - 12)
        big_values = granule >> (block - 21) & 0x1FF
        # Behind the lengths: gain (8 bits), scale factors, whether the window switches, and then its type.
        switching = granule >> (block - 29 - scale_bits - 1) & 1
        window = granule >> (block - 29 - scale_bits - 3) & 3
        possible = possible and big_values <= _MOST_BIG_VALUES and not (switching and window == 0)
        place += block
    return behind, bits, possible
