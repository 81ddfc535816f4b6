"""A list of comparisons: which person's template, which person's probe, which score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.evaluation import metrics


@dataclass(frozen=True, slots=True)
class Trials:
    """Scores with the two people behind each; a trial is genuine where they are the same.

    Args:
        scores: float64 (N,), higher means "same person".
        template_subject: int64 (N,), index into ``subjects``: whose template was compared.
        probe_subject: int64 (N,), index into ``subjects``: who gave the probe.
        subjects: labels of the people, one an index.
    """

    scores: Float64
    template_subject: Int64
    probe_subject: Int64
    subjects: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.scores) == len(self.template_subject) == len(self.probe_subject):
            raise ValueError("a trial has one score, one template subject and one probe subject")
        for indices in (self.template_subject, self.probe_subject):
            if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self.subjects):
                raise ValueError(f"subject indices must lie in [0, {len(self.subjects)})")
        if not np.isfinite(self.scores).all():
            raise ValueError("scores must be finite numbers")

    @property
    def is_genuine(self) -> Bool:
        """bool (N,): template and probe are of the same person."""
        own: Bool = self.template_subject == self.probe_subject
        return own

    @property
    def genuine(self) -> Float64:
        """Scores of the genuine trials."""
        return self.scores[self.is_genuine]

    @property
    def impostor(self) -> Float64:
        """Scores of the impostor trials."""
        return self.scores[~self.is_genuine]

    def curve(self) -> metrics.Curve:
        """Both error counts at every threshold.

        Raises:
            ValueError: no genuine or no impostor trial.
        """
        return metrics.curve(self.genuine, self.impostor)

    def fnmr_by_subject(self, threshold: float) -> dict[str, float]:
        """Each person's own false non-match rate at ``threshold``."""
        own = self.is_genuine
        rates = metrics.fnmr_by_subject(self.scores[own], self.probe_subject[own], threshold=threshold)
        return {self.subjects[subject]: rate for subject, rate in rates.items()}
