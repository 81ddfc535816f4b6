"""Voice while it is being spoken: chunks of PCM in, progress out, and a decision as soon as one can be made.

>>> import numpy as np
>>> from uvsdk.stream import VoiceStream
>>> def session(bundle, template, microphone):
...     stream = VoiceStream(bundle, template)
...     for chunk in microphone:
...         progress = stream.push(chunk, 16_000)
...         print(f"{progress.percent:.0f} %")
...         if progress.decision is not None and progress.decision.accepted:
...             return progress.decision
...     return stream.decision()
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from uvsdk.arrays import Array
from uvsdk.bundle.inference import Embedded, embed, open_bundle
from uvsdk.errors import (
    NoSpeechError,
    SampleError,
    SampleTooLargeError,
    SettingsError,
    UncalibratedDomainError,
    UndecodableSampleError,
)
from uvsdk.records.transfer import stays_here
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.template import Template
from uvsdk.verify import verify

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture

CHECKS_S: Final = (1.5, 3.0, 5.0)
"""Seconds of speech at which a stream with a template is compared with it."""

# How much new sound there must be before it is searched for speech again.
_SEARCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream has come.

    Args:
        percent: speech so far against what is needed, 0 to 100.
        speech_s: seconds of speech found so far, a little less than the finished recording will show.
        duration_s: seconds of sound pushed.
        ready: whether there is enough speech for :meth:`VoiceStream.result`.
        decision: the latest comparison with the template; ``None`` before the first, or without a template. One that
            is accepted is final; one that is not may still become so with more speech.
        advice: why a comparison that was due could not be made, for the person who speaks; empty otherwise.
    """

    percent: float
    speech_s: float
    duration_s: float
    ready: bool
    decision: Decision | None = None
    advice: str = ""


