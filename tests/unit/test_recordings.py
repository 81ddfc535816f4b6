"""Recordings as programs really write them: from a pipe, killed, tagged, appended to each other, with odd lengths."""

from __future__ import annotations

import ctypes
import io
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import synthetic_voice
from uvsdk.errors import SampleError, SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import Limits
from uvsdk.modality.voice import audio, flac, lengths, mpeg, ogg, riff

LIMITS = Limits()
SPEECH = synthetic_voice.utterance(3.0, speaker=1)
# As 16 bits hold it.
STEPS = np.round(SPEECH * 32767).astype(np.int16)
EXACT = STEPS.astype(np.float32) / np.float32(32768)


def encoded(pcm: np.ndarray, kind: str, subtype: str | None = None, rate: int = 16_000, **options: object) -> bytes:
    file = io.BytesIO()
    channels = 1 if pcm.ndim == 1 else pcm.shape[1]
    with soundfile.SoundFile(file, "w", rate, channels, subtype, format=kind, **options) as sound:
        sound.write(pcm)
    return file.getvalue()


def put(data: bytes, place: int, form: str, *values: object) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, place, *values)
    return bytes(changed)


def decoded(data: bytes, limits: Limits = LIMITS) -> np.ndarray:
    return np.asarray(audio.decode(data, limits)[0])


WAV = encoded(STEPS, "WAV", "PCM_16")
DATA = WAV.index(b"data") + 4


# WAV


@pytest.mark.parametrize("whole", [0, 0x7FFFF024, 0x80000024, 0xFFFFFFFF, 0x7FFFFFFF, 36, len(WAV) - 8])
@pytest.mark.parametrize("sound", [0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF, 0xFFFFFFDB, 0x7FFFFFFF, 2 * len(STEPS)])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_wav_from_a_pipe(whole: int, sound: int, order: str) -> None:
    # sox writes 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF, others nought.
    source = WAV if order == "<" else encoded(STEPS, "WAV", "PCM_16", endian="BIG")
    place = source.index(b"data") + 4
    piped = put(put(source, 4, f"{order}I", whole), place, f"{order}I", sound)
    assert np.array_equal(decoded(piped), EXACT)


@pytest.mark.parametrize("too_long", [1, 2, 3, 7, 8, 36, 44, 1000, 3199])
@pytest.mark.parametrize("both", [False, True])
def test_a_wav_declared_a_little_too_long(too_long: int, both: bool) -> None:
    lying = put(WAV, DATA, "<I", 2 * len(STEPS) + too_long)
    lying = put(lying, 4, "<I", len(WAV) - 8 + too_long) if both else lying
    assert np.array_equal(decoded(lying), EXACT)


def test_a_wav_of_which_only_the_sound_is_declared_too_long_is_whole() -> None:
    # The length of the file says that nothing is missing.
    assert np.array_equal(decoded(put(WAV, DATA, "<I", 20 * len(STEPS))), EXACT)


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_wav_that_was_cut_says_how_much_is_there(part: float) -> None:
    cut = WAV[: 44 + 2 * int(part * len(STEPS))]
    with pytest.raises(
        UndecodableSampleError, match=rf"cut short: {3 * part:.2f} of 3\.00 s are there; send the whole"
    ):
        decoded(cut)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
def test_a_wav_whose_header_is_from_before_the_recorder_went_on(seconds: float) -> None:
    sound = int(seconds * 16_000) * 2
    assert np.array_equal(decoded(put(put(WAV, DATA, "<I", sound), 4, "<I", sound + 36)), EXACT)


def chunk(kind: bytes, content: bytes, *, padded: bool = True) -> bytes:
    return struct.pack("<4sI", kind, len(content)) + content + bytes(len(content) % 2 if padded else 0)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", [b"LIST", b"JUNK", b"bext", b"iXML", b"abcd", b"id3 ", b"PEAK", b"fact"])
@pytest.mark.parametrize("size", [0, 1, 4, 33, 5000])
def test_chunks_before_and_behind_the_sound(kind: bytes, padded: bool, size: int) -> None:
    extra = chunk(kind, b"\x01" * size, padded=padded)
    content = WAV[12:36] + extra + WAV[36:] + extra
    assert np.array_equal(decoded(struct.pack("<4sI", b"RIFF", 4 + len(content)) + b"WAVE" + content), EXACT)


