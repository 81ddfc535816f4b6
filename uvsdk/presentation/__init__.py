"""Presentation attacks: is it the person who stands there, or a picture, a recording, a synthetic voice?"""

from __future__ import annotations

from uvsdk.presentation.antispoof import FaceClassifier
from uvsdk.presentation.detector import PresentationAttackDetector, check, examine
from uvsdk.presentation.graph import PresentationGraph

__all__ = ["FaceClassifier", "PresentationAttackDetector", "PresentationGraph", "check", "examine"]
