"""Copies of a sample as worse conditions would have given it, so that a calibration sees those conditions too.

A recording is cut short, sent through a telephone's 8 kHz, or mixed with noise; a photo is taken from further away, or
out of focus. What the copies really are is measured afterwards, as it is for any sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import soxr
from PIL import Image, ImageFilter

from uvsdk.arrays import Float32, Float64
from uvsdk.modality import Captured, Sample
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.voice.frames import CapturedVoice

Noise = Literal["white", "pink", "babble"]

_VOICES_IN_BABBLE = 5


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recording is made worse; what is ``None`` stays.

    Args:
        speech_s: seconds of speech to keep, from a random place.
        rate: sample rate of a telephone, in Hz.
        snr_db: speech and background against the noise that is added, in decibels.
        noise: ``white``, ``pink`` (3 dB less an octave, nearer to rooms and streets) or ``babble`` (other people).
    """

    speech_s: float | None = None
    rate: int | None = None
    snr_db: float | None = None
    noise: Noise = "white"


@dataclass(frozen=True, slots=True)
class Photo:
    """How a photo is made worse; what is ``None`` stays.

    Args:
        face_pixels: width to which the face is brought by shrinking the photo; a smaller face stays as it is.
        blur: standard deviation of a Gaussian blur, as a share of the face's width.
    """

    face_pixels: float | None = None
    blur: float | None = None


RECORDINGS: Final[Mapping[str, Recording]] = {
    "3 s": Recording(speech_s=3.0),
    "1.5 s": Recording(speech_s=1.5),
    "8 kHz": Recording(rate=8_000),
    "20 dB": Recording(snr_db=20.0, noise="pink"),
    "10 dB": Recording(snr_db=10.0),
    "10 dB pink": Recording(snr_db=10.0, noise="pink"),
    "10 dB babble": Recording(snr_db=10.0, noise="babble"),
    "3 s, 8 kHz": Recording(speech_s=3.0, rate=8_000),
    "2 s, 12 dB": Recording(speech_s=2.0, snr_db=12.0),
}
"""What ``uvsdk calibrate`` makes of every recording."""

PHOTOS: Final[Mapping[str, Photo]] = {
    "64 pixels": Photo(face_pixels=64.0),
    "40 pixels": Photo(face_pixels=40.0),
    "blurred": Photo(blur=0.02),
    "64 pixels, blurred": Photo(face_pixels=64.0, blur=0.015),
}
"""What ``uvsdk calibrate`` makes of every photo."""


def copies(
    captured: Captured | None,
    measured: Mapping[str, float],
    rng: np.random.Generator,
    *,
    others: Sequence[Captured | None] = (),
) -> dict[str, Sample]:
    """The worse copies of one sample by name; none where the modality has no such conditions.

    A copy that would be the sample itself (already that short, already from a telephone, nobody else to babble) is
    left out.

    Args:
        captured: the decoded sample.
        measured: its :attr:`uvsdk.scoring.Quality.measured`.
        rng: chooses places and makes noise.
        others: recordings of other people, who are the babble.
    """
    found: dict[str, Sample] = {}
    if isinstance(captured, CapturedVoice):
        voices = [item.recorded for item in others if isinstance(item, CapturedVoice) and item.rate == captured.rate]
        share = measured["speech_s"] / max(measured["duration_s"], 1e-9)
        for name, recording in RECORDINGS.items():
            pcm, rate = worse_recording(
                captured.recorded, captured.rate, recording, share=share, rng=rng, voices=voices
            )
            if pcm is not captured.recorded:
                found[name] = (pcm, rate)
    elif isinstance(captured, CapturedFace):
        for name, photo in PHOTOS.items():
            worse = worse_photo(captured.photo, captured.face.pixels, photo)
            if worse is not captured.photo:
                found[name] = worse
    return found


def worse_recording(
    pcm: Float32,
    rate: int,
    recording: Recording,
    *,
    share: float = 1.0,
    rng: np.random.Generator,
    voices: Sequence[Float32] = (),
) -> tuple[Float32, int]:
    """Cut, noise, telephone, in this order; ``pcm`` itself where nothing changes.

    Args:
        pcm: one channel, float32 (n,) in [-1, 1].
        rate: of ``pcm``, in Hz.
        recording: what to do.
        share: of the recording that is speech: 3 s of speech take ``3 / share`` seconds of it.
        rng: chooses the place and makes the noise.
        voices: of other people, at ``rate``; without any there is no babble.
    """
    if recording.noise == "babble" and not voices:
        return pcm, rate
    worse = pcm
    if recording.speech_s is not None:
        length = round(recording.speech_s / min(max(share, 0.2), 1.0) * rate)
        if length < len(pcm):
            start = int(rng.integers(0, len(pcm) - length + 1))
            worse = worse[start : start + length]
    if recording.snr_db is not None and len(worse):
        sound = (
            babble(voices, len(worse), rng) if recording.noise == "babble" else hiss(len(worse), recording.noise, rng)
        )
        worse = mixed(worse, sound, recording.snr_db)
    if recording.rate is not None and recording.rate < rate:
        resampled = soxr.resample(worse, rate, recording.rate, quality="HQ")
        return np.ascontiguousarray(resampled, np.float32), recording.rate
    return worse, rate


def hiss(count: int, noise: Noise, rng: np.random.Generator) -> Float64:
    """White or pink noise, float64 (count,)."""
    sound: Float64 = rng.standard_normal(count)
    if noise == "pink":
        spectrum = np.fft.rfft(sound)
        # Power falls as 1 / f; the constant has no frequency and is left where the lowest one is.
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
        sound = np.fft.irfft(spectrum, count)
    return sound


def babble(voices: Sequence[Float32], count: int, rng: np.random.Generator) -> Float64:
    """A few voices at once, each as loud as the others, from a random place on and from the start again at its end."""
    sound = np.zeros(count)
    for index in rng.permutation(len(voices))[:_VOICES_IN_BABBLE]:
        voice = voices[index].astype(np.float64)
        start = int(rng.integers(len(voice)))
        level = max(float(np.sqrt(np.mean(voice**2))), 1e-9)
        sound += np.take(voice, np.arange(start, start + count), mode="wrap") / level
    return sound


def mixed(pcm: Float32, sound: Float64, snr_db: float) -> Float32:
    """``pcm`` with ``sound`` ``snr_db`` decibels under its own power; what overshoots full scale is clipped."""
    power = float(np.mean(np.square(pcm, dtype=np.float64)))
    scale = np.sqrt(power * 10.0 ** (-snr_db / 10.0) / max(float(np.mean(sound**2)), 1e-30))
    return np.asarray(np.clip(pcm + scale * sound, -1.0, 1.0), np.float32)


def worse_photo(photo: Image.Image, face_pixels: float, worse: Photo) -> Image.Image:
    """Blurred, then shrunk; ``photo`` itself where nothing changes.

    Args:
        photo: upright RGB.
        face_pixels: width of the face in it.
        worse: what to do.
    """
    made = photo
    if worse.blur is not None:
        made = made.filter(ImageFilter.GaussianBlur(worse.blur * face_pixels))
    if worse.face_pixels is not None and worse.face_pixels < 0.95 * face_pixels:
        factor = worse.face_pixels / face_pixels
        size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
        made = made.resize(size, Image.Resampling.LANCZOS)
    elif worse.face_pixels is not None:
        return photo
    return made


__all__ = [
    "PHOTOS",
    "RECORDINGS",
    "Noise",
    "Photo",
    "Recording",
    "babble",
    "copies",
    "hiss",
    "mixed",
    "worse_photo",
    "worse_recording",
]