@pytest.mark.parametrize("tail", [b"\0", b"\r\n", b"\0" * 4096, b"TAG" + b"x" * 125, b"ID3\x04" + bytes(99)])
def test_what_follows_a_wav_and_is_no_sound(tail: bytes) -> None:
    assert np.array_equal(decoded(WAV + tail)[: len(EXACT)], EXACT)
    assert len(decoded(WAV + tail)) <= len(EXACT) + 1
    piped = put(WAV, DATA, "<I", 0xFFFFFFFF) + tail
    assert np.array_equal(decoded(piped)[: len(EXACT)], EXACT)


def test_several_wavs_in_one_file_are_one_recording() -> None:
    assert np.array_equal(decoded(WAV * 3), np.tile(EXACT, 3))
    other = encoded(STEPS, "WAV", "PCM_16", rate=8_000)
    assert len(decoded(WAV + other)) == 3 * len(EXACT)
    with pytest.raises(SampleTooLargeError, match=r"may last 8 s, got at least 9\.0 s"):
        decoded(WAV * 4, Limits(max_seconds=8.0))


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        (kind, subtype)
        for kind in ("WAV", "WAVEX", "W64", "AIFF", "CAF", "AU")
        for subtype in ("PCM_16", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM", "MS_ADPCM", "GSM610")
        if soundfile.check_format(kind, subtype)
    ],
)
def test_every_encoding_without_its_length(kind: str, subtype: str) -> None:
    whole = encoded(EXACT, kind, subtype, rate=8_000 if subtype == "GSM610" else 16_000)
    streamed = UNKNOWN[kind](whole)
    assert streamed != whole
    got, expected = decoded(streamed), decoded(whole)
    # A last block may hold what the encoder filled it up with, and other chunks may follow.
    assert len(expected) <= len(got) <= len(expected) + 1100
    assert np.array_equal(got[: len(expected)], expected)


def unknown_wav(whole: bytes) -> bytes:
    return put(put(whole, 4, "<I", 0xFFFFFFFF), whole.index(b"data") + 4, "<I", 0xFFFFFFFF)


def unknown_w64(whole: bytes) -> bytes:
    return put(put(whole, 16, "<q", -1), whole.index(b"data\xf3\xac") + 16, "<Q", 0x7FFFFFFFFFFFFFFF)


def unknown_aiff(whole: bytes) -> bytes:
    frames = whole.index(b"COMM") + 10
    return put(put(put(whole, 4, ">I", 0), frames, ">I", 0), whole.index(b"SSND") + 4, ">I", 0)


UNKNOWN: dict[str, Callable[[bytes], bytes]] = {
    "WAV": unknown_wav,
    "WAVEX": unknown_wav,
    "W64": unknown_w64,
    "AIFF": unknown_aiff,
    "CAF": lambda whole: put(whole, whole.index(b"data") + 4, ">q", -1),
    "AU": lambda whole: put(whole, 8, ">I", 0xFFFFFFFF),
}


@pytest.mark.parametrize("lengths_in_ds64", [(0, 0, 0), (2**64 - 1, 2**64 - 1, 0), "right"])
@pytest.mark.parametrize("sound", [0xFFFFFFFF, 0, 0x7FFFF000])
@pytest.mark.parametrize("name", [b"RF64", b"BW64"])
def test_a_wav_with_lengths_of_64_bits_from_a_pipe(lengths_in_ds64: object, sound: int, name: bytes) -> None:
    whole = name + encoded(STEPS, "RF64", "PCM_16")[4:]
    piped = put(whole, whole.index(b"data") + 4, "<I", sound)
    if isinstance(lengths_in_ds64, tuple):
        piped = put(piped, 20, "<QQQ", *lengths_in_ds64)
    assert np.array_equal(decoded(piped), EXACT)


@pytest.mark.parametrize("length", [0, 10, 0x7FFFF000, 0x80000000, 0xFFFFFFFF, 2 * len(STEPS) + 1])
def test_an_au_from_a_pipe(length: int) -> None:
    for endian in ("BIG", "LITTLE"):
        whole = encoded(STEPS, "AU", "PCM_16", endian=endian)
        order = ">" if endian == "BIG" else "<"
        assert np.array_equal(decoded(put(whole, 8, f"{order}I", length)), EXACT)


