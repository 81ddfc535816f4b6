"""What may be handed in, and how little of it is read before it is refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.builders import image_file, sound_file
from uvsdk.errors import NoSpeechError, SampleTooLargeError, SettingsError, UndecodableSampleError, UnknownNameError
from uvsdk.modality import Limits, get, image, names
from uvsdk.modality.sample import read_bytes
from uvsdk.modality.voice import audio

LIMITS = Limits()


class Endless:
    """An open file that never ends and counts what was taken."""

    taken = 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return bytes(size)


def tone(seconds: float = 0.5, rate: int = 16_000) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * 220 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def test_registry() -> None:
    assert names() == ("face", "handwriting", "voice")
    assert tuple(get("voice").graphs) == ("vad",)
    with pytest.raises(UnknownNameError, match="no modality 'gait'; there are face"):
        get("gait")


def test_limits_are_positive() -> None:
    with pytest.raises(SettingsError):
        Limits(max_seconds=0.0)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO])
def test_bytes_in_any_form(wrap: type) -> None:
    assert read_bytes(wrap(b"abc"), LIMITS) == b"abc"


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"abc")
    assert read_bytes(str(tmp_path / "a.wav"), LIMITS) == b"abc"
    with pytest.raises(UndecodableSampleError, match="there is no file"):
        read_bytes(tmp_path / "b.wav", LIMITS)
    with pytest.raises(UndecodableSampleError, match="is a folder"):
        read_bytes(tmp_path, LIMITS)
    with pytest.raises(UndecodableSampleError, match="not a regular file"):
        read_bytes("/dev/zero", LIMITS)
    with pytest.raises(UndecodableSampleError, match="cannot be read"):
        read_bytes("a\0b", LIMITS)


def test_empty_and_text() -> None:
    with pytest.raises(UndecodableSampleError, match="empty"):
        read_bytes(b"", LIMITS)
    with pytest.raises(UndecodableSampleError, match="mode 'rb'"):
        read_bytes(io.StringIO("text"), LIMITS)  # type: ignore[arg-type]


def test_the_limit_of_bytes_stops_an_endless_stream(tmp_path: Path) -> None:
    stream = Endless()
    with pytest.raises(SampleTooLargeError, match="1,000 bytes"):
        read_bytes(stream, Limits(max_bytes=1000))  # type: ignore[arg-type]
    assert stream.taken == 1001
    (tmp_path / "large").write_bytes(bytes(1001))
    for sample in (tmp_path / "large", bytes(1001)):
        with pytest.raises(SampleTooLargeError, match="1,001 bytes"):
            read_bytes(sample, Limits(max_bytes=1000))


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_every_container_gives_the_same_sound(kind: str) -> None:
    pcm, rate = audio.decode(sound_file(tone(), 16_000, kind), LIMITS)
    assert rate == 16_000
    assert pcm.dtype == np.float32
    # MP3 pads its ends, so only the level is compared there.
    assert audio.level_dbfs(pcm) == pytest.approx(audio.level_dbfs(tone()), abs=0.5)


@pytest.mark.parametrize(
    ("pcm", "expected"),
    [
        (np.array([0, 16384, -32768], np.int16), [0.0, 0.5, -1.0]),
        (np.array([0, 2**30, -(2**31)], np.int32), [0.0, 0.5, -1.0]),
        (np.array([128, 192, 0], np.uint8), [0.0, 0.5, -1.0]),
        (np.array([0.0, 0.5, 3.0], np.float64), [0.0, 0.5, 1.0]),
        (np.array([[0.0, 0.5], [1.0, 1.0], [0.5, 0.0]], np.float32), [0.25, 1.0, 0.25]),
        (np.array([[0.0, 1.0, 0.5], [0.5, 1.0, 0.0]], np.float32), [0.25, 1.0, 0.25]),
    ],
)
def test_arrays_of_sound(pcm: np.ndarray, expected: list[float]) -> None:
    assert audio.decode((pcm, 16_000), LIMITS)[0].tolist() == expected


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((np.full(9, np.nan, np.float32), 16_000), "not finite"),
        ((np.full(9, 1e300), 16_000), "not finite"),
        ((np.full(9, 32767.0, np.float32), 16_000), "divide by the integer range"),
        ((np.zeros(9, np.complex64), 16_000), "got complex64"),
        ((np.array(["a"]), 16_000), "got <U1"),
        ((np.array([None]), 16_000), "got object"),
        ((np.zeros((50, 50), np.float32), 16_000), r"got \(50, 50\)"),
        ((np.zeros((2, 2, 2), np.float32), 16_000), r"got \(2, 2, 2\)"),
        ((np.zeros(9, np.float32), 16_000.0), "whole number of Hz"),
        ((np.zeros(9, np.float32), True), "whole number of Hz"),
        ((np.zeros(9, np.float32), 1), "got 1 Hz"),
        (([0.0], 16_000), "beside its rate in Hz, got list"),
        (np.zeros((9, 9), np.uint8), "got a picture"),
        (7, "got int"),
        (b"certainly not sound", "not a recording"),
    ],
)
def test_sound_that_is_none(sample: object, message: str) -> None:
    with pytest.raises(UndecodableSampleError, match=message):
        audio.decode(sample, LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (2, 0), (0, 2, 2), (9, 0)])
def test_an_array_without_samples_is_no_sound(shape: tuple[int, ...]) -> None:
    with pytest.raises(NoSpeechError, match=r"0\.00 s"):
        audio.decode((np.zeros(shape, np.float32), 16_000), LIMITS)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["i2", "i4", "f4", "f8"])
def test_arrays_of_either_byte_order_and_any_strides(kind: str, order: str) -> None:
    steps = np.round(tone() * 20_000).astype(np.int64)
    values = steps / 32768 if kind[0] == "f" else steps * (1 << (16 if kind == "i4" else 0))
    pcm = values.astype(order + kind)
    spread = np.repeat(pcm, 2)[::2]
    spread.flags.writeable = False
    backwards = np.ascontiguousarray(pcm[::-1])[::-1]
    for form in (pcm, spread, backwards, np.asfortranarray(np.stack([pcm, pcm], axis=1)), np.stack([pcm, pcm])):
        got = audio.decode((form, 16_000), LIMITS)[0]
        assert got.dtype == np.float32
        assert np.array_equal(got, (steps / 32768).astype(np.float32))


def test_no_samples_at_all() -> None:
    with pytest.raises(NoSpeechError, match=r"0\.00 s"):
        audio.decode((np.zeros(0, np.float32), 16_000), LIMITS)
    with pytest.raises(NoSpeechError, match=r"0\.00 s"):
        audio.decode(sound_file(np.zeros(0), 16_000, "WAV"), LIMITS)


def test_the_limit_of_seconds() -> None:
    short = Limits(max_seconds=0.25)
    with pytest.raises(SampleTooLargeError, match=r"0\.25 s, got at least 0\.5 s"):
        audio.decode((tone(), 16_000), short)
    with pytest.raises(SampleTooLargeError, match=r"got at least 0\.5 s"):
        audio.decode(sound_file(tone(), 16_000, "FLAC"), short)


def test_a_flac_of_an_hour_of_silence_is_refused_before_it_is_decoded() -> None:
    bomb = sound_file(np.zeros(3600 * 8000, np.int16), 8000, "FLAC")
    assert len(bomb) < 300_000
    with pytest.raises(SampleTooLargeError, match=r"got at least 3600\.0 s"):
        audio.decode(bomb, LIMITS)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.95])
def test_a_recording_that_is_cut_short(kind: str, part: float) -> None:
    whole = sound_file(tone(4.0), 16_000, kind)
    with pytest.raises(UndecodableSampleError):
        audio.decode(whole[: int(part * len(whole))], LIMITS)


def test_a_wav_written_to_a_pipe_has_no_length_and_is_read() -> None:
    data = bytearray(sound_file(tone(), 16_000, "WAV"))
    start = data.index(b"data")
    data[4:8] = data[start + 4 : start + 8] = struct.pack("<I", 0xFFFFFFFF)
    assert len(audio.decode(bytes(data), LIMITS)[0]) == 8000


def test_resampling_removes_the_offset_and_keeps_the_tone() -> None:
    for rate in (8_000, 22_050, 44_100, 48_000, 128_000):
        pcm = audio.resample(tone(1.0, rate) + np.float32(0.2), rate, 16_000)
        assert len(pcm) == pytest.approx(16_000, abs=2)
        # The ends ring a little; the middle is the tone itself: 220 Hz at 0.3.
        middle = slice(4000, 12000)
        assert np.abs(pcm[middle] - tone(1.0)[middle]).max() < 0.01


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (np.zeros((9, 9), np.complex64), "uint8"),
        (np.full((9, 9), -1, np.int64), "values from -1"),
        (np.full((9, 9), np.nan), "values from nan"),
        (np.zeros((3, 9, 9), np.uint8), "colours last"),
        (np.zeros((9, 9, 5), np.uint8), r"got \(9, 9, 5\)"),
        (np.zeros(9, np.uint8), r"got \(9,\)"),
        (np.zeros((0, 9), np.uint8), "at least one pixel"),
        ((np.zeros(9, np.float32), 16_000), "is a recording"),
        (b"certainly not a picture", "not a picture"),
        (None, "got NoneType"),
    ],
)
def test_pictures_that_are_none(sample: object, message: str) -> None:
    with pytest.raises(UndecodableSampleError, match=message):
        image.decode(sample, LIMITS)  # type: ignore[arg-type]


def test_a_picture_that_is_cut_short() -> None:
    whole = image_file(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for part in (0.3, 0.9):
        with pytest.raises(UndecodableSampleError):
            image.decode(whole[: int(part * len(whole))], LIMITS)


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    for side in (7_000, 12_000, 60_000):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        with pytest.raises(SampleTooLargeError, match="40,000,000 pixels"):
            image.decode(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(99))), LIMITS)


def test_the_limit_of_pixels_on_arrays_and_pillow_images() -> None:
    small = Limits(max_pixels=99)
    with pytest.raises(SampleTooLargeError, match="got 10 x 10"):
        image.decode(np.zeros((10, 10), np.uint8), small)
    with pytest.raises(SampleTooLargeError, match="got 10 x 10"):
        image.decode(Image.new("RGB", (10, 10)), small)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int) -> None:
    upright = np.zeros((30, 20, 3), np.uint8)
    upright[:10, :10] = 255  # the top left corner is white
    # Stored so that undoing `orientation` gives the upright picture; 6 and 8 undo each other, the others themselves.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = image_file(np.ascontiguousarray(stored), exif=exif)
    assert np.array_equal(np.asarray(image.decode(file, LIMITS).upright), upright)


def grey_ramp() -> Image.Image:
    return Image.fromarray(np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1)))


@pytest.mark.parametrize("mode", ["L", "LA", "La", "P", "PA", "RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV"])
def test_every_mode_gives_the_same_picture(mode: str) -> None:
    source = grey_ramp()
    steps = {"La": "LA", "RGBa": "RGBA", "PA": "P", "HSV": "RGB", "YCbCr": "RGB", "CMYK": "RGB", "RGBX": "RGB"}
    first = source.convert(steps[mode]) if mode in steps else source
    got = np.asarray(image.decode(first.convert(mode), LIMITS).upright, int)
    assert got.shape == (64, 64, 3)
    assert np.abs(got - np.asarray(source, int)[:, :, None]).max() <= 2


@pytest.mark.parametrize(
    ("levels", "dtype"), [(257, np.uint16), (257, np.int32), (1, np.int32), (1, np.float32), (1 / 255, np.float32)]
)
def test_deep_modes(levels: float, dtype: type) -> None:
    ramp = np.asarray(grey_ramp())
    deep = Image.fromarray((ramp.astype(np.float64) * levels).astype(dtype))
    got = np.asarray(image.decode(deep, LIMITS).upright)
    assert np.array_equal(got[:, :, 0], ramp)
    if dtype is np.uint16:
        assert np.array_equal(np.asarray(image.decode(image_file(deep), LIMITS).upright), got)


def test_one_bit_and_transparency() -> None:
    bits = Image.fromarray(np.eye(16, dtype=np.bool_))
    assert np.array_equal(np.asarray(image.decode(image_file(bits), LIMITS).upright)[:, :, 0], 255 * np.eye(16))
    clear = np.zeros((8, 8, 4), np.uint8)
    assert np.asarray(image.decode(image_file(clear), LIMITS).upright).min() == 255
    assert np.asarray(image.decode(clear, LIMITS).upright).min() == 255


def test_deep_values_outside_every_range() -> None:
    for values in (np.full((4, 4), np.nan), np.full((4, 4), -1.0), np.full((4, 4), 1e6)):
        with pytest.raises(UndecodableSampleError, match="expected 0 to 255"):
            image.decode(Image.fromarray(values.astype(np.float32)), LIMITS)


def test_a_large_jpeg_is_decoded_small() -> None:
    file = image_file(Image.new("RGB", (4000, 3000), (200, 100, 50)), "JPEG")
    assert image.decode(file, LIMITS).upright.size == (2000, 1500)
