"""The domain's mean taken out of a comparison: the same in every place that compares, and only where it is better."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.errors import (
    BundleError,
    ExchangedBundleError,
    SettingsError,
    UnapprovedConfigError,
    UpdateRejectedError,
    WireError,
)
from uvsdk.federation.messages import EvaluationHeader, TrainingConfig
from uvsdk.identify import SearchThreshold, cohort_threshold, search_threshold
from uvsdk.identify import _applicable as applicable
from uvsdk.records.codec import pack, unpack
from uvsdk.release.acceptance import shares
from uvsdk.release.conclusion import conclude, renews
from uvsdk.release.report import EvaluationReport, EvaluationTask, centre_of, check, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring import Calibration, Threshold
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import UNKNOWN
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.personal import genuine_scores, personal_threshold
from uvsdk.scoring.record import from_bytes, to_bytes
from uvsdk.scoring.tail import Tail
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template
from uvsdk.verify import compare, decide, threshold_at
from uvsdk_device import evaluations
from uvsdk_device.evaluations import answer
from uvsdk_device.reembedding import is_current, is_learnt

CENTRE = np.array([0.0, 0.8], np.float32)
LEFT, RIGHT = np.array([-0.6, 0.8], np.float32), np.array([0.6, 0.8], np.float32)
SCORES = np.linspace(-0.9, 0.5, 2000, dtype=np.float32)
PEOPLE, DIMENSION = 60, 24


def calibration(centre: Float32 | None = CENTRE, version: str = "m") -> Calibration:
    return replace(Calibration.from_scores(SCORES, model_version=version, source="an example"), centre=centre)


def template(row: Float32, threshold: Threshold | None = None, version: str = "m") -> Template:
    return Template(row, version, "handwriting", 3, threshold)


def test_two_who_share_nothing_but_the_mean_lie_opposite_without_it() -> None:
    """(0.6, 0.8) . (-0.6, 0.8) = 0.28; less (0, 0.8) they are (0.6, 0) and (-0.6, 0), so -1."""
    assert compare(RIGHT, template(LEFT)) == pytest.approx(0.28)
    assert compare(RIGHT, template(LEFT), calibration=calibration()) == pytest.approx(-1.0)
    assert compare(RIGHT, template(LEFT), calibration=calibration(None)) == compare(RIGHT, template(LEFT))
    # Whoever lies at the centre itself resembles nobody.
    middle = np.array([0.0, 1.0], np.float32)
    assert compare(middle, template(RIGHT), calibration=calibration(middle)) == 0.0


def test_every_score_is_the_same_cosine() -> None:
    """A search, the best of a gallery, an acceptance test, enrolment and ageing all go by one comparison."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 8)) + 2.0 * np.eye(8)[0]
    rows = np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
    centre = rows.mean(axis=0)
    centred = replace(calibration(), centre=centre)
    people, probe = {str(index): template(row) for index, row in enumerate(rows[:6])}, rows[8]
    expected = {name: compare(probe, item, calibration=centred) for name, item in people.items()}
    gallery = Gallery(people)
    found = gallery.search(probe, 6, centring=centred.centring)
    assert {item.user_id: item.score for item in found.candidates} == pytest.approx(expected, abs=1e-12)
    assert gallery.highest(probe[None], centring=centred.centring) == pytest.approx([max(expected.values())], abs=1e-6)
    assert gallery.search(probe, 1).candidates[0].score == max(compare(probe, item) for item in people.values())
    # Whoever comes later is found as well.
    gallery.add("probe", template(probe))
    assert gallery.search(probe, 1, centring=centred.centring).candidates[0].score == pytest.approx(1.0)

    limit = Threshold(0.0, 0.01, 100, model_version="m")
    told = shares(rows[:3], rows[3:8], centred, limit)
    whole = np.asarray(rows[:3].mean(axis=0), np.float64)
    mean = template(np.asarray(whole / np.linalg.norm(whole), np.float32))
    scores = [compare(row, mean, calibration=centred) for row in rows[3:8]]
    assert told.strangers == pytest.approx(np.mean(np.array(scores) >= 0.0))
    assert told.own == pytest.approx(np.mean(genuine_scores(rows[:3], centred.centring) >= 0.0))
    pair = genuine_scores(rows[:2], centred.centring)  # each against the other, raised alike
    one = compare(rows[0], template(rows[1]), calibration=centred)
    alike = min(max(one, 0.0), 1.0)
    assert pair == pytest.approx([one * math.sqrt(1.0 / ((1.0 + alike) / 2.0))] * 2, abs=1e-6)

    placed = replace(centred, domain=Domain.of_people(centred.compared(rows), np.arange(9)))
    assert placed.domain is not None
    distance = placed.domain.distance(centred.compared(probe))
    assert placed.place(rows[0], probe, template=UNKNOWN, probe=UNKNOWN).probe == pytest.approx(distance)