class VoiceStream:
    """One utterance as it comes from a microphone. Not safe to push to from several threads.

    With a template the stream is compared with it each time the speech so far passes one of ``checks_s``, and the
    first comparison that reaches the threshold accepts: whoever sounds like the person waits for 1.5 s of speech and
    not for 5. Every comparison is a further chance for an impostor, so the false match rate grows; it is at most the
    sum of the rates at each length. What it came to on LibriSpeech is in ``tests/benchmarks/voice``. One length,
    ``checks_s=(5.0,)``, costs nothing.

    The recording is kept until the stream is dropped, at most ``capture.limits.max_seconds`` of it, because the result
    is that of the whole recording: bit for bit what :func:`uvsdk.verify` and :func:`uvsdk.enroll` make of it.

    Args:
        model: a bundle of modality voice, or its path.
        template: whom the speaker claims to be; ``None`` to enrol or to embed only.
        threshold: in place of the template's own.
        strict_domain: refuse what the calibration does not speak for, as for :func:`uvsdk.verify`.
        capture: how the sample is taken: quality policy and limits.
        checks_s: seconds of speech at which it is compared, ascending; the last is what 100 % stand for.

    Raises:
        SettingsError: the lengths do not ascend, lie below what the bundle accepts, or the bundle is not for voice.
        BundleError: the model cannot be read.
    """

    def __init__(
        self,
        model: Bundle | str | os.PathLike[str],
        template: Template | None = None,
        *,
        threshold: Threshold | None = None,
        strict_domain: bool = False,
        capture: Capture | None = None,
        checks_s: tuple[float, ...] = CHECKS_S,
    ) -> None:
        # Decoding libraries come with the first stream, not with `import uvsdk`.
        from uvsdk import modality
        from uvsdk.modality.contract import OpenedGraph
        from uvsdk.modality.voice.frames import Framing
        from uvsdk.modality.voice.listening import Listener

        self._bundle = open_bundle(model)
        if self._bundle.manifest.modality != "voice":
            raise SettingsError(f"a voice stream needs a voice bundle, got one for {self._bundle.manifest.modality}")
        self._minimum_s = Framing.read(self._bundle.manifest.preprocessing).minimum_speech_s
        if not checks_s or list(checks_s) != sorted(set(checks_s)) or checks_s[0] < self._minimum_s:
            raise SettingsError(
                f"checks_s ascends from {self._minimum_s:g} s, the least this bundle accepts, got {checks_s}"
            )
        self._template, self._threshold, self._checks_s = template, threshold, checks_s
        self._strict_domain = strict_domain
        self._capture = capture or modality.Capture()
        self._listener = Listener(OpenedGraph(self._bundle, "vad"))
        self._chunks: list[Array] = []
        self._rate = 0
        self._frames = 0
        self._checked = 0
        self._decision: Decision | None = None

    __reduce_ex__ = stays_here("it is being spoken; pass its sample on")

    @property
    def sample(self) -> tuple[Array, int]:
        """Everything pushed so far as one recording, ``(pcm, rate)``: what :func:`uvsdk.enroll` takes.

        Raises:
            NoSpeechError: nothing was pushed.
        """
        if not self._chunks:
            raise NoSpeechError("0.00 s of sound: nothing was pushed to the stream; is the microphone open?")
        if len(self._chunks) > 1:
            self._chunks = [np.concatenate(self._chunks)]
        return self._chunks[0], self._rate

    def push(self, pcm: Array, rate: int) -> Progress:
        """Add a chunk of any length.

        Args:
            pcm: (n,) or (n, channels), int16 or any other kind that :func:`uvsdk.verify` takes; (channels, n) where n
                is above 8. The same kind and number of channels for the whole stream. It is copied.
            rate: in Hz, the same for the whole stream.

        Raises:
            UndecodableSampleError: a chunk that is no sound, or of another kind than those before.
            SampleTooLargeError: longer than the limit; what was pushed before is kept.
        """
        from uvsdk.modality.voice import audio

        pcm = audio.as_rows(pcm)
        audio.check_rate(rate)
        if not pcm.size:
            self._rate = self._rate or rate
            return self._progress()
        self._check_like_before(pcm, rate)
        limit_s = self._capture.limits.max_seconds
        if self._frames + len(pcm) > limit_s * rate:
            raise SampleTooLargeError(f"a stream may last {limit_s:g} s; finish this one and open another")
        self._listener.hear(pcm, rate)
        self._rate = rate
        self._chunks.append(pcm.copy())
        self._frames += len(pcm)
        return self._progress()

    def result(self) -> Embedded:
        """Everything pushed so far through the model, as one recording.

        Raises:
            SampleError: it cannot be used; the subclass and the message say why.
        """
        return embed(self.sample, self._bundle, capture=self._capture)

    def decision(self) -> Decision:
        """The accepted comparison where there was one, else that of everything pushed so far.

        Raises:
            SettingsError: the stream was opened without a template.
            SampleError: the recording cannot be used; the subclass and the message say why.
            ThresholdError, ModelMismatchError, UncalibratedDomainError: as :func:`uvsdk.verify`.
        """
        if self._decision is None or not self._decision.accepted:
            self._decision = self._compare()
        return self._decision

    def _compare(self) -> Decision:
        if self._template is None:
            raise SettingsError("the stream has no template to decide by; open it with template=")
        return verify(
            self.sample,
            self._template,
            model=self._bundle,
            threshold=self._threshold,
            strict_domain=self._strict_domain,
            capture=self._capture,
        )

    def _progress(self) -> Progress:
        if self._frames - self._listener.searched < _SEARCH_S * self._rate:
            speech_s = self._listener.speech_s
        else:
            speech_s = self._listener.search()
        advice = ""
        due = sum(speech_s >= check for check in self._checks_s)
        accepted = self._decision is not None and self._decision.accepted
        if self._template is not None and due > self._checked and not accepted:
            self._checked = due
            try:
                self._decision = self._compare()
            except (SampleError, UncalibratedDomainError) as error:  # more speech, or better, may still come
                advice = str(error)
        percent = min(100.0 * speech_s / self._checks_s[-1], 100.0)
        ready = speech_s >= self._minimum_s
        return Progress(percent, speech_s, self._frames / self._rate, ready, self._decision, advice)

    def _check_like_before(self, pcm: Array, rate: int) -> None:
        if not self._chunks:
            return
        first = self._chunks[0]
        if rate != self._rate or pcm.dtype != first.dtype or pcm.shape[1:] != first.shape[1:]:
            raise UndecodableSampleError(
                f"a stream is of one kind: it began with {first.dtype} {('n', *first.shape[1:])} at {self._rate} Hz, "
                f"this chunk is {pcm.dtype} {('n', *pcm.shape[1:])} at {rate} Hz"
            )
