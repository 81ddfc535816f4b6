"""Active liveness by voice: say these digits now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import ChallengeError, EnrolmentError, SettingsError, TemplateFormatError, WireError
from uvsdk.modality.contract import Captured
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.presentation.challenge import DIGITS, Challenge
from uvsdk.presentation.sealed import seal, unseal
from uvsdk.presentation.spoken_words import FRAMES_PER_S, WIDTH, align, cepstra, split
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring import Presentation

READINGS: Final = 3
"""Readings of all ten digits that an enrolment asks for; with one, right phrases are refused three times as often."""

_MAXIMUM_READINGS: Final = 10
# A spoken digit lasts this long, in seconds.
_DIGIT_S = (0.1, 2.0)
_MAGIC = b"UVD1"
# Where two decisions part, per frame: nobody's phrase is infinitely far from another.
_FARTHEST = 1e3


@dataclass(frozen=True, slots=True, eq=False)
class SpokenDigitTemplates:
    """How one person says each digit.

    It is as personal as a recording: what was said could be made audible from it. :meth:`to_bytes` encrypts it.

    Args:
        digits: each of ``"0"`` to ``"9"`` -> its recordings, float32 (frames, 24) each, one or more.
    """

    digits: Mapping[str, tuple[Float32, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        lacking = [digit for digit in DIGITS if not self.digits.get(digit)]
        if lacking or set(self.digits) != set(DIGITS):
            raise EnrolmentError(f"every digit must have been said once, {', '.join(lacking) or 'and no other word'}")
        for recording in (item for group in self.digits.values() for item in group):
            if recording.ndim != 2 or recording.shape[1] != WIDTH or recording.dtype != np.float32:
                raise EnrolmentError(f"a digit is float32 (frames, {WIDTH}), got {recording.dtype} {recording.shape}")
            if not len(recording) or not np.isfinite(recording).all():
                raise EnrolmentError("a digit holds no frames, or values that are not finite")

    @classmethod
    def enrol(
        cls, readings: Sequence[tuple[CapturedVoice, Sequence[str]]], *, least: int = READINGS
    ) -> SpokenDigitTemplates:
        """From recordings in which the person read all ten digits, with a short pause between any two.

        Args:
            readings: each a recording and the digits that were asked for, in the order in which they were read; it is
                the app's to see that the person said these (show them, and play none).
            least: how many readings there must be.

        Raises:
            EnrolmentError: too few readings, digits missing, or a reading whose words cannot be told apart.
        """
        if not max(least, 1) <= len(readings) <= _MAXIMUM_READINGS:
            raise EnrolmentError(f"{len(readings)} readings of the digits, need {least} to {_MAXIMUM_READINGS}")
        digits: dict[str, list[Float32]] = {digit: [] for digit in DIGITS}
        for number, (captured, spoken) in enumerate(readings, 1):
            if not set(spoken) <= set(DIGITS) or not spoken:
                raise EnrolmentError(f"reading {number} asks for words that are no digits")
            rows, loud = cepstra(captured.pcm)
            parts = split(loud, len(spoken))
            lengths_s = [(end - start) / FRAMES_PER_S for start, end in parts]
            if len(parts) < len(spoken) or not all(_DIGIT_S[0] <= length <= _DIGIT_S[1] for length in lengths_s):
                raise EnrolmentError(
                    f"in reading {number} {len(parts)} words of {min(lengths_s, default=0):.2f} to "
                    f"{max(lengths_s, default=0):.2f} s were heard, need {len(spoken)} of {_DIGIT_S[0]} to "
                    f"{_DIGIT_S[1]} s; read the digits one by one, with a short pause after each, in a quiet place"
                )
            for digit, (start, end) in zip(spoken, parts, strict=True):
                digits[digit].append(rows[start:end].copy())
        return cls({digit: tuple(found) for digit, found in digits.items()})

    def to_bytes(self, key: bytes) -> bytes:
        """Encrypt under a key of 32 bytes (:func:`uvsdk.templates.template.new_key`); two calls
        never give the same bytes.

        Raises:
            SettingsError: a key of another length.
        """
        recordings = [item for digit in DIGITS for item in self.digits[digit]]
        body = _Body(
            counts=tuple(len(self.digits[digit]) for digit in DIGITS),
            frames=tuple(len(item) for item in recordings),
            rows=np.concatenate(recordings),
        )
        return seal(_MAGIC, pack(body), key=key)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: bytes) -> SpokenDigitTemplates:
        """Decrypt what :meth:`to_bytes` made.

        Raises:
            TemplateFormatError: not spoken digits, cut short, changed, or encrypted with another key.
            SettingsError: a key that has not 32 bytes.
        """
        plain = unseal(_MAGIC, data, key=key, what="set of spoken digits")
        try:
            return unpack(_Body, plain).templates()
        except (WireError, EnrolmentError) as error:
            raise TemplateFormatError(f"the spoken digits decrypt and yet hold something else: {error}") from error


@dataclass(frozen=True, slots=True)
class SpokenDigits:
    """Whether the digits of a challenge were said, by the one who enrolled them, in time.

    The phrase is aligned with the person's own digits twice, as the challenge says and any way at all; what the
    challenge says must fit as well as anything does. Whose voice it is the decision's own score says, on the same
    sound. A synthetic voice that says the right digits in time passes.

    Args:
        challenge: as it was issued, from :meth:`uvsdk.presentation.Challenges.redeem`.
        templates: the person's digits.
        answered_at_s: Unix time at which the recording was handed in.
        tolerance: how much worse per frame the challenge's digits may fit than the best ones. Of three speakers of FSDD
            the right digits fitted at most 0.05 worse and those of another phrase at least 2.0; see
            ``tests/benchmarks/presentation``.
        farthest: mean distance per frame from which nothing fits: no digits, or another's.
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``voice``.
    """

    challenge: Challenge
    templates: SpokenDigitTemplates
    answered_at_s: float
    tolerance: float = 0.5
    farthest: float = 12.0
    name: str = "voice-digits"
    modality: str = "voice"

    def __post_init__(self) -> None:
        if self.challenge.kind != "digits":
            raise ChallengeError(f"spoken digits answer a challenge of kind digits, got {self.challenge.kind}")
        if not (self.tolerance >= 0 and self.farthest > 0 and math.isfinite(self.answered_at_s)):
            raise SettingsError("a tolerance is not negative, a distance positive, and a time finite")

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`.

        The score is how much less well than the best digits the challenge's fit, as a negative number per frame; where
        nothing fits, or the answer is late, it lies below the threshold too.
        """
        if not isinstance(captured, CapturedVoice):
            raise SettingsError(f"{self.name} listens to a captured voice, got {type(captured).__name__}")
        rows, loud = cepstra(captured.pcm)
        phrase = rows[loud]
        asked = freely = _FARTHEST
        if len(phrase) <= _DIGIT_S[1] * FRAMES_PER_S * len(self.challenge.steps):  # else it is far more than was asked
            asked = min(align(phrase, self.templates.digits, self.challenge.steps), _FARTHEST)
            freely = min(align(phrase, self.templates.digits, None), _FARTHEST)
        late_s = self.challenge.lateness_s(self.answered_at_s)
        reasons = []
        if late_s > 0:
            reasons.append(f"the answer missed the challenge's time by {late_s:.1f} s: ask for a new one")
        if freely > self.farthest:
            reasons.append("what was heard are not your digits: read them aloud, one after another")
        elif asked - freely > self.tolerance:
            reasons.append("other digits were heard than those shown: read them aloud in their order")
        score = freely - asked
        if reasons:
            score = min(score, -2.0 * self.tolerance - 1.0)
        measured = {"distance": asked, "best_distance": freely, "late_s": late_s}
        return Presentation(self.name, score, -self.tolerance, tuple(reasons), measured)


@dataclass(frozen=True, slots=True)
class _Body:
    """What is encrypted.

    Args:
        counts: recordings of each digit, 0 to 9.
        frames: of each recording.
        rows: float32 (sum of frames, 24).
    """

    counts: tuple[int, ...]
    frames: tuple[int, ...]
    rows: Float32

    def templates(self) -> SpokenDigitTemplates:
        whole = self.rows.dtype == np.float32 and self.rows.ndim == 2
        if not whole or len(self.counts) != len(DIGITS) or sum(self.counts) != len(self.frames):
            raise WireError("the counts of digits do not fit")
        if min(self.frames, default=0) < 1 or min(self.counts) < 1 or sum(self.frames) != len(self.rows):
            raise WireError("the lengths of digits do not fit")
        recordings = iter(np.split(self.rows, np.cumsum(self.frames, dtype=np.int64)[:-1]))
        digits = {
            digit: tuple(next(recordings).copy() for _ in range(count))
            for digit, count in zip(DIGITS, self.counts, strict=True)
        }
        return SpokenDigitTemplates(digits)