@pytest.mark.parametrize("length", [0, 24, -1, 2**62])
def test_a_caf_or_w64_with_an_odd_length(length: int) -> None:
    caf, w64 = encoded(STEPS, "CAF", "PCM_16"), encoded(STEPS, "W64", "PCM_16")
    assert np.array_equal(decoded(put(caf, caf.index(b"data") + 4, ">q", length)), EXACT) or length == 2**62
    odd = put(put(w64, 16, "<q", -1), w64.index(b"data\xf3\xac") + 16, "<q", length)
    assert np.array_equal(decoded(odd), EXACT)


@pytest.mark.parametrize("frames", [0, 7, 10**9])
def test_an_aiff_with_an_odd_count_of_samples(frames: int) -> None:
    whole = encoded(STEPS, "AIFF", "PCM_16")
    assert np.array_equal(decoded(put(whole, whole.index(b"COMM") + 10, ">I", frames)), EXACT)


# MP3


def mp3(pcm: np.ndarray, rate: int = 16_000, mode: str = "VARIABLE", level: float = 0.3) -> bytes:
    return encoded(pcm, "MP3", "MPEG_LAYER_III", rate, bitrate_mode=mode, compression_level=level)


def frames_of(data: bytes) -> list[bytes]:
    return [data[place : place + head.size] for place, head in mpeg._frames(data)]


# Two seconds of near silence, whose frames are the smallest, and then speech: a guess from the first frames is wrong.
UNEVEN = np.concatenate([1e-4 * SPEECH[:32_000], np.tile(SPEECH, 7)])
VBR = mp3(UNEVEN)
FRAMES = frames_of(VBR)
COVER = b"ID3\x03\0\0" + bytes([0, 61, 9, 10]) + b"APIC" + struct.pack(">IH", 1_000_000, 0)
COVER += np.random.default_rng(0).bytes(61 * 16_384 + 9 * 128 + 10 - 10)


def without_count() -> bytes:
    """What an encoder writes to a pipe: no frame that counts the others."""
    assert b"Xing" in FRAMES[0] or b"Info" in FRAMES[0]
    return b"".join(FRAMES[1:])


def with_count(frames: int, size: int | None = None) -> bytes:
    place = VBR.index(b"Xing") if b"Xing" in FRAMES[0] else VBR.index(b"Info")
    return put(VBR, place + 8, ">II", frames, size if size is not None else len(VBR))


def test_an_mp3_of_changing_rate_from_a_pipe_is_read_to_its_end() -> None:
    got = decoded(without_count())
    assert len(got) == 576 * (len(FRAMES) - 1)
    # The same sound as with the count; without it, what the encoder added in front is left.
    expected = decoded(VBR)
    shift = int(np.argmax(np.correlate(got[40_000:60_000], expected[40_000:58_000], "valid")))
    assert np.abs(got[40_000 + shift : 58_000 + shift] - expected[40_000:58_000]).max() < 1e-5


@pytest.mark.parametrize("count", [0, 1, 100, 10**6])
def test_an_mp3_that_counts_its_frames_wrongly(count: int) -> None:
    assert np.array_equal(decoded(with_count(count)), decoded(VBR))


def test_an_mp3_that_lost_its_end() -> None:
    with pytest.raises(UndecodableSampleError, match=r"cut short: \d+ of \d+ frames are there"):
        decoded(VBR[: len(VBR) // 2])
    # Without the count nobody can know.
    assert len(decoded(b"".join(FRAMES[1:400]))) == 576 * 399


@pytest.mark.parametrize("counted", [True, False])
def test_pictures_and_tags_change_nothing(counted: bool) -> None:
    bare = VBR if counted else without_count()
    expected = decoded(bare)
    ape = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 1, 0x80000000) + bytes(8)
    ape_end = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 1, 0x80000000) + bytes(8)
    for dressed in (
        COVER + bare,
        COVER + COVER + bare,
        bare + COVER,
        bare + b"TAG" + b"\xff\xf3" * 60 + bytes(5),
        bare + ape + COVER[-1968:] + ape_end + b"TAG" + bytes(125),
        bare + b"LYRICSBEGIN" + b"la " * 500 + b"001511LYRICS200",
        bytes(5000) + bare,
        bare + bytes(50_000),
    ):
        assert np.array_equal(decoded(dressed), expected)
    with pytest.raises(SampleTooLargeError, match=r"may last 5 s, got at least 2[23]\.\d s"):
        decoded(COVER + bare, Limits(max_seconds=5.0))


