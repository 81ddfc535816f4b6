"""What browsers and phones record: read with the extra ``media``, named without it, and never more than an error."""

from __future__ import annotations

import functools
import io
import logging
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import synthetic_voice
from tests.builders import image_file
from tests.unit.test_recordings import chatter
from uvsdk.errors import SampleError, SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import Limits, image
from uvsdk.modality.image import _UPRIGHT
from uvsdk.modality.voice import audio, media

av = pytest.importorskip("av", reason="needs the extra media")
pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra media")

LIMITS = Limits()
SPEECH = synthetic_voice.utterance(3.0, speaker=1)
# Container and codec of what people send, and the rate the codec is given.
FORMS = {
    "webm": ("webm", "libopus", 48_000),
    "matroska": ("matroska", "aac", 16_000),
    "m4a": ("ipod", "aac", 44_100),
    "mp4": ("mp4", "aac", 16_000),
    "3gp": ("3gp", "aac", 8_000),
    "lossless m4a": ("ipod", "alac", 16_000),
    "mov": ("mov", "pcm_s16le", 16_000),
    "aac": ("adts", "aac", 16_000),
    "wma": ("asf", "wmav2", 44_100),
    "ac-3": ("ac3", "ac3", 48_000),
    "wavpack": ("wv", "wavpack", 16_000),
    "tta": ("tta", "tta", 16_000),
    "transport stream": ("mpegts", "mp2", 16_000),
    "avi": ("avi", "pcm_s16le", 16_000),
    "flv": ("flv", "aac", 44_100),
    "caf with alac": ("caf", "alac", 16_000),
    "wav with an encoding of kind 0x2000": ("wav", "ac3", 48_000),
}


@functools.cache
def recorded(form: str, channels: int = 1, seconds: float = 3.0, options: tuple[tuple[str, str], ...] = ()) -> bytes:
    container, codec, rate = FORMS[form]
    pcm = soxr.resample(SPEECH[: int(seconds * 16_000)], 16_000, rate)
    steps = np.tile(np.clip(np.round(pcm * 32767), -32768, 32767).astype(np.int16), (channels, 1))
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=dict(options)) as output:
        stream = output.add_stream(codec, rate=rate)
        stream.bit_rate = 64_000
        stream.layout = "mono" if channels == 1 else "stereo"
        interleaved = np.ascontiguousarray(steps.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format="s16", layout=stream.layout.name)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, stream.layout, rate, frame_size=stream.frame_size or 1024)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return file.getvalue()


def cosine(got: np.ndarray, rate: int) -> float:
    """With what was said; codecs shift and pad it."""
    heard = soxr.resample(got, rate, 16_000)
    size = len(SPEECH) + len(heard)
    product = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(SPEECH, size)), size)
    return float(np.abs(product).max() / (np.linalg.norm(heard) * np.linalg.norm(SPEECH)))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_what_browsers_and_phones_record_is_read(form: str, channels: int) -> None:
    pcm, rate = audio.decode(recorded(form, channels), LIMITS)
    assert pcm.dtype == np.float32
    assert rate == FORMS[form][2]
    # Codecs of 1024 samples pad both ends.
    assert 2.9 < len(pcm) / rate < 3.0 + 2 * 1024 / rate
    assert cosine(pcm, rate) > 0.93


def test_amr_of_a_phone() -> None:
    # Mode 0: a header of one byte and twelve of speech every 20 ms (RFC 4867, section 5).
    rng = np.random.default_rng(0)
    frames = b"".join(b"\x04" + rng.bytes(12) for _ in range(100))
    pcm, rate = audio.decode(b"#!AMR\n" + frames, LIMITS)
    assert (len(pcm), rate) == (100 * 160, 8_000)


@pytest.mark.parametrize(
    "options",
    [(("movflags", "frag_keyframe+empty_moov"),), (("movflags", "frag_custom"),)],
)
def test_the_forms_of_an_mp4(options: tuple[tuple[str, str], ...]) -> None:
    pcm, rate = audio.decode(recorded("mp4", options=options), LIMITS)
    assert cosine(pcm, rate) > 0.93


