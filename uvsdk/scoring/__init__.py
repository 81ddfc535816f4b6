"""From a comparison to a decision: quality, thresholds, calibration, presentation attacks, fusion, the decision."""

from __future__ import annotations

from uvsdk.scoring.basis import Basis
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.cohort import Cohort
from uvsdk.scoring.conditions import Conditions
from uvsdk.scoring.decision import Decision
from uvsdk.scoring.domain import Placement
from uvsdk.scoring.fusion import fuse
from uvsdk.scoring.intervals import clopper_pearson
from uvsdk.scoring.likelihood import LikelihoodRatio
from uvsdk.scoring.presentation import Presentation
from uvsdk.scoring.quality import Quality, QualityPolicy, Requirement, assess
from uvsdk.scoring.threshold import Scale, Threshold

__all__ = [
    "Basis",
    "Calibration",
    "Cohort",
    "Conditions",
    "Decision",
    "LikelihoodRatio",
    "Placement",
    "Presentation",
    "Quality",
    "QualityPolicy",
    "Requirement",
    "Scale",
    "Threshold",
    "assess",
    "clopper_pearson",
    "fuse",
]
