"""Attacks made by arithmetic from bona fide samples: simulations, with no loudspeaker, paper or screen in them."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import soundfile
import soxr
from PIL import Image

from uvsdk.arrays import Float32

RATE = 16_000
Copy = Callable[[Float32, np.random.Generator], Float32]


def coded(pcm: Float32, container: str, subtype: str | None, rate: int = RATE) -> Float32:
    """Through a lossy codec and back."""
    file = io.BytesIO()
    soundfile.write(file, pcm, rate, format=container, subtype=subtype)
    file.seek(0)
    decoded, _ = soundfile.read(file, dtype="float32")
    return np.asarray(decoded, np.float32)


def resampled(pcm: Float32, source: float, target: float) -> Float32:
    return np.asarray(soxr.resample(pcm, source, target, quality="HQ"), np.float32)


def noisy(pcm: Float32, snr_db: float, rng: np.random.Generator) -> Float32:
    """White noise that far under the whole recording's power."""
    level = np.sqrt(np.mean(np.square(pcm, dtype=np.float64))) * 10.0 ** (-snr_db / 20.0)
    return np.asarray(pcm + rng.normal(size=len(pcm)) * level, np.float32)


def played(pcm: Float32, reverberation_s: float, rng: np.random.Generator) -> Float32:
    """A small loudspeaker (250 Hz to 6 kHz) in a room whose sound decays by 60 dB in that time, noise at 30 dB."""
    length = round(RATE * reverberation_s)
    room = rng.normal(size=length) * np.exp(-6.9 * np.arange(length) / length)
    room *= 0.7 / np.sqrt(np.square(room).sum())
    room[0] = 1.0
    size = 1 << (len(pcm) + length - 1).bit_length()
    hz = np.fft.rfftfreq(size, 1 / RATE)
    speaker = 1.0 / (1.0 + (250.0 / np.maximum(hz, 1.0)) ** 4) / (1.0 + (hz / 6000.0) ** 8)
    heard = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(room, size) * speaker, size)[: len(pcm)]
    return noisy((0.5 * heard / np.abs(heard).max()).astype(np.float32), 30.0, rng)


def gated(pcm: Float32, rng: np.random.Generator, *, floor: float = 0.0) -> Float32:
    """Whatever lies 35 dB under the loudest 20 ms is set to ``floor`` times a noise of one bit in 24, as edited."""
    width = RATE // 50
    frames = pcm[: len(pcm) // width * width].reshape(-1, width).copy()
    level = np.sqrt(np.mean(np.square(frames), axis=1))
    quiet = level < level.max() * 10.0**-1.75
    frames[quiet] = floor * rng.normal(size=(int(quiet.sum()), width)) * 2.0**-23
    return frames.ravel()


def looped(pcm: Float32, rng: np.random.Generator) -> Float32:
    """The first two and a half seconds, twice."""
    part = pcm[: 5 * RATE // 2]
    return np.concatenate([part, part])


COPIES: dict[str, Copy] = {
    "the same samples": lambda pcm, rng: pcm,
    "12 dB softer": lambda pcm, rng: pcm * np.float32(0.25),
    "cut 137 ms later": lambda pcm, rng: pcm[2197:],
    "MP3": lambda pcm, rng: coded(pcm, "MP3", None),
    "Ogg Vorbis": lambda pcm, rng: coded(pcm, "OGG", "VORBIS"),
    "8 kHz": lambda pcm, rng: resampled(resampled(pcm, RATE, 8000), 8000, RATE),
    "telephone (mu-law, 8 kHz)": lambda pcm, rng: resampled(
        coded(resampled(pcm, RATE, 8000), "WAV", "ULAW", 8000), 8000, RATE
    ),
    "3 % faster": lambda pcm, rng: resampled(pcm, 1.03 * RATE, RATE),
    "noise at 20 dB": lambda pcm, rng: noisy(pcm, 20.0, rng),
    "noise at 10 dB": lambda pcm, rng: noisy(pcm, 10.0, rng),
    "loudspeaker, room of 0.3 s": lambda pcm, rng: played(pcm, 0.3, rng),
    "loudspeaker, room of 0.6 s": lambda pcm, rng: played(pcm, 0.6, rng),
    "1.5 s of it in other speech": lambda pcm, rng: np.concatenate([pcm[::-1][:RATE], pcm[RATE : 5 * RATE // 2]]),
}


def printed(photo: Image.Image) -> Image.Image:
    """Half the resolution, a narrower range of tones, JPEG."""
    width, height = photo.size
    coarse = photo.resize((width // 2, height // 2), Image.Resampling.BILINEAR)
    tones = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255
    return jpeg(_picture(0.15 + 0.65 * tones**1.3), 60)


def on_screen(photo: Image.Image) -> Image.Image:
    """Brighter and bluer, with the moire of a screen's grid, JPEG."""
    tones = np.asarray(photo, np.float32) / 255
    y, x = np.mgrid[: photo.height, : photo.width]
    moire = 1 + 0.12 * np.sin(2 * np.pi * (0.31 * x + 0.05 * y))[..., None] * np.array([1.0, 0.8, 1.2])
    return jpeg(_picture(tones**0.8 * moire * np.array([0.92, 0.98, 1.1])), 70)


def jpeg(photo: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def _picture(tones: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> Image.Image:
    return Image.fromarray((np.clip(tones, 0.0, 1.0) * 255).astype(np.uint8))


PICTURES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "the same file": lambda photo: photo,
    "JPEG at quality 90": lambda photo: jpeg(photo, 90),
    "JPEG at quality 50": lambda photo: jpeg(photo, 50),
    "twice as large": lambda photo: photo.resize((2 * photo.width, 2 * photo.height), Image.Resampling.BICUBIC),
    "half as large": lambda photo: photo.resize((photo.width // 2, photo.height // 2), Image.Resampling.BILINEAR),
    "cropped by 10 pixels": lambda photo: photo.crop((10, 10, photo.width - 10, photo.height - 10)),
}
