"""Templates made again from the stored features when the model has moved on, for a template is bound to its model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.enroll import personal_threshold
from uvsdk.errors import EnrolmentError, ModelMismatchError
from uvsdk.template import Template

DEFAULT_FMR = 0.01
"""The false match rate :func:`uvsdk.enroll` aims for unless told otherwise."""


def embeddings(features: Sequence[Array], bundle: Bundle) -> Float32:
    """One unit embedding per sample, float32 (n, d). Raises :class:`EnrolmentError` where there is no sample."""
    if not features:
        raise EnrolmentError("no features were kept of this enrolment, so nothing can be embedded again; enrol again")
    reader = modality.get(bundle.manifest.modality)
    return bundle.embeddings([reader.views(item, bundle.manifest.preprocessing) for item in features])


def remade(old: Template, features: Sequence[Array], bundle: Bundle) -> Template:
    """The template of the same samples under another model, with a threshold for the same false match rate.

    Args:
        old: gives the modality and the false match rate.
        features: what the store kept of the enrolment.
        bundle: the newer model; without calibration the template has no threshold.

    Raises:
        ModelMismatchError: the bundle is for another modality.
        EnrolmentError: no features, or their mean has no direction.
        ThresholdError: the bundle's calibration cannot support the false match rate.
    """
    if bundle.manifest.modality != old.modality:
        raise ModelMismatchError(
            f"the enrolment is by {old.modality}, the model is for {bundle.manifest.modality}; use another model"
        )
    rows = embeddings(features, bundle)
    mean = rows.mean(axis=0, dtype=np.float64)
    norm = float(np.linalg.norm(mean))
    if norm < 1e-6:
        raise EnrolmentError("under this model the samples contradict each other: their mean has no direction")
    threshold = None
    if bundle.calibration is not None:
        fmr = DEFAULT_FMR if old.threshold is None else old.threshold.fmr
        threshold = personal_threshold(bundle.calibration.threshold(fmr), bundle.calibration, rows)
    return Template((mean / norm).astype(np.float32), bundle.version, old.modality, len(features), threshold)


def is_current(template: Template, bundle: Bundle) -> bool:
    """Whether ``template`` is of this model, and has a threshold if the model can give one."""
    return template.model_version == bundle.version and (template.threshold is not None or bundle.calibration is None)