def test_a_webm_of_a_browser_has_no_lengths() -> None:
    # Chrome's MediaRecorder cannot go back to write them.
    live = recorded("webm", options=(("live", "1"),))
    assert cosine(*audio.decode(live, LIMITS)) > 0.95
    # One that was stopped in the middle just ends.
    half = audio.decode(live[: len(live) // 2], LIMITS)[0]
    assert 0.5 * 48_000 < len(half) < 2.5 * 48_000


@pytest.mark.parametrize("form", ["m4a", "webm", "matroska", "lossless m4a"])
def test_what_lost_its_end_is_refused(form: str) -> None:
    whole = recorded(form)
    for part in (0.3, 0.9):
        with pytest.raises(UndecodableSampleError):
            audio.decode(whole[: int(part * len(whole))], LIMITS)


def table_in_front(whole: bytes) -> bytes:
    """An MP4 as it is made for the web: its table first, which says where the sound lies."""
    sound, table = whole.index(b"mdat") - 4, whole.index(b"moov") - 4
    moved = bytearray(whole[table:])
    place = moved.index(b"stco") + 8
    (count,) = struct.unpack_from(">I", moved, place)
    for entry in range(place + 4, place + 4 + 4 * count, 4):
        struct.pack_into(">I", moved, entry, struct.unpack_from(">I", moved, entry)[0] + len(moved))
    return whole[:sound] + bytes(moved) + whole[sound:table]


def test_an_mp4_for_the_web() -> None:
    front = table_in_front(recorded("mp4"))
    assert cosine(*audio.decode(front, LIMITS)) > 0.95
    with pytest.raises(UndecodableSampleError, match="cut short"):
        audio.decode(front[: len(front) * 2 // 3], LIMITS)


def test_the_limit_of_seconds_holds_while_it_is_decoded() -> None:
    for form in ("webm", "m4a", "aac"):
        with pytest.raises(SampleTooLargeError, match=r"may last 1 s, got at least 1\.0 s"):
            audio.decode(recorded(form), Limits(max_seconds=1.0))


def test_nothing_but_the_named_reader_opens_it(tmp_path: Path) -> None:
    # libav, left to guess, would follow the names in a playlist.
    (tmp_path / "secret.wav").write_bytes(b"x")
    for playlist in (
        f"#EXTM3U\n#EXTINF:3,\n{tmp_path}/secret.wav\n",
        f"ffconcat version 1.0\nfile {tmp_path}/secret.wav",
    ):
        with pytest.raises(UndecodableSampleError, match="of no known kind"):
            audio.decode(playlist.encode(), LIMITS)


def test_a_film_without_sound() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for _ in range(5):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    with pytest.raises(UndecodableSampleError, match="there is no sound in this mp4"):
        audio.decode(file.getvalue(), LIMITS)


WITHOUT = """
import sys
sys.modules["av"] = None
sys.modules["pillow_heif"] = None
from pathlib import Path
from uvsdk.errors import UndecodableSampleError
from uvsdk.modality import Limits, image
from uvsdk.modality.voice import audio
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        (image if path.suffix == ".picture" else audio).decode(path.read_bytes(), Limits())
        print(path.stem, "|read")
    except UndecodableSampleError as error:
        print(path.stem, "|", error)
"""


def test_without_the_extra_each_kind_is_named_with_what_to_do(tmp_path: Path) -> None:
    for form in FORMS:
        (tmp_path / f"{form}.sound").write_bytes(recorded(form))
    (tmp_path / "amr.sound").write_bytes(b"#!AMR\n" + b"\x04" + bytes(12))
    (tmp_path / "silk.sound").write_bytes(b"\x02#!SILK_V3" + bytes(99))
    page = b"OggS\0\x02" + bytes(8) + b"abcd" + bytes(8) + bytes([1, 80]) + b"Speex   1.2".ljust(80, b"\0")
    (tmp_path / "ogg with speex.sound").write_bytes(page)
    (tmp_path / "heic.picture").write_bytes(saved(Image.new("RGB", (64, 64)), "HEIF"))
    (tmp_path / "whole.sound").write_bytes(wav())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    said = dict(line.split(" |", 1) for line in done.stdout.splitlines())
    assert said.pop("whole") == "read"
    assert "HEIC photo (iPhone): pip install pillow-heif" in said.pop("heic")
    assert "of the kind silk (WeChat), which cannot be read here; send wav, flac, ogg or mp3" in said.pop("silk")
    named = {
        "lossless m4a": "m4a",
        "mov": "mp4",
        "webm": "webm or matroska",
        "matroska": "webm or matroska",
        "transport stream": "mpeg transport stream",
        "3gp": "3gp",
    }
    assert set(said) == {*FORMS, "amr", "ogg with speex"}
    for form, words in said.items():
        assert f"a recording of the kind {named.get(form, form)}" in words, form
        assert "send wav, flac, ogg or mp3" in words
        assert "pip install 'uvsdk[media]'" in words


def wav() -> bytes:
    steps = np.round(SPEECH * 32767).astype("<i2").tobytes()
    return (
        struct.pack(
            "<4sI8sIHHIIHH4sI",
            b"RIFF",
            36 + len(steps),
            b"WAVEfmt ",
            16,
            1,
            1,
            16_000,
            32_000,
            2,
            16,
            b"data",
            len(steps),
        )
        + steps
    )


# Pictures


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    pillow_heif.register_heif_opener()
    return image_file(picture, kind, **options)


def quarters() -> Image.Image:
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32, :48], pixels[:32, 48:], pixels[32:, :48], pixels[32:, 48:] = (255, 0, 0), (0, 255, 0), (0, 0, 255), 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_which_way_up_counts_once(kind: str, orientation: int) -> None:
    # As a phone writes it: in the container and again in the EXIF block.
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = saved(quarters(), kind, exif=exif.tobytes(), quality=95)
    assert (b"irot" in file or b"imir" in file) == (orientation > 1)
    expected = quarters() if orientation == 1 else quarters().transpose(_UPRIGHT[orientation])
    got = image.decode(file, LIMITS).upright
    assert got.size == expected.size
    assert np.abs(np.asarray(got, int) - np.asarray(expected, int)).mean() < 6


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_limits_hold_for_the_pictures_of_phones(kind: str) -> None:
    with pytest.raises(SampleTooLargeError, match="96 x 64"):
        image.decode(saved(quarters(), kind), Limits(max_pixels=1000))


@given(
    kind=st.sampled_from(["HEIF", "AVIF", "JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "LZW"]),
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
    keep=st.floats(0.2, 1),
)
@settings(max_examples=200, deadline=None)
def test_damaged_pictures_are_typed_errors(kind: str, places: list[tuple[float, int]], keep: float) -> None:
    data = bytearray(_PICTURES[kind][: max(16, int(keep * len(_PICTURES[kind])))])
    for place, byte in places:
        data[int(place * len(data))] = byte
    assert "object at 0x" not in outcome(lambda: image.decode(bytes(data), LIMITS))


@given(
    form=st.sampled_from(["webm", "m4a", "mp4", "matroska", "aac", "wma", "caf with alac", "3gp"]),
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
    keep=st.sampled_from([0.3, 0.9, 1.0, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_damaged_recordings_of_phones_are_typed_errors(form: str, places: list[tuple[float, int]], keep: float) -> None:
    whole = recorded(form, seconds=0.5)
    data = bytearray(whole[: int(keep * len(whole))])
    for place, byte in places:
        data[int(place * len(data))] = byte
    assert "object at 0x" not in outcome(lambda: audio.decode(bytes(data), LIMITS))


def outcome(decode: object) -> str:
    try:
        decode()  # type: ignore[operator]
    except SampleError as error:
        return str(error)
    return ""


_PICTURES = {kind: saved(quarters(), kind) for kind in ("HEIF", "AVIF", "JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
_PICTURES["LZW"] = saved(quarters(), "TIFF", compression="tiff_lzw")


def test_a_damaged_avif_is_a_typed_error() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    whole = saved(noise, "AVIF")
    start = whole.index(b"mdat") + 4
    for damaged in (whole[:start] + bytes(len(whole) - start), whole[: len(whole) // 2], whole[:-100]):
        with pytest.raises(UndecodableSampleError):
            image.decode(damaged, LIMITS)


def test_nothing_is_printed_about_damage(capfd: pytest.CaptureFixture[str]) -> None:
    chatter(capfd)
    rng = np.random.default_rng(0)
    for whole, decode in [
        *((_PICTURES[kind], image.decode) for kind in ("LZW", "TIFF", "AVIF", "HEIF", "JPEG")),
        *((recorded(form, seconds=0.5), audio.decode) for form in ("webm", "m4a", "aac", "wma")),
    ]:
        for _ in range(20):
            data = bytearray(whole)
            for place in rng.integers(len(data) // 8, len(data), 5):
                data[place] = rng.integers(256)
            outcome(lambda data=data, decode=decode: decode(bytes(data), LIMITS))
    assert chatter(capfd) == ""


def test_libav_keeps_its_level_of_logging() -> None:
    before = av.logging.get_level()
    audio.decode(recorded("webm"), LIMITS)
    assert av.logging.get_level() == before
    assert not logging.getLogger("libav").handlers


def test_kinds_by_hand() -> None:
    for start, name in (
        (b"\x1aE\xdf\xa3", "webm or matroska"),
        (b"\0\0\0\x20ftypM4A ", "m4a"),
        (b"\0\0\0\x20ftyp3gp5", "3gp"),
        (b"\0\0\0\x20ftypisom", "mp4"),
        (b"\xff\xf1\x50\x80", "aac"),
        (b"\xff\xf9\x50\x80", "aac"),
        (b"#!AMR-WB\n", "amr"),
        (b"ID3\x04\0\0\0\0\0\x01\0\xff\xf1\x50\x80", "aac"),
    ):
        found = media.kind(start + bytes(600))
        assert found is not None
        assert found.name == name
    for none in (b"\0\0\0\x20ftypheic", b"\0\0\0\x20ftypavif", b"\xff\xfb\x90\x40", b"", b"plain text"):
        assert media.kind(none + bytes(600)) is None
