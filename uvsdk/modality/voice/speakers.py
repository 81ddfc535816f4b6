"""Whether one person speaks in a recording, or two, one after the other.

A model hears two people in two ways. Where its graph gives ``spans``, half seconds of a recording that each went
through its head, they are cut in two at every place and the parts compared (:func:`difference_of_spans`). Where it does
not, its windows are (:func:`difference_of_parts`), of which there must be four. How much the parts of one person differ
depends on the model, so the limit is the bundle's: ``second_speaker`` in its preprocessing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import LowQualityError
from uvsdk.scoring import Quality, QualityPolicy, Requirement, assess

LIMIT = 0.35
"""Of the difference between parts, where the bundle names none: that of GE2E's windows. 160 LibriSpeech recordings of
one reader reach 0.27; of 2,877 made of two readers, one after the other, 92 % exceed 0.35."""

WINDOWS = 4
"""Windows of the model without which two speakers are not told from one."""

SPANS = 5
"""Spans without which they are not; 2.5 s of speech."""

# The direction of a part's mean is the less certain the shorter the part is: the cosine between two parts of one person
# falls by about this much for each in units of one over its spans.
_UNCERTAINTY = 0.4
# ``strict`` asks for this part of the limit.
_STRICT = 6 / 7


def difference_of_parts(rows: Float32) -> float:
    """How far the model finds the parts of one recording apart: 0 where all agree, 1 where they share nothing.

    The windows are cut in two parts at every place, each of two windows or more, and the directions of the parts'
    means compared; the result is one minus the lowest of these similarities.

    Args:
        rows: the model's unit rows for consecutive windows, (n, d), n >= 4.

    >>> one, other = np.eye(2, dtype=np.float32)
    >>> difference_of_parts(np.stack([one, one, other, other]))
    1.0
    """
    differences, _ = _cut(rows, least=2)
    return float(np.clip(differences.max(), 0.0, 1.0))


def difference_of_spans(spans: Float32) -> float:
    """The same by spans: 0 where all agree, below 1 where two parts share nothing, for short parts most of all.

    The spans are cut in two parts at every place. One minus the cosine of the parts' means is divided by
    1 + 0.4 (1 / n + 1 / m) for parts of n and m spans; the result is the highest of these.

    Args:
        spans: the model's rows for consecutive spans, (k, d), k >= 2, not of unit length.

    >>> one, other = np.eye(2, dtype=np.float32)
    >>> round(difference_of_spans(np.stack([one, one, one, other, other, other])), 3)  # 1 / (1 + 0.4 (1/3 + 1/3))
    0.789
    """
    differences, first = _cut(spans, least=1)
    certain = 1.0 + _UNCERTAINTY * (1.0 / first + 1.0 / (len(spans) - first))
    return float(np.clip((differences / certain).max(), 0.0, 1.0))


def with_speakers(
    quality: Quality, rows: Float32, spans: Float32 | None, *, policy: QualityPolicy, limit: float = LIMIT
) -> Quality:
    """The quality with what the model says of a second speaker, where it heard enough.

    Args:
        quality: of the recording so far.
        rows: unit rows of the windows, float32 (n, d).
        spans: rows of the half seconds, float32 (k, d); ``None`` where the bundle's graph gives none.
        policy: what is refused.
        limit: of the difference between two parts.

    Raises:
        LowQualityError: more than one person speaks.
    """
    if spans is None:
        if len(rows) < WINDOWS:
            return quality
        difference = difference_of_parts(rows)
    elif len(spans) < SPANS:
        return quality
    else:
        difference = difference_of_spans(spans)
    return with_people(quality, _requirement(limit), difference, policy)


def with_people(quality: Quality, requirement: Requirement, value: float, policy: QualityPolicy) -> Quality:
    """The quality with one more value that tells of several people.

    Raises:
        LowQualityError: it is higher than ``policy`` lets pass.
    """
    measured = {**quality.measured, requirement.name: value}
    try:
        found = assess(measured, (requirement,), policy=policy, advice=quality.advice)
    except LowQualityError as error:
        raise LowQualityError(f"more than one person seems to speak: {error}", measured) from error
    return replace(quality, measured=measured, advice=found.advice)


def _requirement(limit: float) -> Requirement:
    return Requirement(
        "second_speaker",
        "difference between its parts",
        "",
        (-math.inf, limit),
        (-math.inf, round(_STRICT * limit, 3)),
        "record one person alone",
    )


def _cut(rows: Float32, *, least: int) -> tuple[Float64, Float64]:
    """One minus the cosine of the means of the first rows and the rest, by how many the first are; each ``least`` or
    more."""
    sums = np.cumsum(rows, axis=0, dtype=np.float64)
    first = np.arange(least, len(rows) - least + 1)
    before, after = sums[first - 1], sums[-1] - sums[first - 1]
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    similarity = (before * after).sum(axis=1) / np.maximum(norms, 1e-12)
    return 1.0 - similarity, first.astype(np.float64)
