"""Enrolment: a few samples of one person become a template that works at once, server or no server.

What happens to a person who is enrolled already is the caller's to say (``existing``), and the result says what
happened: nothing that was handed in is ignored without a word.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.bundle.inference import open_bundle
from uvsdk.enrolment import consistency, intake
from uvsdk.enrolment.completeness import Completeness, ExpectedFnmr, completeness, expected_fnmr
from uvsdk.enrolment.intake import SampleReport
from uvsdk.errors import (
    EnrolmentError,
    ModelMismatchError,
    SettingsError,
    ThresholdError,
    UnknownUserError,
    UvsdkError,
)
from uvsdk.scoring import Calibration, Threshold
from uvsdk.scoring.conditions import Conditions, Named, conditions_of, together
from uvsdk.scoring.personal import genuine_scores, own_ratios, personal_threshold
from uvsdk.templates.storage import ChecksModels, KnowsTraining, Store, lock_of, save_and_read_back
from uvsdk.templates.template import Template
from uvsdk.verify import threshold_at

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture, Sample

_LOG = logging.getLogger(__name__)

Existing: TypeAlias = Literal["replace", "extend", "refuse"]
"""What happens to somebody who is enrolled already: the new samples replace the old enrolment, are added to it, or are
an :class:`EnrolmentError`."""

Outliers: TypeAlias = Literal["refuse", "keep"]
"""Whether a sample that looks like somebody else's is left out."""


@dataclass(frozen=True, slots=True)
class Participation:
    """How far a person's part in the common training has come.

    Args:
        state: ``trained`` (a round was completed), ``joined`` (admitted, waiting for a round), ``queued`` (kept on
            this device until the server can be reached) or ``pending`` (another device stands for this person; this
            one waits for an approval).
        detail: in words.
    """

    state: Literal["trained", "joined", "queued", "pending"]
    detail: str = ""


class Federation(Protocol):
    """What lets a freshly enrolled person take part in training; the device runtime implements it."""

    def take_part(self, user_id: str, *, model: Bundle, store: Store) -> Participation:
        """Join with the features that ``store`` holds. Raises :class:`FederationError` where that fails for now."""
        ...


@dataclass(frozen=True, slots=True)
class Enrollment:
    """The outcome of :func:`enroll`.

    Args:
        template: already in the store.
        samples: one report per sample handed in, in order.
        completeness: how much of a good enrolment is there, and what is missing.
        expected_fnmr: how often the person will be rejected; ``None`` without a threshold or with a single sample.
        outcome: ``new``, or what happened to the earlier enrolment.
        participation: ``None`` where no federation was given.
    """

    template: Template
    samples: tuple[SampleReport, ...]
    completeness: Completeness
    expected_fnmr: ExpectedFnmr | None = None
    outcome: Literal["new", "replaced", "extended"] = "new"
    participation: Participation | None = None


