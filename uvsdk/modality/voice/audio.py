"""Recordings to mono samples at the rate a model wants."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial

import numpy as np
import soundfile
import soxr
from PIL import Image

from uvsdk.arrays import Array, Float32
from uvsdk.errors import NoSpeechError, SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import quiet
from uvsdk.modality.sample import ArrayLike, Limits, Sample, read_bytes
from uvsdk.modality.voice import channels, containers, lengths, media

_RATES = (4_000, 192_000)
_MAX_CHANNELS = 8
_BLOCK_FRAMES = 1 << 17
# What libmpg123 reads from the end of a file: an ID3v1 tag. It lies wholly behind what is there.
_TAG_BYTES = 128
# Decoded MP3 and Vorbis overshoot full scale (15 was met in a published recording); integers that were cast to float
# overshoot it by thousands.
_MAX_PEAK = 64.0


def decode(sample: Sample, limits: Limits) -> tuple[Float32, int]:
    """One channel in [-1, 1], (n,), at the rate it was recorded at, and that rate in Hz.

    Several channels become one as :mod:`uvsdk.modality.voice.channels` says. What overshoots full scale is clipped, as
    a player would. A file is decoded to its end whatever its header says (:mod:`uvsdk.modality.voice.lengths`), and
    several recordings behind each other are one.

    Args:
        sample: a path, bytes or an open file of a kind that ``docs/formats.md`` lists, or ``(pcm, rate)`` with pcm of
            shape (n,), (n, channels) or (channels, n), of integers over their full range or of floats in [-1, 1]: a
            numpy array, or what numpy reads as one, such as the tensor that ``torchaudio.load`` gives.
        limits: bytes, checked before they are read, and seconds, checked before and while they are decoded.

    Raises:
        UndecodableSampleError: not sound, cut short, not finite, or of a dtype, shape or rate that is not read.
        SampleTooLargeError: over a limit.
        NoSpeechError: not a single sample.
    """
    if isinstance(sample, tuple):
        pcm, rate = _from_array(sample, limits)
    elif isinstance(sample, np.ndarray | Image.Image):
        raise UndecodableSampleError("got a picture where a recording is needed; an array needs its rate: (pcm, rate)")
    elif isinstance(sample, str | bytes | bytearray | memoryview | os.PathLike) or hasattr(sample, "read"):
        pcm, rate = _from_file(read_bytes(sample, limits), limits)
    else:
        raise UndecodableSampleError(
            f"a recording is a path, bytes, a file or (pcm, rate), got {type(sample).__name__}"
        )
    if not len(pcm):
        raise NoSpeechError("0.00 s of sound: the recording holds no samples; record again")
    peak = check_peak(pcm, "recording")
    return (np.clip(pcm, -1.0, 1.0) if peak > 1.0 else pcm), rate


def check_peak(pcm: Float32, what: str) -> float:
    """The largest absolute value; 0 where there is none.

    Raises:
        UndecodableSampleError: not finite, or so large that integers were meant.
    """
    # One pass: the peak of an array with a NaN is a NaN.
    peak = float(np.abs(pcm).max()) if pcm.size else 0.0
    if not math.isfinite(peak):
        raise UndecodableSampleError(f"the {what} holds values that are not finite numbers")
    if peak > _MAX_PEAK:
        raise UndecodableSampleError(
            f"floating-point sound lies in [-1, 1], got a peak of {peak:.3g}; divide by the integer range first"
        )
    return peak


def as_array(pcm: ArrayLike) -> Array:
    """``pcm`` as numpy has it, without a copy where there need be none.

    Raises:
        UndecodableSampleError: neither an array nor what numpy reads as one; or a tensor with a gradient, on an
            accelerator, or of a kind of number that numpy lacks.
    """
    if isinstance(pcm, np.ndarray):
        return pcm
    kind = type(pcm).__name__
    if isinstance(pcm, type) or not hasattr(pcm, "__array__"):
        raise UndecodableSampleError(f"raw sound is a numpy array, or a tensor, beside its rate in Hz, got {kind}")
    try:
        return np.asarray(pcm)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UndecodableSampleError(
            f"numpy cannot read the {kind} ({str(error)[:200]}); hand in tensor.detach().cpu().float()"
        ) from error


def as_rows(pcm: ArrayLike) -> Array:
    """A chunk of sound as (n,) or (n, channels).

    Raises:
        UndecodableSampleError: no array, or of another shape.
    """
    pcm = as_array(pcm)
    if pcm.ndim not in (1, 2):
        raise UndecodableSampleError(f"a chunk has shape (n,) or (n, channels), got shape {pcm.shape}")
    if pcm.size and pcm.ndim == 2 and pcm.shape[1] > _MAX_CHANNELS:
        if not 1 <= pcm.shape[0] <= _MAX_CHANNELS:
            raise UndecodableSampleError(f"at most {_MAX_CHANNELS} channels are read, got {pcm.shape}")
        return pcm.T
    return pcm


def resample(pcm: Float32, rate: int, target: int) -> Float32:
    """The same sound at ``target`` Hz, without its constant offset.

    The offset (a microphone's bias) goes first, or the ends of the clip would ring.
    """
    centred: Float32 = pcm - pcm.mean(dtype=np.float64).astype(np.float32)
    if rate == target:
        return centred
    resampled: Float32 = soxr.resample(centred, rate, target, quality="HQ")
    return np.ascontiguousarray(resampled, np.float32)


def level_dbfs(pcm: Float32) -> float:
    """Root mean square in decibels of full scale; -inf for digital silence.

    >>> round(level_dbfs(np.full(10, 0.1, np.float32)), 3)
    -20.0
    """
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if len(pcm) else 0.0
    return 10.0 * math.log10(power) if power > 0 else -math.inf


def _from_array(sample: tuple[ArrayLike, int], limits: Limits) -> tuple[Float32, int]:
    if len(sample) != 2:
        raise UndecodableSampleError(f"raw sound is a pair (array, sample rate in Hz), got {len(sample)} values")
    pcm, rate = as_array(sample[0]), sample[1]
    check_rate(rate)
    if not pcm.size:
        pcm = pcm.reshape(-1)
    elif pcm.ndim == 2 and min(pcm.shape) <= _MAX_CHANNELS:
        # soundfile gives (frames, channels), torchaudio (channels, frames); there are more frames than channels.
        pcm = pcm if pcm.shape[0] >= pcm.shape[1] else pcm.T
    elif pcm.ndim != 1:
        raise UndecodableSampleError(
            f"sound has shape (n,), (n, channels) or (channels, n), at most {_MAX_CHANNELS} channels, got {pcm.shape}"
        )
    _check_seconds(pcm.shape[0], int(rate), limits)
    return channels.mix(to_float(pcm)), int(rate)


def to_float(pcm: Array) -> Float32:
    """Integers over their full range, or floats as they are, to float32."""
    if pcm.dtype == np.float32:
        return np.asarray(pcm, np.float32)
    if pcm.dtype.kind == "f":
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused later
            floats: Float32 = pcm.astype(np.float32)
        return floats
    if pcm.dtype.kind == "i" and pcm.dtype.itemsize <= 4:
        return pcm.astype(np.float32) / np.float32(2.0 ** (8 * pcm.dtype.itemsize - 1))
    if pcm.dtype == np.uint8:
        return (pcm.astype(np.float32) - np.float32(128)) / np.float32(128)
    raise UndecodableSampleError(
        f"sound is float, int8, int16, int32 or uint8, got {pcm.dtype}; convert it to float in [-1, 1]"
    )


def _from_file(data: bytes, limits: Limits) -> tuple[Float32, int]:
    """Each recording in the file behind the one before, at the rate of the first."""
    most_s = limits.max_seconds
    found = containers.takes(data, most_s) or media.kind(data) or containers.frames(data, most_s)
    if found is None:
        raise UndecodableSampleError(
            f"not a recording that can be read, {len(data):,} bytes of no known kind; send wav, flac, ogg or mp3"
        )
    if not isinstance(found, list):
        return _mono(partial(media.blocks, found), limits)
    sounds: list[tuple[Float32, int]] = []
    for take in found:
        heard_s = sum(len(pcm) / rate for pcm, rate in sounds)
        sounds.append(_mono(partial(_blocks, take, limits), limits, heard_s))
    if len(sounds) == 1:
        return sounds[0]
    first = sounds[0][1]
    return np.concatenate(
        [pcm if rate == first else soxr.resample(pcm, rate, first, quality="HQ") for pcm, rate in sounds]
    ), first


def _mono(
    blocks: Callable[[], Iterator[tuple[Array, int]]], limits: Limits, heard_s: float = 0.0
) -> tuple[Float32, int]:
    """All blocks as one channel. Those of several are gone through twice, so that they never stand side by side."""
    pieces: list[Float32] = []
    moments: channels.Moments | None = None
    frames, rate = 0, 0
    form: tuple[int, tuple[int, ...]] | None = None
    for samples, rate in blocks():
        if form is None:
            check_rate(rate)
            form = rate, samples.shape[1:]
        elif form != (rate, samples.shape[1:]):
            raise UndecodableSampleError(
                f"the recording changes at {frames / form[0]:.1f} s from {form[0]:,} to {rate:,} Hz, or in its "
                "channels; send it in one form"
            )
        frames += len(samples)
        _check_seconds(frames + heard_s * rate, rate, limits)
        if samples.ndim == 1:
            pieces.append(to_float(samples))
        else:
            moments = moments or channels.Moments(samples.shape[1])
            moments.add(to_float(samples))
    if moments is not None:
        mix = moments.mix()
        pieces = [channels.weigh(to_float(samples), mix) for samples, _ in blocks()]
    if len(pieces) == 1:
        return pieces[0], rate
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32), rate or _RATES[0]


def _blocks(take: containers.Take, limits: Limits) -> Iterator[tuple[Array, int]]:
    """A recording in pieces, (n,) for one channel, else (n, channels), each with its rate in Hz."""
    silence = quiet.standard_error if take.length else nullcontext
    memory = _Longer(take.data, take.length) if take.length else _Memory(take.data)
    try:
        with ExitStack() as closing:
            with silence():
                file = _SoundFile(memory)
            closing.callback(file.close)
            if file.channels > _MAX_CHANNELS:
                raise UndecodableSampleError(f"at most {_MAX_CHANNELS} channels are read, got {file.channels}")
            check_rate(file.samplerate)
            # Ogg's count stands in its last page, which may be wrong; it is counted while it is decoded.
            certain = file.frames if take.exact and file.format != "OGG" else take.least if take.counted else 0
            _check_seconds(certain, file.samplerate, limits)
            # Integers are scaled here, by the same power of two: libsndfile takes three times as long.
            kind = "int16" if file.subtype == "PCM_16" else "float32"
            frames = 0
            while True:
                with silence():
                    samples = file.read(_BLOCK_FRAMES, dtype=kind)
                if not len(samples):
                    break
                frames += len(samples)
                yield samples, file.samplerate
            least = max(take.least, file.frames if take.exact else 0)
            if frames < least and not (take.checksum and take.checksum == _checksum(take.data)):
                raise lengths.cut_short(f"{frames:,} of {least:,} samples are there")
    except (soundfile.SoundFileError, RuntimeError) as error:
        # Its message names the object in memory.
        words = getattr(error, "error_string", "") or type(error).__name__
        raise UndecodableSampleError(
            f"not a recording that can be read, {len(take.data):,} bytes ({words.strip('. ')}); "
            "send wav, flac, ogg or mp3"
        ) from error


def _checksum(data: bytes) -> bytes:
    """MD5 over the samples of a FLAC as its header has it (RFC 9639, 8.2): little-endian, channels interleaved."""
    digest = hashlib.md5(usedforsecurity=False)
    with _SoundFile(_Memory(data)) as file:
        width = {"PCM_S8": 1, "PCM_16": 2, "PCM_24": 3}.get(file.subtype, 4)
        while len(samples := file.read(_BLOCK_FRAMES, dtype="int32", always_2d=True)):
            # libsndfile fills the 32 bits from above.
            digest.update(samples.astype("<i4").view(np.uint8).reshape(-1, 4)[:, 4 - width :].tobytes())
    return digest.digest()


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """Read from the front to the end.

    soundfile seeks to where it stands after each read of a file that can. In an MP3 that loses the bits which a frame
    has in the ones before it, and libmpg123 says so on standard error; in a FLAC of unknown length it fails.
    """

    def seekable(self) -> bool:
        """Never."""
        return False


class _Memory(io.BytesIO):
    """A file in memory in which seeking to before its start leads to its start: an error would be printed."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As in any file."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return super().seek(0)


class _Longer(_Memory):
    """A file that says that it is longer than it is; noughts lie at its end, where libmpg123 looks for a tag."""

    def __init__(self, data: bytes, length: int) -> None:
        super().__init__(data)
        self._there = len(data)
        self._length = max(length, len(data) + _TAG_BYTES + 1) if length > len(data) else len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """From the end that it says it has."""
        if whence == io.SEEK_END:
            return super().seek(self._length + offset)
        return super().seek(offset, whence)

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # soundfile hands in cffi's buffer
        """What is there, then nothing, then noughts."""
        start = self.tell()
        if start <= self._there or self._length == self._there:
            return super().readinto(buffer)
        count = max(0, min(len(buffer), self._length - start))
        buffer[:count] = bytes(count)
        super().seek(start + count)
        return count


def check_rate(rate: int) -> None:
    """Raise :class:`UndecodableSampleError` for what is no rate, or one that is not read."""
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise UndecodableSampleError(f"a sample rate is a whole number of Hz, got {rate!r}")
    if not _RATES[0] <= rate <= _RATES[1]:
        raise UndecodableSampleError(f"sample rates from {_RATES[0]:,} to {_RATES[1]:,} Hz are read, got {rate:,} Hz")


def _check_seconds(frames: float, rate: int, limits: Limits) -> None:
    if frames > limits.max_seconds * rate:
        raise SampleTooLargeError(
            f"a recording may last {limits.max_seconds:g} s, got at least {frames / rate:.1f} s; send a shorter one"
        )
