"""Templates made again from the stored features when the model has moved on, for a template is bound to its model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Array, Bool, Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import EnrolmentError, ModelMismatchError
from uvsdk.scoring import Calibration
from uvsdk.scoring.personal import genuine_threshold, personal_threshold
from uvsdk.templates.template import Template
from uvsdk.verify import threshold_at


def embeddings(features: Sequence[Array], bundle: Bundle) -> Float32:
    """One unit embedding per sample, float32 (n, d). Raises :class:`EnrolmentError` where there is no sample."""
    if not features:
        raise EnrolmentError("no features were kept of this enrolment, so nothing can be embedded again; enrol again")
    reader = modality.get(bundle.manifest.modality)
    return bundle.embeddings([reader.views(item, bundle.manifest.preprocessing) for item in features])


def remake(
    old: Template,
    features: Sequence[Array],
    bundle: Bundle,
    *,
    trained: Array | None = None,
    fmr: float | None = None,
    fresh: Bool | None = None,
) -> Template:
    """The template of the same samples under another model, with a threshold for the same false match rate.

    It is the normalised mean of the samples' embeddings, or the vector that an algorithm trained this person towards
    (FedUV's codeword), once the model has learnt it: 19 in 20 of the person's own samples are then accepted against it
    where impostors are at the false match rate. Somebody who joined too late, or whose secret was lost, is verified by
    the mean until then (SPEC 6.7).

    Args:
        old: gives the modality and the false match rate, where somebody named one.
        features: what the store kept of the enrolment.
        bundle: the newer model; without calibration the template has no threshold, and is the mean.
        trained: float32 (d,), unit, what the algorithm left under :data:`uvsdk.federation.strategy.TEMPLATE`.
        fmr: false match rate where ``old`` has no threshold, having been made by a model without calibration; ``None``
            for the model's default.
        fresh: bool (n,), which features the model was made without (:func:`uvsdk_device.trained.fresh_samples`), for
            only those can raise the threshold; ``None`` for all.

    Raises:
        ModelMismatchError: the bundle is for another modality.
        EnrolmentError: no features, or their mean has no direction.
        ThresholdError: the bundle's calibration cannot support the false match rate, or not even 1 % where nobody
            named one.
    """
    if bundle.manifest.modality != old.modality:
        raise ModelMismatchError(
            f"the enrolment is by {old.modality}, the model is for {bundle.manifest.modality}; use another model"
        )
    rows = embeddings(features, bundle)
    if bundle.calibration is None:
        return Template(_mean(rows), bundle.version, old.modality, len(features), conditions=old.conditions)
    # A rate that nobody named is the model's default, and so the new model's now.
    if old.threshold is not None:
        fmr = None if old.threshold.by_default else old.threshold.fmr
    vector = None if trained is None else trained.astype(np.float32)
    if vector is not None:
        # A likelihood ratio is fitted on means of embeddings, which a trained vector is not.
        limit = threshold_at(bundle, fmr, scale="cosine")
        if is_learnt(vector, rows, limit.score, bundle.calibration):
            threshold = personal_threshold(limit, bundle.calibration, embeddings=rows, template=vector, fresh=fresh)
            return Template(vector, bundle.version, old.modality, len(features), threshold, old.conditions)
    threshold = personal_threshold(threshold_at(bundle, fmr), bundle.calibration, embeddings=rows, fresh=fresh)
    return Template(_mean(rows), bundle.version, old.modality, len(features), threshold, old.conditions)


def _mean(rows: Float32) -> Float32:
    mean = rows.mean(axis=0, dtype=np.float64)
    norm = float(np.linalg.norm(mean))
    if norm < 1e-6:
        raise EnrolmentError("under this model the samples contradict each other: their mean has no direction")
    return np.asarray(mean / norm, np.float32)


def is_learnt(trained: Float32, rows: Float32, impostor_score: float, calibration: Calibration | None = None) -> bool:
    """Whether the person's own samples reach the impostors' threshold against ``trained``; never for another d.

    ``calibration`` is the one that the threshold was read from, whose centre is taken out of both sides.
    """
    if trained.shape != rows.shape[1:]:
        return False
    if calibration is None or calibration.centring is None:
        scores = rows.astype(np.float64) @ trained
    else:
        scores = calibration.compared(rows) @ calibration.compared(trained)
    return genuine_threshold(scores) >= impostor_score


def is_current(template: Template, bundle: Bundle, *, trained: Array | None = None) -> bool:
    """Whether ``template`` is of this model, has a threshold if the model can give one, and is not the mean where an
    algorithm left ``trained``. Its threshold must be of the bundle's very calibration; one written before thresholds
    named theirs is told apart by its trials, where it is a likelihood ratio.

    Someone without a deployment at hand, who knows the mean only, may have made it of this very model.
    """
    if trained is not None and not np.array_equal(template.embedding, trained):
        return False
    if template.model_version != bundle.version:
        return False
    limit, calibration = template.threshold, bundle.calibration
    if limit is None:
        return calibration is None
    if limit.calibration:
        return calibration is not None and calibration.digest == limit.calibration
    if limit.scale == "cosine":
        return calibration is None or calibration.centring is None
    return calibration is not None and calibration.ratio is not None and calibration.ratio.trials == limit.trials
