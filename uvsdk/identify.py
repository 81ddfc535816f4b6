"""Identification: one probe against everybody, with the right to say "nobody"."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.bundle.inference import embed, open_bundle
from uvsdk.errors import ExchangedBundleError, ModelMismatchError, ThresholdError
from uvsdk.scoring import Basis, Calibration, Placement, Presentation, Quality
from uvsdk.scoring.calibration import two_digits
from uvsdk.scoring.caution import basis_of, placed, raised
from uvsdk.scoring.conditions import conditions_of
from uvsdk.system.forking import in_child_of_this_module
from uvsdk.templates.gallery import Candidate, Gallery, SearchResult
from uvsdk.verify import check_detectors, presentations_of

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.bundle.inference import Embedded
    from uvsdk.modality import Capture, Sample
    from uvsdk.presentation import PresentationAttackDetector

DEFAULT_FPIR: Final = 0.01
"""False positive identification rate of a search where nobody names one."""

SearchOutcome = Literal["identified", "rejected", "ambiguous"]
"""``ambiguous``: the best score is high enough and several people share it."""


@dataclass(frozen=True, slots=True)
class SearchThreshold:
    """The score from which the best candidate of a search is named, and the measurement it comes from.

    Args:
        score: cosine similarity at or above which the best candidate is named.
        fpir: false positive identification rate aimed for: how often somebody who is not in the gallery is named.
        people: size of the gallery it holds for.
        trials: what it was measured on: impostor comparisons, or searches by people of the cohort.
        interval: 95 % interval (Clopper-Pearson) of the rate at ``score``; from comparisons, of the bound ``people``
            times the false match rate.
        measured_on: ``comparisons`` of two people, ``cohort`` where strangers were searched in this very gallery, or
            ``hand`` where an application sets it.
        model_version: the model it was measured with; empty only for one set by hand.
        centre: as of :class:`uvsdk.scoring.Threshold`.
    """

    score: float
    fpir: float
    people: int
    trials: int
    interval: tuple[float, float] = (0.0, 1.0)
    measured_on: Literal["comparisons", "cohort", "hand"] = "hand"
    model_version: str = ""
    centre: str = ""

    def __post_init__(self) -> None:
        if not -1.0 <= self.score <= 1.0 + 1e-6:
            raise ThresholdError(f"a cosine threshold lies in [-1, 1], got {self.score}")
        _check_rate(self.fpir)
        if self.people < 0 or self.trials < 0:
            raise ThresholdError(f"people and trials cannot be negative, got {self.people} and {self.trials}")


@dataclass(frozen=True, slots=True)
class Identification:
    """The outcome of one search, with its evidence. It has no truth value: write ``.user_id`` or ``.outcome``.

    Args:
        candidates: the best first, whether or not they reach the threshold; ids are left out of ``repr``.
        threshold: what the best score was held against; it claims no trials and no interval where ``basis`` says that
            the probe or the best candidate's template lies outside of what was measured.
        people: how many were searched.
        tied: how many of them share the best score.
        model_version: the model that gave the scores.
        quality: what was measured in the probe.
        timings_s: stage -> seconds.
        presentations: what each presentation attack detector said of the probe; empty where none was asked.
        basis: what the threshold rests on, and whether that speaks for this probe and the best candidate's template.

    >>> threshold = SearchThreshold(score=0.5, fpir=0.01, people=2, trials=0)
    >>> found = Identification((Candidate("ana", 0.8), Candidate("ben", 0.1)), threshold, 2, 1, "m")
    >>> found.outcome, found.user_id
    ('identified', 'ana')
    >>> found.candidates
    (Candidate(score=0.8), Candidate(score=0.1))
    >>> bool(found)
    Traceback (most recent call last):
      ...
    TypeError: an Identification has no truth value, so that `if identify(...)` cannot name a stranger; use .user_id
    """

    candidates: tuple[Candidate, ...]
    threshold: SearchThreshold
    people: int
    tied: int
    model_version: str
    quality: Quality = field(default_factory=Quality)
    timings_s: dict[str, float] = field(default_factory=dict)
    presentations: tuple[Presentation, ...] = ()
    basis: Basis = field(default_factory=Basis)

    @property
    def outcome(self) -> SearchOutcome:
        """``identified``, ``rejected``, or ``ambiguous`` where several people share a score that is high enough.

        Whatever the scores, a probe that a detector took for an attack is ``rejected``.
        """
        if not self.candidates or not self.candidates[0].score >= self.threshold.score:
            return "rejected"
        if not all(item.bona_fide for item in self.presentations):
            return "rejected"
        return "identified" if self.tied == 1 else "ambiguous"

    @property
    def user_id(self) -> str | None:
        """Who it is; ``None`` where nobody reaches the threshold, several people equally, or an attack was seen."""
        return self.candidates[0].user_id if self.outcome == "identified" else None

    def __bool__(self) -> bool:
        raise TypeError(
            "an Identification has no truth value, so that `if identify(...)` cannot name a stranger; use .user_id"
        )


def identify(
    probe: Sample,
    gallery: Gallery,
    *,
    model: Bundle | str | os.PathLike[str],
    fpir: float = DEFAULT_FPIR,
    top: int = 5,
    threshold: SearchThreshold | None = None,
    fallback: bool = False,
    strict_domain: bool = False,
    release: int = 0,
    capture: Capture | None = None,
    detectors: Sequence[PresentationAttackDetector] = (),
) -> Identification:
    """Who in ``gallery`` gave ``probe``, or nobody.

    The search is exact whatever the gallery's size. The best candidate is named where the score reaches a threshold
    for this many people (:func:`threshold_for`); personal thresholds, which are for one claimed identity, play no
    part. Equal templates, as of one person enrolled under two names, tie: then nobody is named and ``outcome`` says
    so. An empty gallery rejects everybody.

    The result's ``basis`` says what that threshold rests on, and whether the probe and the best candidate's template
    lie where the people of the calibration lay. Where they do not the score must be higher, as for
    :func:`uvsdk.verify`; under ``strict_domain`` nobody is named or rejected.

    Args:
        probe: one sample, in any form the modality reads.
        gallery: who can be named.
        model: the bundle the templates were made with, or its path.
        fpir: false positive identification rate to aim for: of a hundred strangers, how many may be named.
        top: how many candidates to report.
        threshold: in place of the one read from the bundle's calibration.
        fallback: where the trials cannot support ``fpir`` among so many people, search at the lowest rate that they
            support (:func:`lowest_fpir`); the result's ``basis`` then has both.
        strict_domain: refuse where the calibration does not speak for the probe and the best candidate's template.
        release: number of the release that the model belongs to, for the result's ``basis``.
        capture: how the probe is taken: quality policy, rule for several faces, limits.
        detectors: presentation attack detectors that look at the probe too; one that sees an attack names nobody.

    Raises:
        SampleError: the probe cannot be used; the subclass and the message say why.
        ModelMismatchError: the templates are of another model version.
        ThresholdError: no calibration, too few impostor trials for ``fpir`` in a gallery of this size, or a threshold
            of another model or a smaller gallery.
        UncalibratedDomainError: ``strict_domain``, and the calibration does not speak for this search.
        ExchangedBundleError: the bundle's calibration is none of those that the templates' thresholds were read from.
        SettingsError: ``top`` below 1, or a detector looks at samples of another modality.
        BundleError: the model cannot be read.
    """
    bundle = open_bundle(model)
    if gallery.model_version not in ("", bundle.version):
        raise ModelMismatchError(
            f"the gallery was made with model {gallery.model_version[:12]}, this is {bundle.version[:12]}: use the "
            "bundle it was made with, or make the templates again from the stored features"
        )
    limit = _applicable(threshold, gallery, bundle, fpir, fallback=fallback)
    check_detectors(detectors, bundle)
    embedded = embed(probe, bundle, capture=capture)
    start = time.perf_counter()
    centring = None if bundle.calibration is None else bundle.calibration.centring
    found = gallery.search(embedded.embedding, top, centring=centring)
    calibration = None if limit.measured_on == "hand" else bundle.calibration
    placement = _placed(found, embedded, calibration, strict=strict_domain)
    timings_s = {**embedded.timings_s, "search": time.perf_counter() - start}
    presentations, spent_s = presentations_of(detectors, embedded)
    return Identification(
        found.candidates,
        _outside(limit, placement),
        found.people,
        found.tied,
        bundle.version,
        embedded.quality,
        {**timings_s, **spent_s},
        presentations,
        _basis(limit, calibration, placement, asked_fpir=fpir if threshold is None else limit.fpir, release=release),
    )


def _placed(found: SearchResult, embedded: Embedded, calibration: Calibration | None, *, strict: bool) -> Placement:
    """Of the probe and the best candidate's template: nobody else is named."""
    if calibration is None or found.best_row is None:
        return Placement()
    return placed(
        calibration,
        found.best_row,
        embedded.embedding,
        template=found.best_conditions,
        probe=conditions_of(embedded.quality.measured, calibration.conditions),
        strict=strict,
    )


def _outside(limit: SearchThreshold, placement: Placement) -> SearchThreshold:
    """The threshold of this search: outside of what was measured it is higher and claims no trials."""
    if placement.verdict != "outside":
        return limit
    return replace(limit, score=raised(limit.score, placement), trials=0, interval=(0.0, 1.0))


def _basis(
    limit: SearchThreshold, calibration: Calibration | None, placement: Placement, *, asked_fpir: float, release: int
) -> Basis:
    people = limit.trials if limit.measured_on == "cohort" else 0  # each of a cohort is searched once
    if limit.measured_on == "hand":
        found = Basis(release=release)
    elif calibration is None:  # of the application's own, under a model without a calibration
        found = Basis("what the application measured", people, limit.trials, release=release)
    else:
        found = basis_of(calibration, placement, trials=limit.trials, release=release, people=people)
    return replace(found, asked_fpir=asked_fpir, fpir=limit.fpir)


def search_threshold(calibration: Calibration, people: int, *, fpir: float) -> SearchThreshold:
    """The score at which strangers are named at ``fpir`` at most, from comparisons of two people.

    A stranger is named where any of N comparisons is a false match, so FPIR <= N FMR however they depend on each
    other (Boole; with independence it is 1 - (1 - FMR)^N, which is the same to within FPIR / 2), and the score is that
    of FMR = ``fpir`` / N. Templates of several samples score a little higher with strangers than the single samples
    that comparisons are made of, which this cannot know: among 222 people of LFW 5 % asked for were 9 % (7 to 12)
    measured, where :func:`cohort_threshold` gave 5 % (3 to 6) (``tests/benchmarks/identification``).

    Raises:
        ThresholdError: fewer than ``3 N / fpir`` comparisons; the message says how large a gallery they support.

    >>> import numpy as np
    >>> comparisons = Calibration.from_scores(np.arange(3000) / 3000, model_version="m", source="by hand")
    >>> round(search_threshold(comparisons, people=10, fpir=0.01).score, 3)  # three of 3,000 may reach it
    0.999
    """
    _check_rate(fpir)
    if people < 0:
        raise ThresholdError(f"a gallery has at least 0 people, got {people}")
    size, trials = max(people, 1), calibration.trials("cosine")
    lowest = calibration.lowest_fmr("cosine")
    if fpir / size < lowest * (1 - 1e-12):
        supported, least = math.floor(fpir / lowest + 1e-9), two_digits(size * lowest)
        advice = [f"search at most {supported} people"] * (supported > 0)
        advice += [f"ask for {least:g} or more (fallback takes the lowest rate)"] * (least < 1)
        known = f" of {calibration.people} people" if calibration.people else ""
        support = (
            f"so at least {math.ceil(3 * size / fpir)} impostor trials; there are {trials}{known}"
            if calibration.tail is None
            else f"and {calibration.account}, support {lowest:.3g}"
        )
        raise ThresholdError(
            f"a false positive identification rate of {fpir:g} among {size} people needs a false match rate of "
            f"{fpir / size:.3g}, {support}: {', '.join([*advice, 'or calibrate with more people'])}"
        )
    # Rounding must not refuse a rate that the trials support exactly.
    pair = calibration.threshold(max(fpir / size, math.nextafter(lowest, 1.0)))
    bound = (min(size * pair.interval[0], 1.0), min(size * pair.interval[1], 1.0))
    return SearchThreshold(
        pair.score, fpir, people, trials, bound, "comparisons", calibration.model_version, pair.centre
    )


