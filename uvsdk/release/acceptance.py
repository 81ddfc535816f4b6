"""What a device tries before it switches to a release: its owner is accepted, strangers and noise are not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.errors import ThresholdError, UvsdkError
from uvsdk.scoring import Calibration, Threshold
from uvsdk.scoring.conditions import UNKNOWN
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.personal import genuine_scores, own_ratios
from uvsdk.scoring.plausibility import check

LEAST_SHARE: Final = 0.5
"""Of the owner's own samples, each against the template of the others, so many must be accepted."""

MOST_STRANGERS: Final = 0.1
"""Of the strangers a device knows, and of those behind a calibration, at most so many may be accepted."""

MOST_NOISE: Final = 0.5
"""Of samples that are nobody's at most so many may be accepted."""

LEAST_VALUES: Final = 64
"""Features of fewer values than this are no noise in another order."""

_NOBODY: Final = np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Shares:
    """What one model makes of one person, as shares of 1; what there was nothing of counts as good.

    Args:
        own: of the person's samples that are accepted, each against the template of the others.
        strangers: of other people's samples that are accepted against the person's template.
        noise: of nobody's samples that are.
        expected: of the people behind the calibration, by where their embeddings lie, that would be.
    """

    own: float = 1.0
    strangers: float = 0.0
    noise: float = 0.0
    expected: float = 0.0


NOBODY_VERIFIED: Final = Shares(own=0.0)
"""Of a device that had no threshold before: nobody was accepted, so a model that accepts its owner now and then is no
loss, and one that accepts strangers is."""


def shares(
    rows: Float32, strangers: Float32, calibration: Calibration, threshold: Threshold, *, noise: Float32 = _NOBODY
) -> Shares:
    """What a model accepts at ``threshold``, on the scale of that threshold; arguments as for :func:`objection`."""
    mean = rows.mean(axis=0, dtype=np.float64)
    template = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return Shares(
        own=_share(_own(rows, calibration, threshold), threshold, 1.0) if len(rows) > 1 else 1.0,
        strangers=_share(_against(template, strangers, calibration, threshold), threshold, 0.0),
        noise=_share(_against(template, noise, calibration, threshold), threshold, 0.0),
        expected=_expected(calibration.compared(template), calibration.domain, threshold),
    )


def objection(
    rows: Float32,
    strangers: Float32,
    calibration: Calibration | None,
    *,
    fmr: float | None = None,
    noise: Float32 = _NOBODY,
    former: Shares | None = None,
) -> str:
    """Why a device does not switch to a model, in words; empty where it does.

    Args:
        rows: float32 (k, d), unit: its owner's enrolment samples under the model.
        strangers: float32 (n, d), unit: anybody else's, may be empty.
        calibration: of the model.
        fmr: false match rate of the owner; ``None``, or one that the trials cannot support, for the model's default.
        noise: float32 (m, d), unit: samples that are nobody's (:func:`nobodys`), may be empty.
        former: what the model in use makes of the same; being no worse than that is no reason to object.
    """
    if not all(np.isfinite(given).all() for given in (rows, strangers, noise)):
        return "the model gives values that are not finite"
    if calibration is None:
        return "the model has no calibration, so nobody could be verified by it"
    try:
        check(calibration)
        limit = _threshold(calibration, fmr)
    except UvsdkError as error:
        return f"its calibration is refused: {error}"
    if limit.scale == "cosine" and not -0.5 < limit.score < 1.0:
        return f"its threshold is {limit.score:.2f}, which no measurement gives"
    now, least = shares(rows, strangers, calibration, limit, noise=noise), former or Shares()
    if now.own < min(LEAST_SHARE, least.own):
        return f"{now.own:.0%} of the owner's own samples are accepted, {LEAST_SHARE:.0%} are the least"
    for share, most, what in (
        (now.strangers, max(MOST_STRANGERS, least.strangers), "of other people are accepted as the owner"),
        (now.noise, max(MOST_NOISE, least.noise), "of noise is accepted as the owner"),
        (
            now.expected,
            max(MOST_STRANGERS, least.expected),
            "of the people it was calibrated on would be accepted as the owner",
        ),
    ):
        if share > most:
            return f"{share:.0%} {what}"
    return ""


def nobodys(features: Array, rng: np.random.Generator, *, samples: int = 4) -> list[Array]:
    """Samples that are nobody's: the values of one of the owner's, in another order, so noise of the same loudness.

    A model that has collapsed finds it as much like the owner as everything else is, which a device without any
    stranger's sample could not see otherwise.

    Args:
        features: of one enrolment sample, of any shape; of fewer than :data:`LEAST_VALUES` nothing is made.
        rng: gives the order.
        samples: how many.
    """
    flat = features.reshape(-1)
    if len(flat) < LEAST_VALUES:
        return []
    return [rng.permutation(flat).reshape(features.shape) for _ in range(samples)]


def _threshold(calibration: Calibration, fmr: float | None) -> Threshold:
    if fmr is not None:
        try:
            return calibration.threshold(fmr, calibration.scale)
        except ThresholdError:
            pass
    return calibration.threshold(calibration.default_fmr(calibration.scale), calibration.scale)


def _own(rows: Float32, calibration: Calibration, threshold: Threshold) -> Float64:
    if threshold.scale == "llr":
        return own_ratios(calibration, rows, template=None, conditions=())
    return genuine_scores(rows, calibration.centring)


def _against(template: Float64, others: Float32, calibration: Calibration, threshold: Threshold) -> Float64:
    if not len(others):
        return np.empty(0, np.float64)
    if threshold.scale == "llr":
        templates = np.broadcast_to(template.astype(np.float32), others.shape)
        unknown = [UNKNOWN] * len(others)
        return calibration.llrs(templates, others, template=unknown, probe=unknown)
    return np.asarray(calibration.compared(others) @ calibration.compared(template), np.float64)


def _share(values: Float64, threshold: Threshold, nothing: float) -> float:
    return float((values >= threshold.score).mean()) if len(values) else nothing


def _expected(template: Float64, domain: Domain | None, threshold: Threshold) -> float:
    """Share of the people behind the calibration whose mean would be accepted, by a normal law; a likelihood ratio's
    threshold is not on the scale of their moments, so of those nothing is said."""
    if domain is None or threshold.scale != "cosine" or domain.mean.shape != template.shape:
        return 0.0
    along = domain.directions.astype(np.float64) @ template
    beside = max(1.0 - float(along @ along), 0.0)
    spare = max(len(template) - len(along), 1)
    variance = float((domain.variances * along**2).sum()) + domain.rest * beside / spare
    distance = threshold.score - float(domain.mean.astype(np.float64) @ template)
    if variance <= 0.0:
        return float(distance <= 0.0)
    return 0.5 * math.erfc(distance / math.sqrt(2.0 * variance))