def test_a_threshold_of_ones_own_and_a_trained_vector_are_of_the_same_cosines() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(20, 4)) * 0.2 + np.array([1.0, 1.0, 0.0, 0.0])
    rows = np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
    centred = replace(calibration(), centre=np.array([0.7, 0.0, 0.0, 0.0], np.float32))
    vector = np.array([0.0, 1.0, 0.0, 0.0], np.float32)
    lowest = Threshold(-1.0, 0.01, 100, model_version="m")
    found = personal_threshold(lowest, centred, embeddings=rows, template=vector)
    scores = [compare(row, template(vector), calibration=centred) for row in rows]
    assert min(scores) <= found.score <= sorted(scores)[1] + 1e-9
    reached = min(scores) - 0.01
    whole = min(compare(row, template(vector)) for row in rows)
    assert whole < reached  # so that it matters which cosine it is
    assert is_learnt(vector, rows, reached, centred)
    assert not is_learnt(vector, rows, reached)


def test_a_threshold_of_one_cosine_is_not_held_against_the_other(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    middle = np.array([0.5, 0.0, 0.0], np.float32)
    whole = bundle.with_calibration(calibration(None, bundle.version))
    centred = bundle.with_calibration(calibration(middle, bundle.version))
    row = np.array([0.0, 1.0, 0.0], np.float32)
    limits = {"whole": threshold_at(whole, 0.01), "centred": threshold_at(centred, 0.01)}
    assert limits["whole"].calibration != limits["centred"].calibration
    for own, other, limit in (
        (whole, centred, limits["whole"]),
        (centred, whole, limits["centred"]),
        (centred, bundle, limits["centred"]),
        (centred, bundle.with_calibration(calibration(2 * middle, bundle.version)), limits["centred"]),
    ):
        kept = template(row, limit, bundle.version)
        assert decide(row, kept, bundle=own, threshold=limit).accepted
        with pytest.raises(ExchangedBundleError, match="the threshold is of cosines"):
            decide(row, kept, bundle=other, threshold=limit)
        assert not is_current(kept, other)
        assert Template.from_plain_bytes(kept.to_plain_bytes(), bundle.version) == kept
    # One that is set by hand is held against whatever the bundle compares.
    by_hand = decide(row, template(row, version=bundle.version), bundle=centred, threshold=Threshold(0.5, 0.01, 0))
    assert by_hand.accepted

    gallery = Gallery({"ada": template(row, limits["centred"], bundle.version)})
    searched = search_threshold(calibration(middle, bundle.version), 1, fpir=0.01)
    assert applicable(searched, gallery, centred, 0.01, fallback=False) == searched
    for other in (whole, bundle):
        with pytest.raises(ExchangedBundleError, match="another centre"):
            applicable(searched, gallery, other, 0.01, fallback=False)
    cohort = np.eye(3, dtype=np.float32)
    measured = cohort_threshold(gallery, np.tile(cohort, (100, 1)), fpir=0.01, calibration=centred.calibration)
    assert measured.centre == searched.centre
    assert applicable(SearchThreshold(0.5, 0.01, 1, 0), gallery, centred, 0.01, fallback=False).measured_on == "hand"


def test_a_record_without_a_centre_keeps_its_bytes_and_one_with_is_covered_whole(identity_bundle: MakeBundle) -> None:
    whole, centred = calibration(None), calibration()
    read = from_bytes(to_bytes(centred), ())
    assert read.centre is not None
    assert read.centre.tolist() == CENTRE.tolist()
    assert read.digest == centred.digest != whole.digest
    assert b"centre" not in to_bytes(replace(whole, people=3)).replace(b'"centre":', b"", 1)  # the ratio's own
    bundle = identity_bundle()
    signed = bundle.with_calibration(calibration(np.array([0.5, 0.0, 0.0], np.float32), bundle.version))
    assert signed.digest != bundle.with_calibration(calibration(None, bundle.version)).digest
    assert type(signed).from_bytes(signed.to_bytes()).digest == signed.digest
    for wrong in ([0.0, 1.5], [math.nan, 0.0]):
        with pytest.raises((BundleError, ValueError), match=r"no mean of unit vectors|not finite"):
            from_bytes(to_bytes(calibration(np.array(wrong, np.float32))), ())


def people(*, spread: float = 0.3) -> list[Float32]:
    """Persons whose samples share a direction, one more and another less, beside which they differ."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(PEOPLE):
        share = 2.0 * np.abs(1.0 + spread * rng.normal(size=(5, 1))) * np.eye(DIMENSION)[0]
        rows = share + rng.normal(size=DIMENSION) / 4.9 + 0.1 * rng.normal(size=(5, DIMENSION))
        found.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    return found


def sums(rows: list[Float32], centre: Float32 | None = None, version: str = "m") -> ModelSums:
    centring = None if centre is None else Compensation.centring(centre)
    nobody = np.zeros((0, DIMENSION), np.float32)
    reports = [
        report_on(each, model_version=version, impostors="moments", evaluates=True, strangers=nobody, centring=centring)
        for each in rows
    ]
    return ModelSums.of(enumerate(reports), model_version=version, impostors="moments", centre=centre)


def test_the_mean_is_told_from_fifty_people_and_taken_out_where_fewer_are_rejected() -> None:
    everybody = people()
    values = {"evaluation_id": 1, "collapse": math.nan, "source": "a test", "now": 1000.0}
    whole = sums(everybody)
    first = conclude(whole, whole, **values)  # type: ignore[arg-type]
    assert first.subtraction is None
    assert first.released is not None
    centre = centre_of(first.released.calibration)
    assert centre is not None
    assert centre == pytest.approx(np.mean([rows.mean(axis=0) for rows in everybody], axis=0), abs=1e-5)
    few = conclude(sums(everybody[:49]), sums(everybody[:49]), **values)  # type: ignore[arg-type]
    assert few.released is not None
    assert centre_of(few.released.calibration) is None
    assert centre_of(None) is None
    assert centre_of(calibration()) is None  # of trials

    second = conclude(whole, whole, centred=sums(everybody, centre), **values)  # type: ignore[arg-type]
    assert second.subtraction is not None
    assert second.subtraction.chosen
    assert second.subtraction.centred_fnmr < second.subtraction.fnmr
    assert second.subtraction.interval[1] < 0.0
    assert second.released is not None
    made = second.released.calibration
    assert made.centre is centre
    assert second.released.evaluation.threshold == pytest.approx(made.threshold(second.released.evaluation.fmr).score)
    assert renews(first.released.calibration, made, own=True, now=1001.0)
    assert not renews(made, made, own=True, now=1001.0)
    assert centre_of(made) is made.centre  # the next evaluation takes out the same

    # The mean of nothing takes nothing out, so nothing is better.
    nothing = sums(everybody, np.zeros(DIMENSION, np.float32))
    same = conclude(whole, whole, centred=nothing, **values)  # type: ignore[arg-type]
    assert same.subtraction is not None
    assert not same.subtraction.chosen
    assert same.subtraction.centred_fnmr >= same.subtraction.fnmr
    assert same.released is not None
    assert same.released.calibration.centre is None
    # Nor is anything where too few people tell.
    none = conclude(whole, whole, centred=ModelSums("m", "moments", (), centre), **values)  # type: ignore[arg-type]
    assert none.subtraction is None


def test_a_candidate_is_judged_beside_what_verifies() -> None:
    """As good as the released model as it is, it takes its place; not where that verifies better without its mean."""
    everybody = people(spread=0.2)
    released, candidate = sums(everybody), sums(everybody, version="n")
    whole = conclude(released, released, evaluation_id=1, collapse=math.nan, source="a test", now=1000.0).released
    assert whole is not None
    centred = sums(everybody, centre_of(whole.calibration))

    def passes(*, verifies_centred: bool) -> bool:
        return conclude(
            candidate,
            released,
            centred=centred,
            verifies_centred=verifies_centred,
            evaluation_id=2,
            collapse=math.nan,
            source="a test",
            now=1000.0,
        ).passes

    assert passes(verifies_centred=False)
    assert not passes(verifies_centred=True)


def test_a_report_has_a_second_part_where_it_is_asked_for_and_only_there(identity_bundle: MakeBundle) -> None:
    bundle, nobody = identity_bundle(), np.zeros((0, 3), np.float32)
    features = [np.array(row, np.float32) for row in ([1, 0, 0], [0.8, 0.6, 0], [0.8, 0, 0.6])]
    asked = EvaluationTask(1, bundle.version, bundle.version, "moments", True, nobody, nobody)
    centre = np.array([0.5, 0.0, 0.0], np.float32)

    def answered(task: EvaluationTask) -> EvaluationReport:
        read = unpack(EvaluationTask, pack(task))
        told = answer(read, "moments", features=features, candidate=bundle, released=bundle)
        return unpack(EvaluationReport, pack(told.report))

    cells = len(answered(asked).candidate.genuine) - 1
    whole, both = answered(asked), answered(replace(asked, centre=centre))
    assert (len(whole.centred), len(both.centred)) == (0, 1)
    check(whole, asked, dimension=3, cells=cells)
    check(both, replace(asked, centre=centre), dimension=3, cells=cells)
    for report, task in ((whole, replace(asked, centre=centre)), (both, asked)):
        with pytest.raises(WireError, match="centred scores that were not asked for, or lacks them"):
            check(report, task, dimension=3, cells=cells)
    rows = Compensation.centring(centre).apply(np.stack(features))
    assert both.centred[0].moments[0].mean / 2**20 == pytest.approx(rows.mean(axis=0), abs=1e-5)
    for wrong, reason in (([2.0, 0.0, 0.0], "centre is refused"), ([0.5, 0.0], "a centre of shape")):
        with pytest.raises(UpdateRejectedError, match=reason):
            answered(replace(asked, centre=np.array(wrong, np.float32)))


def test_the_setting_is_off_and_changes_no_digest_until_it_is_chosen() -> None:
    config = TrainingConfig("clinic", "voice", "ge2e", "fedaws")
    assert config.centring == "never"
    assert "centring" not in config.to_json()
    assert replace(config, centring="measured").digest() != config.digest()
    with pytest.raises(SettingsError, match="centring 'always' is not one of"):
        replace(config, centring="always")


def test_a_ratio_has_its_own_centre() -> None:
    with pytest.raises(ValueError, match="a centre of their own"):
        replace(calibration(), cohort=object())  # type: ignore[arg-type]
    tail = Tail(0.0, 0.1, 60, 60, 1e-2, np.zeros((0, 2)))
    assert centre_of(replace(calibration(), tail=tail)) is not None


def test_a_device_whose_owner_never_agreed_tells_nothing_without_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = np.zeros((0, 3), np.float32)
    header = EvaluationHeader("clinic", "fedaws", 1, "n", "m", "moments", "d", 0.0, "k", b"", 3)
    told = pack(EvaluationTask(1, "n", "m", "moments", True, nobody, nobody, np.zeros(3, np.float32)))
    monkeypatch.setattr(evaluations, "open_sealed", lambda *_: told)
    config = TrainingConfig("clinic", "voice", "ge2e", "fedaws")
    answered = SimpleNamespace(get=lambda *_, **__: SimpleNamespace(body=told))
    member = SimpleNamespace(connection=answered, deployment=SimpleNamespace(config=config))
    with pytest.raises(UnapprovedConfigError, match="a second report, without a centre"):
        evaluations.fetch_evaluation_task(member, header)  # type: ignore[arg-type]
    member.deployment.config = replace(config, centring="measured")
    assert len(evaluations.fetch_evaluation_task(member, header).centre) == 3  # type: ignore[arg-type]
