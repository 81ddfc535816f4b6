"""What was measured in one sample, and what it must reach before it is matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from uvsdk.errors import LowQualityError

QualityPolicy: TypeAlias = Literal["strict", "standard", "off"]
"""``off`` refuses only what cannot be matched at all (silence, no face), ``standard`` what would be matched badly,
``strict`` what an enrolment should not be built on."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured in one sample before any matching.

    Args:
        measured: name with unit -> value, e.g. ``{"speech_s": 3.2}`` or ``{"face_pixels": 140.0}``.
        advice: what a person can do to make the sample better; empty where nothing is wrong.
    """

    measured: dict[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requirement:
    """The range in which one measured value must lie.

    Args:
        name: key of :attr:`Quality.measured`.
        words: what the value is, as a person calls it, e.g. ``"signal to noise ratio"``.
        unit: printed after the value; empty for none.
        standard: lowest and highest value under ``standard``; infinite where one side is open.
        strict: the same under ``strict``; it lies within ``standard``.
        advice: what the person can do, one imperative sentence without a full stop.
    """

    name: str
    words: str
    unit: str
    standard: tuple[float, float]
    strict: tuple[float, float]
    advice: str

    def __post_init__(self) -> None:
        low, high = self.standard
        if not low <= self.strict[0] <= self.strict[1] <= high:
            raise ValueError(f"{self.name}: what is strict lies within what is standard")

    def shortfall(self, value: float, policy: QualityPolicy) -> str:
        """What is missing, with the value and the range; empty where nothing is. NaN misses every range."""
        if policy == "off":
            return ""
        low, high = self.strict if policy == "strict" else self.standard
        if low <= value <= high:
            return ""
        bound = f"at most {high:g}" if value > high else f"at least {low:g}"
        shown = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.words} {shown}{unit}, need {bound}{unit}: {self.advice}"


def assess(
    measured: Mapping[str, float],
    requirements: Sequence[Requirement],
    *,
    policy: QualityPolicy,
    advice: Sequence[str] = (),
) -> Quality:
    """The quality of a sample that meets ``policy``; what only ``strict`` would miss becomes advice.

    A value that was not measured is not asked for.

    Args:
        measured: as for :class:`Quality`.
        requirements: of the modality.
        policy: which range applies.
        advice: further advice.

    Raises:
        LowQualityError: a requirement is missed; the message names every one that is.

    >>> import numpy as np
    >>> snr = Requirement("snr_db", "signal to noise ratio", "dB", (5, np.inf), (15, np.inf), "go inside")
    >>> assess({"snr_db": 10.0}, [snr], policy="standard").advice
    ('signal to noise ratio 10 dB, need at least 15 dB: go inside',)
    >>> assess({"snr_db": 2.0}, [snr], policy="standard")
    Traceback (most recent call last):
      ...
    uvsdk.errors.LowQualityError: signal to noise ratio 2 dB, need at least 5 dB: go inside
    """
    present = [item for item in requirements if item.name in measured]
    missed = [words for item in present if (words := item.shortfall(measured[item.name], policy))]
    if missed:
        raise LowQualityError("; ".join(missed), dict(measured))
    wished = [words for item in present if (words := item.shortfall(measured[item.name], "strict"))]
    return Quality(dict(measured), (*wished, *advice))