def test_several_mp3s_in_one_file_are_one_recording() -> None:
    assert len(decoded(VBR + VBR)) == pytest.approx(2 * len(decoded(VBR)), abs=3000)
    other = mp3(np.stack([SPEECH, SPEECH], axis=1), 44_100)
    assert len(decoded(VBR + other)) == pytest.approx(len(decoded(VBR)) + 3 * 16_000 * 16_000 / 44_100, abs=3000)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
@pytest.mark.parametrize(
    ("mode", "level"), [("CONSTANT", 0.3), ("CONSTANT", 0.99), ("VARIABLE", 0.3), ("AVERAGE", 0.0)]
)
def test_every_kind_of_mp3_is_counted_right(rate: int, mode: str, level: float) -> None:
    for pcm in (SPEECH, np.stack([SPEECH, 0.3 * SPEECH[::-1]], axis=1)):
        whole = mp3(pcm, rate, mode, level)
        counted = b"Info" in whole[:64] or b"Xing" in whole[:64]
        if counted and rate >= 16_000:  # libsndfile's encoder leaves a filter's delay in slower ones
            assert len(decoded(whole)) == len(SPEECH)
        pieces = frames_of(whole)
        bare = b"".join(pieces[1:])
        head = mpeg.header(bare, 0)
        assert head is not None
        assert (head.rate, head.channels) == (rate, pcm.ndim)
        assert len(decoded(bare)) == head.samples * (len(pieces) - 1)


def test_an_mp3_inside_a_wav() -> None:
    expected = decoded(without_count())
    layout = struct.pack("<HHIIHHHHIHHH", 0x55, 1, 16_000, 4_000, 1, 0, 12, 1, 2, 576, 1, 1393)
    for declared in (len(without_count()), 0xFFFFFFFF, 0):
        content = b"WAVE" + chunk(b"fmt ", layout) + struct.pack("<4sI", b"data", declared) + without_count()
        assert np.array_equal(decoded(struct.pack("<4sI", b"RIFF", len(content)) + content), expected)


def test_an_mp3_cut_out_of_a_stream_is_silent_where_its_bits_are_missing() -> None:
    got = decoded(b"".join(FRAMES[300:500]))
    assert len(got) == 200 * 576
    assert np.abs(got[2000:]).max() > 0.1


# FLAC


FLAC = encoded(STEPS, "FLAC", "PCM_16")


def with_total(samples: int, data: bytes = FLAC) -> bytes:
    number = int.from_bytes(data[18:26], "big") >> 36 << 36 | samples
    return data[:18] + number.to_bytes(8, "big") + data[26:]


@pytest.mark.parametrize("total", [0, 1, 1000, len(STEPS) - 1, len(STEPS) + 1, 2**36 - 1])
def test_a_flac_that_counts_its_samples_wrongly(total: int) -> None:
    assert np.array_equal(decoded(with_total(total)), EXACT)
    stereo = encoded(np.stack([STEPS, STEPS], axis=1), "FLAC", "PCM_24")
    assert np.array_equal(decoded(with_total(total, stereo)), decoded(stereo))


def test_a_flac_from_a_pipe_that_is_too_long_says_what_was_heard() -> None:
    long = encoded(np.tile(STEPS, 20), "FLAC", "PCM_16")
    with pytest.raises(SampleTooLargeError, match=r"may last 10 s, got at least (1\d|2\d)\.\d s"):
        decoded(with_total(0, long), Limits(max_seconds=10.0))
    assert flac.stream(long).counted
    with pytest.raises(SampleTooLargeError, match=r"may last 10 s, got at least 60\.0 s"):
        decoded(long, Limits(max_seconds=10.0))


@pytest.mark.parametrize("total", [0, len(STEPS)])
def test_a_flac_that_lost_its_end(total: int) -> None:
    for part in (0.2, 0.5, 0.99):
        with pytest.raises(UndecodableSampleError):
            decoded(with_total(total)[: int(part * len(FLAC))])


def test_a_flac_that_lost_whole_frames() -> None:
    # Only the count and the checksum tell.
    place = FLAC.rindex(b"\xff\xf8")
    with pytest.raises(UndecodableSampleError, match=r"cut short: 4\d,\d+ of 48,000 samples are there"):
        decoded(FLAC[:place])


def test_tags_about_a_flac() -> None:
    assert np.array_equal(decoded(COVER + FLAC), EXACT)
    assert np.array_equal(decoded(FLAC + b"TAG" + bytes(125)), EXACT)


