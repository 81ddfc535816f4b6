"""What a decision rests on: whose scores its threshold was read from, when, and whether they speak for this probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from uvsdk.scoring.domain import Placement, Verdict


@dataclass(frozen=True, slots=True)
class Basis:
    """The measurement behind a decision. What is not known is empty, 0 or ``None``.

    Args:
        source: in words, whose samples the calibration was made of; empty for a threshold set by hand.
        people: behind the impostor trials.
        trials: impostor trials, of those people against each other.
        measured_unix_s: when, seconds since 1970.
        release: number of the release that the model and its calibration belong to.
        asked_fmr: the false match rate that was asked for; ``None`` where nobody named one.
        fmr: the rate that the threshold was read for: the one asked for, or the lowest that the trials support.
        placement: whether template and probe lie where those people lay; where they do not, the threshold on the cosine
            was raised by ``placement.cosine_rise``, and the score behind the likelihood ratio lowered by
            ``placement.rise``. Of a search: the best candidate's template.
        asked_fpir: of a search, which has no ``fmr``: the false positive identification rate that was asked for.
        fpir: of a search: the rate that the threshold was read for among so many people.
    """

    source: str = ""
    people: int = 0
    trials: int = 0
    measured_unix_s: float = 0.0
    release: int = 0
    asked_fmr: float | None = None
    fmr: float | None = None
    placement: Placement = field(default_factory=Placement)
    asked_fpir: float | None = None
    fpir: float | None = None

    @property
    def words(self) -> str:
        """One sentence for a person; it tells nothing of the template.

        >>> Basis().words
        'a threshold set by hand; nothing was measured'
        >>> Basis("40 people", 40, 780, asked_fmr=1e-4, fmr=0.004, placement=Placement("inside")).words[:80]
        'false match rate 0.004 (asked 0.0001) measured on 40 people, 780 impostor trials'
        """
        if not self.source:
            return "a threshold set by hand; nothing was measured"
        aimed = _aimed("false match rate", self.asked_fmr, self.fmr)
        aimed += _aimed("false positive identification rate", self.asked_fpir, self.fpir)
        outside = self.placement.verdict == "outside"
        parts = [f"{aimed}{'aimed for, not measured here: calibrated on' if outside else 'measured on'} {self.source}"]
        if self.trials:
            parts.append(f"{self.trials:,} impostor trials")
        if self.measured_unix_s:
            parts.append(f"{datetime.fromtimestamp(self.measured_unix_s, UTC):%Y-%m-%d}")
        if self.release:
            parts.append(f"release {self.release}")
        return f"{', '.join(parts)}; {self.placement.words}{', so more is asked for' if outside else ''}"

    @classmethod
    def of(cls, parts: Sequence[Basis], *, asked_fmr: float | None, fmr: float) -> Self:
        """Of a decision that several were fused into: it rests on the weakest of what they rest on.

        Args:
            parts: of the decisions.
            asked_fmr: for the fused decision.
            fmr: likewise.
        """
        verdicts: set[Verdict] = {part.placement.verdict for part in parts}
        verdict: Verdict = "outside" if "outside" in verdicts else "unknown" if "unknown" in verdicts else "inside"
        reasons = tuple(dict.fromkeys(reason for part in parts for reason in part.placement.reasons))
        releases = {part.release for part in parts}
        return cls(
            " and ".join(part.source for part in parts) if all(part.source for part in parts) else "",
            min(part.people for part in parts),
            min(part.trials for part in parts),
            min(part.measured_unix_s for part in parts),
            releases.pop() if len(releases) == 1 else 0,
            asked_fmr,
            fmr,
            Placement(verdict, reasons=reasons),
        )


def _aimed(name: str, asked: float | None, rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{name} {rate:g} " if asked in (None, rate) else f"{name} {rate:g} (asked {asked:g}) "
