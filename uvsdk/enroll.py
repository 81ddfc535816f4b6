"""Enrolment: a few samples of one person become a template that works at once, server or no server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.errors import EnrolmentError, SampleError, SettingsError, ThresholdError, UvsdkError
from uvsdk.inference import Embedded, embed, open_bundle
from uvsdk.scoring import Quality
from uvsdk.scoring.personal import personal_threshold
from uvsdk.storage import Store
from uvsdk.template import Template

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
    """

    index: int
    accepted: bool
    reason: str = ""
    quality: Quality | None = None


@dataclass(frozen=True, slots=True)
class Participation:
    """How far a person's part in the common training has come.

    Args:
        state: ``trained`` (a round was completed), ``joined`` (admitted, waiting for a round) or ``queued`` (kept on
            this device until the server can be reached).
        detail: in words.
    """

    state: Literal["trained", "joined", "queued"]
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
        participation: ``None`` where no federation was given.
    """

    template: Template
    samples: tuple[SampleReport, ...]
    participation: Participation | None = None


def enroll(
    user_id: str,
    samples: Iterable[Sample],
    *,
    model: Bundle | str | os.PathLike[str],
    store: Store,
    federation: Federation | None = None,
    fmr: float = 0.01,
    minimum_samples: int = 3,
    capture: Capture | None = None,
) -> Enrollment:
    """Make a template of ``samples`` and keep it, with their features, in ``store``.

    The template is the normalised mean of the samples' embeddings (SPEC 1.6). Its threshold is the higher of two: the
    one at which impostors of the bundle's calibration are accepted at ``fmr``, and, from 20 samples on, the one that 19
    in 20 of the person's own samples reach, each against the template of the others (SPEC 6.4); it is ``None`` where
    the bundle has no calibration. Samples that cannot be used are reported and left out. The store is written once, at
    the end; enrolling somebody again replaces what was there.

    Args:
        user_id: as the application knows the person.
        samples: several samples, each in any form the modality reads.
        model: a bundle, or its path.
        store: where template and features are kept.
        federation: takes part in training; its failure is reported in the result and never undoes the enrolment.
        fmr: false match rate to aim for.
        minimum_samples: fewest usable samples that make a template.
        capture: how the samples are taken: quality policy, rule for several faces, limits.

    Raises:
        EnrolmentError: fewer than ``minimum_samples`` can be used; the message gives every reason.
        ThresholdError: the calibration cannot support ``fmr``.
        BundleError: the model cannot be read.
        StoreError: the store cannot be written.
        SettingsError: an empty user id, or ``minimum_samples`` below 1.
        TypeError: one sample instead of several.
    """
    listed = _several(samples)
    if not user_id:
        raise SettingsError("a user id cannot be empty")
    if minimum_samples < 1:
        raise SettingsError(f"minimum_samples is {minimum_samples}; it must be at least 1")
    if not 0.0 < fmr < 1.0:
        raise ThresholdError(f"a false match rate lies between 0 and 1, got {fmr}")
    bundle = open_bundle(model)
    # Read first, because a rate that the trials cannot support is known before a single sample is decoded.
    impostor_threshold = None if bundle.calibration is None else bundle.calibration.threshold(fmr)
    usable, reports = _read(listed, bundle, capture)
    if len(usable) < minimum_samples:
        raise EnrolmentError(_too_few(len(usable), minimum_samples, reports))
    embeddings = np.stack([item.embedding for item in usable])
    threshold = None
    if bundle.calibration is not None and impostor_threshold is not None:
        threshold = personal_threshold(impostor_threshold, bundle.calibration, embeddings)
    template = Template(_mean(embeddings), bundle.version, bundle.manifest.modality, len(usable), threshold)
    store.save_enrolment(user_id, template, [item.features for item in usable])
    participation = None if federation is None else _take_part(federation, user_id, bundle, store)
    return Enrollment(template, reports, participation)


def _several(samples: Iterable[Sample]) -> list[Sample]:
    """The samples as a list; a single sample that happens to be iterable is refused."""
    pair = isinstance(samples, tuple) and len(samples) == 2 and isinstance(samples[1], int | np.integer)
    single = isinstance(samples, str | bytes | bytearray | memoryview | os.PathLike | np.ndarray)
    if pair or single or hasattr(samples, "read") or not isinstance(samples, Iterable):
        raise TypeError(f"enroll() takes several samples, got a single {type(samples).__name__}; pass a list of them")
    return list(samples)


def _read(
    samples: Sequence[Sample], bundle: Bundle, capture: Capture | None
) -> tuple[list[Embedded], tuple[SampleReport, ...]]:
    usable: list[Embedded] = []
    reports: list[SampleReport] = []
    seen: dict[bytes, int] = {}
    for index, sample in enumerate(samples):
        try:
            embedded = embed(sample, bundle, capture=capture)
        except SampleError as error:
            reports.append(SampleReport(index, False, str(error)))
            continue
        # A copy teaches nothing about how the person varies, and would set the threshold where only copies reach it.
        first = seen.setdefault(_digest(embedded.features), index)
        if first != index:
            reason = f"the same as sample {first}; make a new one"
            reports.append(SampleReport(index, False, reason, embedded.quality))
            continue
        usable.append(embedded)
        reports.append(SampleReport(index, True, "", embedded.quality))
    return usable, tuple(reports)


def _digest(features: Array) -> bytes:
    return hashlib.sha256(repr((features.dtype.str, features.shape)).encode() + features.tobytes()).digest()


def _too_few(usable: int, minimum: int, reports: Sequence[SampleReport]) -> str:
    reasons = "; ".join(f"sample {report.index}: {report.reason}" for report in reports if not report.accepted)
    return f"{usable} of {len(reports)} samples can be used, {minimum} are needed" + (
        f" ({reasons})" if reasons else ""
    )


def _mean(embeddings: Float32) -> Float32:
    mean = embeddings.mean(axis=0, dtype=np.float64)
    norm = float(np.linalg.norm(mean))
    if norm < 1e-6:
        raise EnrolmentError("the samples contradict each other: their mean has no direction. Are they of one person?")
    return np.asarray(mean / norm, np.float32)


def _take_part(federation: Federation, user_id: str, bundle: Bundle, store: Store) -> Participation:
    try:
        return federation.take_part(user_id, model=bundle, store=store)
    except UvsdkError as error:  # the enrolment is stored and stays usable whatever the federation meets
        return Participation("queued", str(error))


__all__ = [
    "Enrollment",
    "Federation",
    "Participation",
    "SampleReport",
    "enroll",
]
