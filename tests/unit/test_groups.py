"""Parts of the trials: rates by hand, intervals over people, groups from a label file, bins of quality, the record."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.errors import SettingsError
from uvsdk.evaluation import calibrated, conditions, groups, metrics, pages
from uvsdk.evaluation.conditions import Sides
from uvsdk.evaluation.groups import GroupLabels
from uvsdk.evaluation.protocols import Failure, ProtocolOutcome
from uvsdk.evaluation.rates import Rate, Resampled, difference
from uvsdk.evaluation.record import SCHEMA, as_json
from uvsdk.evaluation.summary import summarise
from uvsdk.evaluation.trials import Trials
from uvsdk.scoring import Calibration, clopper_pearson
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings

# Four people, two in group x (a, b) and two in y (c, d). Rows: template, probe, score. Threshold 0.5.
ROWS = (
    ("a", "a", 0.9), ("a", "a", 0.4), ("b", "b", 0.8), ("c", "c", 0.7), ("d", "d", 0.1), ("d", "d", 0.2),
    ("a", "b", 0.6), ("b", "a", 0.3), ("c", "d", 0.2), ("a", "c", 0.55), ("d", "b", 0.0), ("c", "a", 0.1),
)  # fmt: skip
SUBJECTS = ("a", "b", "c", "d")


def by_hand() -> Trials:
    place = {name: index for index, name in enumerate(SUBJECTS)}
    return Trials(
        np.array([score for _, _, score in ROWS]),
        np.array([place[template] for template, _, _ in ROWS]),
        np.array([place[probe] for _, probe, _ in ROWS]),
        SUBJECTS,
    )


def many(people: int = 40, probes: int = 5, seed: int = 0) -> Trials:
    """Every probe against every template; genuine scores around 2, impostor scores around 0."""
    rng = np.random.default_rng(seed)
    probe, template = np.repeat(np.arange(people), probes * people), np.tile(np.arange(people), people * probes)
    scores = rng.normal(size=len(probe)) + 2.0 * (probe == template)
    return Trials(scores, template, probe, tuple(f"person{index}" for index in range(people)))


def labels_of(**values: str) -> GroupLabels:
    return GroupLabels(("side",), {person: (value,) for person, value in values.items()})


def test_rates_of_groups_by_hand() -> None:
    (side,) = groups.measure(by_hand(), labels_of(a="x", b="x", c="y", d="y"), threshold=0.5, resamples=50)
    x, y = side.groups
    assert (x.name, x.people, x.small, side.unknown_people) == ("x", 2, True, 0)
    assert x.fnmr is not None
    assert y.fnmr is not None
    # x: 0.4 of 0.9, 0.4, 0.8 is rejected; y: 0.1 and 0.2 of 0.7, 0.1, 0.2.
    assert (x.fnmr.errors, x.fnmr.trials, y.fnmr.errors, y.fnmr.trials) == (1, 3, 2, 3)
    assert x.fnmr_difference is not None
    assert x.fnmr_difference.value == pytest.approx(1 / 3 - 2 / 3)
    assert x.fmr_within is not None
    assert y.fmr_within is not None
    # Within x: a-b at 0.6 and 0.3; within y: c-d at 0.2.
    assert (x.fmr_within.errors, x.fmr_within.trials, y.fmr_within.errors, y.fmr_within.trials) == (1, 2, 0, 1)
    # Across: a-c at 0.55, d-b at 0, c-a at 0.1, for both.
    for group in (x, y):
        assert group.fmr_across is not None
        assert (group.fmr_across.errors, group.fmr_across.trials, group.fmr_across.people) == (1, 3, 4)


def test_people_without_a_label_are_in_no_group() -> None:
    (side,) = groups.measure(by_hand(), labels_of(a="x", b="x", c="", stranger="z"), threshold=0.5, resamples=20)
    assert [group.name for group in side.groups] == ["x"]
    assert side.unknown_people == 2
    (group,) = side.groups
    # There is no other group to differ from, nor one to be across with.
    assert (group.fnmr_difference, group.fmr_within_difference, group.fmr_across) == (None, None, None)


def test_a_part_without_errors_has_the_bound_of_its_people() -> None:
    (side,) = groups.measure(by_hand(), labels_of(a="x", b="x", c="y", d="y"), threshold=0.15, resamples=20)
    x = side.groups[0]
    assert x.fnmr is not None
    # No error in three trials of two people: 1 - 0.025 ** (1 / 2).
    assert (x.fnmr.errors, x.fnmr.people, x.fnmr.low) == (0, 2, 0.0)
    assert x.fnmr.high == pytest.approx(1 - math.sqrt(0.025))
    drawn = Resampled(by_hand(), resamples=20, seed=0)
    everything = drawn.tally(np.ones(12, np.bool_), [np.zeros(12, np.int64)], 1).rate(0)
    assert everything is not None
    assert (everything.value, everything.low, everything.high) == (1.0, *clopper_pearson(4, 4))


def test_all_parts_together_are_the_whole() -> None:
    trials = many()
    own, wrong = trials.is_genuine, trials.scores < 1.0
    drawn = Resampled(trials, resamples=200, seed=3)
    part = np.where(own, trials.probe_subject % 4, -1)
    tally = drawn.tally(wrong, [part], 4)
    whole = drawn.tally(wrong, [np.where(own, 0, -1)], 1).rate(0)
    assert whole is not None
    assert whole.value == pytest.approx(metrics.at_threshold(trials.curve(), 1.0).fnmr)
    assert tally.drawn_errors.sum(axis=1) == pytest.approx(
        drawn.tally(wrong, [np.where(own, 0, -1)], 1).drawn_errors[:, 0]
    )
    for index in range(4):
        one, rest = tally.rate(index), tally.rest(index)
        assert one is not None
        assert rest is not None
        assert one.errors + rest.errors == whole.errors
        assert one.trials + rest.trials == whole.trials
        assert 0 <= one.low <= one.value <= one.high <= 1


def test_an_interval_holds_the_true_rate_about_as_often_as_it_says() -> None:
    # 40 people with 5 probes each; scores are independent, so FNMR at 2.0 is truly one half.
    held = 0
    for seed in range(40):
        trials = many(seed=seed, people=20)
        drawn = Resampled(trials, resamples=100, seed=seed)
        rate = drawn.tally(trials.scores < 2.0, [np.where(trials.is_genuine, 0, -1)], 1).rate(0)
        assert rate is not None
        held += rate.low <= 0.5 <= rate.high
    # 95 % of 40 is 38; below 33 has a probability under 1e-3.
    assert held >= 33


@given(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 0.3), st.floats(0, 0.3)),
)
def test_differences_are_antisymmetric_and_zero_with_oneself(drawn: tuple[int, int, float, float]) -> None:
    errors, others, below, above = drawn
    one = Rate(errors, 20, 10, max(errors / 20 - below, 0), min(errors / 20 + above, 1))
    two = Rate(others, 20, 10, max(others / 20 - above, 0), min(others / 20 + below, 1))
    there, back = difference(one, two), difference(two, one)
    assert there.value == -back.value
    assert there.low == pytest.approx(-back.high)
    assert there.low <= there.value <= there.high
    same = difference(one, one)
    assert same.low <= 0.0 <= same.high


def test_a_label_file(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text('person,age,town\nann,30,"Ulm, new"\nann,30,"Ulm, new"\nbob,,Bonn\n')
    found = groups.read(path)
    assert found == GroupLabels(("age", "town"), {"ann": ("30", "Ulm, new"), "bob": ("", "Bonn")})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs the heading person,ATTRIBUTE"),
        ("person\nann\n", "needs the heading"),
        ("name,age\nann,30\n", "needs the heading .* got name,age"),
        ("person,age,age\n", "needs the heading"),
        (
            "person,age\nann\nbob,30,x\n,30\n",
            "3 lines are malformed: line 2: 0 values for 1 attr.*line 3: 2 val.*line 4",
        ),
        ("person,age\nann,30\n\nann,31\n", "1 line is malformed: line 4: other values for a person"),
    ],
)
def test_a_label_file_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        groups.read(path)


def test_labels_of_strangers_are_an_error_that_names_nobody() -> None:
    with pytest.raises(SettingsError, match="none of the 1 people of the label file is among the 4") as error:
        groups.measure(by_hand(), labels_of(zoe="x"), threshold=0.5)
    assert "zoe" not in str(error.value)


def sides_of(trials: Trials, values: np.typing.NDArray[np.float64]) -> Sides:
    """One sample a trial on the probe's side; what is measured of it is the value."""
    measured = [{"speech_s": float(value)} if np.isfinite(value) else {} for value in values]
    place = np.zeros(len(values), np.int64)
    angle = np.arccos(np.clip(trials.scores, -1, 1))
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    return Sides([{}], measured, place, np.arange(len(values)), False, np.array([[1, 0]], np.float32), rows)


