"""Ogg (RFC 3533): one file may hold several recordings behind each other, of which decoders read the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from uvsdk.errors import UndecodableSampleError
from uvsdk.modality.voice import lengths

_MAGIC = b"OggS"
_FIRST = 2  # the flag of a page that begins a stream
# How the first packet of a stream begins (each codec's mapping into Ogg).
_CODECS = {
    b"\x01vorbis": "vorbis",
    b"OpusHead": "opus",
    b"Speex   ": "speex",
    b"\x7fFLAC": "flac",
}
READ = ("vorbis", "opus")
"""The codecs that libsndfile decodes."""


@dataclass(frozen=True, slots=True)
class _Page:
    place: int
    end: int
    flags: int
    serial: bytes
    number: int
    granule: int
    codec: str


@dataclass(frozen=True, slots=True)
class Link:
    """One recording.

    Args:
        data: its pages.
        codec: ``""`` where it is none that is known.
        complete: whether no page between is missing.
    """

    data: bytes
    codec: str
    complete: bool


def links(data: bytes) -> list[Link]:
    """The recordings in ``data``, in order: of each, the pages of its first stream of sound.

    Raises:
        UndecodableSampleError: the last page is not whole, or there is none.
    """
    groups: list[list[_Page]] = []
    pages = list(islice(_pages(data), _MOST_PAGES))
    if len(pages) == _MOST_PAGES:
        raise UndecodableSampleError(f"an ogg of {_MOST_PAGES:,} pages or more; send a shorter one")
    for before, page in zip([None, *pages], pages, strict=False):
        # Streams that are interleaved all begin before any of them goes on.
        if before is None or (page.flags & _FIRST and not before.flags & _FIRST):
            groups.append([])
        groups[-1].append(page)
    lengths.check_parts(len(groups))
    if not groups:
        raise UndecodableSampleError("the recording begins like ogg and has no page; send the whole file")
    return [_link(data, group) for group in groups]


def _link(data: bytes, group: list[_Page]) -> Link:
    first = next((page for page in group if page.codec), group[0])
    pages = [page for page in group if page.serial == first.serial]
    complete = all(after.number == before.number + 1 for before, after in pairwise(pages))
    last = pages[-1]
    before = max((page.granule for page in pages[:-1]), default=0)
    if len(pages) > 1 and last.granule < before:
        # It counts fewer samples than pages before it do; one that counts too many does no harm.
        whole = b"".join(data[page.place : page.end] for page in pages[:-1])
        return Link(whole + _with_granule(data[last.place : last.end], before + _MORE), first.codec, complete)
    if pages[0].place == 0 and pages[-1].end == len(data) and len(pages) == len(group):
        return Link(data, first.codec, complete)
    return Link(b"".join(data[page.place : page.end] for page in pages), first.codec, complete)


def _with_granule(page: bytes, granule: int) -> bytes:
    """A page that counts so many samples, its checksum made right (RFC 3533, section 6)."""
    changed = b"".join((page[:6], granule.to_bytes(8, "little"), page[14:22], bytes(4), page[26:]))
    checksum = 0
    for byte in changed:
        checksum = (checksum << 8 ^ _CRC[checksum >> 24 ^ byte]) & 0xFFFFFFFF
    return changed[:22] + checksum.to_bytes(4, "little") + changed[26:]


def _crc_table() -> list[int]:
    """Polynomial 0x04C11DB7, the highest bit first."""
    table = []
    for value in range(256):
        remainder = value << 24
        for _ in range(8):
            remainder = (remainder << 1 ^ 0x04C11DB7) & 0xFFFFFFFF if remainder & 1 << 31 else remainder << 1
        table.append(remainder)
    return table


_CRC = _crc_table()
# Two minutes of a stream that is sent on every 20 ms have 6,000.
_MOST_PAGES = 100_000
# A page has at most 255 packets, and a packet at most 5,760 samples (Opus) or 8,192 (Vorbis).
_MORE = 255 * 8192


def _pages(data: bytes) -> Iterator[_Page]:
    """Whole pages. Published files often lack the flag that marks the last one, so it is not asked for."""
    place = data.find(_MAGIC)
    while place >= 0:
        table = place + 27
        count = data[place + 26] if table <= len(data) else 0
        content = table + count
        end = content + sum(data[table:content])
        if table > len(data) or end > len(data):
            raise lengths.cut_short("its last page is not whole")
        begins = bool(data[place + 5] & _FIRST)
        codec = next((name for magic, name in _CODECS.items() if begins and data.startswith(magic, content)), "")
        number = int.from_bytes(data[place + 18 : place + 22], "little")
        granule = int.from_bytes(data[place + 6 : place + 14], "little", signed=True)
        yield _Page(place, end, data[place + 5], data[place + 14 : place + 18], number, granule, codec)
        place = end if data.startswith(_MAGIC, end) else data.find(_MAGIC, end)
