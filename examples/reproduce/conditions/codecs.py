"""Lines and files that lose something: recordings through the encoders and decoders of ffmpeg, and back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float32

RATE = 16_000
_PAUSE_S = 0.5
"""Silence between two recordings that go through in one stream, so that no frame holds both."""


class MissingToolError(Exception):
    """There is no ffmpeg, or it lacks an encoder; the message says which."""


@dataclass(frozen=True, slots=True)
class Codec:
    """An encoder of ffmpeg.

    Args:
        encoder: its name.
        rate: sample rate of the line, in Hz.
        container: what carries the packets; it must keep what the encoder put in front, or where there is nothing.
        options: of the encoder.
        delay: samples at 16 kHz that come before the first one sent, where the container does not say so itself.
    """

    encoder: str
    rate: int
    container: str
    options: tuple[str, ...] = ()
    delay: int = 0


def through(recordings: Sequence[Float32], codec: Codec) -> list[Float32]:
    """Every recording, float32 (n,) at 16 kHz, as it comes out at the other end: as many samples, at 16 kHz.

    Raises:
        MissingToolError: ffmpeg is not installed or does not have the encoder.
    """
    pause = np.zeros(round(_PAUSE_S * RATE), np.float32)
    joined = np.concatenate([part for pcm in recordings for part in (pcm, pause)])
    sent = np.rint(np.clip(joined, -1, 1) * 32_767).astype("<i2").tobytes()
    raw = ("-f", "s16le", "-ar", str(RATE), "-ac", "1")
    packets = _ffmpeg(
        (*raw, "-i", "-", "-ar", str(codec.rate), "-c:a", codec.encoder, *codec.options, "-f", codec.container, "-"),
        sent,
    )
    # Headerless formats say nothing of themselves.
    known = ("-f", codec.container, *(("-ar", str(codec.rate)) if codec.container in ("mulaw", "alaw") else ()))
    back = np.frombuffer(_ffmpeg((*known, "-i", "-", *raw, "-"), packets), "<i2").astype(np.float32) / 32_768
    back = back[codec.delay :]
    received = np.zeros(len(joined), np.float32)
    received[: min(len(back), len(joined))] = back[: len(joined)]
    starts = np.cumsum([0, *(len(pcm) + len(pause) for pcm in recordings)])
    return [received[start : start + len(pcm)] for start, pcm in zip(starts, recordings, strict=False)]


def _ffmpeg(arguments: Sequence[str], data: bytes) -> bytes:
    if shutil.which("ffmpeg") is None:
        raise MissingToolError("ffmpeg is not installed (Debian: apt install ffmpeg)")
    command = ["ffmpeg", "-hide_banner", "-loglevel", "error", *arguments]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        raise MissingToolError(f"ffmpeg refused: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout
