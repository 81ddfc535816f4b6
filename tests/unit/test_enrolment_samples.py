"""What becomes of each sample and of an earlier enrolment: outliers, contradictions, replacing, extending, refusing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.conftest import IMPOSTORS, MakeBundle
from uvsdk.arrays import Array
from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk.enrolment.completeness import Completeness
from uvsdk.errors import EnrolmentError, ModelMismatchError, SettingsError, UnknownUserError
from uvsdk.scoring import Calibration
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings
from uvsdk.templates.storage import MemoryStore
from uvsdk.templates.template import Template
from uvsdk.verify import verify

# One in a hundred reaches 0.49.
ANA = [b"1 0 0", b"1 0.1 0", b"1 0 0.1", b"1 0.1 0.1"]
BEN = [b"0 1 0", b"0.1 1 0", b"0 1 0.1", b"0.1 1 0.1"]


@pytest.fixture
def bundle(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


def test_somebody_elses_sample_among_the_own_is_refused(bundle: Bundle) -> None:
    store = MemoryStore()
    enrollment = enroll("ana", [ANA[0], BEN[0], ANA[1], ANA[2]], model=bundle, store=store)
    assert [report.accepted for report in enrollment.samples] == [True, False, True, True]
    foreign = enrollment.samples[1]
    # The three others point to (3, 0.1, 0.1) or nearly: a cosine of 0.03 with (0, 1, 0).
    assert foreign.reason == (
        "unlike the others, similarity 0.03 (need 0.49): somebody else's, or a bad one; make a new one"
    )
    assert foreign.similarity == pytest.approx(0.033, abs=1e-3)
    assert foreign.quality is not None
    assert all(report.similarity > 0.98 for report in enrollment.samples if report.accepted and report.similarity)
    assert enrollment.template.samples == 3
    assert len(store.features("ana")) == 3
    assert not verify(BEN[0], enrollment.template, model=bundle).accepted


def test_without_calibration_too(identity_bundle: MakeBundle) -> None:
    enrollment = enroll("ana", [*ANA, BEN[0]], model=identity_bundle(), store=MemoryStore())
    assert [report.accepted for report in enrollment.samples] == [True, True, True, True, False]
    assert "need" not in enrollment.samples[4].reason
    assert enrollment.expected_fnmr is None


def test_too_few_are_left_without_the_outlier(bundle: Bundle) -> None:
    store = MemoryStore()
    with pytest.raises(EnrolmentError, match=r"2 of 3 samples can be used, 3 are needed \(sample 2: unlike the others"):
        enroll("ana", [ANA[0], ANA[1], BEN[0]], model=bundle, store=store)
    assert store.users() == ()


@pytest.mark.parametrize("calibrated", [True, False])
def test_two_and_two_contradict_each_other(calibrated: bool, identity_bundle: MakeBundle) -> None:
    bundle, store = identity_bundle(IMPOSTORS if calibrated else None), MemoryStore()
    with pytest.raises(EnrolmentError) as caught:
        enroll("ana", [ANA[0], b"", BEN[0], ANA[1], BEN[1]], model=bundle, store=store)
    assert str(caught.value) == (
        "the samples contradict each other: they look like those of 2 people (samples 0, 3; 2, 4) and none of them "
        "made more than half; enrol one person at a time, from new samples"
    )
    assert store.users() == ()


def test_contradiction_leaves_the_earlier_enrolment(bundle: Bundle) -> None:
    store = MemoryStore()
    first = enroll("ana", ANA, model=bundle, store=store)
    with pytest.raises(EnrolmentError):
        enroll("ana", [ANA[0], ANA[1], BEN[0], BEN[1]], model=bundle, store=store)
    assert store.template("ana") == first.template


def test_people_who_share_samples_keep_them(bundle: Bundle) -> None:
    samples = [ANA[0], ANA[1], BEN[0], BEN[1]]
    enrollment = enroll("ana", samples, model=bundle, store=MemoryStore(), outliers="keep")
    assert all(report.accepted for report in enrollment.samples)
    assert enrollment.template.samples == 4
    opposite = [b"1 0 0", b"-1 0 0", b"1 0.1 0"]
    assert enroll("ana", opposite, model=bundle, store=MemoryStore(), outliers="keep").template.samples == 3


def test_all_copies_are_one_sample(bundle: Bundle) -> None:
    with pytest.raises(EnrolmentError, match="1 of 4 samples can be used, 3 are needed"):
        enroll("ana", [ANA[0]] * 4, model=bundle, store=MemoryStore())


def test_a_single_sample_has_nothing_to_be_compared_with(bundle: Bundle) -> None:
    enrollment = enroll("ana", ANA[:1], model=bundle, store=MemoryStore(), minimum_samples=1)
    assert enrollment.samples[0].similarity is None
    assert enrollment.expected_fnmr is None
    assert enrollment.completeness == Completeness(20, ("4 more samples (1 of 5)",))


def test_a_looser_rate_asks_for_no_more_than_it_accepts(identity_bundle: MakeBundle) -> None:
    # 45 degrees apart: 0.71. Impostors up to 1: one in a hundred reaches 0.98, one in five 0.6.
    bundle = identity_bundle(np.linspace(-1, 1, 1000).astype(np.float32))
    apart = [b"1 0 0", b"1 1 0", b"1 0.5 0.1"]
    with pytest.raises(EnrolmentError, match="contradict"):
        enroll("ana", apart, model=bundle, store=MemoryStore())
    assert enroll("ana", apart, model=bundle, store=MemoryStore(), fmr=0.2).template.samples == 3


def test_what_a_likelihood_ratio_calls_the_same_person_is_not_refused(identity_bundle: MakeBundle) -> None:
    # One in a hundred impostors reaches a cosine of 0.88, and a ratio of 0, which is 2 (s - 0.5) / 0.1 - 4: s = 0.7.
    # (1, 0.8, 0) has 0.81 with the others: a cosine refuses it, the ratio, which knows the conditions, does not.
    plain = identity_bundle()
    ratio = LikelihoodRatio(
        compensation=Compensation(np.zeros(3, np.float32), np.zeros((0, 3), np.float32)),
        top=0,
        surroundings=Surroundings.of([]),
        location=np.array([0.5]),
        log_scale=np.array([math.log(0.1)]),
        limits=np.array([[-9.0, 9.0], [-9.0, 9.0]]),
        slope=2.0,
        offset=-4.0,
        lowest=-9.0,
        highest=9.0,
        impostor=np.concatenate([np.full(99, -5.0), [0.0]]).astype(np.float32),
        trials=1000,
    )
    scores = np.linspace(-0.9, 0.9, 1000)
    bundle = plain.with_calibration(
        Calibration.from_scores(scores, model_version=plain.version, source="by hand", ratio=ratio)
    )
    enrollment = enroll("ana", [*ANA, b"1 0.8 0", BEN[0]], model=bundle, store=MemoryStore())
    assert [report.accepted for report in enrollment.samples] == [True] * 5 + [False]
    assert enrollment.template.threshold is not None
    assert enrollment.template.threshold.scale == "llr"
    expected = enrollment.expected_fnmr
    assert expected is not None
    assert (expected.rejected, expected.trials) == (0, 5)


def test_what_to_expect_of_it(bundle: Bundle) -> None:
    enrollment = enroll("ana", ANA, model=bundle, store=MemoryStore())
    expected = enrollment.expected_fnmr
    assert expected is not None
    assert (expected.rejected, expected.trials) == (0, 4)
    assert expected.interval == pytest.approx((0.0, 1 - 0.025 ** (1 / 4)), abs=1e-9)
    # 4 of 5 samples; and they are nearly alike, six degrees and less apart.
    assert enrollment.completeness.percent < 10
    assert enrollment.completeness.missing[0] == "1 more samples (4 of 5)"
    assert enrollment.completeness.missing[1].startswith("variety")


def test_enrolling_again_replaces_and_says_so(bundle: Bundle) -> None:
    # wespeaker: "second enrolment ignored with a print". Here the second one counts, and the result tells.
    store = MemoryStore()
    assert enroll("ana", ANA, model=bundle, store=store).outcome == "new"
    again = enroll("ana", BEN, model=bundle, store=store)
    assert again.outcome == "replaced"
    assert store.template("ana") == again.template
    assert verify(BEN[0], store.template("ana"), model=bundle).accepted
    assert not verify(ANA[0], store.template("ana"), model=bundle).accepted


def test_refusing_leaves_everything_and_reads_no_sample(bundle: Bundle) -> None:
    store = MemoryStore()
    first = enroll("secret-name", ANA, model=bundle, store=store, existing="refuse")
    assert first.outcome == "new"
    with pytest.raises(EnrolmentError, match="enrolled already") as caught:
        enroll("secret-name", [b"", b"", b""], model=bundle, store=store, existing="refuse")
    assert "secret-name" not in str(caught.value)
    assert store.template("secret-name") == first.template


def test_extending_adds_to_what_is_there(bundle: Bundle) -> None:
    store = MemoryStore()
    enroll("ana", ANA[:3], model=bundle, store=store)
    extended = enroll("ana", [b"1 -0.1 0", b"1 0 -0.1"], model=bundle, store=store, existing="extend")
    assert extended.outcome == "extended"
    assert extended.template.samples == 5
    assert len(store.features("ana")) == 5
    assert [report.index for report in extended.samples] == [0, 1]
    # The same as all five at once.
    whole = enroll("ben", [*ANA[:3], b"1 -0.1 0", b"1 0 -0.1"], model=bundle, store=store)
    assert extended.template.embedding == pytest.approx(whole.template.embedding, abs=1e-6)
    assert extended.expected_fnmr == whole.expected_fnmr


def test_nobody_takes_an_enrolment_over_by_extending_it(bundle: Bundle) -> None:
    # More new samples than old: what is enrolled decides whose they are, not the majority.
    store = MemoryStore()
    first = enroll("ana", ANA[:3], model=bundle, store=store)
    with pytest.raises(EnrolmentError, match="0 of 4 samples can be used, 1 are needed"):
        enroll("ana", BEN, model=bundle, store=store, existing="extend")
    assert store.template("ana") == first.template
    mixed = enroll("ana", [*BEN, b"1 -0.1 0"], model=bundle, store=store, existing="extend")
    assert [report.accepted for report in mixed.samples] == [False] * 4 + [True]
    assert mixed.template.samples == 4


def test_a_sample_that_is_enrolled_already_adds_nothing(bundle: Bundle) -> None:
    store = MemoryStore()
    enroll("ana", ANA[:3], model=bundle, store=store)
    with pytest.raises(EnrolmentError, match="the same as a sample that is enrolled already"):
        enroll("ana", ANA[:2], model=bundle, store=store, existing="extend")
    with pytest.raises(EnrolmentError, match="0 of 0 samples"):
        enroll("ana", [], model=bundle, store=store, existing="extend")


def test_what_cannot_be_extended(bundle: Bundle) -> None:
    store = MemoryStore()
    with pytest.raises(UnknownUserError):
        enroll("ana", ANA, model=bundle, store=store, existing="extend")
    enroll("ana", ANA, model=bundle, store=store)
    template = store.template("ana")
    store.save_enrolment("ana", template, [])
    with pytest.raises(EnrolmentError, match="no features were kept"):
        enroll("ana", ANA, model=bundle, store=store, existing="extend")
    store.save_enrolment("ana", Template(template.embedding, bundle.version, "voice", 3), [np.ones(3, np.float32)])
    with pytest.raises(ModelMismatchError, match="the enrolment is by voice"):
        enroll("ana", ANA, model=bundle, store=store, existing="extend")
    for wrong in ({"existing": "append"}, {"outliers": "drop"}):
        with pytest.raises(SettingsError):
            enroll("ana", ANA, model=bundle, store=store, **wrong)  # type: ignore[arg-type]


class Changing(MemoryStore):
    """Somebody else enrols the same person while this enrolment is extended."""

    rival = False

    def features(self, user_id: str) -> tuple[Array, ...]:
        found = super().features(user_id)
        if self.rival:
            self.rival = False
            self.save_enrolment(user_id, Template(np.array([0, 0, 1], np.float32), "m", "numbers", 3), [])
        return found


def test_an_enrolment_that_changed_meanwhile_is_not_overwritten(bundle: Bundle) -> None:
    store = Changing()
    enroll("ana", ANA[:3], model=bundle, store=store)
    store.rival = True
    with pytest.raises(EnrolmentError, match="enrolled anew while"):
        enroll("ana", ANA[3:], model=bundle, store=store, existing="extend")
    assert store.template("ana").embedding.tolist() == [0, 0, 1]
