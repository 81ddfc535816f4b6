"""A score, the threshold it is held against, and the decision that follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uvsdk.scoring.basis import Basis
from uvsdk.scoring.presentation import Presentation
from uvsdk.scoring.quality import Quality
from uvsdk.scoring.threshold import Threshold


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one verification, with its evidence. It has no truth value: write ``decision.accepted``.

    Args:
        score: cosine similarity of probe and template; for a fused decision that of its first part.
        threshold: what was compared with :attr:`value`; it claims no trials and no interval where ``basis`` says that
            template or probe lies outside of what was measured.
        model_version: the model that gave the score.
        quality: what was measured in the probe.
        timings_s: stage -> seconds.
        llr: natural logarithm of P(score | same person) / P(score | another person) under the probe's and the
            template's conditions; ``None`` where the bundle is not calibrated for it. Outside of what was measured
            the score is first lowered by what strangers may have in common there (``basis.placement.rise``).
        presentations: what each presentation attack detector said of the probe; empty where none was asked.
        parts: the decisions that were fused into this one; empty otherwise.
        basis: what the threshold rests on, and whether that speaks for this template and probe.

    >>> threshold = Threshold(score=0.5, fmr=0.01, trials=1000)
    >>> decision = Decision(score=0.7, threshold=threshold, model_version="m")
    >>> decision.accepted
    True
    >>> bool(decision)
    Traceback (most recent call last):
      ...
    TypeError: a Decision has no truth value, so that `if verify(...)` cannot accept everyone; use .accepted
    """

    score: float
    threshold: Threshold
    model_version: str
    quality: Quality = field(default_factory=Quality)
    timings_s: dict[str, float] = field(default_factory=dict)
    llr: float | None = None
    presentations: tuple[Presentation, ...] = ()
    parts: tuple[Decision, ...] = ()
    basis: Basis = field(default_factory=Basis)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError("a score that is not a number decides nothing")
        if self.llr is not None and not math.isfinite(self.llr):
            raise ValueError("a likelihood ratio that is not a number decides nothing")
        if self.threshold.scale == "llr" and self.llr is None:
            raise ValueError("the threshold is a likelihood ratio and none was computed")

    @property
    def value(self) -> float:
        """The number that is compared with the threshold: ``llr`` or ``score``, by the threshold's scale."""
        return self.llr if self.threshold.scale == "llr" and self.llr is not None else self.score

    @property
    def matched(self) -> bool:
        """Whether the value reaches the threshold, whatever the presentation attack detectors say."""
        return self.value >= self.threshold.score

    @property
    def accepted(self) -> bool:
        """Whether the value reaches the threshold and no detector saw an attack."""
        return self.matched and all(item.bona_fide for item in self.presentations)

    def __bool__(self) -> bool:
        raise TypeError("a Decision has no truth value, so that `if verify(...)` cannot accept everyone; use .accepted")