REPORTED = {"speech_s": "Seconds of speech"}


def calibration(impostor: np.typing.NDArray[np.float64]) -> Calibration:
    """Ratios of 20 (score - 0.5), whatever the conditions: location 0.5, scale e^0, slope 20."""
    plain = Compensation(np.zeros(2, np.float32), np.zeros((0, 2), np.float32))
    none = Surroundings((), *(np.zeros(0) for _ in range(4)))
    ratios = np.sort(20 * (impostor - 0.5)).astype(np.float32)
    ratio = LikelihoodRatio(
        compensation=plain,
        top=0,
        surroundings=none,
        location=np.array([0.5]),
        log_scale=np.array([0.0]),
        limits=np.array([[0.5, 0.5], [0.0, 0.0]]),
        slope=20.0,
        offset=0.0,
        lowest=-50.0,
        highest=50.0,
        impostor=ratios,
        trials=len(ratios),
    )
    return Calibration.from_scores(impostor, model_version="m", source="by hand", ratio=ratio)


def test_bins_of_quality_by_hand() -> None:
    # 80 genuine trials of 8 people, the poorest quarter (below 20) all rejected; 80 impostor trials, none accepted.
    value = np.tile(np.arange(80.0), 2)
    own = np.repeat([True, False], 80)
    person = np.tile(np.arange(80) % 8, 2)
    trials = Trials(
        np.where(own, np.where(value < 20, 0.1, 0.9), 0.0),
        np.where(own, person, (person + 1) % 8),
        person,
        tuple("abcdefgh"),
    )
    found = conditions.measure(
        trials, sides_of(trials, value), threshold=0.5, names=[*REPORTED, "snr_db"], resamples=20
    )
    assert set(found) == {"speech_s"}
    bins = found["speech_s"]
    # Quartiles of 0 to 79: 19.75, 39.5, 59.25.
    assert [(part.low, part.high) for part in bins] == [(0, 19.75), (19.75, 39.5), (39.5, 59.25), (59.25, 79)]
    assert [part.fnmr.value for part in bins if part.fnmr is not None] == [1.0, 0.0, 0.0, 0.0]
    assert [part.fmr.trials for part in bins if part.fmr is not None] == [20, 20, 20, 20]