def enroll(
    user_id: str,
    samples: Iterable[Sample],
    *,
    model: Bundle | str | os.PathLike[str],
    store: Store,
    federation: Federation | None = None,
    fmr: float | None = None,
    minimum_samples: int = 3,
    existing: Existing = "replace",
    outliers: Outliers = "refuse",
    capture: Capture | None = None,
) -> Enrollment:
    """Make a template of ``samples`` and keep it, with their features, in ``store``.

    The template is the normalised mean of the samples' embeddings (SPEC 1.6). Its threshold is the higher of two: the
    one at which impostors of the bundle's calibration are accepted at ``fmr``, and, from 20 samples on, the one that 19
    in 20 of the own samples reach, each against the template of the others (SPEC 6.4, 17); it is ``None`` where
    the bundle has no calibration. Samples that cannot be used, and those of somebody else among the person's own
    (:mod:`uvsdk.enrolment.consistency`), are reported and left out. The store is written once, at the end,
    and read back before this returns.

    Args:
        user_id: as the application knows the person.
        samples: several samples, each in any form the modality reads.
        model: a bundle, or its path.
        store: where template and features are kept.
        federation: takes part in training; its failure is reported in the result and never undoes the enrolment.
        fmr: false match rate to aim for; the strictest that the bundle's impostor trials measure where left out
            (:meth:`uvsdk.scoring.Calibration.default_fmr`: between 0.01 % and 1 %).
        minimum_samples: fewest usable samples that make a template.
        existing: what happens to an earlier enrolment of the same person. ``replace``: it is gone once the new one is
            stored, so make sure that the person is who they say. ``extend``: the new samples are added to its own,
            which are embedded again from the stored features; those that are not of the same person are left out.
            ``refuse``: it stays, and this is an error.
        outliers: ``keep`` takes every readable sample, for people who share some (FedALC's common instances) or a model
            that is yet to be trained; the reports still give each one's similarity.
        capture: how the samples are taken: quality policy (``Capture(quality="strict")`` for an enrolment that only
            good samples make), rule for several faces, limits.

    Raises:
        EnrolmentError: fewer than ``minimum_samples`` can be used; the message gives every reason. Or the samples
            contradict each other: nobody made more than half of them. Or nothing new can be used in extending, or
            somebody is enrolled already under ``refuse``. Nothing was stored.
        UnknownUserError: nobody of that name is enrolled, under ``extend``.
        ModelMismatchError: the enrolment to extend is of another modality.
        ThresholdError: the calibration cannot support ``fmr``, or without one not even 1 %.
        BundleError: the model cannot be read.
        ExchangedBundleError: the store works with another model, and nobody has accepted this one.
        StoreError: the store cannot be written, or what was written does not read back as it was; an earlier enrolment
            is still there.
        SettingsError: an empty user id, ``minimum_samples`` below 1, or another word for ``existing`` or ``outliers``.
        TypeError: one sample instead of several.
    """
    listed = _several(samples)
    _check_settings(user_id, fmr, minimum_samples, existing, outliers)
    bundle = open_bundle(model)
    if isinstance(store, ChecksModels):
        store.check_model(bundle)
    # Read first, because a rate that the trials cannot support is known before a single sample is decoded.
    impostor_threshold = None if bundle.calibration is None else threshold_at(bundle, fmr)
    earlier = _earlier(user_id, store, existing, bundle)
    kept = intake.NOTHING
    if earlier is not None and existing == "extend":
        kept = intake.earlier_samples(user_id, earlier, store, bundle)
    readable, read = intake.read(listed, bundle, capture, kept.features)
    judged_at = None if outliers == "keep" else fmr or consistency.IMPOSTOR_RATE
    usable, reports = intake.of_one_person(readable, read, kept, calibration=bundle.calibration, fmr=judged_at)
    if not usable or len(usable) + len(kept.features) < minimum_samples:
        raise EnrolmentError(intake.too_few(len(usable), max(minimum_samples - len(kept.features), 1), reports))
    rows = np.stack([*kept.embeddings, *(item.embedding for item in usable)])
    from uvsdk import modality

    reader = modality.get(bundle.manifest.modality)
    conditions = [*kept.conditions, *(conditions_of(item.quality.measured, reader.conditions) for item in usable)]
    told_by: tuple[Named, ...] = (*reader.conditions, *reader.cells)
    measured = [*kept.measured, *(conditions_of(item.quality.measured, told_by) for item in usable)]
    fresh = np.ones(len(rows), np.bool_)
    if isinstance(store, KnowsTraining):
        fresh[: len(kept.features)] = store.fresh_samples(user_id, kept.features, bundle.version)
    threshold = None
    if bundle.calibration is not None and impostor_threshold is not None:
        threshold = personal_threshold(
            impostor_threshold, bundle.calibration, embeddings=rows, conditions=conditions, fresh=fresh
        )
    template = Template(
        intake.mean_of(rows),
        bundle.version,
        bundle.manifest.modality,
        len(rows),
        threshold,
        together(conditions),
    )
    with lock_of(store):
        if existing == "extend" and store.template(user_id) != earlier:
            raise EnrolmentError("the person was enrolled anew while this enrolment was extended; extend it again")
        if isinstance(store, ChecksModels):
            store.accept_model(bundle)
        save_and_read_back(store, user_id, template, [*kept.features, *(item.features for item in usable)], measured)
    participation = None if federation is None else _take_part(federation, user_id, bundle, store)
    return Enrollment(
        template,
        reports,
        completeness(template, rows, calibration=bundle.calibration),
        _expected(rows, conditions, threshold, bundle.calibration),
        "new" if earlier is None else "extended" if existing == "extend" else "replaced",
        participation,
    )


