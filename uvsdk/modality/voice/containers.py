"""What kind of sound file it is, and what libsndfile is to decode of it so that none of it is lost.

libsndfile believes the lengths in a header, stops at the first of several recordings, and, where it knows no header,
looks for a file ``._`` in the current folder. So the kind is told here, by the file's own first bytes, and lengths are
made to hold (:mod:`uvsdk.modality.voice.lengths`) before libsndfile sees them. A file whose lengths hold is not copied.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from uvsdk.modality.voice import flac, lengths, mpeg, ogg, riff

# Rarer kinds by their first bytes, as libsndfile tells them.
_RARE: Final = {
    b"NIST_1A\n": "nist",
    b"Creative Voice File": "voc",
    b" paf": "paf",
    b"fap ": "paf",
    b"\x64\xa3\x01\x00": "ircam",
    b"\x64\xa3\x02\x00": "ircam",
    b"\x64\xa3\x03\x00": "ircam",
    b"\x64\xa3\x04\x00": "ircam",
    b"\x00\x01\xa3\x64": "ircam",
    b"\x00\x02\xa3\x64": "ircam",
    b"\x00\x03\xa3\x64": "ircam",
    b"2BIT": "avr",
    b"PVF1\n": "pvf",
    b"Extended Instrument: ": "xi",
    b"ALawSoundFile**": "wve",
    b"MATLAB 5.0 MAT-file": "mat5",
}
# CAF's kinds of encoding that libsndfile decodes; alac only of lengths that hold.
_CAF_READ = (b"lpcm", b"ulaw", b"alaw", b"alac")
_CAF_PLAIN = (b"lpcm", b"ulaw", b"alaw")
_UNKNOWN_AU = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Take:
    """One recording, as libsndfile is given it.

    Args:
        data: the file.
        length: what libsndfile is told that it has; 0 for its own.
        least: samples per channel that must come out, or it is cut short or damaged.
        counted: whether ``least`` is certain before anything is decoded.
        checksum: MD5 of the samples, which settles whether ``least`` is wrong; empty where there is none.
        exact: whether libsndfile's own count is what must come out.
    """

    data: bytes
    length: int = 0
    least: int = 0
    counted: bool = False
    checksum: bytes = b""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind that libsndfile does not decode.

    Args:
        data: the file.
        name: for people.
        demuxer: what libavformat calls the reader of it.
    """

    data: bytes
    name: str
    demuxer: str


def takes(data: bytes, most_s: float) -> list[Take] | Foreign | None:
    """The recordings in a file with a header, in order; ``None`` where libsndfile knows no such kind.

    Args:
        data: the file.
        most_s: seconds that may come out; what lasts longer need not be gone through to its end.

    Raises:
        UndecodableSampleError: cut short, or without what it cannot do without.
    """
    data = data[mpeg.behind_tags(data) :] if data[:3] == b"ID3" else data
    kind = data[:4]
    if kind in riff.RIFF and data[8:12] == b"WAVE":
        return _waves(data, most_s)
    if kind == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return [Take(riff.aiff(piece), exact=True) for piece in _pieces(data, _AIFF)]
    if kind == b"FORM" and data[8:12] in (b"8SVX", b"16SV"):
        return [Take(data, exact=True)]
    if _W64.match(data):
        return [Take(_w64(piece), exact=True) for piece in _pieces(data, _W64)]
    if kind in (b".snd", b"dns."):
        return [Take(_au(data, ">" if kind == b".snd" else "<"), exact=True)]
    if kind == b"caff":
        return _caf(data)
    if kind == b"fLaC":
        streams = [flac.stream(piece) for piece in _pieces(data, _FLAC)]
        return [Take(found.data, 0, found.samples, found.counted, found.checksum) for found in streams]
    if kind == b"OggS":
        return _ogg(data)
    if data.startswith(tuple(_RARE)) or _is_htk(data):
        return [Take(data, exact=True)]
    return None


