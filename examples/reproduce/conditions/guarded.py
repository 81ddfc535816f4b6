"""Likelihood ratios of many trials as :func:`uvsdk.verify` decides on one: with what it takes off where a template or
a probe lies outside of what the calibration was measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.reproduce.conditions.embedded import Rows
from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.scoring import Calibration
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.likelihood import features


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """Of every trial.

    Args:
        ratios: float64 (n,), natural logarithm of the likelihood ratio.
        guarded: float64 (n,), the same less what strangers may score higher outside of the calibration's domain.
        outside: bool (n,), whether template or probe lies outside.
    """

    ratios: Float64
    guarded: Float64
    outside: Bool


def decided(calibration: Calibration, template: Rows, probe: Rows, first: Int64, second: Int64) -> Decided:
    """Of the pairs of template ``first`` and probe ``second``, int64 (n,) each.

    The calibration has a likelihood ratio without normalisation by a cohort, as ``uvsdk export`` attaches it.
    """
    ratio = calibration.ratio
    assert ratio is not None
    assert not ratio.top
    sides = [(rows.embeddings, rows.conditions()) for rows in (template, probe)]
    compared = [ratio.compensation.apply(embeddings) for embeddings, _ in sides]
    placed = [ratio.surroundings.place(conditions) for _, conditions in sides]
    scores = np.einsum("nd,nd->n", compared[0][first], compared[1][second])
    found = features(placed[0][first], placed[1][second])
    plain = ratio.ratios(scores, found)
    if calibration.domain is None:
        return Decided(plain, plain, np.zeros(len(plain), np.bool_))
    lacking = [np.array([bool(ratio.surroundings.lacking(item)) for item in conditions]) for _, conditions in sides]
    outside, rise = _rises(calibration.domain, compared, lacking, (first, second))
    return Decided(plain, ratio.ratios(scores - rise, found), outside)


def _rises(
    domain: Domain, compared: Sequence[Float64], lacking: Sequence[Bool], pairs: tuple[Int64, Int64]
) -> tuple[Bool, Float64]:
    """:meth:`Domain.place` of many pairs: whether outside, and by how much strangers may score higher."""
    mean = domain.mean.astype(np.float64)
    distances = [
        np.array([domain.distance(row) for row in rows])[index] for rows, index in zip(compared, pairs, strict=True)
    ]
    less = lacking[0][pairs[0]] | lacking[1][pairs[1]]
    outside = (distances[0] > domain.limit) | (distances[1] > domain.limit) | less
    expected = np.where(less, domain.distances[0], domain.distances[1])
    beyond = [np.maximum(np.nan_to_num(distance) - expected, 0.0) for distance in distances]
    linear = sum(((rows - mean) @ mean)[index] for rows, index in zip(compared, pairs, strict=True))
    rise = np.maximum(np.sqrt(beyond[0] * beyond[1]) / domain.gain + linear, 0.0)
    return outside, np.where(outside, rise, 0.0)