def test_a_quality_that_does_not_vary_or_is_unknown_is_left_out() -> None:
    trials = many(8)
    everywhere = np.full(len(trials.scores), 3.0)
    assert conditions.measure(trials, sides_of(trials, everywhere), threshold=1.0, names=REPORTED, resamples=5) == {}
    assert (
        conditions.measure(trials, sides_of(trials, everywhere * np.nan), threshold=1.0, names=REPORTED, resamples=5)
        == {}
    )


def test_of_a_pair_the_poorer_sample_counts() -> None:
    samples = [{"speech_s": 1.0}, {"speech_s": 5.0}, {}]
    first, second, rows = np.array([0, 1, 1]), np.array([1, 1, 2]), np.zeros((3, 2), np.float32)
    pairs = Sides(samples, samples, first, second, True, rows, rows)
    assert pairs.poorer("speech_s").tolist()[:2] == [1.0, 5.0]
    assert np.isnan(pairs.poorer("speech_s")[2])
    assert Sides(samples, samples, first, second, False, rows, rows).poorer("speech_s")[0] == 5.0


def full_outcome() -> ProtocolOutcome:
    wide = many(8, 12)
    # Scores of a cosine: genuine around 0.7, impostor around 0.5.
    scores = np.clip(0.5 + 0.1 * wide.scores, -1, 1)
    trials = Trials(scores, wide.template_subject, wide.probe_subject, wide.subjects)
    value = np.abs(trials.scores) + np.linspace(0, 5, len(trials.scores))
    return ProtocolOutcome(
        trials,
        120,
        (Failure("person1", "a.wav", "no speech", "secret words"),),
        ("person2",),
        3,
        "by hand",
        left_out=4,
        sides=sides_of(trials, value),
        timings_s={"decode": np.array([0.001, 0.003]), "model": np.array([0.01, 0.03])},
        folds=trials.probe_subject % 2,
    )


EVIL = '<b>&"$x$'


def test_the_record_is_documented_and_names_nobody() -> None:
    labels = GroupLabels(("side",), {f"person{index}": ("xy"[index % 2],) for index in range(8)})
    given = calibration(np.linspace(0, 0.8, 400))
    found = summarise(full_outcome(), resamples=20, labels=labels, calibration=given, reported=REPORTED)
    record = as_json(found)
    text = json.dumps(record, allow_nan=False)
    assert record["schema"] == SCHEMA
    assert "person1" not in text
    assert "secret" not in text
    documented = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for part in value.values() for key in keys(part)}
        return {key for part in value for key in keys(part)} if isinstance(value, list) else set()

    # Names that come from the data or from a family with one rule in the documentation.
    free = {"side", "no speech", "decode", "model", "speech_s"}
    missing = sorted(key for key in keys(record) - free if f"`{key}`" not in documented)
    assert missing == []
    assert {"model_version", "command"} <= set(documented.split("`"))