def frames(data: bytes, most_s: float) -> list[Take] | None:
    """The recordings in an MP3, which has no header of its own; ``None`` where there is no frame.

    Args, like those of :func:`takes`: the file, and the seconds that may come out.

    Raises:
        UndecodableSampleError: cut short.
    """
    found = [_mpeg(stream) for stream in mpeg.streams(data, most_s)]
    start = mpeg.behind_tags(data)
    if not found and mpeg.is_free_format(data, start):
        # Frames of a size of their own, which libmpg123 finds out.
        return [Take(_EMPTY_ID3 + data[start:], len(data))]
    return found or None


def _pieces(data: bytes, magic: re.Pattern[bytes]) -> list[bytes]:
    """The files that were put behind each other (``cat a.flac b.flac``), by how each begins."""
    places = [0, *(match.start() for match in magic.finditer(data, 1))]
    lengths.check_parts(len(places))
    if len(places) == 1:
        return [data]
    return [data[place:end] for place, end in zip(places, [*places[1:], len(data)], strict=True)]


# An ID3v2 tag of ten noughts. With it libsndfile tells an MP3 at once.
_EMPTY_ID3 = b"ID3\x04" + bytes(5) + b"\x0a" + bytes(10)
# How a file of these kinds begins, with as much of what must follow as tells it from sound.
_AIFF = re.compile(rb"FORM.{4}AIF[FC](?=[\x20-\x7e]{4})", re.DOTALL)
_W64 = re.compile(re.escape(bytes.fromhex("726966662e91cf11a5d628db04c10000")))
_FLAC = re.compile(rb"fLaC(?=[\x00\x80]\x00\x00\x22)")


def _waves(data: bytes, most_s: float) -> list[Take] | Foreign:
    found: list[Take] = []
    rest = data
    while rest:
        lengths.check_parts(len(found) + 1)
        wave = riff.wave(rest)
        if wave.is_read:
            found.append(Take(wave.data, exact=True))
        elif wave.tag in riff.MPEG_TAGS:
            found.extend(_mpeg(stream) for stream in mpeg.streams(wave.sound, most_s))
        else:
            return Foreign(data, f"wav with an encoding of kind 0x{wave.tag:04x}", "wav")
        rest = wave.rest
    return found


def _mpeg(stream: mpeg.Stream) -> Take:
    return Take(_EMPTY_ID3 + stream.data, stream.length, stream.samples, counted=True)


def _ogg(data: bytes) -> list[Take] | Foreign:
    links = ogg.links(data)
    strange = next((link.codec for link in links if link.codec not in ogg.READ), None)
    if strange is not None:
        return Foreign(data, f"ogg with {strange or 'no sound that is known'}", "ogg")
    # Where no page is missing, a count of samples in a page that is higher than what it holds is a mistake.
    return [Take(link.data, exact=not link.complete) for link in links]


def _w64(data: bytes) -> bytes:
    """Sony's Wave64: chunks named by 16 bytes, then their whole length of 64 bits, padded to a multiple of 8."""
    position, per_second = 40, 0
    whole = int.from_bytes(data[16:24], "little")
    for _ in range(lengths.MOST_CHUNKS):
        if position + 24 > len(data):
            break
        (length,) = struct.unpack_from("<Q", data, position + 16)
        if data[position : position + 4] == b"fmt " and position + 36 <= len(data):
            (per_second,) = struct.unpack_from("<I", data, position + 32)
        if data[position : position + 4] == b"data":
            there = len(data) - position
            sound = lengths.of_sound(int(length), there, whole, len(data), per_second)
            if sound < 24 or (sound < there and not _more_w64(data, position + sound)):
                sound = there
            return data if sound == length else _with(data, position + 16, struct.pack("<Q", sound))
        position += max(24, (int(length) + 7) // 8 * 8)
    raise lengths.cut_short("it ends before its sound begins")


def _more_w64(data: bytes, position: int) -> bool:
    """Whether a chunk, or the padding to one, lies here."""
    position = (position + 7) // 8 * 8
    if position + 24 > len(data):
        return True
    (length,) = struct.unpack_from("<Q", data, position + 16)
    return 24 <= int(length) <= len(data) - position


def _au(data: bytes, order: str) -> bytes:
    if len(data) < 24:
        raise lengths.cut_short("its header is not whole")
    offset, length, encoding, rate, channels = struct.unpack_from(f"{order}IIIII", data, 4)
    there = lengths.without_tags(data) - offset
    if there < 0:
        raise lengths.cut_short("it ends before its sound begins")
    if length != _UNKNOWN_AU:
        lengths.of_sound(length, there, 0, 0, rate * channels * _AU_BYTES.get(encoding, 0))
    return data if length == there else _with(data, 8, struct.pack(f"{order}I", there))


# Bytes per sample by the code in an AU's header.
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}


