"""Recordings that are cleaner than a microphone makes them: synthesis, splices, playback through a narrow band.

Each check is a plain measurement with a limit. What none of them finds is not thereby shown to be a living voice: a
good synthesis with a little noise on it passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float32
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Captured
from uvsdk.modality.voice import mel
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.modality.voice.vad import FRAME, SAMPLE_RATE
from uvsdk.scoring import Presentation

_FRAME_S = 0.02
# Under the rounding noise of 16 bits (-98 dB of full scale) there is nothing to measure.
_LOWEST_DBFS = -120.0
# The highest frequency that speech reaches in a recording lies where the long-term spectrum last stands this far
# above its lowest level, as a part of what it has at its loudest.
_BANDWIDTH_DB = 55.0
_FULL_SCALE = 0.999
# Names of the limits that are upper ones, with what a person reads where one is passed.
_WORDS = {
    "constant_s": "the sound stands still for {value:.3f} s between words, as in edited or synthetic speech (at most "
    "{limit:g}): speak into the microphone, without noise gate or playback",
    "range_db": "the pauses are {value:.0f} dB under the speech, quieter than a room is (at most {limit:g}): speak "
    "into the microphone, without noise gate or playback",
    "clipped_fraction": "{value:.1%} of the sound is cut off at full scale, as in a loud playback (at most {limit:g}): "
    "move away from the microphone",
    "bandwidth_hz": "nothing is heard above {value:.0f} Hz, as through a telephone or a small loudspeaker (at least "
    "{limit:g}): speak into the microphone yourself",
}


@dataclass(frozen=True, slots=True)
class Cleanliness:
    """Limits within which a microphone's recording lies.

    The defaults were set on 100 recordings of ten LibriSpeech speakers (audio books, among the cleanest speech there
    is) so that none was refused, with room to spare; ``tests/benchmarks/presentation`` has what others measured.

    Args:
        constant_s: longest run of one and the same sample value between the first word and the last, in seconds.
        range_db: level of the speech over that of the quietest twentieth between first and last word.
        clipped_fraction: share of samples at full scale.
        bandwidth_hz: frequency that the recording must reach; 0 asks for none. Set it only where every microphone in
            use reaches it: a telephone call ends at 3400 Hz, a Bluetooth headset at 8000 or less.
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``voice``.
    """

    constant_s: float = 0.05
    range_db: float = 85.0
    clipped_fraction: float = 0.05
    bandwidth_hz: float = 0.0
    name: str = "voice-cleanliness"
    modality: str = "voice"

    def __post_init__(self) -> None:
        if min(self.constant_s, self.range_db, self.clipped_fraction) <= 0 or self.bandwidth_hz < 0:
            raise SettingsError(f"limits of cleanliness are positive, got {self}")

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`.

        The score is how far the nearest limit is, as a part of it: 1 is far from every limit, 0 is on one.
        """
        if not isinstance(captured, CapturedVoice):
            raise SettingsError(f"{self.name} listens to a captured voice, got {type(captured).__name__}")
        measured = measure(captured)
        limits = {name: float(getattr(self, name)) for name in _WORDS}
        margins = {name: 1.0 - measured[name] / limits[name] for name in _WORDS if name != "bandwidth_hz"}
        if self.bandwidth_hz:
            margins["bandwidth_hz"] = measured["bandwidth_hz"] / self.bandwidth_hz - 1.0
        reasons = tuple(
            _WORDS[name].format(value=measured[name], limit=limits[name])
            for name, margin in margins.items()
            if margin < 0
        )
        return Presentation(self.name, float(np.clip(min(margins.values()), -1.0, 1.0)), 0.0, reasons, measured)


def measure(captured: CapturedVoice) -> dict[str, float]:
    """``constant_s``, ``range_db``, ``clipped_fraction`` and ``bandwidth_hz`` of one recording."""
    sound, rate = _between_words(captured), captured.rate
    levels = _levels(sound, rate)
    loud, quiet = np.percentile(levels, 95), np.percentile(levels, 5)
    return {
        "constant_s": longest_run(sound) / rate,
        "range_db": float(loud - quiet),
        "clipped_fraction": float(np.mean(np.abs(captured.recorded) >= _FULL_SCALE)),
        "bandwidth_hz": bandwidth(sound, rate),
    }


def longest_run(sound: Float32) -> int:
    """Samples in the longest run of equal values; 1 where no two neighbours are equal, 0 for none.

    >>> longest_run(np.array([0.1, 0.0, 0.0, 0.0, 0.2], np.float32))
    3
    """
    if not len(sound):
        return 0
    changes = np.flatnonzero(np.concatenate([[True], sound[1:] != sound[:-1], [True]]))
    return int(np.diff(changes).max())


def bandwidth(sound: Float32, rate: int) -> float:
    """The frequency below which nearly everything of the recording lies, in Hz.

    Where the mean spectrum last comes within 55 dB of its loudest, in steps of the transform of 32 ms.
    """
    width = 1 << max(int(np.ceil(np.log2(0.032 * rate))), 4)
    padded = np.pad(sound, (0, max(width - len(sound), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[:: width // 2]
    power = np.square(np.abs(np.fft.rfft(frames * mel.hann(width), axis=1))).mean(axis=0)
    if not power.max() > 0:
        return 0.0
    reached = np.flatnonzero(power >= power.max() * 10.0 ** (-_BANDWIDTH_DB / 10.0))
    return float(reached[-1]) * rate / width


def _between_words(captured: CapturedVoice) -> Float32:
    """As recorded, from the first frame of speech to the last; the whole where none was found."""
    voiced: Bool = captured.speech.voiced
    if not voiced.any():
        return captured.recorded
    first, last = int(np.argmax(voiced)), len(voiced) - int(np.argmax(voiced[::-1]))
    scale = captured.rate * FRAME / SAMPLE_RATE
    return captured.recorded[int(first * scale) : max(int(last * scale), int(first * scale) + 1)]


def _levels(sound: Float32, rate: int) -> Float32:
    """Level per 20 ms, decibels of full scale; the mean of each frame does not count."""
    width = max(round(_FRAME_S * rate), 1)
    count = max(len(sound) // width, 1)
    padded = np.pad(sound, (0, max(width - len(sound), 0)))
    frames = padded[: count * width].reshape(count, width).astype(np.float64)
    power = np.var(frames, axis=1)
    return np.asarray(np.maximum(10.0 * np.log10(np.maximum(power, 1e-20)), _LOWEST_DBFS), np.float32)
