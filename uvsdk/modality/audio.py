"""Recordings to mono samples at the rate a model wants."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator

import numpy as np
import soundfile
import soxr
from PIL import Image

from uvsdk.arrays import Array, Float32
from uvsdk.errors import NoSpeechError, SampleTooLargeError, UndecodableSampleError
from uvsdk.modality import channels, containers
from uvsdk.modality.sample import Limits, Sample, read_bytes

_RATES = (4_000, 192_000)
_MAX_CHANNELS = 8
_BLOCK_FRAMES = 1 << 17
# Decoded MP3 and Vorbis overshoot full scale (15 was met in a published recording); integers that were cast to float
# overshoot it by thousands.
_MAX_PEAK = 64.0
# Formats whose header holds no count of samples; libsndfile guesses one.
_LENGTH_ESTIMATED = ("MP3",)


def decode(sample: Sample, limits: Limits) -> tuple[Float32, int]:
    """One channel in [-1, 1], (n,), at the rate it was recorded at, and that rate in Hz.

    Several channels become one as :mod:`uvsdk.modality.channels` says. What overshoots full scale is clipped, as a
    player would. MP3 declares no length, so one that was cut between frames is read as it is.

    Args:
        sample: a path, bytes or an open file of any kind that libsndfile knows by its header (wav, flac, ogg, opus,
            mp3, aiff, au, caf and twenty more), or ``(pcm, rate)`` with pcm of shape (n,), (n, channels) or
            (channels, n), of integers over their full range or of floats in [-1, 1].
        limits: bytes and seconds; both are checked before the samples are decoded.

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
    # One pass: the peak of an array with a NaN is a NaN.
    peak = float(np.abs(pcm).max())
    if not math.isfinite(peak):
        raise UndecodableSampleError("the recording holds values that are not finite numbers")
    if peak > _MAX_PEAK:
        raise UndecodableSampleError(
            f"floating-point sound lies in [-1, 1], got a peak of {peak:.3g}; divide by the integer range first"
        )
    return (np.clip(pcm, -1.0, 1.0) if peak > 1.0 else pcm), rate


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


def _from_array(sample: tuple[Array, int], limits: Limits) -> tuple[Float32, int]:
    if len(sample) != 2 or not isinstance(sample[0], np.ndarray):
        raise UndecodableSampleError("raw sound is a pair (numpy array, sample rate in Hz)")
    pcm, rate = sample
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise UndecodableSampleError(f"a sample rate is a whole number of Hz, got {rate!r}")
    check_rate(int(rate))
    if pcm.ndim == 2 and 1 <= min(pcm.shape) <= _MAX_CHANNELS:
        # soundfile gives (frames, channels), torchaudio (channels, frames); there are more frames than channels.
        pcm = pcm if pcm.shape[0] >= pcm.shape[1] else pcm.T
    elif pcm.ndim != 1 and pcm.size:
        raise UndecodableSampleError(
            f"sound has shape (n,), (n, channels) or (channels, n), at most {_MAX_CHANNELS} channels, got {pcm.shape}"
        )
    _check_seconds(pcm.shape[0], int(rate), limits)
    return channels.mixed(to_float(pcm)), int(rate)


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
    if containers.is_cut_short(data):
        raise UndecodableSampleError("the recording ends before the length it declares; send the whole file")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_file(file, limits)
            mix = None if file.channels == 1 else _read_mix(file, limits)
            return _read_frames(file, mix, limits), int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise UndecodableSampleError(
            f"not a recording that can be read, {len(data):,} bytes ({error}); send wav, flac, ogg or mp3"
        ) from error


def _check_file(file: soundfile.SoundFile, limits: Limits) -> None:
    if file.channels > _MAX_CHANNELS:
        raise UndecodableSampleError(f"at most {_MAX_CHANNELS} channels are read, got {file.channels}")
    check_rate(file.samplerate)
    _check_seconds(file.frames, file.samplerate, limits)


def _read_mix(file: soundfile.SoundFile, limits: Limits) -> Float32:
    """What each channel counts for, from a first pass, so that channels never stand side by side in memory."""
    moments = channels.Moments(file.channels)
    for block in _blocks(file, limits):
        moments.add(block)
    file.seek(0)
    return moments.mix()


def _read_frames(file: soundfile.SoundFile, mix: Float32 | None, limits: Limits) -> Float32:
    blocks = [block if mix is None else channels.weighted(block, mix) for block in _blocks(file, limits)]
    frames = sum(len(block) for block in blocks)
    if frames < file.frames and file.format not in _LENGTH_ESTIMATED:
        raise UndecodableSampleError(
            f"the recording is cut short: {frames:,} of {file.frames:,} samples are there; send the whole file"
        )
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def _blocks(file: soundfile.SoundFile, limits: Limits) -> Iterator[Float32]:
    """Pieces of the rest of the file, (n,) for one channel, else (n, channels)."""
    # Integers are scaled here, by the same power of two: libsndfile takes three times as long.
    exact = file.subtype == "PCM_16"
    frames = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="int16" if exact else "float32")):
        frames += len(block)
        # The header's count may be a lie, so it is counted again.
        _check_seconds(frames, file.samplerate, limits)
        yield to_float(block)


def check_rate(rate: int) -> None:
    """Raise :class:`UndecodableSampleError` for a rate that is not read."""
    if not _RATES[0] <= rate <= _RATES[1]:
        raise UndecodableSampleError(f"sample rates from {_RATES[0]:,} to {_RATES[1]:,} Hz are read, got {rate:,} Hz")


def _check_seconds(frames: int, rate: int, limits: Limits) -> None:
    if frames > limits.max_seconds * rate:
        raise SampleTooLargeError(
            f"a recording may last {limits.max_seconds:g} s, got at least {frames / rate:.1f} s; send a shorter one"
        )
