"""Verification: one probe against one template."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import ModelMismatchError, SampleError, ThresholdError
from uvsdk.inference import Embedded, embed, open_bundle
from uvsdk.scoring import Decision, Presentation, Threshold
from uvsdk.template import Template

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture, Sample
    from uvsdk.presentation import PresentationAttackDetector

_NORM_TOLERANCE = 1e-3  # SPEC 1.7


def verify(
    probe: Sample,
    template: Template,
    *,
    model: Bundle | str | os.PathLike[str],
    threshold: Threshold | None = None,
    capture: Capture | None = None,
    detectors: Sequence[PresentationAttackDetector] = (),
) -> Decision:
    """Compare a probe with a template: accept where their cosine similarity reaches the threshold (SPEC 1.6).

    A probe that cannot be used is an error and not a rejection. Everything that needs no decoding is checked before
    the probe is read.

    Args:
        probe: one sample, in any form the modality reads.
        template: whom it is claimed to be.
        model: the bundle the template was made with, or its path; a path is opened once.
        threshold: in place of the template's own.
        capture: how the probe is taken: quality policy, rule for several faces, limits.
        detectors: presentation attack detectors that look at the probe too; what they say is in the decision's
            ``presentations``, and one that sees an attack keeps the probe from being accepted.

    Returns:
        A decision whose ``timings_s`` has ``decode``, ``detect``, ``features``, ``model`` and ``decision``, and
        ``presentation:NAME`` for every detector. It has no truth value: write ``verify(...).accepted``.

    Raises:
        SampleError: the probe cannot be used; the subclass and the message say why.
        ModelMismatchError: the template was made with another model version.
        ThresholdError: there is no threshold, or it was measured with another model version.
        BundleError: the model cannot be read.
        SettingsError: a detector looks at samples of another modality.
    """
    return verified(probe, template, model=model, threshold=threshold, capture=capture, detectors=detectors)[0]


def verified(
    probe: Sample,
    template: Template,
    *,
    model: Bundle | str | os.PathLike[str],
    threshold: Threshold | None = None,
    capture: Capture | None = None,
    detectors: Sequence[PresentationAttackDetector] = (),
) -> tuple[Decision, Embedded]:
    """:func:`verify`, with what the probe became: for a runtime whose templates follow their person."""
    bundle = open_bundle(model)
    if template.model_version != bundle.version:
        raise ModelMismatchError(
            f"the template was made with model {template.model_version[:12]}, this is {bundle.version[:12]}: use the "
            "bundle it was made with, or enrol again from the stored features"
        )
    limit = _applicable(threshold or template.threshold, bundle)
    _check_detectors(detectors, bundle)
    embedded = embed(probe, bundle, capture=capture)
    start = time.perf_counter()
    score = compare(embedded.embedding, template)
    timings_s = {**embedded.timings_s, "decision": time.perf_counter() - start}
    presentations, spent_s = _examine(detectors, embedded)
    decision = Decision(
        score, limit, bundle.version, embedded.quality, {**timings_s, **spent_s}, presentations=presentations
    )
    return decision, embedded


def compare(embedding: Float32, template: Template) -> float:
    """Cosine similarity of one embedding with a template, in [-1, 1], summed in float64.

    Args:
        embedding: float32 (d,), unit norm, made with the template's model version: that is the caller's to check.
        template: what it is compared with.

    Raises:
        ModelMismatchError: the dimensions differ.
        SampleError: the embedding is not finite or its norm is not 1 (SPEC 1.7), so its score would mean nothing.
    """
    if embedding.shape != template.embedding.shape:
        raise ModelMismatchError(
            f"the template has {template.embedding.shape[0]} dimensions, the embedding has shape {embedding.shape}; "
            "they come from different models"
        )
    vector = embedding.astype(np.float64)
    norm = float(np.linalg.norm(vector))
    if not abs(norm - 1.0) <= _NORM_TOLERANCE:  # written so that NaN fails
        raise SampleError(f"an embedding has norm 1, got {norm:.4g}; normalise it as Bundle.embedding does")
    return float(np.clip(vector @ template.embedding.astype(np.float64), -1.0, 1.0))


def _check_detectors(detectors: Sequence[PresentationAttackDetector], bundle: Bundle) -> None:
    if detectors:
        from uvsdk.presentation import check

        check(detectors, bundle.manifest.modality)


def _examine(
    detectors: Sequence[PresentationAttackDetector], embedded: Embedded
) -> tuple[tuple[Presentation, ...], dict[str, float]]:
    if not detectors:
        return (), {}
    # Detectors bring Pillow and the modalities along, which `import uvsdk` leaves until they are needed.
    from uvsdk.presentation import examine

    return examine(detectors, embedded.captured, embedded.embedding)


def _applicable(threshold: Threshold | None, bundle: Bundle) -> Threshold:
    if threshold is None:
        raise ThresholdError(
            "there is no threshold to decide by: the template was made with a bundle that had not been calibrated. "
            "Enrol again with a calibrated bundle, or pass threshold=calibration.threshold(fmr) from impostor trials "
            "with this model (uvsdk.scoring.Calibration)"
        )
    if threshold.model_version and threshold.model_version != bundle.version:
        raise ThresholdError(
            f"the threshold was measured with model {threshold.model_version[:12]}, this is {bundle.version[:12]}; "
            "calibrate this model"
        )
    return threshold


__all__ = ["compare", "verified", "verify"]