# Ogg


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_several_oggs_in_one_file_are_one_recording(subtype: str) -> None:
    first, second = (encoded(pcm, "OGG", subtype) for pcm in (SPEECH, SPEECH[::-1].copy()))
    expected = [decoded(first), decoded(second)]
    assert np.array_equal(decoded(first + second), np.concatenate(expected))
    with pytest.raises(SampleTooLargeError):
        decoded(first + second, Limits(max_seconds=4.0))
    stereo = encoded(np.stack([SPEECH, SPEECH], axis=1), "OGG", subtype, rate=48_000)
    assert len(decoded(first + stereo)) == pytest.approx(len(SPEECH) * 4 / 3, abs=2)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_without_the_mark_of_its_end_is_read(subtype: str) -> None:
    whole = encoded(SPEECH, "OGG", subtype)
    pages = list(ogg._pages(whole))
    cut = whole[: pages[-2].end]
    got = decoded(cut)
    assert 0 < len(got) < len(SPEECH)
    with pytest.raises(UndecodableSampleError, match="last page is not whole"):
        decoded(whole[: pages[-1].end - 1])


def test_an_ogg_that_lost_a_page_in_the_middle() -> None:
    whole = encoded(np.tile(SPEECH, 4), "OGG", "VORBIS")
    pages = list(ogg._pages(whole))
    middle = pages[len(pages) // 2]
    with pytest.raises(UndecodableSampleError, match="cut short"):
        decoded(whole[: middle.place] + whole[middle.end :])


# What is printed


def chatter(capfd: pytest.CaptureFixture[str]) -> str:
    ctypes.CDLL(None).fflush(None)
    captured = capfd.readouterr()
    return captured.out + captured.err


def test_nothing_is_printed_for_what_people_send(capfd: pytest.CaptureFixture[str]) -> None:
    chatter(capfd)
    for data in (
        VBR,
        without_count(),
        mp3(UNEVEN, mode="CONSTANT"),
        COVER + VBR,
        with_count(3),
        b"".join(FRAMES[300:]),
        b"".join(FRAMES[1:300]) + bytes(777) + b"".join(FRAMES[303:]),
        b"".join(FRAMES[1:300])[:-50] + b"".join(FRAMES[400:]),
    ):
        decoded(data)
    assert chatter(capfd) == ""


@given(
    kind=st.sampled_from(["AIFF", "CAF", "FLAC", "OGG", "MP3", "WAV", "W64", "RF64", "AU", "ALAC"]),
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    reach=st.sampled_from([64, 400, 10**6]),
    keep=st.floats(0.1, 1),
)
@settings(max_examples=150, deadline=None)
def test_damaged_recordings_are_typed_errors(
    kind: str, places: list[tuple[float, int]], reach: int, keep: float
) -> None:
    data = bytearray(_SHORT[kind][: max(8, int(keep * len(_SHORT[kind])))])
    for place, byte in places:
        data[int(place * min(len(data), reach))] = byte
    pcm, words = np.zeros(0, np.float32), ""
    try:
        pcm, rate = audio.decode(bytes(data), Limits(max_seconds=60.0))
    except SampleError as error:
        words, rate = str(error), 1
    assert "object at 0x" not in words
    assert np.isfinite(pcm).all()
    assert len(pcm) <= 60 * rate


_SHORT = {
    kind: encoded(STEPS[:6000], kind) for kind in ("AIFF", "CAF", "FLAC", "OGG", "MP3", "WAV", "W64", "RF64", "AU")
} | {"ALAC": encoded(STEPS[:6000], "CAF", "ALAC_16")}


def test_a_file_in_the_working_folder_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # libsndfile takes ._ for the resource fork of a file that it has no name of.
    (tmp_path / "._").write_bytes(b"x" * 99)
    monkeypatch.chdir(tmp_path)
    assert len(decoded(without_count())) == 576 * (len(FRAMES) - 1)
    with pytest.raises(UndecodableSampleError, match="of no known kind"):
        decoded(b"certainly not sound")


# By hand


def test_lengths_by_hand() -> None:
    assert lengths.of_sound(100, 100, 136, 136, 1000) == 100
    assert lengths.of_sound(200, 100, 236, 136, 1000) == 100  # exactly a tenth of a second
    assert lengths.of_sound(900, 100, 136, 136, 1000) == 100  # the file's length holds
    assert lengths.of_sound(0x7F000000, 100, 0, 136, 1000) == 100
    with pytest.raises(UndecodableSampleError, match=r"0\.10 of 0\.90 s are there"):
        lengths.of_sound(900, 100, 936, 136, 1000)
    assert lengths.without_tags(b"abc") == 3


def test_headers_by_hand() -> None:
    # MPEG-1 layer III, 128 kbit/s, 44,100 Hz, no padding, joint stereo: 144 * 128,000 / 44,100 = 417.96.
    head = mpeg.header(b"\xff\xfb\x90\x40", 0)
    assert head is not None
    assert (head.layer, head.rate, head.channels, head.size, head.samples) == (3, 44_100, 2, 417, 1152)
    for none in (b"\xff\xfb\xf0\x40", b"\xff\xfb\x00\x40", b"\xff\xfb\x9c\x40", b"\xff\xf9\x90\x40", b"\xff\xfb"):
        assert mpeg.header(none, 0) is None
    # Frame 0 of 192 samples at 48 kHz in stereo of 16 bits; the sum of "123456789" is the check value of CRC-8.
    assert flac._crc8(b"123456789") == 0xF4
    assert riff._extended(bytes.fromhex("400cfa00000000000000")) == 16_000.0


# What was appended, counted or begun wrongly


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF", "W64"])
def test_files_behind_each_other_are_one_recording(kind: str) -> None:
    whole = encoded(STEPS, kind, "PCM_16")
    assert np.array_equal(decoded(whole * 3), np.tile(EXACT, 3))


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("granule", [0, 1000, -1, 10**12])
def test_an_ogg_whose_last_page_counts_wrongly(subtype: str, granule: int) -> None:
    whole = encoded(SPEECH, "OGG", subtype)
    pages = list(ogg._pages(whole))
    last = whole[pages[-1].place :]
    assert ogg._with_granule(last, pages[-1].granule) == last
    lying = whole[: pages[-1].place] + ogg._with_granule(last, granule % 2**64)
    got, expected = decoded(lying), decoded(whole)
    # What fills up the last packet is left in.
    assert len(expected) <= len(got) <= len(expected) + 2048
    assert np.array_equal(got[: len(expected)], expected)


@pytest.mark.parametrize("size", [0, 3, 10**6, 2**27])
def test_a_tag_that_says_it_is_longer_or_shorter_than_it_is(size: int) -> None:
    tag = b"ID3\x03\0\0" + bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0)) + b"APIC" + bytes(100_000)
    assert np.array_equal(decoded(tag + VBR), decoded(VBR))


