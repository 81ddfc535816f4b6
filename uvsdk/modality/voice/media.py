"""Recordings in the formats of browsers and phones, through libav (PyAV, the extra ``media``).

libsndfile reads none of them. Each is told by its first bytes, because libav by itself would also take a playlist, and
then open what that names; and because without PyAV the error must say what was handed in and what to do.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Final

import numpy as np

from uvsdk.arrays import Array
from uvsdk.errors import UndecodableSampleError
from uvsdk.modality.voice import lengths, mpeg
from uvsdk.modality.voice.containers import Foreign
from uvsdk.system import forking

_PACKAGE = "av"
# First bytes, what it is called, and libavformat's name for its reader ("" where it has none).
_MAGIC: Final = (
    (b"\x1a\x45\xdf\xa3", "webm or matroska", "matroska"),
    (b"#!AMR", "amr", "amr"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "wma", "asf"),
    (b"\x0b\x77", "ac-3", "ac3"),
    (b"wvpk", "wavpack", "wv"),
    (b"TTA1", "tta", "tta"),
    (b"MAC ", "monkey's audio", "ape"),
    (b"MPCK", "musepack", "mpc8"),
    (b"MP+", "musepack", "mpc"),
    (b"tBaK", "tak", "tak"),
    (b"DSD ", "dsf", "dsf"),
    (b"FLV\x01", "flv", "flv"),
    (b".RMF", "real media", "rm"),
    (b"\x00\x00\x01\xba", "mpeg program stream", "mpeg"),
    (b"\x7f\xfe\x80\x01", "dts", "dts"),
    (b"\x02#!SILK", "silk (WeChat)", ""),
    (b"#!SILK", "silk", ""),
    (b"#!iLBC", "ilbc", "ilbc"),
    (b"MThd", "midi, which holds no sound", ""),
)
# Brands of the ISO base media file format (behind "ftyp") that hold pictures.
_PICTURES = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis")
# What PyAV raises for damaged input, beside its own error.
_DAMAGED: Final = (OSError, ValueError, EOFError, LookupError, RuntimeError, TypeError, ArithmeticError)
_PACKET = 188  # of an MPEG transport stream
_MOST_CHANNELS = 8
# The shortest packets, Opus's of 2.5 ms, fill eight minutes; crafted ones of no sound at all would be millions.
_MOST_PACKETS = 200_000
_TO_DO = "send wav, flac, ogg or mp3"


def kind(data: bytes) -> Foreign | None:
    """What it is, where libsndfile knows no such kind; ``None`` where nobody does."""
    start = mpeg.behind_tags(data)
    head = data[start : start + 3 * _PACKET]
    for magic, name, demuxer in _MAGIC:
        if head.startswith(magic):
            return Foreign(data, name, demuxer)
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"styp", b"moof") and head[8:12] not in _PICTURES:
        name = "3gp" if head[8:11] == b"3gp" else "m4a" if head[8:11] == b"M4A" else "mp4"
        return Foreign(data, name, "mov")
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return Foreign(data, "avi", "avi")
    if head[:1] == b"\xff" and head[1:2] and head[1] & 0xF6 == 0xF0:
        return Foreign(data[start:], "aac", "aac")
    if head[:2] == b"\x56\xe0" or (head[:1] == b"\x56" and head[1:2] and head[1] & 0xE0 == 0xE0):
        return Foreign(data, "aac in a latm stream", "loas")
    if len(head) == 3 * _PACKET and head[0] == head[_PACKET] == head[2 * _PACKET] == 0x47:
        return Foreign(data, "mpeg transport stream", "mpegts")
    return None


def blocks(foreign: Foreign) -> Iterator[tuple[Array, int]]:
    """Its sound in pieces, (n,) for one channel, else (n, channels), each with its rate in Hz.

    Raises:
        UndecodableSampleError: PyAV is not installed, there is no sound in it, or it is damaged or cut short.
    """
    av = _library()
    if av is None or not foreign.demuxer:
        install = "or install the extra media where this runs (pip install 'uvsdk[media]'), which reads it"
        raise UndecodableSampleError(
            f"a recording of the kind {foreign.name}, which cannot be read here; {_TO_DO}"
            + (f", {install}" if foreign.demuxer else "")
        )
    if foreign.demuxer in _CUT_SHORT and _CUT_SHORT[foreign.demuxer](foreign.data):
        raise lengths.cut_short(f"the {foreign.name} lacks its end")
    try:
        for data in _files(foreign):
            yield from _decoded(av, replace(foreign, data=data))
    except UndecodableSampleError:
        raise
    except (av.error.FFmpegError, *_DAMAGED) as error:
        words = getattr(error, "strerror", None) or type(error).__name__
        raise UndecodableSampleError(
            f"not a recording that can be read, {foreign.name} of {len(foreign.data):,} bytes ({words}); {_TO_DO}"
        ) from error


def _decoded(av: ModuleType, foreign: Foreign) -> Iterator[tuple[Array, int]]:
    # The kind is given and the data is in memory: libav opens nothing by itself.
    with av.open(io.BytesIO(foreign.data), format=foreign.demuxer, metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise UndecodableSampleError(f"there is no sound in this {foreign.name}; {_TO_DO}")
        stream = container.streams.audio[0]
        for count, packet in enumerate(container.demux(stream)):
            if count > _MOST_PACKETS:
                raise UndecodableSampleError(f"more than {_MOST_PACKETS:,} packets of sound; send a shorter recording")
            for frame in packet.decode():
                channels, rate = len(frame.layout.channels), int(frame.sample_rate)
                if channels > _MOST_CHANNELS:
                    raise UndecodableSampleError(f"at most {_MOST_CHANNELS} channels are read, got {channels}")
                if frame.samples:
                    yield _interleaved(frame.to_ndarray(), channels, planar=frame.format.is_planar), rate


def _interleaved(samples: Array, channels: int, *, planar: bool) -> Array:
    if channels == 1:
        return samples.reshape(-1)
    return np.ascontiguousarray(samples.T) if planar else samples.reshape(-1, channels)


def _library() -> ModuleType | None:
    with contextlib.suppress(ImportError), forking.steady():
        return importlib.import_module(_PACKAGE)
    return None


def _files(foreign: Foreign) -> list[bytes]:
    """The MP4s that were put behind each other, of which libav reads the first; other kinds go on by themselves."""
    data, starts, place = foreign.data, [0], 0
    for _ in range(lengths.MOST_CHUNKS if foreign.demuxer == "mov" else 0):
        if place + 8 > len(data):
            break
        if place and data[place + 4 : place + 8] == b"ftyp":
            starts.append(place)
        length = int.from_bytes(data[place : place + 4], "big")
        if length == 1:
            length = int.from_bytes(data[place + 8 : place + 16], "big")
        if length < 8:
            break
        place += length
    lengths.check_parts(len(starts))
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def _boxes_end_early(data: bytes) -> bool:
    """MP4 and its kin: four bytes of length and four letters; 1 where 64 bits of length follow, 0 for the rest."""
    place = 0
    for _ in range(lengths.MOST_CHUNKS):
        if place + 8 > len(data):
            break
        length = int.from_bytes(data[place : place + 4], "big")
        if length == 1 and place + 16 <= len(data):
            length = int.from_bytes(data[place + 8 : place + 16], "big")
        if length == 0:
            return False
        if length < 8:
            return True
        place += length
    return place > len(data)


def _elements_end_early(data: bytes) -> bool:
    """Matroska (RFC 8794): a number, a length of one to eight bytes, all ones where it was not known."""
    place = 0
    for _ in range(lengths.MOST_CHUNKS):
        if place >= len(data):
            break
        id_width = 9 - data[place].bit_length()
        start = place + id_width
        if id_width > 4 or start >= len(data):
            return False
        width = 9 - data[start].bit_length()
        if width > 8 or start + width > len(data):
            return False
        value = int.from_bytes(data[start : start + width], "big") & ((1 << 7 * width) - 1)
        if value == (1 << 7 * width) - 1:
            return False
        place = start + width + value
    return place > len(data)


# Kinds that say how long they are.
_CUT_SHORT: Final = {"mov": _boxes_end_early, "matroska": _elements_end_early}
