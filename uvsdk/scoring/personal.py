"""The threshold of one person, from their own enrolment embeddings and the impostors' (SPEC 1.6, 6.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import UNKNOWN, Conditions, together
from uvsdk.scoring.threshold import Threshold

GENUINE_RATE: Final = 0.95
"""q of SPEC 6.4, by SPEC Appendix B."""

GENUINE_SAMPLES: Final = 20
"""Below 1 / (1 - q) samples no quantile can be read: the lowest of n scores would refuse one genuine probe in n + 1."""


def personal_threshold(
    threshold: Threshold,
    calibration: Calibration,
    *,
    embeddings: Float32,
    template: Float32 | None = None,
    conditions: Sequence[Conditions] = (),
    fresh: Bool | None = None,
) -> Threshold:
    """``max(tau_FMR, tau_TPR)`` of SPEC 1.6 for one person's enrolment embeddings.

    Where the person's own scores raise the threshold, the interval of the false match rate is measured again there.
    Fewer than 20 samples leave it as it is: their 5 % quantile is not among them, and taking the lowest score instead
    refused 25 % of genuine probes after three samples where tau_FMR alone refused none (LibriSpeech, 10 speakers).

    Samples that the model was trained on are not counted, and their scores not read: training drew them together and
    to their class vector, so their 5 % quantile lies above what a fresh probe of the same person reaches.

    Args:
        threshold: tau_FMR, from ``calibration``; on its scale the person's own values are computed too.
        calibration: of the model that made ``embeddings``.
        embeddings: float32 (n, d), unit rows.
        template: float32 (d,), unit, where it is not made of ``embeddings``, e.g. a codeword; ``None`` scores each
            sample against the template of the others, as :func:`genuine_scores` does.
        conditions: of each sample, where they are known; only likelihood ratios look at them.
        fresh: bool (n,), whether the model was made without that sample; ``None`` for all of them.

    Raises:
        ThresholdError: ``threshold`` is a likelihood ratio and ``calibration`` has none.
    """
    counted = np.ones(len(embeddings), np.bool_) if fresh is None else fresh
    if int(counted.sum()) < GENUINE_SAMPLES:
        return threshold
    if threshold.scale == "llr":
        # A ratio above the highest there is would accept nobody.
        highest = math.inf if calibration.ratio is None else calibration.ratio.highest
        ratios = own_ratios(calibration, embeddings, template=template, conditions=conditions)
        score = genuine_threshold(ratios[counted], bounds=(-math.inf, highest))
    else:
        if template is None:
            scores = genuine_scores(embeddings, calibration.centring)
        else:
            scores = calibration.compared(embeddings) @ calibration.compared(template)
        score = genuine_threshold(scores[counted])
    if score <= threshold.score:
        return threshold
    return replace(threshold, score=score, interval=calibration.interval(score, threshold.scale))


def own_ratios(
    calibration: Calibration, embeddings: Float32, *, template: Float32 | None, conditions: Sequence[Conditions]
) -> Float64:
    """Each sample's likelihood ratio against ``template`` or the mean of the others, under both sides' conditions.

    Arguments as for :func:`personal_threshold`; float32 (n, d) -> float64 (n,).
    """
    known = list(conditions) or [UNKNOWN] * len(embeddings)
    if template is None:
        templates = _others(embeddings)
        sides: list[Conditions] = [together(known[:index] + known[index + 1 :]) for index in range(len(known))]
    else:
        templates, sides = np.broadcast_to(template, embeddings.shape), [together(known)] * len(known)
    return calibration.llrs(np.asarray(templates, np.float32), embeddings, template=sides, probe=known)


def _others(embeddings: Float32) -> Float64:
    """The normalised mean of all other rows, for each row; zero where they cancel out."""
    rows = embeddings.astype(np.float64)
    others = rows.sum(axis=0) - rows
    return np.asarray(others / np.maximum(np.linalg.norm(others, axis=1, keepdims=True), 1e-12), np.float64)


def leave_one_out(embeddings: Float32, centring: Compensation | None = None) -> Float64:
    """Each embedding's score against the template of the others: float32 (n, d) -> float64 (n,).

    Both sides are centred where cosines are (:attr:`uvsdk.scoring.Calibration.centring`).
    """
    rows, others = embeddings.astype(np.float64), _others(embeddings)
    if centring is not None:
        rows, others = centring.apply(embeddings), centring.apply(others.astype(np.float32))
    # Others that cancel out have no direction; no probe resembles nothing, so the score is 0.
    return np.asarray(np.clip((rows * others).sum(axis=1), -1.0, 1.0), np.float64)


def genuine_scores(embeddings: Float32, centring: Compensation | None = None) -> Float64:
    """What each sample's score would be, were it a fresh probe: float32 (n, d), unit rows -> float64 (n,).

    A probe meets the template of all n samples, which is nearer to its person than one of n - 1. With unit samples
    x_i = s + e_i, e_i independent and 0 on average, the mean cosine of two of them is a = |s|^2, and the square of the
    length of a mean of k of them a + (1 - a) / k; so a fresh one scores a / sqrt(a + (1 - a) / k) against that, and
    each leave-one-out score is raised by the ratio of the two lengths. Where samples are unlike each other, a counts as
    0 at least, so the factor is sqrt(2) at most. Where cosines are centred, a is that of the centred samples.

    >>> pair = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)  # a = 0.6: times sqrt(1 / (0.6 + 0.4 / 2))
    >>> genuine_scores(pair).round(4).tolist()
    [0.6708, 0.6708]
    """
    count = len(embeddings)
    if count < 2:
        return np.empty(0, np.float64)
    rows = embeddings.astype(np.float64) if centring is None else centring.apply(embeddings)
    alike = (float((rows.sum(axis=0) ** 2).sum()) - float((rows**2).sum())) / (count * (count - 1))
    alike = min(max(alike, 0.0), 1.0)
    factor = math.sqrt((alike + (1.0 - alike) / (count - 1)) / (alike + (1.0 - alike) / count))
    return np.asarray(np.clip(leave_one_out(embeddings, centring) * factor, -1.0, 1.0), np.float64)


def genuine_threshold(
    scores: Float64, rate: float = GENUINE_RATE, *, bounds: tuple[float, float] = (-1.0, 1.0)
) -> float:
    """tau_TPR: the score that a fraction ``rate`` of genuine ``scores`` reaches (SPEC 6.4).

    The i-th smallest, i = floor(n (1 - rate)); with i = 0 a millionth under the lowest.
    ``bounds`` are those of the scale, a cosine's unless told otherwise. The specification accepts above tau, a
    :class:`Decision` at or above it, hence the next number up.

    >>> round(genuine_threshold(np.array([0.8, 0.7, 0.9])), 6)
    0.699999
    """
    ordered = np.sort(scores)
    place = math.floor(len(ordered) * (1.0 - rate) + 1e-9)  # 10 * (1 - 0.9) is a hair below 1
    low, high = bounds
    if place == 0:
        return max(float(ordered[0]) - 1e-6, low)
    return min(float(np.nextafter(ordered[place - 1], math.inf)), high)
