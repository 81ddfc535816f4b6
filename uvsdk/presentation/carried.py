"""The detectors that come with a bundle."""

from __future__ import annotations

from uvsdk.bundle import Bundle
from uvsdk.presentation.antispoof import FaceClassifier
from uvsdk.presentation.detector import PresentationAttackDetector


def carried(bundle: Bundle) -> tuple[PresentationAttackDetector, ...]:
    """Every detector that ``bundle`` carries; empty where it carries none.

    Raises:
        BundleError: onnxruntime refuses its graph.
    """
    return () if bundle.presentation is None else (FaceClassifier.of(bundle),)


__all__ = ["carried"]
