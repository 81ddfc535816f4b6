"""Verification: one probe against one template."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.bundle.inference import Embedded, embed, open_bundle
from uvsdk.errors import (
    ExchangedBundleError,
    LaxerRateError,
    ModelMismatchError,
    SampleError,
    ThresholdError,
)
from uvsdk.scoring import Basis, Calibration, Decision, Placement, Presentation, Quality, Scale, Threshold
from uvsdk.scoring.caution import basis_of, placed, raised
from uvsdk.scoring.conditions import conditions_of
from uvsdk.templates.template import Template

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
    fmr: float | None = None,
    fallback: bool = False,
    strict_domain: bool = False,
    release: int = 0,
    capture: Capture | None = None,
    detectors: Sequence[PresentationAttackDetector] = (),
) -> Decision:
    """Compare a probe with a template: accept where they are alike enough (SPEC 1.6).

    Where the bundle is calibrated for it the decision has a likelihood ratio, which weighs how long and how clear both
    sides are, and a threshold on that scale is held against it; else cosine similarity decides.

    The decision's ``basis`` says whose scores the threshold was read from, and whether template and probe lie where
    those lay (:mod:`uvsdk.scoring.domain`). Where they do not the score must be higher, by what strangers may have in
    common there; under ``strict_domain`` nothing is decided.

    A probe that cannot be used is an error and not a rejection. Everything that needs no decoding is checked before
    the probe is read.

    Args:
        probe: one sample, in any form the modality reads.
        template: whom it is claimed to be.
        model: the bundle the template was made with, or its path; a path is opened once.
        threshold: in place of the template's own.
        fmr: false match rate to decide at in place of the template's own, see :func:`threshold_for`.
        fallback: where the trials cannot support ``fmr``, decide at the lowest rate that they support; the decision's
            ``basis`` then has both.
        strict_domain: refuse where the calibration does not speak for template and probe.
        release: number of the release that the model belongs to, for the decision's ``basis``.
        capture: how the probe is taken: quality policy, rule for several faces, limits.
        detectors: presentation attack detectors that look at the probe too; what they say is in the decision's
            ``presentations``, and one that sees an attack keeps the probe from being accepted.

    Returns:
        A decision whose ``timings_s`` has ``decode``, ``detect``, ``features``, ``model`` and ``decision``, and
        ``presentation:NAME`` for every detector. It has no truth value: write ``verify(...).accepted``.

    Raises:
        SampleError: the probe cannot be used; the subclass and the message say why.
        ModelMismatchError: the template was made with another model version.
        ThresholdError: there is no threshold, it was measured with another model version, or the calibration
            cannot support ``fmr``.
        UncalibratedDomainError: ``strict_domain``, and the calibration does not speak for template and probe.
        ExchangedBundleError: the bundle's calibration is not the one that the template's threshold was read from.
        BundleError: the model cannot be read.
        SettingsError: a detector looks at samples of another modality.
    """
    return verify_with_embedding(
        probe,
        template,
        model=model,
        threshold=threshold,
        fmr=fmr,
        fallback=fallback,
        strict_domain=strict_domain,
        release=release,
        capture=capture,
        detectors=detectors,
    )[0]


def verify_with_embedding(
    probe: Sample,
    template: Template,
    *,
    model: Bundle | str | os.PathLike[str],
    threshold: Threshold | None = None,
    fmr: float | None = None,
    fallback: bool = False,
    strict_domain: bool = False,
    release: int = 0,
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
    check_calibration(template, bundle, threshold=threshold)
    if threshold is None or fmr is not None:
        threshold = threshold_for(template, bundle, fmr=fmr, fallback=fallback)
    limit = _applicable(threshold, bundle)
    check_detectors(detectors, bundle)
    embedded = embed(probe, bundle, capture=capture)
    presentations, spent_s = presentations_of(detectors, embedded)
    decision = decide(
        embedded.embedding,
        template,
        bundle=bundle,
        threshold=limit,
        quality=embedded.quality,
        timings_s={**embedded.timings_s, **spent_s},
        presentations=presentations,
        asked_fmr=fmr,
        strict_domain=strict_domain,
        release=release,
    )
    return decision, embedded


def decide(
    embedding: Float32,
    template: Template,
    *,
    bundle: Bundle,
    threshold: Threshold,
    quality: Quality | None = None,
    timings_s: Mapping[str, float] | None = None,
    presentations: tuple[Presentation, ...] = (),
    asked_fmr: float | None = None,
    strict_domain: bool = False,
    release: int = 0,
) -> Decision:
    """The decision on an embedding: the one place where score, likelihood ratio and threshold meet.

    API, device and server all come here, with a threshold of :func:`threshold_for`, so the same template and probe get
    the same answer everywhere. Score and ratio are rounded to float32: further digits are noise of the summation.

    Args:
        embedding: float32 (d,), unit norm, made with ``bundle``.
        template: likewise.
        bundle: its calibration gives the likelihood ratio, where it has one.
        threshold: what decides; its scale says by which value.
        quality: of the probe; what was not measured counts as average.
        timings_s: of the stages before; ``decision`` is added.
        presentations: what detectors said of the probe.
        asked_fmr: the rate that was asked for; ``None`` for what the threshold says of it.
        strict_domain: as for :func:`verify`.
        release: as for :func:`verify`.

    Raises:
        ModelMismatchError, SampleError: as for :func:`compare`.
        ThresholdError: the threshold is of another model version, or a likelihood ratio that the bundle cannot give.
        UncalibratedDomainError: as for :func:`verify`.
    """
    start = time.perf_counter()
    quality = quality or Quality()
    limit = _applicable(threshold, bundle)
    calibration = bundle.calibration
    score = _rounded(compare(embedding, template, calibration=calibration))
    known = () if calibration is None else calibration.conditions
    rows, probe = (template.embedding, embedding), conditions_of(quality.measured, known)
    measured = None if _by_hand(limit) else calibration
    placement = placed(measured, *rows, template=template.conditions, probe=probe, strict=strict_domain)
    llr = None
    if calibration is not None and calibration.ratio is not None:
        llr = _rounded(calibration.llr(*rows, template=template.conditions, probe=probe, rise=placement.rise))
    basis = _basis(limit, calibration, placement, asked_fmr=asked_fmr, release=release)
    spent_s = {**(timings_s or {}), "decision": time.perf_counter() - start}
    return Decision(
        score, _outside(limit, placement), bundle.version, quality, spent_s, llr, presentations, basis=basis
    )


def _by_hand(threshold: Threshold) -> bool:
    """Whether nobody claims that it was measured."""
    return not (threshold.model_version or threshold.calibration)


def _outside(threshold: Threshold, placement: Placement) -> Threshold:
    """The threshold of a comparison: outside of what was measured it claims no trials, and a cosine's is higher."""
    if placement.verdict != "outside":
        return threshold
    score = raised(threshold.score, placement) if threshold.scale == "cosine" else threshold.score
    return replace(threshold, score=score, trials=0, interval=(0.0, 1.0))


