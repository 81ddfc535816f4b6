"""Twenty-four things that happen to a voice on its way, each applied to every recording; float32 (n,) at 16 kHz.

After the design of the CASE benchmark (codecs, microphones, noise, rooms, playback through a loudspeaker), with what a
verifier meets besides: other people talking, and short recordings.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.signal import butter, sosfilt

from examples.reproduce.conditions import rooms
from examples.reproduce.conditions.codecs import RATE, Codec, through
from uvsdk.arrays import Float32, Float64
from uvsdk.modality.voice.degradation import Noise, Recording, mix, worse_recording

TELEPHONE_HZ: Final = (300.0, 3_400.0)
_MAINS_HZ: Final = 50.0
"""Of the mains; its first ten harmonics are heard."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """One recording: its name, which decides the randomness, who speaks, and its samples."""

    name: str
    speaker: str
    pcm: Float32


Condition = Callable[[Sequence[Clip]], list[Float32]]
"""All recordings as they are under it, in their order."""

OFFICE = rooms.Room((5.0, 4.0, 2.7), 0.4, (1.5, 2.0, 1.5), (2.5, 2.0, 1.2))
ACROSS = rooms.Room((5.0, 4.0, 2.7), 0.4, (1.0, 1.3, 1.5), (3.9, 2.4, 1.2))
HALL = rooms.Room((12.0, 9.0, 4.0), 1.0, (4.0, 4.0, 1.6), (6.2, 4.9, 1.2))
DESK = rooms.Room((5.0, 4.0, 2.7), 0.4, (2.0, 2.0, 0.9), (2.6, 2.0, 0.9))
"""One, 3.1 and 2.4 metres from the microphone, and a loudspeaker 60 cm from it on a table."""


def _each(change: Callable[[Float32, np.random.Generator], Float32], name: str) -> Condition:
    """One recording at a time, with randomness of its own."""

    def apply(clips: Sequence[Clip]) -> list[Float32]:
        return [change(clip.pcm, _rng(name, clip)) for clip in clips]

    return apply


def _rng(name: str, clip: Clip) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{name} {clip.name}".encode()))


def _coded(codec: Codec) -> Condition:
    return lambda clips: through([clip.pcm for clip in clips], codec)


def _noise(snr_db: float, noise: Noise) -> Condition:
    recording = Recording(snr_db=snr_db, noise=noise)
    return _each(lambda pcm, rng: worse_recording(pcm, RATE, recording, rng=rng)[0], f"{noise} {snr_db:g}")


def _babble(snr_db: float) -> Condition:
    """Five of the other people at once."""

    def apply(clips: Sequence[Clip]) -> list[Float32]:
        found = []
        for clip in clips:
            rng = _rng(f"babble {snr_db:g}", clip)
            others = [other.pcm for other in clips if other.speaker != clip.speaker]
            recording = Recording(snr_db=snr_db, noise="babble")
            found.append(worse_recording(clip.pcm, RATE, recording, rng=rng, voices=others)[0])
        return found

    return apply


def hum(count: int, rng: np.random.Generator) -> Float64:
    """The mains: 50 Hz and nine harmonics of falling height and random phase, float64 (count,)."""
    time_s = np.arange(count) / RATE
    phases = rng.uniform(0, 2 * np.pi, 10)
    sound: Float64 = sum(
        (np.sin(2 * np.pi * _MAINS_HZ * order * time_s + phases[order - 1]) / order for order in range(1, 11)),
        np.zeros(count),
    )
    return sound


def _short(seconds: float) -> Condition:
    """So many seconds of sound from a random place, pauses included."""

    def cut(pcm: Float32, rng: np.random.Generator) -> Float32:
        return worse_recording(pcm, RATE, Recording(speech_s=seconds), rng=rng)[0]

    return _each(cut, f"{seconds:g} s")


def overdriven(pcm: Float32, decibels: float = 30.0) -> Float32:
    """Amplified so far beyond -25 dB of full scale that the peaks are cut off."""
    gain = 10 ** ((decibels - 25) / 20) / max(float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64)))), 1e-9)
    return np.clip(pcm * np.float32(gain), -1, 1)


def loudspeaker(pcm: Float32) -> Float32:
    """A small one: 400 Hz to 7 kHz, driven so far that loud sounds saturate (tanh at three times the level)."""
    band = sosfilt(butter(2, (400.0, 7_000.0), "bandpass", fs=RATE, output="sos"), pcm)
    level = max(float(np.sqrt(np.mean(band**2))), 1e-9)
    return np.asarray(np.tanh(band / (3 * level)) * 3 * level, np.float32)


def _narrow(pcm: Float32, rng: np.random.Generator) -> Float32:
    """A headset's microphone: the telephone's band, still at 16 kHz, with a resonance at 2.5 kHz."""
    band = sosfilt(butter(4, TELEPHONE_HZ, "bandpass", fs=RATE, output="sos"), pcm)
    peak = sosfilt(butter(1, (2_200.0, 2_800.0), "bandpass", fs=RATE, output="sos"), band)
    return np.asarray(band + peak, np.float32)


def _in(room: rooms.Room) -> Condition:
    return _each(lambda pcm, rng: rooms.heard(pcm, RATE, room), "room")


def _played(clips: Sequence[Clip]) -> list[Float32]:
    """An MP3 file of 32 kbit/s, through a small loudspeaker on a table, recorded again 60 cm away under 20 dB."""
    found = []
    for clip, pcm in zip(clips, through([clip.pcm for clip in clips], _MP3), strict=True):
        far = rooms.heard(loudspeaker(pcm), RATE, DESK)
        noisy = Recording(snr_db=20.0, noise="pink")
        found.append(worse_recording(far, RATE, noisy, rng=_rng("playback", clip))[0])
    return found


_MU_LAW = Codec("pcm_mulaw", 8_000, "mulaw")
# Written to a pipe, an MP3 file lacks the header that tells of its 576 samples of encoder delay and 529 of decoder's.
_MP3 = Codec("libmp3lame", RATE, "mp3", ("-b:a", "32k"), delay=1_105)


def _opus(kilobits: int) -> Condition:
    return _coded(Codec("libopus", RATE, "ogg", ("-b:a", f"{kilobits}k", "-application", "voip")))


CONDITIONS: Final[Mapping[str, Condition]] = {
    "clean": lambda clips: [clip.pcm for clip in clips],
    "G.711 mu-law": _coded(_MU_LAW),
    "G.711 A-law": _coded(Codec("pcm_alaw", 8_000, "alaw")),
    "GSM": _coded(Codec("libgsm", 8_000, "gsm")),
    "Opus 6 kbit/s": _opus(6),
    "Opus 12 kbit/s": _opus(12),
    "Opus 24 kbit/s": _opus(24),
    "MP3 32 kbit/s": _coded(_MP3),
    "narrow microphone": _each(_narrow, "narrow"),
    "overdriven by 30 dB": _each(lambda pcm, rng: overdriven(pcm), "overdriven"),
    "white noise 10 dB": _noise(10.0, "white"),
    "pink noise 10 dB": _noise(10.0, "pink"),
    "pink noise 5 dB": _noise(5.0, "pink"),
    "hum 0 dB": _each(lambda pcm, rng: mix(pcm, hum(len(pcm), rng), 0.0), "hum"),
    "babble 15 dB": _babble(15.0),
    "babble 10 dB": _babble(10.0),
    "babble 5 dB": _babble(5.0),
    "office, 1 m": _in(OFFICE),
    "office, 3 m": _in(ACROSS),
    "hall, 2.4 m": _in(HALL),
    "playback": _played,
    "3 s": _short(3.0),
    "2 s": _short(2.0),
    "1.5 s": _short(1.5),
    "1 s": _short(1.0),
}
"""Name -> condition; the first is none, the other twenty-four are."""

MIXED: Final[Mapping[str, Condition]] = {
    "3 s, G.711 mu-law": lambda clips: through(_short(3.0)(clips), _MU_LAW),
}
"""Besides the twenty-four: two at once."""
