"""Enrolment, with three-dimensional embeddings whose scores can be worked out by hand."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders import open_store
from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Array
from uvsdk.bundle import Bundle
from uvsdk.enroll import Enrollment, Participation, enroll
from uvsdk.errors import (
    BundleError,
    EnrolmentError,
    FederationError,
    SettingsError,
    StoreError,
    StoreFullError,
    ThresholdError,
    TrainingUnavailableError,
    UvsdkError,
)
from uvsdk.templates.storage import MemoryStore, Store, same_arrays
from uvsdk.templates.template import Template
from uvsdk.verify import verify

# Unit vectors along the axes: their mean is (1, 1, 1) / 3, normalised (1, 1, 1) / sqrt 3.
AXES = [b"1 0 0", b"0 1 0", b"0 0 1"]
# Three of one person: cosines of 0.990 and 0.995, above what one in a hundred of the impostors below reaches, 0.98.
CLOSE = [b"1 0 0", b"1 0.1 0", b"1 0 0.1"]
# 1,000 impostors, evenly spaced from -1 to 1 in steps of 2/999.
IMPOSTORS = np.linspace(-1, 1, 1000).astype(np.float32)


class FullStore(MemoryStore):
    def save_enrolment(self, user_id: str, template: Template, features: Sequence[Array]) -> None:
        raise StoreFullError("the disk is full")


class Federated:
    """Takes part as told: a participation is returned, an error raised."""

    def __init__(self, outcome: Participation | Exception) -> None:
        self.outcome = outcome
        self.saw: tuple[str, ...] = ()

    def take_part(self, user_id: str, *, model: Bundle, store: Store) -> Participation:
        self.saw = store.users()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_the_template_is_the_normalised_mean(identity_bundle: MakeBundle) -> None:
    bundle, store = identity_bundle(), MemoryStore()
    enrollment = enroll("ana", AXES, model=bundle, store=store)
    assert enrollment.template.embedding == pytest.approx([1 / math.sqrt(3)] * 3)
    assert enrollment.template.samples == 3
    assert enrollment.template.model_version == bundle.version
    assert enrollment.template.modality == "numbers"
    assert enrollment.template.threshold is None
    assert enrollment.participation is None
    assert [report.accepted for report in enrollment.samples] == [True] * 3
    assert store.template("ana") == enrollment.template
    assert [array.tolist() for array in store.features("ana")] == np.eye(3).tolist()


def test_every_sample_has_one_voice_whatever_its_length(identity_bundle: MakeBundle) -> None:
    # Normalised before averaging: (1, 0, 0) and (0, 1, 0) count alike although one is a hundred times longer.
    template = enroll("ana", [b"100 0 0", b"0 1 0"], model=identity_bundle(), store=MemoryStore(), minimum_samples=2)
    assert template.template.embedding == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), 0])


def test_bad_samples_are_reported_and_left_out(identity_bundle: MakeBundle) -> None:
    store = MemoryStore()
    samples = [b"", AXES[0], b"no numbers", AXES[1], AXES[0], AXES[2]]
    enrollment = enroll("ana", samples, model=identity_bundle(), store=store)
    assert [report.index for report in enrollment.samples] == list(range(6))
    assert [report.accepted for report in enrollment.samples] == [False, True, False, True, False, True]
    assert enrollment.samples[0].reason == "the page is empty; write something"
    assert enrollment.samples[0].quality is None
    assert enrollment.samples[1].reason == ""
    assert enrollment.samples[1].quality is not None
    assert enrollment.samples[1].quality.measured == {"length": 1.0}
    assert enrollment.samples[4].reason == "the same as sample 1; make a new one"
    assert enrollment.template.samples == 3
    assert len(store.features("ana")) == 3


def test_too_few_lists_every_reason_and_stores_nothing(identity_bundle: MakeBundle) -> None:
    store = MemoryStore()
    with pytest.raises(EnrolmentError) as caught:
        enroll("secret-name", [AXES[0], b"", AXES[0], b"?"], model=identity_bundle(), store=store)
    assert str(caught.value) == (
        "1 of 4 samples can be used, 3 are needed (sample 1: the page is empty; write something; "
        "sample 2: the same as sample 0; make a new one; sample 3: not three numbers)"
    )
    assert store.users() == ()
    with pytest.raises(EnrolmentError, match="0 of 0 samples can be used, 3 are needed"):
        enroll("ana", [], model=identity_bundle(), store=store)


def test_too_few_leaves_the_previous_enrolment(identity_bundle: MakeBundle) -> None:
    store = MemoryStore()
    first = enroll("ana", AXES, model=identity_bundle(), store=store)
    with pytest.raises(EnrolmentError):
        enroll("ana", AXES[:2], model=identity_bundle(), store=store)
    assert store.template("ana") == first.template


def test_enrolling_again_replaces(identity_bundle: MakeBundle) -> None:
    store = MemoryStore()
    enroll("ana", AXES, model=identity_bundle(), store=store)
    again = enroll("ana", AXES[:2], model=identity_bundle(), store=store, minimum_samples=2)
    assert store.users() == ("ana",)
    assert store.template("ana") == again.template
    assert len(store.features("ana")) == 2


def test_a_mean_without_direction(identity_bundle: MakeBundle) -> None:
    with pytest.raises(EnrolmentError, match="contradict"):
        enroll("ana", [b"1 0 0", b"-1 0 0"], model=identity_bundle(), store=MemoryStore(), minimum_samples=2)


@pytest.mark.parametrize(
    "sample",
    [
        "ana.wav",
        Path("ana.wav"),
        b"1 0 0",
        bytearray(b"1 0 0"),
        io.BytesIO(b"1 0 0"),
        np.zeros((8, 8), np.uint8),
        (np.zeros(16000, np.float32), 16000),
        None,
        7,
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_one_sample_in_place_of_several_is_a_type_error(sample: object, identity_bundle: MakeBundle) -> None:
    with pytest.raises(TypeError, match=f"a single {type(sample).__name__}; pass a list"):
        enroll("ana", sample, model=identity_bundle(), store=MemoryStore())  # type: ignore[arg-type]


def test_any_iterable_of_samples_will_do(identity_bundle: MakeBundle) -> None:
    for samples in (tuple(AXES), iter(AXES), (sample for sample in AXES)):
        assert enroll("ana", samples, model=identity_bundle(), store=MemoryStore()).template.samples == 3


def test_arguments_out_of_range(identity_bundle: MakeBundle) -> None:
    bundle, store = identity_bundle(), MemoryStore()
    with pytest.raises(SettingsError, match="empty"):
        enroll("", AXES, model=bundle, store=store)
    with pytest.raises(SettingsError, match="minimum_samples is 0"):
        enroll("ana", AXES, model=bundle, store=store, minimum_samples=0)
    for fmr in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ThresholdError):
            enroll("ana", AXES, model=bundle, store=store, fmr=fmr)
    with pytest.raises(TypeError, match="a Bundle or the path of one, got int"):
        enroll("ana", AXES, model=7, store=store)  # type: ignore[arg-type]
    with pytest.raises(BundleError):
        enroll("ana", AXES, model="nowhere.uvb", store=store)


def test_a_path_is_opened_once_until_it_changes(tmp_path: Path, identity_bundle: MakeBundle) -> None:
    from uvsdk.bundle.inference import open_bundle

    path = tmp_path / "model.uvb"
    identity_bundle().save(path)
    assert open_bundle(path) is open_bundle(str(path))
    first = enroll("ana", AXES, model=path, store=MemoryStore())
    assert first.template.model_version == identity_bundle().version
    identity_bundle(name="another-one").save(path)
    assert open_bundle(path).version == identity_bundle(name="another-one").version


def test_an_unsupported_rate_is_refused_before_any_sample_is_read(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle(IMPOSTORS[:200])
    with pytest.raises(ThresholdError, match="needs at least 300 impostor trials, there are 200"):
        enroll("ana", [b""], model=bundle, store=MemoryStore(), fmr=0.01)


def test_the_threshold_is_tau_fmr_where_the_impostors_score_higher(identity_bundle: MakeBundle) -> None:
    # At 20 %, 200 of 1,000 impostors may be accepted: the threshold lies just above the 201st highest, which is
    # 1 - 2 * 200/999 = 0.6. Three samples have no tau_TPR.
    bundle = identity_bundle(IMPOSTORS)
    threshold = enroll("ana", CLOSE, model=bundle, store=MemoryStore(), fmr=0.2).template.threshold
    assert bundle.calibration is not None
    assert threshold == bundle.calibration.threshold(0.2)
    assert threshold is not None
    assert threshold.score == pytest.approx(1 - 400 / 999, abs=1e-6)


def test_too_few_samples_for_a_quantile_leave_the_impostor_threshold(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle(IMPOSTORS)
    assert bundle.calibration is not None
    enrollment = enroll("ana", CLOSE, model=bundle, store=MemoryStore(), fmr=0.9)
    assert enrollment.template.threshold == bundle.calibration.threshold(0.9)


def test_a_single_sample_has_the_impostor_threshold_alone(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle(IMPOSTORS)
    enrollment = enroll("ana", [b"1 2 3"], model=bundle, store=MemoryStore(), minimum_samples=1)
    assert bundle.calibration is not None
    # 1,000 trials measure three in a thousand and nothing lower.
    assert enrollment.template.threshold == replace(bundle.calibration.threshold(0.003), by_default=True)
    named = enroll("ana", [b"1 2 3"], model=bundle, store=MemoryStore(), minimum_samples=1, fmr=0.01)
    assert named.template.threshold == bundle.calibration.threshold(0.01)


@pytest.mark.parametrize("state", ["trained", "joined", "queued"])
def test_participation_is_handed_on(state: str, identity_bundle: MakeBundle) -> None:
    federation = Federated(Participation(state, "round 3"))  # type: ignore[arg-type]
    enrollment = enroll("ana", AXES, model=identity_bundle(), store=MemoryStore(), federation=federation)
    assert enrollment.participation == federation.outcome
    assert federation.saw == ("ana",)  # already stored when the federation is asked


@pytest.mark.parametrize("error", [FederationError("no answer"), TrainingUnavailableError("no torch")])
def test_a_failing_federation_never_undoes_the_enrolment(error: UvsdkError, identity_bundle: MakeBundle) -> None:
    store = MemoryStore()
    enrollment = enroll("ana", AXES, model=identity_bundle(), store=store, federation=Federated(error))
    assert enrollment.participation == Participation("queued", str(error))
    assert store.template("ana") == enrollment.template


def test_a_full_store_is_an_error_and_nothing_is_joined(identity_bundle: MakeBundle) -> None:
    federation = Federated(Participation("joined"))
    with pytest.raises(StoreFullError):
        enroll("ana", AXES, model=identity_bundle(), store=FullStore(), federation=federation)
    assert federation.saw == ()


def test_repr_holds_no_embedding_and_no_user(identity_bundle: MakeBundle) -> None:
    enrollment: Enrollment = enroll("secret-name", AXES, model=identity_bundle(), store=MemoryStore())
    assert "0.577" not in repr(enrollment)
    assert "secret-name" not in repr(enrollment)


class Faulty(MemoryStore):
    """A store whose reading goes wrong once ``fault`` is set, in one of the ways that a store can."""

    fault = ""
    deleted = 0

    def save_enrolment(self, user_id: str, template: Template, features: Sequence[Array]) -> None:
        if self.fault == "loses" and template.samples == 3:
            return
        if self.fault == "rounds" and template.samples == 3:
            rounded = np.round(template.embedding.astype(np.float64), 4)
            template = replace(template, embedding=(rounded / np.linalg.norm(rounded)).astype(np.float32))
        if self.fault == "keeps no features" and template.samples == 3:
            features = ()
        super().save_enrolment(user_id, template, features)

    def template(self, user_id: str) -> Template:
        found = super().template(user_id)
        if self.fault == "raises" and found.samples == 3:
            raise ValueError("not a number")
        if self.fault == "forgets the threshold" and found.samples == 3:
            return replace(found, threshold=None)
        return found

    def delete(self, user_id: str) -> None:
        self.deleted += 1
        super().delete(user_id)


FAULTS = ["raises", "loses", "rounds", "keeps no features", "forgets the threshold"]


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_called_stored_that_does_not_read_back(identity_bundle: MakeBundle, fault: str) -> None:
    bundle, store = identity_bundle(IMPOSTORS), Faulty()
    store.fault = fault
    with pytest.raises(StoreError, match="Faulty wrote of the enrolment"):
        enroll("ana", CLOSE, model=bundle, store=store)
    assert store.users() == ()


@pytest.mark.parametrize("fault", FAULTS)
def test_an_earlier_enrolment_outlives_one_that_does_not_read_back(identity_bundle: MakeBundle, fault: str) -> None:
    bundle, store = identity_bundle(IMPOSTORS), Faulty()
    first = enroll("ana", [*CLOSE, b"1 0.1 0.1"], model=bundle, store=store)
    features = store.features("ana")
    store.fault = fault
    with pytest.raises(StoreError, match="The earlier enrolment is in place again"):
        enroll("ana", CLOSE, model=bundle, store=store)
    assert store.deleted == 0
    assert store.template("ana") == first.template
    assert same_arrays(store.features("ana"), features)
    assert verify(b"1 0 0", store.template("ana"), model=bundle).accepted


def test_rivals_that_enrol_one_person_are_no_fault_of_the_store(identity_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = identity_bundle(IMPOSTORS)
    for store in (MemoryStore(), open_store(tmp_path / "s")):
        with ThreadPoolExecutor(8) as threads:
            work = [
                threads.submit(enroll, "ana", CLOSE[: 2 + turn % 2], model=bundle, store=store, minimum_samples=2)
                for turn in range(24)
            ]
            made = [item.result().template for item in work]
        assert store.template("ana") in made
        assert len(store.features("ana")) == store.template("ana").samples
