"""Several decisions about one person become one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from uvsdk.errors import ExchangedBundleError, ModelMismatchError, ThresholdError
from uvsdk.scoring.basis import Basis
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.decision import Decision
from uvsdk.scoring.quality import Quality
from uvsdk.scoring.ranked import RankedScores
from uvsdk.scoring.threshold import Threshold

FUSED = "fused"
"""Joins the model versions of the parts in that of the whole."""

_BINS = 4096


def fuse(
    decisions: Sequence[Decision],
    *,
    fmr: float | None = None,
    calibrations: Sequence[Calibration | None] | None = None,
) -> Decision:
    """Voice and face, or several samples, in one decision: the sum of their log likelihood ratios.

    The sum is the ratio of all the evidence where the parts are independent given who the person is: true for a voice
    and a face, nearly so for recordings made at different times, and false for two cuts of one recording.

    The threshold never lies below ``ln 1/fmr``: for any likelihood ratio P(LLR >= t | impostor) <= exp(-t), whatever
    its distribution. Where ``calibrations`` has every part's impostor trials the distribution of their sum is computed
    as well, and the higher of the two thresholds is used, so that ratios that are a little off cannot lower it.

    Where one of the modalities is missing (no camera, no speech) there is nothing to fuse: the decision of the other
    one alone stands, against its own threshold. A part that failed presentation attack detection fails the whole.

    Args:
        decisions: two or more of one person in one session, each with its ``llr``. Nothing in a decision names the
            person, so that is the caller's to see to.
        fmr: false match rate of the whole, in (0, 1); the highest of the parts' own where left out.
        calibrations: for each part that of its model (``bundle.calibration``), or ``None``.

    Returns:
        A decision whose ``llr`` is the sum, whose ``parts`` are ``decisions`` and whose ``score`` is the first part's.

    Raises:
        ThresholdError: a part has no likelihood ratio, or ``fmr`` is no rate.
        ModelMismatchError: a calibration is of another model than the part in its place.
        ExchangedBundleError: a calibration is not the one that the part in its place was decided under.
        ValueError: fewer than two parts, a part that is fused itself, one decision twice, or a number of
            ``calibrations`` that is not that of ``decisions``.

    >>> limit = Threshold(score=2.0, fmr=0.01, trials=1000, scale="llr")
    >>> voice = Decision(0.8, limit, "voice-model", llr=3.0)
    >>> face = Decision(0.5, limit, "face-model", llr=2.5)
    >>> both = fuse([voice, face], fmr=0.01)
    >>> both.llr, round(both.threshold.score, 3), both.accepted  # ln 100 = 4.605
    (5.5, 4.605, True)
    """
    parts = tuple(decisions)
    _check(parts, fmr)
    asked = fmr
    if fmr is None:
        fmr = max(part.threshold.fmr for part in parts)
    known = [] if calibrations is None else _impostors(parts, calibrations)
    ratios = [part.llr for part in parts if part.llr is not None]
    bound = -math.log(fmr)
    score = max(bound, _tail(known, fmr)) if len(known) == len(parts) else bound
    version = f"{FUSED}:" + "+".join(part.model_version for part in parts)
    return Decision(
        score=parts[0].score,
        threshold=Threshold(score, fmr, min(part.threshold.trials for part in parts), (0.0, 1.0), version, "llr"),
        model_version=version,
        quality=Quality(advice=tuple(word for part in parts for word in part.quality.advice)),
        timings_s=_added(parts),
        llr=math.fsum(ratios),
        presentations=tuple(item for part in parts for item in part.presentations),
        parts=parts,
        basis=Basis.of([part.basis for part in parts], asked_fmr=asked, fmr=fmr),
    )


def _check(parts: tuple[Decision, ...], fmr: float | None) -> None:
    if len(parts) < 2:
        raise ValueError(f"fusing takes two decisions or more, got {len(parts)}; a single one stands by itself")
    if fmr is not None and not 0.0 < fmr < 1.0:
        raise ThresholdError(f"a false match rate lies between 0 and 1, got {fmr}")
    if any(part.parts for part in parts):
        raise ValueError("a part is fused already; fuse all the single decisions at once")
    if len({id(part) for part in parts}) < len(parts):
        raise ValueError("the same decision was given twice; its evidence counts once")
    bare = sum(part.llr is None for part in parts)
    if bare:
        raise ThresholdError(
            f"{bare} of {len(parts)} decisions have no likelihood ratio, so they cannot be weighed against each other; "
            "calibrate their models with uvsdk calibrate"
        )


def _impostors(parts: tuple[Decision, ...], calibrations: Sequence[Calibration | None]) -> list[RankedScores]:
    """The impostor ratios that are known."""
    if len(calibrations) != len(parts):
        raise ValueError(f"{len(parts)} decisions have as many calibrations, got {len(calibrations)}")
    for part, calibration in zip(parts, calibrations, strict=True):
        if calibration is not None and calibration.model_version != part.model_version:
            raise ModelMismatchError(
                f"a calibration is of model {calibration.model_version[:12]}, the decision in its place of "
                f"{part.model_version[:12]}; hand them in in the same order"
            )
        read_from = part.threshold.calibration
        if calibration is not None and read_from and calibration.digest != read_from:
            raise ExchangedBundleError(
                f"a decision was made under the calibration {read_from[:12]}, the one handed in is "
                f"{calibration.digest[:12]}; hand in the calibration of the bundle that decided"
            )
    return [item.ratio.ranked for item in calibrations if item is not None and item.ratio is not None]


def _tail(parts: Sequence[RankedScores], fmr: float) -> float:
    """Smallest threshold on a grid above which the sum of independent draws, one a part, falls at most ``fmr`` often.

    The parts' histograms are convolved on one grid; rounding up makes the tail heavier, never lighter.
    """
    spans = [(float(part.values[0]), float(part.values[-1])) for part in parts]
    step = max(max(high - low for low, high in spans) / _BINS, 1e-9)
    total, lowest = np.ones(1), 0.0
    for part, (low, _) in zip(parts, spans, strict=True):
        bins = np.ceil((part.values.astype(np.float64) - low) / step).astype(np.int64)
        total = np.convolve(total, np.bincount(bins, weights=part.weights) / part.trials)
        lowest += low
    above = np.cumsum(total[::-1])[::-1]
    # The first grid point whose tail is within the rate; above the last one lies nothing.
    within = np.flatnonzero(above <= fmr + 1e-12)
    place = int(within[0]) if len(within) else len(total)
    return lowest + place * step


def _added(parts: tuple[Decision, ...]) -> dict[str, float]:
    added: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.timings_s.items():
            added[stage] = added.get(stage, 0.0) + seconds
    return added
