"""What a presentation attack detector says of one sample (terms of ISO/IEC 30107-3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Presentation:
    """Bona fide presentation or attack.

    Args:
        detector: which detector said so, e.g. ``"face-antispoof"``.
        score: higher means more surely bona fide; the detector says on which scale.
        threshold: a presentation at or above it is bona fide.
        reasons: what spoke against it, in words a person can act on; empty where nothing did.
        measured: name with unit -> value.
    """

    detector: str
    score: float
    threshold: float
    reasons: tuple[str, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score) or not math.isfinite(self.threshold):
            raise ValueError("a presentation score that is not a number decides nothing")

    @property
    def bona_fide(self) -> bool:
        """Whether the score reaches the threshold."""
        return self.score >= self.threshold
