"""What a presentation attack detector is, and how several look at one sample."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Protocol

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Captured
from uvsdk.scoring import Presentation


class PresentationAttackDetector(Protocol):
    """Tells a bona fide presentation from an attack (ISO/IEC 30107-1).

    A detector is pure: the same sample gives the same answer, nothing is remembered between calls, and several
    threads may call it at once. What one must know beforehand (earlier samples, a challenge) it is made with.
    """

    @property
    def name(self) -> str:
        """What :attr:`uvsdk.scoring.Presentation.detector` says."""

    @property
    def modality(self) -> str:
        """Whose samples it looks at, e.g. ``voice``."""

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """Look at one decoded sample.

        Args:
            captured: what the modality decoded: :class:`uvsdk.modality.voice.frames.CapturedVoice` or
                :class:`uvsdk.modality.face.chips.CapturedFace`.
            embedding: what the model made of it, float32 (d,), unit norm.
        """


def detectors_of(bundle: Bundle) -> tuple[PresentationAttackDetector, ...]:
    """The detectors that come with ``bundle``, if any. Raises :class:`BundleError` where one's graph is refused."""
    if bundle.presentation is None:
        return ()
    return (resolve_name(modality.get(bundle.manifest.modality).classifier).of(bundle),)


def check(detectors: Sequence[PresentationAttackDetector], modality: str) -> None:
    """Raises :class:`SettingsError` where a detector looks at another modality, or two share a name."""
    for detector in detectors:
        if detector.modality != modality:
            raise SettingsError(
                f"the detector {detector.name} looks at {detector.modality} samples, this model takes {modality}; "
                "leave it out"
            )
    names = [detector.name for detector in detectors]
    if len(set(names)) != len(names):
        raise SettingsError(f"every detector has a name of its own, got {', '.join(names)}")


def examine(
    detectors: Sequence[PresentationAttackDetector], captured: Captured | None, *, embedding: Float32
) -> tuple[tuple[Presentation, ...], dict[str, float]]:
    """What every detector says of one sample, in their order, and the seconds each took (``presentation:NAME``).

    Args:
        detectors: already through :func:`check`.
        captured: the decoded sample.
        embedding: as for :meth:`PresentationAttackDetector.assess`.

    Raises:
        SettingsError: there are detectors and the modality captures nothing that they could look at.
    """
    if detectors and captured is None:
        raise SettingsError("samples of this modality are not kept for presentation attack detectors; pass none")
    presentations: list[Presentation] = []
    timings_s: dict[str, float] = {}
    for detector in detectors:
        start = time.perf_counter()
        assert captured is not None  # for the type checker: refused above
        presentations.append(detector.assess(captured, embedding))
        timings_s[f"presentation:{detector.name}"] = time.perf_counter() - start
    return tuple(presentations), timings_s