def cohort_threshold(
    gallery: Gallery, cohort: Float32, *, fpir: float, calibration: Calibration | None = None
) -> SearchThreshold:
    """The score at which strangers are named at ``fpir``, measured by searching each of a cohort in this gallery.

    It needs no assumption on how comparisons depend on each other or on how templates differ from single samples, and
    it holds for these templates only.

    Args:
        gallery: not empty.
        cohort: float32 (M, d), unit rows, one for each of M people none of whom is in the gallery, made with the
            gallery's model.
        fpir: false positive identification rate to aim for.
        calibration: of the bundle that is searched with, whose centre is taken out of both sides where it has one.

    Raises:
        ThresholdError: fewer than ``3 / fpir`` people in the cohort, or an empty gallery.
    """
    _check_rate(fpir)
    if not len(gallery):
        raise ThresholdError("nobody is in the gallery, so nothing can be measured on it; add people first")
    if len(cohort) * fpir < 3 * (1 - 1e-12):
        raise ThresholdError(
            f"a false positive identification rate of {fpir:g} needs at least {math.ceil(3 / fpir)} people in the "
            f"cohort, there are {len(cohort)}; ask for a higher rate"
        )
    people, centring = len(gallery), None if calibration is None else calibration.centring
    searches = Calibration.from_scores(
        gallery.highest(cohort, centring=centring),
        model_version=gallery.model_version,
        source="searches in the gallery",
    )
    limit = searches.threshold(fpir)
    centre = "" if calibration is None else calibration.centre_digest
    return SearchThreshold(
        limit.score, fpir, people, len(cohort), limit.interval, "cohort", gallery.model_version, centre
    )


