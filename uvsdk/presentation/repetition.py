"""The very same sample again: a recording or a picture that was handed in before, or one that repeats itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Captured
from uvsdk.modality.face import CapturedFace
from uvsdk.modality.voice import CapturedVoice
from uvsdk.presentation.fingerprint import agreement, face_print, likeness, repeats_within, voice_prints
from uvsdk.presentation.recollection import Recollection
from uvsdk.scoring import Presentation


@dataclass(frozen=True, slots=True)
class VoiceRepetition:
    """Whether a recording, or a second of it, was heard before, or occurs twice in it.

    Louder, softer, cut, delayed, resampled and lossy copies are known again, and some that were played through a
    loudspeaker; ``tests/benchmarks/presentation`` has the rates. A person who says the same words again is not refused:
    no two utterances agree to the hundredth of a second.

    Args:
        recollection: what was heard before.
        agreement: of a second of speech with an earlier one, from which it is the same, in (0, 1). On LibriSpeech no
            two utterances passed 0.50, and where the same digits were said again in the same rhythm 0.66; copies lie
            above 0.89.
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``voice``.
    """

    recollection: Recollection
    agreement: float = 0.70
    name: str = "voice-repetition"
    modality: str = "voice"

    def __post_init__(self) -> None:
        _check_share(self.agreement)

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`; the score is 1 less the highest agreement."""
        if not isinstance(captured, CapturedVoice):
            raise SettingsError(f"{self.name} listens to a captured voice, got {type(captured).__name__}")
        prints = voice_prints(captured.pcm, self.recollection.key)
        earlier = max((agreement(prints, known) for known in self.recollection.voices), default=0.0)
        within = repeats_within(prints)
        reasons = []
        if earlier > self.agreement:
            reasons.append("this recording, or a part of it, was heard before: speak anew")
        if within > self.agreement:
            reasons.append("a part of this recording is repeated in it exactly: speak without playing anything back")
        measured = {"earlier_agreement": earlier, "own_agreement": within}
        score = 1.0 - max(earlier, within)
        return Presentation(self.name, score, 1.0 - self.agreement, tuple(reasons), measured)


@dataclass(frozen=True, slots=True)
class FaceRepetition:
    """Whether the same picture of a face was seen before, resized or packed anew.

    It knows again a file that is sent twice. A person whose camera, light and pose stay the same gives pictures almost
    as alike as that, so the limit is high, and a copy that was cropped or photographed again is not found.

    Args:
        recollection: what was seen before.
        likeness: of two aligned faces, from which they are one picture, in (0, 1). Different pictures of one person
            reached 0.89 in a studio (ORL), 0.63 in the news (LFW).
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``face``.
    """

    recollection: Recollection
    likeness: float = 0.93
    name: str = "face-repetition"
    modality: str = "face"

    def __post_init__(self) -> None:
        _check_share(self.likeness)

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`; the score is 1 less the highest likeness."""
        if not isinstance(captured, CapturedFace):
            raise SettingsError(f"{self.name} looks at a captured face, got {type(captured).__name__}")
        seen = face_print(captured.chip, self.recollection.key)
        highest = float(np.max([likeness(seen, known) for known in self.recollection.faces], initial=-1.0))
        reasons = ("this picture was seen before: take a new one",) if highest > self.likeness else ()
        return Presentation(self.name, 1.0 - highest, 1.0 - self.likeness, reasons, {"earlier_likeness": highest})


def _check_share(value: float) -> None:
    if not 0.0 < value < 1.0:
        raise SettingsError(f"an agreement lies between 0 and 1, got {value}")


__all__ = ["FaceRepetition", "VoiceRepetition"]
