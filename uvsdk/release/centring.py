"""What everybody's embeddings share, into the bias of a head that is made for it: where training starts.

A microphone, a telephone or a foreign language moves all embeddings of an encoder the same way, so strangers' cosines
rise. A backbone ``<name>+centred`` ends in ``W u + b`` of the unit embedding u, with W = 1 and b = 0 at first. The
first evaluation of such a model gives sums over everybody's templates, which is all that is needed: b is minus their
mean.
Nothing is sent for it that an evaluation does not send anyway. It moves everybody alike, so it helps people who are no
part of the sum as much. What it reveals of those who are: ``docs/privacy.md``.

With t the mean of all people's templates, which are unit vectors, and m the mean of single people's mean embeddings,
known of those alone who only evaluate, ``b = -t (m . t) / (t . t)``: as long as what single embeddings share.

>>> found = centre(np.array([0.8, 0.0]), np.array([0.4, 0.1]))
>>> found.tolist()
[0.4, 0.0]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.bundle.manifest import CENTRED, Manifest
from uvsdk.release.sums import ModelSums

LEAST_CENTRED: Final = 16
"""Fewest people whose mean is told: the eight who train and the eight who evaluate, without whom there is no training.
Whoever has a recording of somebody guesses from the mean of 16 whether they are among them with an area under the curve
of 0.72, of 50 with 0.64, of 100 with 0.60 (0.5 is a guess; telephone speech, CAM++); on clean speech with 0.88, 0.74
and 0.68 (``examples/reproduce/learning/membership.py``)."""


def centre(templates: Float64, single: Float64) -> Float64:
    """What is taken off every unit embedding.

    Args:
        templates: float64 (d,), the mean of everybody's templates.
        single: float64 (d,), the mean of people's mean embeddings.
    """
    square = float(templates @ templates)
    share = min(max(float(templates @ single) / square, 0.0), 1.0) if square else 0.0
    found: Float64 = templates * share
    return found


def centred(theta: Float32, sums: ModelSums, *, dimension: int) -> Float32 | None:
    """theta with the bias that centres; ``None`` where the head is no longer as it began, or where the sums do not
    tell, for they are of too few people or of scores alone.

    Args:
        theta: float32 (P,), of the model that was evaluated, whose backbone ends in a centred head (:func:`centres`).
        sums: of its evaluation.
        dimension: d.
    """
    whole = sums.total
    if whole is None or whole.template.size != dimension or whole.templates < LEAST_CENTRED or not whole.people:
        return None
    # The head is what a backbone ends in: its matrix, then its bias.
    matrix, bias = theta[-dimension * (dimension + 1) : -dimension], theta[-dimension:]
    if not np.array_equal(matrix, np.eye(dimension, dtype=np.float32).ravel()) or bias.any():
        return None
    moved = theta.copy()
    # Both are kept as sums.
    found = centre(whole.enrolled.mean / whole.templates, whole.strangers.mean / whole.people)
    moved[-dimension:] = -found.astype(np.float32)
    return moved


def centres(manifest: Manifest) -> bool:
    """Whether a model ends in a head that can be centred."""
    return manifest.backbone.endswith(f"+{CENTRED}")
