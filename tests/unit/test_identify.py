"""Identification with a reject option, on three-dimensional embeddings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk.errors import (
    ModelMismatchError,
    SampleError,
    SettingsError,
    ThresholdError,
    UncalibratedDomainError,
    UndecodableSampleError,
)
from uvsdk.identify import (
    SearchThreshold,
    cohort_threshold,
    identify,
    lowest_fpir,
    search_threshold,
    threshold_for,
)
from uvsdk.modality.contract import Captured
from uvsdk.scoring import Calibration, Presentation
from uvsdk.scoring.cohort import Cohort
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.tail import Tail
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.storage import MemoryStore
from uvsdk.templates.template import Template
from uvsdk.verify import decide, threshold_at

# 30,000 impostors, evenly spaced from -0.5 up to 0.5.
IMPOSTORS = np.linspace(-0.5, 0.5, 30_000).astype(np.float32)


@pytest.fixture
def bundle(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


def people(bundle: Bundle) -> Gallery:
    store = MemoryStore()
    enroll("ana", [b"1 0 0", b"1 0.1 0", b"1 -0.1 0"], model=bundle, store=store)
    enroll("ben", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=bundle, store=store)
    return Gallery.from_store(store)


def test_somebody_in_the_gallery_is_named(bundle: Bundle) -> None:
    found = identify(b"0 5 0", people(bundle), model=bundle)
    assert found.user_id == "ben"
    assert found.outcome == "identified"
    assert [candidate.user_id for candidate in found.candidates] == ["ben", "ana"]
    assert [candidate.score for candidate in found.candidates] == pytest.approx([1.0, 0.0])
    assert (found.people, found.tied, found.model_version) == (2, 1, bundle.version)
    assert found.quality.measured == {"length": 5.0}
    assert set(found.timings_s) == {"decode", "detect", "features", "model", "search"}


def test_a_stranger_is_rejected_and_never_named(bundle: Bundle) -> None:
    # wespeaker: "unknown always named". The nearest of two people is always somebody; a stranger is still nobody.
    found = identify(b"0 0 1", people(bundle), model=bundle)
    assert found.user_id is None
    assert found.outcome == "rejected"
    assert len(found.candidates) == 2  # the evidence stays


def test_the_threshold_grows_with_the_gallery(bundle: Bundle) -> None:
    # At FPIR 3 % among N people the false match rate is 0.03 / N: of 30,000 impostors 900 / N may reach the score, so
    # it lies just above 0.5 - (900 / N) / 29,999.
    assert bundle.calibration is not None
    for count, allowed in ((1, 900), (2, 450), (10, 90), (300, 3)):
        limit = search_threshold(bundle.calibration, count, fpir=0.03)
        assert limit.score == pytest.approx(0.5 - allowed / 29_999, abs=1e-6)
        assert (limit.fpir, limit.people, limit.trials, limit.measured_on) == (0.03, count, 30_000, "comparisons")
        assert limit.interval[0] <= 0.03 <= limit.interval[1]
        assert limit.model_version == bundle.version
    # Nobody needs no fewer trials than one.
    assert (
        search_threshold(bundle.calibration, 0, fpir=0.03).score
        == search_threshold(bundle.calibration, 1, fpir=0.03).score
    )


def test_the_bound_of_boole_and_independence_agree() -> None:
    # 1 - (1 - p / N)^N lies in [p - p^2 / 2, p].
    for rate in (0.001, 0.01, 0.1):
        for count in (1, 10, 10_000):
            independent = 1 - (1 - rate / count) ** count
            assert rate - rate**2 / 2 - 1e-12 <= independent <= rate + 1e-12


def test_too_few_trials_are_refused_with_the_number_needed(bundle: Bundle) -> None:
    assert bundle.calibration is not None
    with pytest.raises(ThresholdError) as caught:
        search_threshold(bundle.calibration, 1000, fpir=0.01)
    assert str(caught.value) == (
        "a false positive identification rate of 0.01 among 1000 people needs a false match rate of 1e-05, so at least "
        "300000 impostor trials; there are 30000: search at most 100 people, ask for 0.1 or more (fallback takes the "
        "lowest rate), or calibrate with more people"
    )
    with pytest.raises(ThresholdError, match=r"30000: ask for 0.0001 or more \(fallback"):
        search_threshold(bundle.calibration, 1, fpir=1e-5)
    with pytest.raises(ThresholdError, match="search at most 100 people, or calibrate with more people"):
        search_threshold(bundle.calibration, 10_000, fpir=0.01)  # of 10,000 one is a false match at any score
    ana = Template(np.array([1, 0, 0], np.float32), bundle.version, "numbers", 1)
    with pytest.raises(ThresholdError, match=r"embeddings of 3000 people or more \(uvsdk calibrate --with-cohort\)"):
        threshold_for(Gallery({str(copy): ana for copy in range(20)}), bundle.calibration, fpir=0.001)
    assert search_threshold(bundle.calibration, 100, fpir=0.01).people == 100
    for rate in (0.0, 1.0, math.nan, -0.1):
        with pytest.raises(ThresholdError):
            search_threshold(bundle.calibration, 1, fpir=rate)
    with pytest.raises(ThresholdError):
        search_threshold(bundle.calibration, -1, fpir=0.1)


def test_everything_that_needs_no_decoding_is_checked_first(bundle: Bundle, identity_bundle: MakeBundle) -> None:
    gallery = people(bundle)
    with pytest.raises(ThresholdError, match="at least 600000 impostor trials"):
        identify(b"no numbers", gallery, model=bundle, fpir=1e-5)
    with pytest.raises(ThresholdError, match="no calibration"):
        identify(b"no numbers", gallery, model=identity_bundle())
    other = identity_bundle(IMPOSTORS, name="other")
    with pytest.raises(ModelMismatchError, match="the gallery was made with model"):
        identify(b"no numbers", gallery, model=other)
    by_other = SearchThreshold(0.5, 0.01, 2, 100, model_version=other.version)
    with pytest.raises(ThresholdError, match="measured with model"):
        identify(b"no numbers", gallery, model=bundle, threshold=by_other)
    smaller = SearchThreshold(0.5, 0.01, 1, 100, measured_on="comparisons", model_version=bundle.version)
    with pytest.raises(ThresholdError, match="holds for 1 people, the gallery has 2"):
        identify(b"no numbers", gallery, model=bundle, threshold=smaller)
    with pytest.raises(UndecodableSampleError):
        identify(b"no numbers", gallery, model=bundle)
    with pytest.raises(SettingsError):
        identify(b"1 0 0", gallery, model=bundle, top=0)


def test_a_probe_that_cannot_be_used_is_an_error_and_not_a_rejection(bundle: Bundle) -> None:
    with pytest.raises(SampleError):
        identify(b"", people(bundle), model=bundle)


def test_a_threshold_set_by_hand_and_an_uncalibrated_model(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    by_hand = SearchThreshold(score=0.9, fpir=0.01, people=0, trials=0)
    gallery = people(bundle)
    assert identify(b"1 0 0", gallery, model=bundle, threshold=by_hand).user_id == "ana"
    # (1, 0.5, 0) / sqrt 1.25 scores 0.894 with ana.
    assert identify(b"1 0.5 0", gallery, model=bundle, threshold=by_hand).user_id is None
    for score in (1.1, -1.1, math.nan):
        with pytest.raises(ThresholdError):
            SearchThreshold(score=score, fpir=0.01, people=0, trials=0)
    with pytest.raises(ThresholdError):
        SearchThreshold(score=0.5, fpir=0.01, people=-1, trials=0)


def test_one_person_under_two_names_is_nobody_by_name(bundle: Bundle) -> None:
    gallery = people(bundle)
    ana = Template(np.array([1, 0, 0], np.float32), bundle.version, "numbers", 3)
    gallery.add("ana", ana)
    gallery.add("anna", ana)
    for top in (1, 5):
        found = identify(b"1 0.2 0", gallery, model=bundle, top=top)
        assert found.outcome == "ambiguous"
        assert found.user_id is None
        assert found.tied == 2
    # The tie is of no interest below the threshold.
    assert identify(b"0 0 1", gallery, model=bundle).outcome == "rejected"


class Detector:
    name, modality = "by hand", "numbers"

    def __init__(self, score: float, modality: str = "numbers") -> None:
        self.score, self.modality = score, modality

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        return Presentation(self.name, self.score, 0.5, ("it is a photograph",) if self.score < 0.5 else ())


def test_an_attack_names_nobody(bundle: Bundle) -> None:
    gallery = people(bundle)
    live = identify(b"1 0 0", gallery, model=bundle, detectors=[Detector(1.0)])
    assert live.user_id == "ana"
    assert "presentation:by hand" in live.timings_s
    attack = identify(b"1 0 0", gallery, model=bundle, detectors=[Detector(0.0)])
    assert (attack.user_id, attack.outcome) == (None, "rejected")
    assert attack.presentations[0].reasons == ("it is a photograph",)
    with pytest.raises(SettingsError, match="looks at face samples"):
        identify(b"no numbers", gallery, model=bundle, detectors=[Detector(1.0, "face")])


def test_an_empty_gallery_rejects(bundle: Bundle) -> None:
    found = identify(b"1 0 0", Gallery(), model=bundle)
    assert (found.outcome, found.candidates, found.user_id, found.people) == ("rejected", (), None, 0)


def test_there_is_no_truth_value_and_no_id_in_repr(bundle: Bundle) -> None:
    found = identify(b"1 0 0", people(bundle), model=bundle)
    with pytest.raises(TypeError, match="no truth value"):
        bool(found)
    assert "ana" not in repr(found)


def fan(count: int, first: float, last: float) -> Float32:
    """Unit vectors in the plane of ana and the z axis, whose cosines with ana run evenly from first to last."""
    cosines = np.linspace(first, last, count)
    return np.stack([cosines, np.zeros(count), np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)


def test_a_threshold_measured_on_this_very_gallery() -> None:
    gallery = Gallery({"ana": Template(np.array([1, 0, 0], np.float32), "m", "numbers", 1)})
    # 100 strangers score 0, 1/99, ..., 1: at 5 %, five may be named, so the score is just above the sixth highest.
    limit = cohort_threshold(gallery, fan(100, 0.0, 1.0), fpir=0.05)
    assert limit.score == pytest.approx(94 / 99, abs=1e-6)
    assert (limit.people, limit.trials, limit.measured_on, limit.model_version) == (1, 100, "cohort", "m")
    assert limit.interval == pytest.approx((0.0164, 0.1128), abs=1e-4)  # Clopper-Pearson of 5 in 100
    with pytest.raises(ThresholdError, match="at least 300 people in the cohort, there are 100"):
        cohort_threshold(gallery, fan(100, 0.0, 1.0), fpir=0.01)
    with pytest.raises(ThresholdError, match="nobody"):
        cohort_threshold(Gallery(), fan(100, 0.0, 1.0), fpir=0.05)


def test_a_cohort_is_preferred_and_comparisons_stand_in() -> None:
    # A cohort of 100 supports FPIR 5 % among any number; 6,000 comparisons support 1 % among 20 (0.01 * 6,000 / 3).
    cohort = Cohort(
        np.repeat(fan(100, 0.0, 1.0), 2, axis=0),
        np.repeat(np.arange(100), 2),
        np.full((200, 1), np.nan, np.float32),
    )
    comparisons = np.linspace(-1, 0.9, 6000)
    calibration = Calibration.from_scores(comparisons, model_version="m", source="by hand", cohort=cohort)
    ana = Template(np.array([1, 0, 0], np.float32), "m", "numbers", 1)
    gallery = Gallery({str(copy): ana for copy in range(20)})
    limit = threshold_for(gallery, calibration, fpir=0.05)
    assert (limit.measured_on, limit.people, limit.trials) == ("cohort", 20, 100)
    assert limit.score == pytest.approx(94 / 99, abs=1e-6)
    assert threshold_for(gallery, calibration, fpir=0.05) is limit  # measured once
    assert threshold_for(gallery, calibration, fpir=0.01).measured_on == "comparisons"
    gallery.add("20", ana)
    with pytest.raises(ThresholdError) as caught:
        threshold_for(gallery, calibration, fpir=0.01)
    assert "at least 6300 impostor trials; there are 6000: search at most 20 people" in str(caught.value)
    assert "at least 300 people in the cohort, there are 100" in str(caught.value)
    for name in gallery.users():
        gallery.add(name, Template(np.array([0, 1, 0], np.float32), "m", "numbers", 1))
    assert threshold_for(gallery, calibration, fpir=0.05).score < 1e-6  # measured again where people changed
    assert threshold_for(Gallery(), calibration, fpir=0.05).people == 0


def test_comparisons_bound_what_a_cohort_measures() -> None:
    # Random strangers and templates: Boole's bound over N people holds whatever the gallery.
    rng = np.random.default_rng(0)

    def unit(count: int) -> Float32:
        rows = rng.standard_normal((count, 8))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    cohort, pairs = unit(2000), (unit(200) @ unit(200).T).ravel()
    gallery = Gallery({str(place): Template(row, "m", "numbers", 1) for place, row in enumerate(unit(20))})
    bound = search_threshold(Calibration.from_scores(pairs, model_version="m", source="random"), 20, fpir=0.05)
    assert (gallery.highest(cohort) >= bound.score).mean() == pytest.approx(0.05, abs=0.02)
    assert cohort_threshold(gallery, cohort, fpir=0.05).score == pytest.approx(bound.score, abs=0.02)


def test_the_template_of_somebody_else_in_the_calibration_is_refused(bundle: Bundle) -> None:
    calibration = Calibration.from_scores(IMPOSTORS, model_version="other", source="elsewhere")
    limit = search_threshold(calibration, 2, fpir=0.01)
    with pytest.raises(ThresholdError):
        identify(b"1 0 0", people(bundle), model=bundle, threshold=limit)


def test_a_card_of_few_scores_searches_as_many_people_as_all_its_trials_support() -> None:
    scores = np.random.default_rng(3).normal(0, 0.15, 320_000).clip(-1, 1).astype(np.float32)
    card = Calibration.from_scores(scores, model_version="m", source="numbers", kept=5000, people=800)
    assert len(card.impostor) <= 5000
    limit = search_threshold(card, 1000, fpir=0.01)
    # One in 100,000 of 320,000: three may reach it.
    assert (limit.trials, int((scores >= limit.score).sum())) == (320_000, 3)
    whole = Calibration.from_scores(scores, model_version="m", source="numbers", kept=400_000, people=800)
    assert search_threshold(whole, 1000, fpir=0.01).score == limit.score
    with pytest.raises(ThresholdError, match="there are 320000 of 800 people: search at most 1066 people"):
        search_threshold(card, 1067, fpir=0.01)


def test_a_law_of_scores_says_what_gallery_it_supports() -> None:
    law = Tail(0.0, 0.1, 30, 90, 0.001, np.array([[0.0, 0.1], [0.001, 0.101]]))
    summed = Calibration(law.values(), "m", "sums", people=120, tail=law)
    assert search_threshold(summed, 10, fpir=0.01).trials == 30 * 90
    with pytest.raises(ThresholdError, match=r"sums over 30 people .* support 0.001: search at most 10 people"):
        search_threshold(summed, 11, fpir=0.01)


@pytest.fixture
def flat(bundle: Bundle) -> Bundle:
    """Calibrated on people who lie in a plane: whoever lies along the third dimension is of another domain."""
    assert bundle.calibration is not None
    domain = Domain(
        np.zeros(3, np.float32), np.eye(2, 3, dtype=np.float32), np.array([0.4, 0.4]), 0.02, 40, np.array([0.5, 1, 2.0])
    )
    measured = replace(bundle.calibration, people=40, measured_unix_s=1_790_000_000.0, domain=domain)
    return bundle.with_calibration(measured)


def calibration_of(bundle: Bundle) -> Calibration:
    assert bundle.calibration is not None
    return bundle.calibration


def far_person(bundle: Bundle) -> Gallery:
    gallery = people(bundle)
    gallery.add("cy", Template(np.array([0, 0, 1], np.float32), bundle.version, "numbers", 3))
    return gallery


def test_a_search_says_what_it_rests_on(flat: Bundle) -> None:
    basis = identify(b"0 5 0", people(flat), model=flat, release=3).basis
    assert (basis.source, basis.people, basis.trials, basis.release) == ("made by hand", 40, 30_000, 3)
    assert (basis.asked_fpir, basis.fpir, basis.asked_fmr, basis.fmr) == (0.01, 0.01, None, None)
    assert basis.placement.verdict == "inside"
    assert basis.words == (
        "false positive identification rate 0.01 measured on made by hand, 30,000 impostor trials, 2026-09-21, "
        "release 3; template and probe lie within what was measured"
    )
    by_hand = SearchThreshold(score=0.9, fpir=0.01, people=0, trials=0)
    assert identify(b"0 5 0", people(flat), model=flat, threshold=by_hand).basis.words == (
        "a threshold set by hand; nothing was measured"
    )
    bare = flat.with_calibration(None)
    own = SearchThreshold(0.9, 0.05, 2, 60, measured_on="cohort")
    basis = identify(b"0 5 0", people(flat), model=bare, threshold=own).basis
    assert (basis.source, basis.people, basis.trials) == ("what the application measured", 60, 60)


def test_outside_a_search_is_as_cautious_as_a_comparison(flat: Bundle) -> None:
    gallery, probe = far_person(flat), b"0 0.1 1"
    found = identify(probe, gallery, model=flat)
    assert found.candidates[0].user_id == "cy"
    assert (found.basis.placement.verdict, found.basis.placement.reasons) == ("outside", ("template", "probe"))
    assert "aimed for, not measured here" in found.basis.words
    measured = threshold_for(gallery, calibration_of(flat), fpir=0.01)
    # One place says by how much: the same as for a comparison with that person.
    row = np.array([0, 0.1, 1], np.float32) / np.float32(np.sqrt(1.01))
    cy = Template(np.array([0, 0, 1], np.float32), flat.version, "numbers", 3)
    compared = decide(row, cy, bundle=flat, threshold=threshold_at(flat, 0.01))
    assert compared.basis.placement.reasons == found.basis.placement.reasons
    assert compared.basis.placement.cosine_rise == pytest.approx(found.basis.placement.cosine_rise, rel=1e-5)
    assert found.threshold.score == pytest.approx(min(measured.score + found.basis.placement.cosine_rise, 1.000001))
    assert (found.threshold.trials, found.threshold.interval) == (0, (0.0, 1.0))
    # Without the guard this would be cy: a cosine of 0.995 where 0.4998 was measured.
    assert measured.score < 0.5 < found.candidates[0].score < found.threshold.score
    assert (found.outcome, found.user_id) == ("rejected", None)
    with pytest.raises(UncalibratedDomainError, match="made by hand"):
        identify(probe, gallery, model=flat, strict_domain=True)
    # Only the best candidate's template counts, and one that nobody measured is not judged.
    assert identify(b"1 0 0", gallery, model=flat, strict_domain=True).user_id == "ana"
    hand = SearchThreshold(score=0.9, fpir=0.01, people=0, trials=0)
    assert identify(probe, gallery, model=flat, threshold=hand, strict_domain=True).user_id == "cy"
    assert identify(b"1 0 0", Gallery(), model=flat, strict_domain=True).basis.placement.verdict == "unknown"


def test_a_rate_that_the_trials_cannot_support_falls_back(flat: Bundle) -> None:
    gallery = far_person(flat)
    with pytest.raises(ThresholdError, match="at least 90000 impostor trials"):
        identify(b"1 0 0", gallery, model=flat, fpir=1e-4)
    found = identify(b"1 0 0", gallery, model=flat, fpir=1e-4, fallback=True)
    # Three people times 3 / 30,000.
    assert lowest_fpir(gallery, calibration_of(flat)) == 0.0003
    assert (found.user_id, found.threshold.fpir) == ("ana", 0.0003)
    assert (found.basis.asked_fpir, found.basis.fpir) == (1e-4, 0.0003)
    assert found.basis.words.startswith("false positive identification rate 0.0003 (asked 0.0001) measured on")
    # What is supported is taken as it was asked for, and no rate is made up where none is below 1.
    assert identify(b"1 0 0", gallery, model=flat, fpir=0.02, fallback=True).threshold.fpir == 0.02
    few = Calibration.from_scores(np.linspace(-0.5, 0.5, 8), model_version=flat.version, source="by hand")
    with pytest.raises(ThresholdError, match="shows no rate below 1 for a search of 3 people: search at most 2"):
        lowest_fpir(gallery, few)
    with pytest.raises(ThresholdError, match="between 0 and 1"):
        identify(b"1 0 0", gallery, model=flat, fpir=0.0, fallback=True)