def test_an_mp3_of_free_format_is_left_to_libmpg123() -> None:
    # The same frames under a header that names no bit rate: CBR at 64 kbit/s without padding has one size.
    pieces = frames_of(mp3(SPEECH, mode="CONSTANT"))[1:]
    assert len({len(piece) for piece in pieces}) == 1
    free = b"".join(piece[:2] + bytes([piece[2] & 0x0F]) + piece[3:] for piece in pieces)
    assert mpeg.is_free_format(free, 0)
    assert np.array_equal(decoded(free), decoded(b"".join(pieces)))


HOSTILE_BYTES = 3 << 20
HOSTILE = {
    "half headers": b"\xff\xfb\x90\x00",
    "half headers behind a tag": b"ID3\x04" + bytes(6) + b"\xff\xfb\x90\x00" * 99,
    "silent frames": FRAMES[2],
    "tags": b"ID3\x04" + bytes(6),
    "wavs": WAV[:40] + bytes(4),
    "chunks": b"abcd" + bytes(4),
    "pages": b"OggS\0\2" + bytes(20) + b"\0",
    "flacs": b"fLaC\0\0\0\x22" + bytes(34),
    "changing kinds": FRAMES[2] * 3 + b"\xff\xfb\x50\xc0".ljust(208, b"\0") * 3,
    "boxes": b"\0\0\0\x08ftyp",
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_what_is_made_to_be_gone_through_for_ever_is_refused(kind: str) -> None:
    start = WAV[:36] if kind == "chunks" else b""
    data = start + HOSTILE[kind] * (HOSTILE_BYTES // len(HOSTILE[kind]))
    before = time.process_time()
    with pytest.raises((UndecodableSampleError, SampleTooLargeError)):
        decoded(data)
    # Some milliseconds; gone through to its end it is many seconds, and for a file of 32 MiB minutes.
    assert time.process_time() - before < 5.0
