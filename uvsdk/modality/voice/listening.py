"""How much speech a recording holds while it is still being made."""

from __future__ import annotations

import numpy as np
import soxr

from uvsdk.arrays import Array, Bool, Float32
from uvsdk.modality.contract import Session
from uvsdk.modality.voice import audio, channels, mel, vad
from uvsdk.modality.voice.frames import SILENCE_DBFS, louder_by


class Listener:
    """Counts speech in chunks of PCM; each frame is looked at a bounded number of times.

    It is an estimate for showing progress: the level and the weight of each channel are those so far.

    Args:
        session: a bundle's ``vad`` graph.
    """

    def __init__(self, session: Session) -> None:
        self.searched = 0
        """Samples per channel, at the recording's own rate, that :meth:`search` has looked at."""
        self._session = session
        self._heard = 0
        self._moments: channels.Moments | None = None
        self._resampler: soxr.ResampleStream | None = None
        self._tail: Float32 = np.zeros(vad.WINDOW // 2, np.float32)
        self._bands: list[Float32] = []
        self._voiced: Bool = np.zeros(0, np.bool_)
        self._energy = 0.0
        self._samples = 0

    @property
    def speech_s(self) -> float:
        """Seconds of speech found by the last search."""
        return float(self._voiced.sum()) * vad.FRAME / vad.SAMPLE_RATE

    def hear(self, pcm: Array, rate: int) -> None:
        """Take a chunk, (n,) or (n, channels).

        Raises:
            UndecodableSampleError: a rate or a kind of numbers that is not read, or values that are not finite or of
                another scale.
        """
        audio.check_rate(rate)
        floats = audio.to_float(pcm)
        audio.check_peak(floats, "chunk")
        self._heard += len(floats)
        if floats.ndim == 2:
            self._moments = self._moments or channels.Moments(floats.shape[1])
            self._moments.add(floats)
            floats = channels.weigh(floats, self._moments.mix())
        if rate != vad.SAMPLE_RATE:
            self._resampler = self._resampler or soxr.ResampleStream(rate, vad.SAMPLE_RATE, 1, quality="HQ")
            floats = self._resampler.resample_chunk(floats)
        self._energy += float(np.square(floats, dtype=np.float64).sum())
        self._samples += len(floats)
        self._tail = np.concatenate([self._tail, floats])

    def search(self) -> float:
        """Look for speech in what came since; seconds of speech so far."""
        self.searched = self._heard
        count = max(0, (len(self._tail) - vad.WINDOW) // vad.FRAME + 1)
        if count == 0 or not self._energy:
            return self.speech_s
        end = (count - 1) * vad.FRAME + vad.WINDOW
        power = mel.windows_power(self._tail[:end], vad.WINDOW, vad.FRAME)
        self._bands.append(power @ mel.filter_bank(vad.SAMPLE_RATE, vad.WINDOW, vad.MELS).T)
        self._tail = self._tail[count * vad.FRAME :].copy()
        level = 10.0 * np.log10(self._energy / self._samples)
        if level < SILENCE_DBFS:
            self._voiced = np.zeros(len(self._voiced) + count, np.bool_)
            return 0.0
        # What follows a frame changes what is thought of it, as far as the net reaches.
        settled = max(0, len(self._voiced) - vad.REACH)
        begin = max(0, settled - 2 * vad.REACH)
        bands = self._recent(len(self._voiced) + count - begin) * np.float32(louder_by(level) ** 2)
        voiced = vad.detect(bands, self._session).voiced
        self._voiced = np.concatenate([self._voiced[:settled], voiced[settled - begin :]])
        return self.speech_s

    def _recent(self, count: int) -> Float32:
        """The last ``count`` frames, (count, 40); older ones are let go."""
        joined = np.concatenate(self._bands)[-count:]
        self._bands = [joined[-4 * vad.REACH :]]
        return joined
