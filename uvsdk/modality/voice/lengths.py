"""How long the sound in a file is, whatever its header says.

A recorder that writes to a pipe, or was killed, leaves a placeholder, a nought or an old length in the header. A file
that was cut on its way has the right length there and lacks bytes. The two are told apart by what else is known: the
length of the file that the header holds a second time, and whether the length could be one at all.
"""

from __future__ import annotations

from uvsdk.errors import UndecodableSampleError

# From here on a length stands for "not known": sox writes 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF or -1.
# A recording of 2 GB would be far above what is read.
_PLACEHOLDER = 0x7F000000
TOLERANCE_S = 0.1
"""What may be missing at the end: a header that counted itself in, a last buffer that was not written."""
# What follows the sound in some files and is none: ID3v1, APE and Lyrics3 tags, and ID3v2 tags behind the file.
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
MOST_CHUNKS = 10_000
"""How many chunks, boxes or tags are gone through; files have a few, and 32 MiB would hold millions."""
MOST_TAKES = 64
"""How many recordings may lie behind each other in one file."""


def of_sound(declared: int, there: int, whole: int, there_whole: int, bytes_per_second: float) -> int:
    """The bytes of sound, at most ``there``.

    Args:
        declared: what the header says of the sound.
        there: bytes from the first of the sound to the end of the file.
        whole: what the header says of the whole file; 0 where it does not.
        there_whole: what it should say.
        bytes_per_second: of the sound; 0 where it is not known.

    Raises:
        UndecodableSampleError: both lengths say that there was more.
    """
    if declared <= there:
        return declared
    missing = declared - there
    # The two bytes are the padding of a last chunk, which some writers count in and do not write.
    believed = declared < _PLACEHOLDER and (not whole or there_whole + 2 < whole < _PLACEHOLDER)
    if not believed or missing <= max(bytes_per_second * TOLERANCE_S, 2):
        return there
    raise cut_short(
        f"{there / bytes_per_second:.2f} of {declared / bytes_per_second:.2f} s are there"
        if bytes_per_second > 0
        else f"{there:,} of {declared:,} bytes are there"
    )


def cut_short(what: str) -> UndecodableSampleError:
    """The error for a file that lost its end on the way."""
    return UndecodableSampleError(f"the recording is cut short: {what}; send the whole file")


def check_parts(count: int) -> None:
    """Raise :class:`UndecodableSampleError` for more recordings behind each other than are read."""
    if count > MOST_TAKES:
        raise UndecodableSampleError(f"more than {MOST_TAKES} recordings behind each other in one file; send one")


def without_tags(data: bytes) -> int:
    """Where the tags that some programs append to any file begin; its length where there are none."""
    end = len(data)
    for _ in range(MOST_CHUNKS):
        if data[end - 128 : end - 125] == b"TAG" and end >= 128:
            end -= 128
        elif data[end - 32 : end - 24] == b"APETAGEX" and end >= 32:
            size = int.from_bytes(data[end - 20 : end - 16], "little")
            header = 32 if data[end - 9 : end - 8] >= b"\x80" else 0
            if not 32 <= size + header <= end:
                return end
            end -= size + header
        elif data[end - 9 : end] == b"LYRICS200" and data[end - 15 : end - 9].isdigit():
            size = int(data[end - 15 : end - 9]) + 15
            if not size <= end:
                return end
            end -= size
        else:
            break
    return end


def is_tag(data: bytes, place: int) -> bool:
    """Whether a tag, or nothing but noughts, lies at ``place``."""
    return data.startswith(_TAGS, place) or not data[place:].strip(b"\0")
