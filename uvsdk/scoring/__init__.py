"""From a comparison to a decision: quality, thresholds, calibration, presentation attacks, the decision itself."""

from __future__ import annotations

from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.decision import Decision
from uvsdk.scoring.intervals import clopper_pearson
from uvsdk.scoring.presentation import Presentation
from uvsdk.scoring.quality import Quality, QualityPolicy, Requirement, assess
from uvsdk.scoring.threshold import Scale, Threshold

__all__ = [
    "Calibration",
    "Decision",
    "Presentation",
    "Quality",
    "QualityPolicy",
    "Requirement",
    "Scale",
    "Threshold",
    "assess",
    "clopper_pearson",
]