def test_speed_by_hand() -> None:
    summary = summarise(full_outcome(), resamples=20)
    assert [speed.stage for speed in summary.speeds] == ["decode", "model", "total"]
    assert [speed.median_s for speed in summary.speeds] == pytest.approx([0.002, 0.02, 0.022])
    assert summary.calibrated is None


def test_likelihood_ratios_and_thresholds_of_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = full_outcome()
    impostor = np.linspace(0, 0.8, 400)
    # Portions do not matter.
    monkeypatch.setattr(calibrated, "_AT_ONCE", 100)
    found = summarise(outcome, resamples=20, calibration=calibration(impostor)).calibrated
    assert found is not None
    assert found.llr is not None
    own, llr = outcome.trials.is_genuine, 20 * (outcome.trials.scores - 0.5)
    assert found.llr == pytest.approx(llr, abs=1e-4)
    assert found.intervals["cllr"].value == pytest.approx(metrics.cllr(llr[own], llr[~own]), abs=1e-5)
    assert found.intervals["min_cllr"].value <= found.intervals["cllr"].value
    # Accept where the ratio reaches ln 99.
    point = metrics.at_threshold(metrics.curve(llr[own], llr[~own]), math.log(99))
    assert found.intervals["act_dcf_0.01"].value == pytest.approx(point.fnmr + 99 * point.fmr)
    assert found.intervals["min_dcf_0.01"].value <= found.intervals["act_dcf_0.01"].value
    # 400 trials support 10 % and 1 %: the 41st and the 5th highest impostor are refused.
    assert [preset.threshold.fmr for preset in found.presets] == [0.1, 0.01]
    for preset, refused in zip(found.presets, (impostor[-41], impostor[-5]), strict=True):
        assert preset.threshold.scale == "llr"
        assert preset.fmr.errors == int((outcome.trials.impostor > refused + 1e-6).sum())
        assert preset.fnmr.errors == int((outcome.trials.genuine <= refused + 1e-6).sum())


def test_a_bundle_with_impostor_scores_only_has_thresholds_and_no_ratios() -> None:
    plain = Calibration.from_scores(np.linspace(0, 0.8, 400), model_version="m", source="by hand")
    summary = summarise(full_outcome(), resamples=20, calibration=plain)
    assert summary.calibrated is not None
    assert (summary.calibrated.llr, dict(summary.calibrated.intervals)) == (None, {})
    assert [preset.threshold.scale for preset in summary.calibrated.presets] == ["cosine", "cosine"]
    record = as_json(summary)
    assert record["likelihood_ratio"] is None
    assert len(record["bundle_thresholds"]) == 2
    page = pages.evaluation_page(summary, model="m", data="d", command="c")
    assert "Set for" in page
    assert "Cllr" not in page


def test_the_page_has_every_part_and_escapes_labels() -> None:
    names = tuple(f"{EVIL}{index}" for index in range(3))
    labels = GroupLabels((EVIL,), {f"person{index}": (names[index % 3],) for index in range(8)})
    given = calibration(np.linspace(0, 0.8, 400))
    summary = summarise(full_outcome(), resamples=20, labels=labels, calibration=given, reported=REPORTED)
    page = pages.evaluation_page(summary, model="m", data="d", command="c")
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;&quot;$x$0" in page
    for words in (
        "Accuracy by fold",
        "The bundle&#x27;s calibration",
        "Cllr (bits)",
        "Groups by &lt;b&gt;",
        "says anything on the fairness",
        "Good and poor samples",
        "Seconds of speech",
        "Speed",
        "no speech",
        "Listed trials without a score",
    ):
        assert words in page, words
    for word in ("http:", "https:", "src=", "url(h", "@import", "person1"):
        assert word not in page, word


def test_a_plain_outcome_has_only_what_applies() -> None:
    trials = by_hand()
    summary = summarise(ProtocolOutcome(trials, 8, (), (), 0, "by hand"), resamples=10)
    record = as_json(summary)
    for name in ("accuracy", "likelihood_ratio", "bundle_thresholds", "groups", "by_quality", "speed"):
        assert record[name] is None
    page = pages.evaluation_page(summary, model="m", data="d", command="c")
    assert "Set for" not in page
    assert "Groups" not in page