def _caf(data: bytes) -> list[Take] | Foreign:
    """Apple's Core Audio Format: lengths of 64 bits, -1 where the writer could not know that of the sound."""
    position, encoding, flags, per_second, packets = 8, b"", 0, 0.0, b""
    found: tuple[int, int] | None = None
    for _ in range(lengths.MOST_CHUNKS):
        if position + 12 > len(data):
            break
        kind, length = struct.unpack_from(">4sq", data, position)
        content = position + 12
        if kind == b"desc" and content + 32 <= len(data):
            rate, encoding, flags, packet_bytes, packet_frames = struct.unpack_from(">d4sIII", data, content)
            per_second = packet_bytes / packet_frames * rate if packet_frames and 0 < rate < 1e9 else 0.0
        elif kind == b"pakt":
            packets = data[content : content + length]
        elif kind == b"data":
            found = content, int(length)
        if length < 0 or content + length > len(data):
            break
        position = content + length
    if found is None:
        raise lengths.cut_short("it ends before its sound begins")
    if encoding not in _CAF_READ:
        return Foreign(data, f"caf with {encoding.decode('latin-1').strip() or 'an unknown encoding'}", "caf")
    content, declared = found
    there = len(data) - content
    if declared < 0:
        sound = there
    else:
        sound = lengths.of_sound(declared, there, 0, 0, per_second)
        after = content + sound
        if encoding in _CAF_PLAIN and sound < there and not _more_caf(data, after) and not lengths.is_tag(data, after):
            sound = lengths.without_tags(data) - content
    # The flags are the depth; some writers leave them out, and libsndfile then does not know it.
    if encoding == b"alac" and (not 1 <= flags <= 4 or not _packets_fit(packets, sound - 4)):
        return Foreign(data, "caf with alac", "caf")
    patched = data if sound == declared else _with(data, content - 8, struct.pack(">q", sound))
    return [Take(patched, exact=True)]


def _more_caf(data: bytes, position: int) -> bool:
    if position + 12 > len(data):
        return True
    kind, length = struct.unpack_from(">4sq", data, position)
    return all(0x20 <= letter < 0x7F for letter in kind) and 0 <= length <= len(data) - position - 12


def _packets_fit(table: bytes, sound: int) -> bool:
    """Whether a CAF's packet table lists what there is; libsndfile writes to standard output where it does not."""
    if len(table) < 24:
        return False
    (count,) = struct.unpack_from(">q", table)
    sizes, size = [], 0
    for byte in table[24:]:
        size = size << 7 | byte & 0x7F
        if size >= 1 << 24:
            return False
        if not byte & 0x80:
            sizes.append(size)
            size = 0
        if len(sizes) == count:
            break
    return len(sizes) == count and sum(sizes) <= sound


def _is_htk(data: bytes) -> bool:
    """HTK's waveforms have no magic number: a count, a period, a size of two bytes, and the kind 0."""
    if len(data) < 14:
        return False
    count, period, size, kind = struct.unpack_from(">IIHH", data)
    return (size, kind) == (2, 0) and 12 + 2 * count == len(data) and 0 < period < 10_000


def _with(data: bytes, place: int, value: bytes) -> bytes:
    return b"".join((data[:place], value, memoryview(data)[place + len(value) :]))
