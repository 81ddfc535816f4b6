"""From observations to a calibration, on people made of numbers whose conditions move their embeddings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, EnrolmentError, ModelMismatchError, ThresholdError
from uvsdk.evaluation import calibrating, cells
from uvsdk.evaluation.observations import ORIGINAL, Observations, observe
from uvsdk.evaluation.protocols import Person
from uvsdk.modality.voice import SNR_DB, SPEECH_S
from uvsdk.scoring import Calibration, Cohort, Threshold, record
from uvsdk.scoring.cohort import Normalisation
from uvsdk.scoring.conditions import Condition
from uvsdk.templates.template import Template
from uvsdk.verify import decide, threshold_at

DIMENSION = 48
COPIES = (ORIGINAL, "noisy", "short")
WAYS = [(0.0, 0.0, 30.0, 6.0), (1.2, 0.02, 10.0, 6.0), (0.0, 0.08, 30.0, 1.5)]
"""Of each copy: shift along the noise, spread, decibels, seconds."""


KINDS = (SPEECH_S, SNR_DB)


def people(
    count: int, *, recordings: int = 3, seed: int = 0, enrolled: int = 99, kinds: tuple[Condition, ...] = KINDS
) -> Observations:
    """Noise moves an embedding towards a common direction, shortness spreads it; both are measured, as ``kinds``."""
    rng = np.random.default_rng(seed)
    common = np.zeros(DIMENSION)
    common[0] = 1.0
    noise = np.zeros(DIMENSION)
    noise[1] = 1.0
    rows, person, recording, copy, roles, conditions = [], [], [], [], [], []
    for who in range(count):
        voice = 0.8 * common + rng.normal(0, 1 / math.sqrt(DIMENSION), DIMENSION)
        for sample in range(recordings):
            take = voice + rng.normal(0, 0.04, DIMENSION)
            for index, (shift, spread, snr_db, speech_s) in enumerate(
                [(0, 0, 30, 6), (1.2, 0.02, 10, 6), (0, 0.08, 30, 1.5)]
            ):
                row = take + shift * noise + rng.normal(0, spread + 1e-9, DIMENSION)
                rows.append(row / np.linalg.norm(row))
                person.append(who)
                recording.append(who * recordings + sample)
                copy.append(index)
                roles.append(sample < enrolled)
                measured = snr_db + rng.normal(0, 1), speech_s * rng.uniform(0.9, 1.1)
                conditions.append({kind.name: value for kind, value in zip(kinds, measured[::-1], strict=False)})
    return Observations(
        np.array(rows, np.float32),
        np.array(person),
        np.array(recording),
        np.array(copy),
        np.array(roles),
        tuple(conditions),
        COPIES,
        kinds,
    )


def rates(calibration: Calibration, seen: Observations, fmr: float) -> dict[str, float]:
    """False match rate of other people under every condition, at the one threshold for ``fmr``."""
    limit = calibration.threshold(fmr, calibration.scale).score
    found = {}
    for template in range(3):
        for probe in range(3):
            a, b = (np.flatnonzero(seen.copy == index) for index in (template, probe))
            first, second = (part.ravel() for part in np.meshgrid(a, b, indexing="ij"))
            kept = seen.person[first] != seen.person[second]
            first, second = first[kept], second[kept]
            if calibration.scale == "llr":
                values = calibration.llrs(
                    seen.embeddings[first],
                    seen.embeddings[second],
                    template=[seen.conditions[index] for index in first],
                    probe=[seen.conditions[index] for index in second],
                )
            else:
                values = (seen.embeddings[first] * seen.embeddings[second]).sum(axis=1)
            found[f"{COPIES[template]}/{COPIES[probe]}"] = float((values >= limit).mean())
    return found


@pytest.fixture(scope="module")
def fitted() -> calibrating.Fitted:
    return calibrating.fit(people(120), model_version="m", source="numbers", keep_cohort=True)


def test_one_threshold_holds_the_rate_under_every_condition(fitted: calibrating.Fitted) -> None:
    others = people(120, recordings=1, seed=1)
    held = rates(fitted.calibration, others, 0.01)
    # Cells that calibration saw; 14,280 trials of 120 other people each, whose tail a handful of people decide.
    for cell in ("original/original", "original/noisy", "original/short", "noisy/noisy", "short/short"):
        assert 0.003 < held[cell] < 0.025, (cell, held)
    cosine = rates(replace(fitted.calibration, ratio=None, cohort=None), others, 0.01)
    assert cosine["noisy/noisy"] > 0.5  # shared noise alone makes strangers alike
    assert cosine["original/noisy"] < 0.001


def test_it_knows_its_people_and_where_they_lie() -> None:
    seen = people(30)
    found = calibrating.fit(seen, model_version="m", source="numbers", now=86_400.0).calibration
    assert (found.people, found.measured_unix_s) == (30, 86_400.0)
    assert found.domain is not None
    assert found.domain.people == 30
    # Of the originals alone, as they are compared, every person weighing the same.
    assert found.ratio is not None
    rows = found.ratio.compensation.apply(seen.embeddings)
    means = np.array([rows[(seen.person == who) & (seen.copy == 0)].mean(axis=0) for who in range(30)])
    assert found.domain.mean == pytest.approx(means.mean(axis=0), abs=1e-6)
    few = calibrating.fit(people(5), model_version="m", source="numbers").calibration
    assert few.domain is not None
    assert (few.people, few.domain.people) == (5, 5)
    again = record.from_bytes(record.to_bytes(found), KINDS)
    assert record.to_bytes(again) == record.to_bytes(found)


def test_everybody_known_to_be_genuine_scores_higher(fitted: calibrating.Fitted) -> None:
    originals = fitted.originals
    assert originals.genuine.min() > np.quantile(originals.impostor, 0.99)
    assert len(originals.impostor) == fitted.calibration.ratio.trials  # type: ignore[union-attr]


def test_ratios_are_bounded_by_what_the_trials_can_show(fitted: calibrating.Fitted) -> None:
    ratio = fitted.calibration.ratio
    assert ratio is not None
    # 120 people with three recordings: 3 pairs each are genuine, 120 * 119 / 2 * 9 are not.
    assert (ratio.lowest, ratio.highest) == (-math.log(360), math.log(64_260))
    assert ratio.trials == 64_260
    assert np.all((ratio.impostor >= np.float32(ratio.lowest)) & (ratio.impostor <= np.float32(ratio.highest)))


def test_as_norm_is_fitted_and_never_meets_its_own_people() -> None:
    seen = people(60)
    found = calibrating.fit(seen, model_version="m", source="numbers", as_norm=True, keep_cohort=True)
    assert found.calibration.ratio is not None
    assert found.calibration.ratio.top == 60  # a third of 180 cohort rows
    # Were a person held against their own recordings, genuine trials would look like the cohort's highest.
    assert found.originals.genuine.min() > np.quantile(found.originals.impostor, 0.99)
    held = rates(found.calibration, people(60, recordings=1, seed=1), 0.01)
    assert held["original/original"] < 0.04


def test_means_of_several_are_templates_too() -> None:
    found = calibrating.fit(people(40, recordings=5, enrolled=3), model_version="m", source="numbers")
    # Every mean against every probe: 40 templates, 80 probes, 2 of which are each template's own person.
    assert len(found.originals.scores) == 40 * 80
    assert len(found.calibration.impostor) == 40 * 78
    assert len(found.originals.genuine) == 80
    ratio = found.calibration.ratio
    assert ratio is not None
    column = ratio.surroundings.names.index("speech_s")
    assert ratio.surroundings.high[column] > math.log(3 * 5)  # three of 5 s and more together


def test_too_few_people_leave_impostor_scores_alone() -> None:
    few = calibrating.fit(people(5), model_version="m", source="numbers")
    assert few.calibration.ratio is None
    assert few.calibration.scale == "cosine"
    assert "5 people with 15 genuine comparisons" in few.note
    single = calibrating.fit(people(40, recordings=1), model_version="m", source="numbers")
    assert single.calibration.ratio is None
    assert "40 people with 0 genuine comparisons" in single.note
    with pytest.raises(ThresholdError, match="two recordings or more"):
        single.calibration.threshold(0.01, "llr")


def test_nobody_to_be_an_impostor() -> None:
    with pytest.raises((EnrolmentError, ValueError), match=r"two people|two embeddings"):
        calibrating.fit(people(1), model_version="m", source="numbers")


def test_unsupported_rates_are_refused_on_either_scale(fitted: calibrating.Fitted) -> None:
    # 64,260 comparisons of originals on either scale; the copies beside them are no new people.
    assert fitted.calibration.trials("cosine") == fitted.calibration.trials("llr") == 64_260
    assert fitted.calibration.account == "64,260 impostor trials of 120 people"
    for scale in ("cosine", "llr"):
        assert fitted.calibration.threshold(5e-5, scale).trials == 64_260  # type: ignore[arg-type]
        with pytest.raises(ThresholdError, match=r"at least 75000 impostor trials, there are 64260 of 120 people"):
            fitted.calibration.threshold(4e-5, scale)  # type: ignore[arg-type]


def test_nobody_is_scored_by_an_average_that_holds_them() -> None:
    seen = people(24)
    crossed, _ = calibrating._scorers(seen, 20, np.random.default_rng(0), as_norm=False)
    assert len(crossed.scorers) == 10
    counts = np.bincount(crossed.blocks)
    assert counts.tolist() == [6, 6, 6, 6]
    for (one, other), scorer in crossed.scorers.items():
        left = np.flatnonzero(~np.isin(crossed.blocks, (one, other)))
        means = [seen.embeddings[(seen.person == who) & (seen.copy == 0)].mean(axis=0) for who in left]
        unit = np.array([mean / np.linalg.norm(mean) for mean in means])
        assert scorer.removed.centre == pytest.approx(unit.mean(axis=0), abs=1e-6)
    cell = cells.of_originals(seen)
    scores = crossed(cell)
    for place in (0, 100, len(scores) - 1):  # by hand, of single pairs
        a, b = (int(side[place]) for side in cell.pairs)
        blocks = sorted(int(crossed.blocks[seen.person[seen.copy == 0][row]]) for row in (a, b))
        removed = crossed.scorers[blocks[0], blocks[1]].removed
        first, second = removed.apply(cell.template.rows[[a]]), removed.apply(cell.probe.rows[[b]])
        assert scores[place] == pytest.approx(float((first * second).sum()))


def test_a_bundle_carries_all_of_it(fitted: calibrating.Fitted, tmp_path: Path) -> None:
    from uvsdk.bundle import shipped

    model = shipped()
    bundle = Bundle(replace(model.manifest, modality="voice"), model.theta, model.graphs)
    calibration = replace(fitted.calibration, model_version=bundle.version)
    bundle.with_calibration(calibration).save(tmp_path / "calibrated.uvb")
    again = Bundle.open(tmp_path / "calibrated.uvb")
    assert again.version == bundle.version  # evidence about a model is not the model
    assert again.to_bytes() == bundle.with_calibration(calibration).to_bytes()
    assert again.calibration is not None
    assert record.to_bytes(again.calibration) == record.to_bytes(calibration)
    assert again.calibration.cohort is not None
    assert again.calibration.cohort.people == 120
    with pytest.raises(ModelMismatchError):
        bundle.with_calibration(fitted.calibration)


@pytest.mark.parametrize("as_norm", [False, True])
def test_bytes_give_the_same_ratios(as_norm: bool) -> None:
    seen = people(20)
    calibration = calibrating.fit(
        seen, model_version="m", source="numbers", as_norm=as_norm, keep_cohort=as_norm
    ).calibration
    again = record.from_bytes(record.to_bytes(calibration), KINDS)
    pair, measured = (seen.embeddings[:3], seen.embeddings[30:33]), (seen.conditions[:3], seen.conditions[30:33])
    expected = calibration.llrs(*pair, template=measured[0], probe=measured[1])
    assert again.llrs(*pair, template=measured[0], probe=measured[1]).tolist() == expected.tolist()
    assert again.threshold(0.1, "llr") == calibration.threshold(0.1, "llr")


def test_damaged_calibrations_are_refused() -> None:
    data = record.to_bytes(calibrating.fit(people(12), model_version="m", source="numbers").calibration)
    for bad in (
        b"",
        data[:4],
        data[:100],
        data[:-1],
        data + b"\0",
        b"UVC9" + data[4:],
        data.replace(b"speech_s", b"shoesize"),
    ):
        with pytest.raises(BundleError):
            record.from_bytes(bad, KINDS)
    with pytest.raises(BundleError, match="another model version"):
        record.read_calibration(data, model_version="other", source="numbers", conditions=KINDS)
    plain = Calibration(np.array([0.1, 0.2], np.float32), "m", "by hand")
    assert (
        record.read_calibration(
            record.calibration_bytes(plain), model_version="m", source="by hand", conditions=()
        ).impostor.tolist()
        == plain.impostor.tolist()
    )
    for scores in (np.array([0.2, 0.1]), np.array([np.nan]), np.array([7.0])):
        with pytest.raises(BundleError, match="cosines in ascending order"):
            record.read_calibration(scores.astype("<f4").tobytes(), model_version="m", source="by hand", conditions=())


def test_as_norm_by_hand() -> None:
    # Cohort scores of the template 1, 0, 0: the two highest are 0.8 and 0.6, mean 0.7, deviation 0.1. Of the probe
    # 0, 1, 0: 0.8 and 0.6 too. They score 0: (0 - 0.7) / 0.1 = -7 on both sides.
    rows = np.array([[0.8, 0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    normalisation = Normalisation(rows, 2)
    assert normalisation.score(np.array([1.0, 0, 0]), np.array([0, 1.0, 0])) == pytest.approx(-7.0)
    mean, deviation = normalisation.side(np.array([[1.0, 0, 0]]), np.array([[False, True, True]]))
    assert (mean[0], deviation[0]) == pytest.approx((0.3, 0.3))  # 0.6 and 0 are left
    with pytest.raises(ValueError, match="two cohort members"):
        normalisation.side(np.array([[1.0, 0, 0]]), np.array([[False, False, True]]))
    with pytest.raises(ValueError, match="2 cohort scores or more"):
        Normalisation(rows, 1)


def test_cohorts_that_are_none() -> None:
    rows, conditions = np.eye(3, dtype=np.float32), np.full((3, 2), np.nan, np.float32)
    assert Cohort(rows, np.array([0, 1, 1]), conditions).people == 2
    for embeddings, person, where in (
        (rows[:1], np.array([0]), conditions[:1]),
        (rows * 2, np.array([0, 1, 2]), conditions),
        (rows * np.float32(np.nan), np.array([0, 1, 2]), conditions),
        (rows, np.array([0, 1]), conditions),
        (rows, np.array([0, 1, -1]), conditions),
        (rows, np.array([0, 1, 2]), conditions[:2]),
        (rows, np.array([0, 1, 2]), np.full_like(conditions, np.inf)),
    ):
        with pytest.raises(ValueError, match="cohort"):
            Cohort(embeddings, person, where)
    ratio = calibrating.fit(people(12), model_version="m", source="", as_norm=True, keep_cohort=True).calibration.ratio
    with pytest.raises(ValueError, match="there is none"):
        Calibration(np.zeros(1, np.float32), "m", "", ratio)


def test_verification_decides_by_the_ratio(fitted: calibrating.Fitted) -> None:
    from uvsdk.bundle import shipped

    bundle = shipped()
    calibration = replace(fitted.calibration, model_version=bundle.version)
    bundle = bundle.with_calibration(None).with_calibration(calibration)
    seen = people(4, seed=5)
    limit = threshold_at(bundle, 0.01)
    assert limit.scale == "llr"
    template = Template(seen.embeddings[0], bundle.version, "voice", 1, limit, seen.conditions[0])
    own = decide(seen.embeddings[4], template, bundle=bundle, threshold=limit)  # noisy, another recording
    other = decide(seen.embeddings[9], template, bundle=bundle, threshold=limit)
    assert own.llr is not None
    assert own.accepted
    assert own.value == own.llr
    assert not other.accepted
    # An older threshold on the cosine still decides by the cosine.
    assert decide(seen.embeddings[4], template, bundle=bundle, threshold=Threshold(0.1, 0.01, 9)).value == own.score
    with pytest.raises(ThresholdError, match="not calibrated for it"):
        decide(seen.embeddings[4], template, bundle=bundle.with_calibration(None), threshold=limit)
    with pytest.raises(ThresholdError, match="run uvsdk calibrate"):
        threshold_at(bundle.with_calibration(None), 0.01)


def test_observing_reads_each_file_once(identity_bundle: object, tmp_path: Path) -> None:
    bundle = identity_bundle()  # type: ignore[operator]
    found = []
    for name, samples in (("ana", [b"1 0 0", b"1 0 0", b"0.9 0.1 0"]), ("bo", [b"0 1 0", b"", b"junk"])):
        paths = []
        for index, sample in enumerate(samples):
            paths.append(tmp_path / f"{name}{index}")
            paths[-1].write_bytes(sample)
        found.append(Person(name, tuple(paths[:2]), tuple(paths[2:])))
    seen, failures = observe(found, bundle)
    assert seen.person.tolist() == [0, 0, 1]  # the copy counts once, what cannot be read not at all
    assert seen.enrolled.tolist() == [True, False, True]
    assert len(failures) == 2
    assert seen.copies == (ORIGINAL,)
    with pytest.raises(EnrolmentError, match="two people with a usable sample"):
        observe(found[:1], bundle)
