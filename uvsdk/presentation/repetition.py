"""The very same sample again: a recording or a picture that was handed in before, or one that repeats itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Captured
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.presentation.fingerprint import agreement, face_print, likeness, repeats_within, voice_prints
from uvsdk.presentation.recollection import Recollection
from uvsdk.scoring import Presentation


@dataclass(frozen=True, slots=True)
class VoiceRepetition:
    """Whether a recording, or a part of it, was heard before, or occurs twice in it.

    Louder, softer, cut, delayed, resampled and lossy copies are known again, words cut out of an earlier recording,
    and some copies that were played through a loudspeaker; ``tests/benchmarks/presentation`` has the rates. A person
    who says the same words again is not refused: no two utterances agree to the hundredth of a second.

    Args:
        recollection: what was heard before.
        agreement: of a second with an earlier one, above which it is the same, in (0, 1). On LibriSpeech no two
            utterances reached 0.51, and where the same digits were said again in the same rhythm 0.66; digital copies
            lie above 0.89, those with noise or from a room from 0.5 on.
        half_agreement: the same of half a second. Same digits said again reached 0.75, digits cut from an earlier
            phrase lie above 0.84.
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``voice``.
    """

    recollection: Recollection
    agreement: float = 0.70
    half_agreement: float = 0.82
    name: str = "voice-repetition"
    modality: str = "voice"

    def __post_init__(self) -> None:
        _check_share(self.agreement)
        _check_share(self.half_agreement)

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`.

        The score is by how much the higher of both agreements stays below its limit; below 0 one is passed.
        """
        if not isinstance(captured, CapturedVoice):
            raise SettingsError(f"{self.name} listens to a captured voice, got {type(captured).__name__}")
        prints = voice_prints(captured.pcm, self.recollection.key)
        found = [agreement(prints, known) for known in self.recollection.voices]
        earlier = (max((one for one, _ in found), default=0.0), max((half for _, half in found), default=0.0))
        within = repeats_within(prints)
        reasons = []
        if self._margin(earlier) < 0:
            reasons.append("this recording, or a part of it, was heard before: speak anew")
        if self._margin(within) < 0:
            reasons.append("a part of this recording is repeated in it exactly: speak without playing anything back")
        measured = {
            "earlier_agreement": earlier[0],
            "earlier_half_agreement": earlier[1],
            "own_agreement": within[0],
            "own_half_agreement": within[1],
        }
        score = min(self._margin(earlier), self._margin(within))
        return Presentation(self.name, score, 0.0, tuple(reasons), measured)

    def _margin(self, found: tuple[float, float]) -> float:
        return min(self.agreement - found[0], self.half_agreement - found[1])


@dataclass(frozen=True, slots=True)
class FaceRepetition:
    """Whether the same picture of a face was seen before.

    It knows again a file that is sent twice, or packed anew at high quality. A person whose camera, light and pose stay
    the same gives pictures almost as alike, so the limit is high, and a copy that was resized, cropped or photographed
    again is not found: ``tests/benchmarks/presentation``.

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