def _check_settings(user_id: str, fmr: float | None, minimum_samples: int, existing: str, outliers: str) -> None:
    if not user_id:
        raise SettingsError("a user id cannot be empty")
    if minimum_samples < 1:
        raise SettingsError(f"minimum_samples is {minimum_samples}; it must be at least 1")
    if fmr is not None and not 0.0 < fmr < 1.0:
        raise ThresholdError(f"a false match rate lies between 0 and 1, got {fmr}")
    if existing not in get_args(Existing):
        raise SettingsError(f"existing is {', '.join(get_args(Existing))}, got {existing!r}")
    if outliers not in get_args(Outliers):
        raise SettingsError(f"outliers is {', '.join(get_args(Outliers))}, got {outliers!r}")


def _earlier(user_id: str, store: Store, existing: Existing, bundle: Bundle) -> Template | None:
    """The template of an earlier enrolment, ``None`` where there is none and that is as it should be."""
    try:
        earlier = store.template(user_id)
    except UnknownUserError:
        if existing == "extend":
            raise
        return None
    if existing == "refuse":
        raise EnrolmentError(
            "somebody of that name is enrolled already; delete that enrolment, or pass existing='replace' or 'extend'"
        )
    if existing == "extend" and earlier.modality != bundle.manifest.modality:
        raise ModelMismatchError(
            f"the enrolment is by {earlier.modality}, the model is for {bundle.manifest.modality}; extend it with a "
            "model of its own modality"
        )
    return earlier


def _several(samples: Iterable[Sample]) -> list[Sample]:
    """The samples as a list; a single sample that happens to be iterable is refused."""
    pair = isinstance(samples, tuple) and len(samples) == 2 and isinstance(samples[1], int | np.integer)
    single = isinstance(samples, str | bytes | bytearray | memoryview | os.PathLike | np.ndarray)
    if pair or single or hasattr(samples, "read") or not isinstance(samples, Iterable):
        raise TypeError(f"enroll() takes several samples, got a single {type(samples).__name__}; pass a list of them")
    return list(samples)


def _expected(
    embeddings: Float32, conditions: Sequence[Conditions], threshold: Threshold | None, calibration: Calibration | None
) -> ExpectedFnmr | None:
    """From each sample against the template of the others, on the scale that decides."""
    if threshold is None or calibration is None or len(embeddings) < 2:
        return None
    if threshold.scale == "cosine":
        return expected_fnmr(genuine_scores(embeddings, calibration.centring), threshold.score)
    return expected_fnmr(own_ratios(calibration, embeddings, template=None, conditions=conditions), threshold.score)


def _take_part(federation: Federation, user_id: str, bundle: Bundle, store: Store) -> Participation:
    try:
        return federation.take_part(user_id, model=bundle, store=store)
    except UvsdkError as error:  # the enrolment is stored and stays usable whatever the federation meets
        return Participation("queued", str(error))
    except Exception as error:  # noqa: BLE001 - a trainer is anybody's code, and what was stored must be told
        _LOG.warning("taking part failed after the enrolment was stored", exc_info=True)
        return Participation("queued", f"taking part failed ({type(error).__name__}); the log holds the reason")
