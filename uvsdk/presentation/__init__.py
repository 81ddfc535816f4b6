"""Presentation attacks: is it the person who stands there, or a picture, a recording, a synthetic voice?

A detector (:class:`PresentationAttackDetector`) looks at one probe as it was decoded. ``verify(..., detectors=...)``
asks each, and accepts only what matches **and** what every one of them takes for bona fide. What each finds, and what
nothing here is known to find, is in ``docs/presentation.md``.

Rooms: :mod:`~uvsdk.presentation.detector` (the interface) · :mod:`~uvsdk.presentation.antispoof` (a classifier that a
face bundle carries) · :mod:`~uvsdk.presentation.repetition`, :mod:`~uvsdk.presentation.recollection` and
:mod:`~uvsdk.presentation.fingerprint` (the very same sample again) · :mod:`~uvsdk.presentation.cleanliness` (too clean
for a microphone) · :mod:`~uvsdk.presentation.challenge`, :mod:`~uvsdk.presentation.spoken_digits` and
:mod:`~uvsdk.presentation.head_turns` (active liveness). Error rates of detectors: :mod:`uvsdk.evaluation.presentation`.
"""

from __future__ import annotations

from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.presentation.antispoof import FaceClassifier
from uvsdk.presentation.challenge import Challenge, Challenges
from uvsdk.presentation.cleanliness import Cleanliness
from uvsdk.presentation.detector import PresentationAttackDetector, check, examine
from uvsdk.presentation.head_turns import HeadTurns, TurnFrame
from uvsdk.presentation.recollection import Recollection
from uvsdk.presentation.repetition import FaceRepetition, VoiceRepetition
from uvsdk.presentation.spoken_digits import SpokenDigits, SpokenDigitTemplates

__all__ = [
    "Challenge",
    "Challenges",
    "Cleanliness",
    "FaceClassifier",
    "FaceRepetition",
    "HeadTurns",
    "PresentationAttackDetector",
    "PresentationGraph",
    "Recollection",
    "SpokenDigitTemplates",
    "SpokenDigits",
    "TurnFrame",
    "VoiceRepetition",
    "check",
    "examine",
]
