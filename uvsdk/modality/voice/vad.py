"""Which frames of a recording are speech: a small convolutional net over the mel frames that the model needs anyway.

It was taught by Silero VAD; ``examples/voice_activity`` has the script, the data and the agreement with its teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float32
from uvsdk.modality.contract import Session, run

SAMPLE_RATE = 16_000
FRAME = 160
"""Samples from one frame to the next; frame ``t`` is centred on sample ``160 t``."""
WINDOW = 400
MELS = 40
REACH = 30
"""Frames to either side that the probability of a frame depends on."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Where speech was found.

    Args:
        voiced: per 10 ms frame, whether it is speech, (frames,).
        kept: the same, with the pauses inside words and their edges filled, (frames,).
    """

    voiced: Bool
    kept: Bool

    @property
    def voiced_s(self) -> float:
        """Seconds of speech."""
        return float(self.voiced.sum()) * FRAME / SAMPLE_RATE


def detect(
    power: Float32, session: Session, *, start: float = 0.3, stop: float = 0.15, margin_s: float = 0.1
) -> Speech:
    """Find speech in a recording.

    Args:
        power: power mel, (frames, 40), of the recording at its final level.
        session: the bundle's ``vad`` graph.
        start: probability from which speech begins: that at which as many single letters and syllables as with Silero
            hold 0.3 s of speech, 95 % of 612.
        stop: probability below which it ends (Silero: ``start - 0.15``).
        margin_s: kept on both sides of speech. Equal error rate of GE2E on pieces of 2 s of 251 LibriSpeech readers:
            0.1 s 1.27 %, 0.15 s 1.28 %, 0.2 s 1.49 %.
    """
    voiced = hysteresis(probabilities(power, session), start, stop)
    return Speech(voiced, dilate(voiced, round(margin_s * SAMPLE_RATE / FRAME)))


def probabilities(power: Float32, session: Session) -> Float32:
    """Probability of speech per frame of power mel, (frames, 40) -> (frames,)."""
    return np.asarray(run(session, ["speech"], {"power": power})[0], np.float32)


def hysteresis(probability: Float32, start: float, stop: float) -> Bool:
    """Speech from a frame at or above ``start`` until the first one below ``stop``.

    >>> hysteresis(np.array([0.4, 0.6, 0.4, 0.3, 0.4], np.float32), 0.5, 0.35).tolist()
    [False, True, True, False, False]
    """
    begins, ends = probability >= start, probability < stop
    # The last frame up to each at which the state was decided; speech goes on where that one began it.
    decided = np.where(begins | ends, np.arange(len(probability)), -1)
    last = np.maximum.accumulate(decided) if len(decided) else decided
    voiced: Bool = (last >= 0) & begins[last]
    return voiced


def dilate(mask: Bool, width: int) -> Bool:
    """Every frame at most ``width`` away from a true one.

    >>> dilate(np.array([False, False, True, False, False]), 1).tolist()
    [False, True, True, True, False]
    """
    counts = np.concatenate(([0], np.cumsum(mask)))
    index = np.arange(len(mask))
    high = np.minimum(index + width + 1, len(mask))
    low = np.maximum(index - width, 0)
    grown: Bool = counts[high] > counts[low]
    return grown
