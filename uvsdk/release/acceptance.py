"""What a device tries before it switches to a release: its owner is accepted, strangers are not."""

from __future__ import annotations

from typing import Final

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import ThresholdError, UvsdkError
from uvsdk.scoring import Calibration
from uvsdk.scoring.personal import leave_one_out
from uvsdk.scoring.plausibility import check

LEAST_SHARE: Final = 0.5
"""Of the owner's own samples, each against the template of the others, so many must be accepted."""

MOST_STRANGERS: Final = 0.1
"""Of the strangers a device knows at most so many may be accepted."""


def objection(rows: Float32, strangers: Float32, calibration: Calibration | None, *, fmr: float | None = None) -> str:
    """Why a device does not switch to a model, in words; empty where it does.

    Args:
        rows: float32 (k, d), unit: its owner's enrolment samples under the model.
        strangers: float32 (n, d), unit: anybody else's, may be empty.
        calibration: of the model.
        fmr: false match rate of the owner; ``None`` for the model's default.
    """
    if not (np.isfinite(rows).all() and np.isfinite(strangers).all()):
        return "the model gives values that are not finite"
    if calibration is None:
        return "the model has no calibration, so nobody could be verified by it"
    try:
        check(calibration)
        limit = calibration.threshold(calibration.default_fmr("cosine") if fmr is None else fmr, "cosine").score
    except ThresholdError:
        limit = calibration.threshold(calibration.default_fmr("cosine"), "cosine").score
    except UvsdkError as error:
        return f"its calibration is refused: {error}"
    if not -0.5 < limit < 1.0:
        return f"its threshold is {limit:.2f}, which no measurement gives"
    if len(rows) > 1:
        share = float((leave_one_out(rows) >= limit).mean())
        if share < LEAST_SHARE:
            return f"{share:.0%} of the owner's own samples are accepted, {LEAST_SHARE:.0%} are the least"
    if len(strangers):
        mean = rows.mean(axis=0, dtype=np.float64)
        template = mean / max(float(np.linalg.norm(mean)), 1e-12)
        let_in = float((strangers.astype(np.float64) @ template >= limit).mean())
        if let_in > MOST_STRANGERS:
            return f"{let_in:.0%} of other people are accepted as the owner"
    return ""
