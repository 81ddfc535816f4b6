"""How far an enrolment has come, and what to expect of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.scoring import Calibration, clopper_pearson
from uvsdk.templates.template import Template

SAMPLES: Final = 5
"""Samples of a complete enrolment. Genuine probes rejected at a false match rate of 1 %, after 1, 3 and 5 samples: 1.1,
0.04 and 0 % (LFW), 4.8, 0 and 0 % (LibriSpeech in clips of 3.5 s); more changed nothing
(``tests/benchmarks/enrolment``)."""

VARIETY: Final = 0.1
"""Mean cosine distance among the samples over that among different people. Pictures of different days have 0.37 (LFW),
of one sitting 0.17 (ORL), recordings of one reader 0.25 (LibriSpeech); a burst has about 0.05."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """How much of a good enrolment is there.

    Args:
        percent: of what is most lacking, rounded down: 100 only where nothing is missing.
        missing: what is, in words for the person; empty at 100.
    """

    percent: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedFnmr:
    """How often the person will be rejected, estimated from the enrolment itself.

    Each sample is compared with the template of the others at the template's threshold. The estimate is **optimistic**
    where all samples were made in one sitting: another day, microphone or light is not among them.

    Args:
        rejected: samples that were.
        trials: samples in all.
        interval: 95 % interval (Clopper-Pearson) of the false non-match rate; wide for few samples, as it should be.
    """

    rejected: int
    trials: int
    interval: tuple[float, float]

    @property
    def rate(self) -> float:
        """Rejected over trials."""
        return self.rejected / self.trials

    @property
    def words(self) -> str:
        """One sentence.

        >>> ExpectedFnmr(0, 3, clopper_pearson(0, 3)).words
        '0 of 3 samples rejected, so 0 to 71 % (95 % interval), and more on other days'
        """
        low, high = self.interval
        return (
            f"{self.rejected} of {self.trials} samples rejected, so {math.floor(100 * low)} to {math.ceil(100 * high)} "
            "% (95 % interval), and more on other days"
        )


def completeness(template: Template, embeddings: Float32, *, calibration: Calibration | None) -> Completeness:
    """How complete the enrolment is that ``template`` was made in.

    Args:
        template: its modality chooses the words, its conditions have the seconds of speech where they were measured.
        embeddings: float32 (n, d), unit rows, n >= 1, of all samples.
        calibration: tells how different two people are, without which variety is not judged.
    """
    from uvsdk import modality

    kind, count = modality.get(template.modality), len(embeddings)
    shares, missing = [count / SAMPLES], []
    if count < SAMPLES:
        missing.append(f"{SAMPLES - count} more samples ({count} of {SAMPLES})")
    for condition in kind.conditions:
        got, need = template.conditions.get(condition.name), condition.complete
        if got is not None and need:
            shares.append(got / need)
            if got < need:
                noun = condition.name.removesuffix("_s")
                missing.append(f"{need - got:.1f} s more {noun} ({got:.1f} of {need:g} s)")
    variety = _variety(embeddings, calibration)
    if variety is not None:
        shares.append(variety / VARIETY)
        if variety < VARIETY:
            missing.append(f"variety, the samples are nearly alike: {kind.advice}")
    return Completeness(math.floor(100 * min(1.0, *shares) + 1e-9), tuple(missing))


def expected_fnmr(scores: Float64, threshold: float) -> ExpectedFnmr | None:
    """From each sample's score against the template of the others, on the scale of ``threshold``.

    ``None`` for fewer than two samples, which have no others.
    """
    if len(scores) < 2:
        return None
    rejected = int((scores < threshold).sum())
    return ExpectedFnmr(rejected, len(scores), clopper_pearson(rejected, len(scores)))


def _variety(embeddings: Float32, calibration: Calibration | None) -> float | None:
    """Mean cosine distance among the samples over the median of impostors; ``None`` where it cannot be judged."""
    if calibration is None or not len(calibration.impostor) or len(embeddings) < 2:
        return None
    rows = calibration.compared(embeddings)
    own = 1.0 - (rows @ rows.T)[np.triu_indices(len(rows), 1)].mean()
    others = 1.0 - calibration.ranked.median
    return float(own) / others if others > 0 else None