def _basis(
    threshold: Threshold,
    calibration: Calibration | None,
    placement: Placement,
    *,
    asked_fmr: float | None,
    release: int,
) -> Basis:
    asked = asked_fmr if asked_fmr is not None or threshold.by_default else threshold.fmr
    if calibration is None or _by_hand(threshold):
        return Basis(release=release, asked_fmr=asked, fmr=threshold.fmr)
    found = basis_of(calibration, placement, trials=threshold.trials, release=release)
    return replace(found, asked_fmr=asked, fmr=threshold.fmr)


def check_calibration(template: Template, bundle: Bundle, *, threshold: Threshold | None = None) -> None:
    """Refuse a bundle whose calibration is not the one that the template's threshold was read from.

    Whoever exchanges it could lower every threshold without touching the model. A caller accepts another one by
    enrolling again, or for one decision by a ``threshold`` that was read from it.

    Args:
        template: its threshold names the calibration, unless an older version wrote it.
        bundle: whose calibration would give threshold and likelihood ratio.
        threshold: handed in by the caller.

    Raises:
        ExchangedBundleError: another calibration, or none.
    """
    expected = "" if template.threshold is None else template.threshold.calibration
    found = "" if bundle.calibration is None else bundle.calibration.digest
    if not expected or expected == found:
        return
    if threshold is not None and (threshold.calibration == found != "" or threshold.scale == "cosine"):
        return
    raise ExchangedBundleError(
        f"the template's threshold was read from the calibration {expected[:12]}, this copy of the model has "
        f"{found[:12] or 'none'}: use the bundle the person was enrolled with; if the new calibration is meant, "
        "make the template again with it (enrol again, or verify through a store that has accepted it)"
    )


