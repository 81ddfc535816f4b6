"""What becomes of each sample of an enrolment: read, told from copies, and judged by the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from uvsdk.arrays import Array, Bool, Float32
from uvsdk.bundle.inference import Embedded, embed
from uvsdk.enrolment import consistency
from uvsdk.errors import EnrolmentError, SampleError
from uvsdk.scoring import Calibration, Quality
from uvsdk.scoring.conditions import Conditions, conditions_of, together
from uvsdk.templates.storage import Store, conditions_in
from uvsdk.templates.template import Template

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture, Sample


@dataclass(frozen=True, slots=True)
class SampleReport:
    """What became of one enrolment sample.

    Args:
        index: its place in the list that was handed in, from 0.
        accepted: whether it is part of the template.
        reason: why not, for the person who made it; empty where accepted.
        quality: what was measured; ``None`` where it could not be read.
        similarity: cosine with the template of the other samples; ``None`` where there was nothing to compare.
    """

    index: int
    accepted: bool
    reason: str = ""
    quality: Quality | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """The samples of an enrolment that is extended; one entry of each a sample, embeddings float32 (d,).

    ``measured`` is what the store keeps of each beside the conditions that a calibration looks at, which are among it.
    """

    features: tuple[Array, ...] = ()
    embeddings: tuple[Float32, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    measured: tuple[Conditions, ...] = ()


NOTHING: Final = Earlier()
"""Of somebody who was not enrolled before, or whose enrolment is replaced."""


def earlier_samples(user_id: str, earlier: Template, store: Store, bundle: Bundle) -> Earlier:
    """The samples of ``earlier``, embedded again. Raises :class:`EnrolmentError` where no features were kept."""
    from uvsdk import modality

    features = store.features(user_id)
    if not features:
        raise EnrolmentError("no features were kept of this enrolment, so nothing can be added to it; enrol again")
    reader = modality.get(bundle.manifest.modality)
    views = [reader.views(item, bundle.manifest.preprocessing) for item in features]
    embedded = tuple(bundle.embeddings(views))
    measured = conditions_in(store, user_id)
    if len(measured) != len(features):
        # The template knows them of all samples together: seconds in all, the rest on average.
        shares = {
            name: value / len(features) if name.endswith("_s") else value for name, value in earlier.conditions.items()
        }
        measured = (shares,) * len(features)
    conditions = tuple(conditions_of(item, reader.conditions) for item in measured)
    return Earlier(features, embedded, conditions, measured)


def read(
    samples: Sequence[Sample], bundle: Bundle, capture: Capture | None, kept: Sequence[Array]
) -> tuple[dict[int, Embedded], list[SampleReport]]:
    """Every sample that can be used, by its place, and a report on each."""
    usable: dict[int, Embedded] = {}
    reports: list[SampleReport] = []
    seen = {_digest(features): "a sample that is enrolled already" for features in kept}
    for index, sample in enumerate(samples):
        try:
            embedded = embed(sample, bundle, capture=capture)
        except SampleError as error:
            reports.append(SampleReport(index, False, str(error)))
            continue
        # A copy teaches nothing about how the person varies, and would set the threshold where only copies reach it.
        digest = _digest(embedded.features)
        if digest in seen:
            reports.append(SampleReport(index, False, f"the same as {seen[digest]}; make a new one", embedded.quality))
            continue
        seen[digest] = f"sample {index}"
        usable[index] = embedded
        reports.append(SampleReport(index, True, "", embedded.quality))
    return usable, reports


def of_one_person(
    readable: dict[int, Embedded],
    reports: Sequence[SampleReport],
    kept: Earlier,
    *,
    calibration: Calibration | None,
    fmr: float | None,
) -> tuple[list[Embedded], tuple[SampleReport, ...]]:
    """The samples of one person, and the reports with each one's similarity to the others.

    Args:
        readable: by place.
        reports: one for each sample that was handed in.
        kept: what they are added to; it decides whose they are.
        calibration: says what one person's samples look like.
        fmr: at which the person is verified; ``None`` takes every sample.

    Raises:
        EnrolmentError: nobody made more than half of them.
    """
    found = list(reports)
    if not readable:
        return [], tuple(found)
    places = list(readable)
    embedded = np.stack([readable[place].embedding for place in places])
    former = np.reshape(kept.embeddings, (-1, embedded.shape[1])).astype(np.float32)
    rows, anchor = _compared(embedded, calibration), _compared(former, calibration)
    same = -math.inf if fmr is None else consistency.limit(calibration, fmr)
    own = consistency.like(rows, anchor, same=same) if len(anchor) else _majority(rows, places, same)
    if calibration is not None and fmr is not None and not own.all():
        kinds = () if calibration.ratio is None else calibration.ratio.surroundings.conditions
        conditions = [conditions_of(readable[place].quality.measured, kinds) for place in places]
        own |= _under_conditions(embedded, own, conditions, kept, calibration, fmr)
    group = np.concatenate([anchor, rows[own]])
    for place, row, accepted in zip(places, rows, own.tolist(), strict=True):
        similarity = consistency.similarity(row, group, among=accepted)
        reason = ""
        if not accepted and similarity is not None:
            need = "" if same is None else f" (need {same:.2f})"
            reason = (
                f"unlike the others, similarity {similarity:.2f}{need}: somebody else's, or a bad one; make a new one"
            )
        found[place] = SampleReport(place, accepted, reason, readable[place].quality, similarity)
    return [readable[place] for place, accepted in zip(places, own.tolist(), strict=True) if accepted], tuple(found)


def _compared(rows: Float32, calibration: Calibration | None) -> Float32:
    """Rows between which cosines are taken, as the thresholds of the calibration are of them."""
    return rows if calibration is None else np.asarray(calibration.compared(rows), np.float32)


def _under_conditions(
    rows: Float32,
    own: Bool,
    conditions: Sequence[Conditions],
    kept: Earlier,
    calibration: Calibration,
    fmr: float,
) -> Bool:
    """bool (n,): the samples of the same person once it is weighed how short or noisy each is; a cosine cannot."""
    limit = consistency.limit(calibration, fmr, scale="llr")
    if limit is None:
        return np.zeros(len(rows), np.bool_)
    mean = mean_of(np.stack([*kept.embeddings, *rows[own]]))
    theirs = together([*kept.conditions, *(item for item, mine in zip(conditions, own, strict=True) if mine)])
    templates = np.ascontiguousarray(np.broadcast_to(mean, rows.shape))
    alike: Bool = calibration.llrs(templates, rows, template=[theirs] * len(rows), probe=conditions) >= limit
    return alike


def _majority(rows: Float32, places: Sequence[int], same: float | None) -> Bool:
    """bool (n,): the samples of whoever made more than half of them. Raises :class:`EnrolmentError` if nobody did."""
    largest = consistency.majority(rows, same=same)
    if largest is None:
        people = consistency.groups(rows, same=same)
        listed = "; ".join(", ".join(str(places[index]) for index in group.tolist()) for group in people)
        raise EnrolmentError(
            f"the samples contradict each other: they look like those of {len(people)} people (samples {listed}) and "
            "none of them made more than half; enrol one person at a time, from new samples"
        )
    own = np.zeros(len(rows), np.bool_)
    own[largest] = True
    return own


def mean_of(embeddings: Float32) -> Float32:
    """The normalised mean, float32 (n, d) -> (d,). Raises :class:`EnrolmentError` where it has no direction."""
    mean = embeddings.mean(axis=0, dtype=np.float64)
    norm = float(np.linalg.norm(mean))
    if norm < 1e-6:
        raise EnrolmentError("the samples contradict each other: their mean has no direction. Are they of one person?")
    return np.asarray(mean / norm, np.float32)


def too_few(usable: int, minimum: int, reports: Sequence[SampleReport]) -> str:
    """That so many samples do not make a template, with the reason of every one that was left out."""
    reasons = "; ".join(f"sample {report.index}: {report.reason}" for report in reports if not report.accepted)
    return f"{usable} of {len(reports)} samples can be used, {minimum} are needed" + (
        f" ({reasons})" if reasons else ""
    )


def _digest(features: Array) -> bytes:
    return hashlib.sha256(repr((features.dtype.str, features.shape)).encode() + features.tobytes()).digest()