def lowest_fpir(gallery: Gallery, calibration: Calibration) -> float:
    """The lowest false positive identification rate that :func:`threshold_for` takes in this gallery, up to two digits.

    Raises:
        ThresholdError: there is none below 1; the message says how many people can be searched.

    >>> lowest_fpir(Gallery(), Calibration.from_scores(np.arange(3000) / 3000, model_version="m", source="by hand"))
    0.001
    """
    people, lowest = max(len(gallery), 1), calibration.lowest_fmr("cosine")
    rates = [people * lowest]
    if calibration.cohort is not None and len(gallery):
        rates.append(3 / len(np.unique(calibration.cohort.person)))
    found = two_digits(min(rates))
    if found >= 1.0:
        raise ThresholdError(
            f"{calibration.account} support a false match rate of {lowest:.3g}, which shows no rate below 1 for a "
            f"search of {people} people: search at most {math.ceil(1 / lowest) - 1}, or calibrate with more people"
        )
    return found


def threshold_for(gallery: Gallery, calibration: Calibration, *, fpir: float) -> SearchThreshold:
    """The threshold :func:`identify` takes by default.

    Measured on this gallery with the cohort that the calibration carries (:func:`cohort_threshold`), once for each
    state of the gallery; where there is no cohort, or too small a one, from comparisons (:func:`search_threshold`).

    Raises:
        ThresholdError: neither supports ``fpir``; the message says what each would need.
    """
    cohort = calibration.cohort
    if not len(gallery):
        return search_threshold(calibration, 0, fpir=fpir)
    if cohort is None:
        try:
            return search_threshold(calibration, len(gallery), fpir=fpir)
        except ThresholdError as error:
            _check_rate(fpir)
            raise ThresholdError(
                f"{error}; with the embeddings of {math.ceil(3 / fpir)} people or more (uvsdk calibrate --with-cohort) "
                "the rate is measured on the gallery itself, whatever its size"
            ) from error
    changes = gallery.changes
    with _lock:
        known = _measured.get(gallery)
    if known is not None and known.calibration is calibration and (known.changes, known.limit.fpir) == (changes, fpir):
        return known.limit
    _, first = np.unique(cohort.person, return_index=True)  # one search for each person
    try:
        limit = cohort_threshold(gallery, cohort.embeddings[first], fpir=fpir, calibration=calibration)
    except ThresholdError as error:
        try:
            return search_threshold(calibration, len(gallery), fpir=fpir)
        except ThresholdError as second:
            raise ThresholdError(f"{second}. Measured on the gallery itself, {error}") from second
    with _lock:
        _measured[gallery] = _Measured(calibration, changes, limit)
    return limit


@dataclass(frozen=True, slots=True)
class _Measured:
    calibration: Calibration
    changes: int
    limit: SearchThreshold


# Searching everybody of a cohort takes as long as that many probes, so it is done once for each state of a gallery.
_measured: WeakKeyDictionary[Gallery, _Measured] = WeakKeyDictionary()
_lock = threading.Lock()


def _renew() -> None:
    global _lock
    _lock = threading.Lock()


in_child_of_this_module(_renew)


def _applicable(
    threshold: SearchThreshold | None, gallery: Gallery, bundle: Bundle, fpir: float, *, fallback: bool
) -> SearchThreshold:
    if threshold is None:
        if bundle.calibration is None:
            raise ThresholdError(
                "this model has no calibration to read a threshold from; calibrate it, or pass threshold=..."
            )
        if gallery.calibrations and bundle.calibration.digest not in gallery.calibrations:
            raise ExchangedBundleError(
                f"the templates' thresholds were read from the calibration {min(gallery.calibrations)[:12]}, this "
                f"copy of the model has {bundle.calibration.digest[:12]}: use the bundle the people were enrolled "
                "with; if the new calibration is meant, make the templates again with it"
            )
        if fallback:
            _check_rate(fpir)
            fpir = max(fpir, lowest_fpir(gallery, bundle.calibration))
        return threshold_for(gallery, bundle.calibration, fpir=fpir)
    if threshold.model_version not in ("", bundle.version):
        raise ThresholdError(
            f"the threshold was measured with model {threshold.model_version[:12]}, this is {bundle.version[:12]}; "
            "measure it with this model"
        )
    if threshold.measured_on != "hand":
        centre = "" if bundle.calibration is None else bundle.calibration.centre_digest
        if threshold.centre != centre:
            raise ExchangedBundleError(
                "the threshold is of cosines with another centre than this copy of the model takes out; use the bundle "
                "it was measured with, or measure it again with this one"
            )
    if threshold.measured_on != "hand" and threshold.people < len(gallery):
        raise ThresholdError(
            f"the threshold holds for {threshold.people} people, the gallery has {len(gallery)}: more people make more "
            "false matches; measure it again"
        )
    return threshold


def _check_rate(fpir: float) -> None:
    if not 0.0 < fpir < 1.0:
        raise ThresholdError(f"a false positive identification rate lies between 0 and 1, got {fpir}")