def threshold_at(
    bundle: Bundle, fmr: float | None = None, *, scale: Scale | None = None, fallback: bool = False
) -> Threshold:
    """The threshold of a false match rate.

    Args:
        bundle: the model.
        fmr: false match rate; ``None`` for the model's default
            (:meth:`uvsdk.scoring.Calibration.default_fmr`), the only place that says what is taken where nobody names
            a rate.
        scale: of the threshold; the one by which the bundle's calibration decides best where left out.
        fallback: where the trials cannot support ``fmr``, take the lowest rate that they support.

    Raises:
        ThresholdError: the bundle is not calibrated, or its trials cannot support the rate.
    """
    if bundle.calibration is None:
        raise ThresholdError(
            "this model has no calibration to read a threshold from; run uvsdk calibrate on a folder of people"
        )
    chosen = scale or bundle.calibration.scale
    if fmr is None:
        return replace(bundle.calibration.threshold(bundle.calibration.default_fmr(chosen), chosen), by_default=True)
    if fallback:
        fmr = max(fmr, bundle.calibration.strictest(chosen))
    return bundle.calibration.threshold(fmr, chosen)


def threshold_for(template: Template, bundle: Bundle, *, fmr: float | None = None, fallback: bool = False) -> Threshold:
    """The threshold by which probes of a template are decided: one rule for API, device and server.

    - Nobody names a rate: the template's own threshold; the model's default where it has none.
    - A rate at or below the template's own: the higher of the template's own threshold and the one of that rate, on the
      template's scale. So asking for more never undoes what the person's own samples have raised (SPEC 6.4).
    - A higher rate: the threshold of that rate. Whoever holds the template may say so; an agent and a server refuse it
      to their callers (:func:`check_rate`).

    With ``fallback`` a rate that the trials cannot support is the lowest that they support.

    Raises:
        ThresholdError: the bundle is not calibrated and the template has no threshold, the trials cannot support the
            rate, or the template's threshold is on a scale that this copy of the bundle is not calibrated for.
    """
    own = template.threshold
    if own is None:
        if fmr is None and bundle.calibration is None:
            return _applicable(None, bundle)  # which says what to do
        return threshold_at(bundle, fmr, fallback=fallback)
    own = _applicable(own, bundle)
    if fmr is None:
        return own
    asked = threshold_at(bundle, fmr, scale=own.scale, fallback=fallback)
    return asked if fmr > own.fmr else stricter(own, asked)


def stricter(own: Threshold, other: Threshold) -> Threshold:
    """The higher of two thresholds on one scale; ``own`` where they are equal, at the lower of both rates.

    >>> own, other = Threshold(0.6, 0.01, 1000), Threshold(0.5, 0.001, 5000)
    >>> stricter(own, other) == Threshold(0.6, 0.001, 1000), stricter(other, own) == own
    (True, True)
    """
    if other.score > own.score:
        return other
    return replace(own, fmr=min(own.fmr, other.fmr))


