"""The detectors that come with a bundle."""

from __future__ import annotations

from pkgutil import resolve_name

from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.presentation.detector import PresentationAttackDetector


def carried(bundle: Bundle) -> tuple[PresentationAttackDetector, ...]:
    """Every detector that ``bundle`` carries; empty where it carries none.

    Raises:
        BundleError: onnxruntime refuses its graph.
    """
    if bundle.presentation is None:
        return ()
    return (resolve_name(modality.get(bundle.manifest.modality).classifier).of(bundle),)


__all__ = ["carried"]