def check_rate(fmr: float | None, in_force: float) -> None:
    """Raises :class:`LaxerRateError` where a caller asks for more than the rate in force: else one could have
    everybody accepted, and everything that an accepted caller is told."""
    if fmr is not None and fmr > in_force:
        raise LaxerRateError(
            f"a false match rate of {fmr:g} is laxer than {in_force:g}, which is in force here; leave it out, or ask "
            "for a lower one"
        )


def check_centre(threshold: Threshold, calibration: Calibration | None) -> None:
    """Raises :class:`ExchangedBundleError` for a cosine threshold that was read from scores with another centre.

    Without its domain's mean a cosine is another number, so that one threshold of the two would accept strangers, or
    nobody. One that is set by hand is held against the scores as the bundle gives them.
    """
    if not (threshold.model_version or threshold.calibration) or threshold.scale == "llr":
        return
    centre = "" if calibration is None else calibration.centre_digest
    if threshold.centre != centre:
        raise ExchangedBundleError(
            f"the threshold is of cosines {_without(threshold.centre)}, and this copy of the model compares "
            f"{_without(centre)}; use the bundle it was read from, or read it again from this one"
        )


def _without(centre: str) -> str:
    return f"without the centre {centre[:8]}" if centre else "of embeddings as they are"


def compare(embedding: Float32, template: Template, *, calibration: Calibration | None = None) -> float:
    """Cosine similarity of one embedding with a template, in [-1, 1], summed in float64.

    Args:
        embedding: float32 (d,), unit norm, made with the template's model version: that is the caller's to check.
        template: what it is compared with.
        calibration: whose centre is taken out of both sides first, where it has one
            (:meth:`uvsdk.scoring.Calibration.compared`); ``None`` compares them as they are.

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
    if calibration is None or calibration.centring is None:
        return float(np.clip(vector @ template.embedding.astype(np.float64), -1.0, 1.0))
    return float(np.clip(calibration.compared(embedding) @ calibration.compared(template.embedding), -1.0, 1.0))


def check_detectors(detectors: Sequence[PresentationAttackDetector], bundle: Bundle) -> None:
    """Raises :class:`SettingsError` where a detector looks at samples of another modality than the bundle's."""
    if detectors:
        from uvsdk.presentation import check

        check(detectors, bundle.manifest.modality)


def presentations_of(
    detectors: Sequence[PresentationAttackDetector], embedded: Embedded
) -> tuple[tuple[Presentation, ...], dict[str, float]]:
    """What every detector says of one sample, and the seconds each took (``presentation:NAME``)."""
    if not detectors:
        return (), {}
    # Detectors bring Pillow and the modalities along, which `import uvsdk` leaves until they are needed.
    from uvsdk.presentation import examine

    return examine(detectors, embedded.captured, embedding=embedded.embedding)


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _applicable(threshold: Threshold | None, bundle: Bundle) -> Threshold:
    if threshold is None:
        raise ThresholdError(
            "there is no threshold to decide by: the template was made with a bundle that had not been calibrated. "
            "Calibrate the bundle (uvsdk calibrate) and enrol again, or pass fmr= or threshold= with a calibrated one"
        )
    if threshold.model_version and threshold.model_version != bundle.version:
        raise ThresholdError(
            f"the threshold was measured with model {threshold.model_version[:12]}, this is {bundle.version[:12]}; "
            "calibrate this model"
        )
    digest = None if bundle.calibration is None else bundle.calibration.digest
    check_centre(threshold, bundle.calibration)
    # A likelihood ratio is what this very calibration makes of a score; under another it means something else.
    if threshold.scale == "llr" and threshold.calibration and digest not in (None, threshold.calibration):
        raise ExchangedBundleError(
            f"the threshold is a likelihood ratio of the calibration {threshold.calibration[:12]}, this copy of the "
            f"model has {digest and digest[:12]}; use the bundle it was read from"
        )
    if threshold.scale == "llr" and (bundle.calibration is None or bundle.calibration.ratio is None):
        raise ThresholdError(
            "the threshold is a likelihood ratio, and this copy of the bundle is not calibrated for it; use the bundle "
            "it was made with, or enrol again"
        )
    return threshold
