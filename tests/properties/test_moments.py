"""Sums over people against what they stand for: all pairs of people, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import BundleError, ThresholdError, WireError
from uvsdk.release import grid
from uvsdk.release.measurement import calibrate
from uvsdk.release.report import EvaluationReport, EvaluationTask, Impostors, ModelReport, check, report_on
from uvsdk.release.sums import GroupSums, ModelSums
from uvsdk.scoring import sketch
from uvsdk.scoring.moments import ImpostorPairs, Moments, ScoreLaw, jackknife, total, unit
from uvsdk.scoring.personal import genuine_scores, leave_one_out
from uvsdk.scoring.skewness import ThirdMoments
from uvsdk.scoring.tail import Tail

_NOBODY = np.zeros((0, 6), np.float32)


def _people(rng: np.random.Generator, count: int, samples: int = 4, dimension: int = 6) -> list[Float64]:
    """People whose samples share what is theirs, far from Gaussian: unit length, a common mean, skewed."""
    return [
        unit(1.0 + rng.exponential(size=dimension) + 0.5 * rng.normal(size=(samples, dimension))) for _ in range(count)
    ]


def _template(rows: Float64) -> Float64:
    return unit(rows.mean(axis=0))


def _pairs(people: list[Float64], groups: int) -> ImpostorPairs:
    dimension = people[0].shape[1]

    def sums(rows_of: Callable[[Float64], Float64]) -> list[Moments]:
        return [
            total([Moments.none(dimension), *(Moments.of(rows_of(rows)) for rows in people[group::groups])])
            for group in range(groups)
        ]

    return ImpostorPairs.of(sums(lambda rows: rows), sums(lambda rows: _template(rows)[None]))


@given(st.integers(0, 10_000), st.integers(3, 20), st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_sums_are_those_of_all_pairs_of_two_groups(seed: int, count: int, groups: int) -> None:
    people = _people(np.random.default_rng(seed), count)
    pairs = _pairs(people, groups)
    for i in range(groups):
        for j in range(groups):
            scores = [
                float(sample @ _template(template))
                for sample in np.concatenate([np.zeros((0, 6)), *people[i::groups]])
                for template in people[j::groups]
            ]
            if i == j or not scores:
                assert pairs.pairs[i, j] == 0
                continue
            assert pairs.pairs[i, j] * 4 == len(scores)  # a person of four samples weighs as one of one
            assert np.isclose(pairs.first[i, j] * 4, np.sum(scores))
            assert np.isclose(pairs.second[i, j] * 4, np.square(scores).sum())


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_a_rotation_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    people = _people(rng, 9)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    law, turned = _pairs(people, 3).law(), _pairs([rows @ turn for rows in people], 3).law()
    assert np.allclose((law.mean, law.deviation), (turned.mean, turned.deviation))


def test_two_dimensions_by_hand() -> None:
    """One person at (1, 0), one at (0.6, 0.8), one at (0, 1), each in a group of their own, one sample each.

    Six pairs score 0.6, 0, 0.6, 0.8, 0, 0.8: mean 2.8 / 6, mean square (2 * 0.36 + 2 * 0.64) / 6 = 1 / 3. Left out one
    by one, pairs of the other two score 0.8, 0 and 0.6: standard error sqrt(2/3 * (0.8^2 + 0.6^2 - 1.4^2 / 3)).
    """
    people = [np.array([row]) for row in ((1.0, 0.0), (0.6, 0.8), (0.0, 1.0))]
    law = _pairs(people, 3).law()
    error = np.sqrt(2 / 3 * (1.0 - 1.4**2 / 3))
    assert law.mean == pytest.approx(2.8 / 6)
    assert law.deviation == pytest.approx(np.sqrt(1 / 3 - (2.8 / 6) ** 2 + error**2))
    without = _pairs(people, 3).laws_without()
    assert [without[group].mean for group in range(3)] == pytest.approx([0.8, 0.0, 0.6])


def test_the_law_is_unbiased_however_few_people_there_are() -> None:
    """Means over 300 draws of nine people against 2,000 people: to within four standard errors of the draws."""
    rng = np.random.default_rng(5)
    many = _pairs(_people(rng, 2_000), 50).law()
    laws = [_pairs(_people(rng, 9), 9).law() for _ in range(300)]
    means, variances = [law.mean for law in laws], [law.deviation**2 for law in laws]
    for values, expected in ((means, many.mean), (variances, many.deviation**2)):
        assert abs(np.mean(values) - expected) < 4 * np.std(values) / np.sqrt(len(values))


def test_people_who_only_give_templates_and_people_who_only_give_samples() -> None:
    """Against the cross moments of SPEC 17: tr(X S_t) + mu_e^T S_t mu_e + mu_t^T X mu_t, as covariances over all."""
    rng = np.random.default_rng(8)
    strangers, enrolled = _people(rng, 14), _people(rng, 9)
    nobody = Moments.none(6)
    pairs = ImpostorPairs.of(
        [total([Moments.of(rows) for rows in strangers]), nobody],
        [nobody, total([Moments.of(_template(rows)[None]) for rows in enrolled])],
    )
    samples, templates = np.concatenate(strangers), np.stack([_template(rows) for rows in enrolled])
    first, second = np.cov(samples.T, bias=True), np.cov(templates.T, bias=True)
    mean, other = samples.mean(axis=0), templates.mean(axis=0)
    variance = (first * second).sum() + mean @ second @ mean + other @ first @ other
    assert pairs.law().mean == pytest.approx(mean @ other)
    assert pairs.law().deviation == pytest.approx(np.sqrt(variance))


def test_how_samples_of_one_recording_resemble_each_other_does_not_matter() -> None:
    """A sample's second moment is m m^T + (1 - 1/k) W, whatever the covariance of two samples of a person."""
    rng = np.random.default_rng(9)
    rows = unit(rng.normal(size=(5, 6)))
    near = np.concatenate([rows, rows])  # every sample twice: W is smaller, and the share of it in a mean larger
    assert np.allclose(Moments.of(near).second, Moments.of(rows).second)
    assert np.allclose(Moments.of(rows).second, rows.T @ rows / 5)


def test_comparing_people_with_themselves_would_widen_the_law() -> None:
    """Why pairs are of two groups: twenty people's own templates among the pairs raise mean and deviation."""
    rng = np.random.default_rng(6)
    people = [unit(rng.normal(size=30) + 0.3 * rng.normal(size=(4, 30))) for _ in range(20)]
    strangers = total([Moments.of(rows) for rows in people])
    templates = total([Moments.of(_template(rows)[None]) for rows in people])
    mean = strangers.centre @ templates.centre
    second = (strangers.second * templates.outer).sum() / 400
    law = _pairs(people, 10).law()
    scores = [sample @ _template(b) for a in people for b in people if a is not b for sample in a]
    assert law.deviation == pytest.approx(np.std(scores), rel=0.1)
    assert np.sqrt(second - mean**2) > 1.3 * np.std(scores)


def test_gaussian_people_reach_the_threshold_as_often_as_asked() -> None:
    """Monte Carlo: 60 people of a Gaussian world, strangers of the same; asked 1 % gives 0.7 to 1.4 % on average."""
    rng = np.random.default_rng(7)
    rates = []
    for _ in range(12):
        people = [unit(rng.normal(size=64) + rng.normal(size=(5, 64))) for _ in range(60)]
        law = _pairs(people, 10).law()
        strangers = np.concatenate([unit(rng.normal(size=64) + rng.normal(size=(5, 64))) for _ in range(200)])
        templates = np.stack([_template(rows) for rows in people])
        rates.append(float((strangers @ templates.T >= law.score_at(0.01)).mean()))
    assert 0.007 < np.mean(rates) < 0.014


@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_reports_are_as_exact_as_their_grid(seed: int, samples: int) -> None:
    """An entry is off by half a unit at most, so a sum over n people by n / 2 units, and the law by next to nothing."""
    people = [rows.astype(np.float32) for rows in _people(np.random.default_rng(seed), 12, samples)]
    sums = ModelSums.of(
        [(place, _report(rows)) for place, rows in enumerate(people)], model_version="m", impostors="moments"
    )
    whole, exact = sums.total, total([Moments.of(rows) for rows in people])
    assert whole is not None
    for found, wanted in ((whole.strangers.mean, exact.mean), (whole.strangers.outer, exact.outer)):
        assert np.abs(found - wanted).max() <= len(people) * 0.5 / grid.UNIT
    pairs = ImpostorPairs.of([g.strangers for g in sums.groups], [g.enrolled for g in sums.groups])
    law, wanted_law = pairs.law(), _pairs([rows.astype(np.float64) for rows in people], 10).law()
    assert law.mean == pytest.approx(wanted_law.mean, abs=1e-5)
    assert law.deviation == pytest.approx(wanted_law.deviation, abs=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 8), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_a_device_reports_passes_the_check(seed: int, samples: int, evaluates: bool) -> None:
    rows = _people(np.random.default_rng(seed), 1, samples)[0].astype(np.float32)
    _checked(_report(rows, evaluates=evaluates), evaluates=evaluates)


@pytest.mark.parametrize("rows", ["same", "opposite", "one"])
def test_degenerate_people_pass_the_check(rows: str) -> None:
    first = unit(np.arange(1.0, 7.0)).astype(np.float32)
    chosen = {"same": np.stack([first] * 4), "opposite": np.stack([first, -first]), "one": first[None]}[rows]
    report = _report(chosen)
    _checked(report)
    assert report.trials == (0 if rows == "one" else len(chosen))


def test_values_that_are_not_finite_are_refused() -> None:
    rows = np.full((3, 6), np.nan, np.float32)
    with pytest.raises(BundleError, match="not finite"):
        _report(rows)
    with pytest.raises(ValueError, match="finite"):
        Moments.of(rows)
    with pytest.raises(ValueError, match="one finite embedding"):
        Moments.of(_NOBODY)


def test_no_entry_is_larger_than_an_embedding_makes_it() -> None:
    report = _report(_people(np.random.default_rng(1), 1)[0].astype(np.float32))
    moments = report.moments[0]
    off_diagonal = moments.within.copy()
    off_diagonal[1] = grid.UNIT  # a covariance of 1 between two values whose variances are small
    for forged in (
        replace(moments, mean=moments.mean * 2),
        replace(moments, outer=moments.outer + 9),
        replace(moments, template_outer=np.zeros_like(moments.outer)),
        replace(moments, within=off_diagonal),
        replace(moments, within=-moments.within),
        replace(moments, people=2),
        replace(moments, inverse_samples=2 * grid.UNIT),
    ):
        with pytest.raises(WireError):
            _checked(replace(report, moments=(forged,)))


def test_few_people_say_what_is_missing() -> None:
    people = _people(np.random.default_rng(2), 3)
    with pytest.raises(ThresholdError, match="two groups"):
        _pairs(people, 1).law()
    assert _pairs(people[:2], 2).law().deviation > 0.0
    assert ModelSums.of([], model_version="m", impostors="moments").total is None


def test_a_collapsed_model_has_a_law_and_nobody_passes_it() -> None:
    rows = np.stack([unit(np.ones(6))] * 4).astype(np.float32)
    pairs = _pairs([rows.astype(np.float64)] * 10, 5)
    law = pairs.law()
    assert law.mean == pytest.approx(1.0)
    assert law.deviation < 1e-3
    assert grid.share_below(_report(rows).genuine[0].astype(np.int64), law.score_at(0.01)) > 0.9


def test_groups_of_sums_add_up_to_the_whole() -> None:
    reports = [
        (place, _report(rows.astype(np.float32))) for place, rows in enumerate(_people(np.random.default_rng(3), 23))
    ]
    sums = ModelSums.of(reports, model_version="m", impostors="moments")
    whole, left = sums.total, sums.without(4)
    assert whole is not None
    assert left is not None
    again = left + sums.groups[4]
    for name in GroupSums.__slots__:
        assert np.array_equal(getattr(again, name), getattr(whole, name)), name


def test_a_histogram_of_impostors_gives_the_thresholds_of_its_scores() -> None:
    """Every score counts as the upper end of its bin."""
    rng = np.random.default_rng(11)
    strangers = unit(rng.normal(size=(300, 6))).astype(np.float32)
    people = [rows.astype(np.float32) for rows in _people(rng, 30)]
    reports = [
        report_on(rows, model_version="m", impostors="cohort", evaluates=True, strangers=strangers) for rows in people
    ]
    sums = ModelSums.of(enumerate(reports), model_version="m", impostors="cohort")
    found = calibrate(sums, source="an example", now=1.0)
    scores = np.concatenate([strangers.astype(np.float64) @ _template(rows.astype(np.float64)) for rows in people])
    for fmr in (0.1, 0.01):
        limit = found.threshold(fmr).score
        assert 0.0 <= limit - np.quantile(scores, 1 - fmr) <= 3 / grid.BINS
        assert (scores >= limit).mean() <= fmr
    assert found.trials("cosine") == len(scores)


def test_a_threshold_from_few_people_lies_higher() -> None:
    """With an error of one deviation: z' = z sqrt(1 + 1)."""
    replicates = np.array([[0.1, 0.1], [0.3, 0.1]])  # jackknife: sqrt(1/2 * 2 * 0.1^2) = 0.1, one deviation
    tail = Tail(0.2, 0.1, 8, 8, 0.01, replicates)
    assert jackknife([0.1, 0.3]) == pytest.approx(0.1)
    assert tail.threshold(0.01) == pytest.approx(0.2 + 0.1 * 2.326348 * np.sqrt(2.0), abs=1e-6)
    assert Tail(0.2, 0.1, 8, 8, 0.01, np.zeros((0, 2))).threshold(0.01) == pytest.approx(
        ScoreLaw(0.2, 0.1).score_at(0.01)
    )
    low, high = tail.interval(0.4)
    assert low < 0.0228 < high


def test_more_people_do_not_make_a_normal_law_more_normal() -> None:
    """Replicates that agree leave the error of the law's shape: 0.06 * 2 deviations at a score two above the mean."""
    law = ScoreLaw(0.0, 1.0)
    low, high = Tail(0.2, 0.1, 500, 500, 0.01, np.array([[0.2, 0.1]] * 10)).interval(0.4)
    assert (low, high) == pytest.approx((law.fmr_at(2 + 1.96 * 0.12), law.fmr_at(2 - 1.96 * 0.12)))


def test_the_threshold_keeps_the_rate_on_average_over_what_is_not_known() -> None:
    """E Phi(-(z' + e N)) is the asked rate."""
    rng = np.random.default_rng(4)
    error = 0.4
    away = 2.326348 * np.sqrt(1.0 + error**2)
    law = ScoreLaw(0.0, 1.0)
    rates = [law.fmr_at(away + error * noise) for noise in rng.normal(size=40_000).tolist()]
    assert np.mean(rates) == pytest.approx(0.01, rel=0.03)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-1, 1))
@settings(max_examples=80, deadline=None)
def test_a_histogram_tells_a_share_to_within_its_bin(scores: list[float], limit: float) -> None:
    values = np.array(scores)
    share = grid.share_below(grid.shares(values), limit)
    low, high = (values < limit - 2 / grid.BINS).mean(), (values < limit + 2 / grid.BINS).mean()
    assert low - len(values) / grid.SHARE <= share <= high + len(values) / grid.SHARE
    assert grid.shares(values).sum() == grid.SHARE


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=9), min_size=1, max_size=30), st.floats(-1, 0.98))
@settings(max_examples=80, deadline=None)
def test_the_worst_tenth_is_theirs_to_within_the_table(people: list[list[float]], limit: float) -> None:
    """Rates are rounded to tenths, and the threshold up to the next hundredth."""
    counts = sum((grid.table(np.array(scores)) for scores in people), np.zeros((grid.STEPS, grid.LEVELS), np.int64))
    found = grid.worst_share(counts, limit)

    def direct(threshold: float) -> float:
        rates = sorted((float(np.mean(np.array(scores) < threshold)) for scores in people), reverse=True)
        left, summed = len(people) / 10, 0.0
        for rate in rates:
            summed += min(left, 1.0) * rate
            left = max(left - 1.0, 0.0)
        return summed / (len(people) / 10)

    assert direct(limit - 1e-9) - 0.051 <= found <= direct(limit + 0.01 + 1e-9) + 0.051


def _report(
    rows: Float32, *, evaluates: bool = True, dimension: int = 6, impostors: Impostors = "moments"
) -> ModelReport:
    nobody = np.zeros((0, dimension), np.float32)
    return report_on(rows, model_version="m", impostors=impostors, evaluates=evaluates, strangers=nobody)


def _checked(report: ModelReport, *, evaluates: bool = True, impostors: Impostors = "moments") -> None:
    task = EvaluationTask(1, "m", "m", impostors, evaluates, _NOBODY, _NOBODY)
    check(EvaluationReport(1, report, (), 4), task, dimension=6, cells=0)


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_a_sketch_of_third_moments_is_linear_and_moves_with_the_centre(seed: int, samples: int, dimension: int) -> None:
    """About a centre c: less c (x) W in every order of its factors, W the unbiased covariance, to rounding."""
    rng = np.random.default_rng(seed)
    rows, centre = rng.normal(size=(samples, dimension)), rng.normal(size=dimension)
    apart = (sketch.spectra(centre) * sketch.pair_spectra(Moments.of(rows).within)).sum(axis=0)
    moved = np.fft.irfft(np.fft.rfft(sketch.excess(rows)) - apart, sketch.size(dimension))
    assert sketch.excess(rows - centre) == pytest.approx(moved, abs=1e-9)


def test_a_sketch_keeps_scalar_products() -> None:
    """Of samples a u and b u along a unit u: <excess, u u u> = 2 ((a^3 + b^3) / 2 - ((a + b) / 2)^3)."""
    axis = unit(np.arange(1.0, 97.0))
    rows = np.outer([0.9, 0.1], axis)
    found = sketch.inner(np.fft.rfft(sketch.excess(rows)), np.prod(sketch.spectra(axis), axis=0))
    assert found == pytest.approx(2 * ((0.9**3 + 0.1**3) / 2 - 0.5**3), rel=0.15)  # twice sqrt(27 / 4,608 bins)
    assert not sketch.excess(rows[:1]).any()


def _with_poor_samples(rng: np.random.Generator, count: int) -> list[Float64]:
    """People of whom some have samples that lie low along what all share, the lower the more they scatter."""
    people = []
    for _ in range(count):
        poor = rng.exponential() * 0.15
        along = 0.8 - np.abs(rng.normal(size=5)) * poor
        people.append(np.outer(along, np.eye(24)[0]) + 0.1 * rng.normal(size=(5, 24)))
    return people


def _third(people: list[Float64], groups: int) -> ThirdMoments:
    parts = [people[group::groups] for group in range(groups)]
    return ThirdMoments.of(
        [total(Moments.of(rows) for rows in part) for part in parts],
        [np.sum([sketch.excess(rows) for rows in part], axis=0) for part in parts],
        [total(Moments.of(rows.mean(axis=0)[None]) for rows in part) for part in parts],
    )


def test_the_third_cumulant_is_that_of_the_samples_less_that_of_their_means() -> None:
    """Against x . mu of everybody, computed one by one."""
    people = _with_poor_samples(np.random.default_rng(5), 400)
    rows = np.stack(people)
    mu = rows.mean(axis=(0, 1))
    along = rows @ mu - float(mu @ mu)
    exact = float(((along**3).mean(axis=1) - along.mean(axis=1) ** 3).mean() / (1 - 1 / 5))
    third = _third(people, 10)
    assert exact < 0.0
    assert third.cumulant() == pytest.approx(exact, rel=0.1)
    # Without one group of ten: of the other nine, so nearly the same.
    assert third.cumulant(3) == pytest.approx(exact, rel=0.2)


def test_where_nothing_is_skewed_the_third_cumulant_is_noise_around_0() -> None:
    rng = np.random.default_rng(6)
    found = []
    for _ in range(30):
        people = [np.eye(24)[0] * 0.8 + 0.1 * (rng.normal(size=24) + rng.normal(size=(5, 24))) for _ in range(20)]
        found.append(_third(people, 10).cumulant())
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(len(found))


def test_a_skewed_law_is_pearsons() -> None:
    """Frequency factors of Pearson III as hydrologists tabulate them (Bulletin 17B of the US Geological Survey)."""
    for skewness, fmr, factor in ((-0.2, 0.01, 2.178), (-0.2, 0.001, 2.808), (0.4, 0.01, 2.615)):
        assert ScoreLaw(0.0, 1.0, skewness).score_at(fmr) == pytest.approx(factor, abs=3e-3)


@given(st.floats(-0.5, 0.5), st.floats(1e-6, 0.5))
@settings(max_examples=80, deadline=None)
def test_a_law_gives_back_the_rate_of_its_own_score(skewness: float, fmr: float) -> None:
    law = ScoreLaw(0.3, 0.1, skewness)
    assert law.fmr_at(law.score_at(fmr)) == pytest.approx(fmr, rel=1e-6)


def test_a_skewness_is_told_from_twenty_people_on() -> None:
    people = [unit(rows).astype(np.float32) for rows in _with_poor_samples(np.random.default_rng(7), 60)]
    reports = [_report(rows, dimension=24, impostors="third_moments") for rows in people]
    plain = [_report(rows, dimension=24) for rows in people]

    def tail(of: list[ModelReport]) -> Tail:
        sums = ModelSums.of(enumerate(of), model_version="m", impostors="third_moments")
        found = calibrate(sums, source="s", now=1.0)
        assert found.tail is not None
        return found.tail

    told = tail(reports)
    assert told.skewness < -0.02
    assert told.replicates.shape == (10, 3)
    assert told.threshold(0.001) < tail(plain).threshold(0.001)
    for normal in (tail(plain), tail(reports[:19])):
        assert (normal.skewness, normal.replicates.shape[1]) == (0.0, 2)


def test_third_moments_that_are_of_no_person_are_refused() -> None:
    rows = _people(np.random.default_rng(9), 1)[0].astype(np.float32)
    report, size = _report(rows, impostors="third_moments"), sketch.size(6)
    (sums,) = report.moments
    for third in (np.zeros(size + 1, np.int32), np.full(size, 8 * grid.UNIT, np.int32)):
        with pytest.raises(WireError, match="third moments"):
            _checked(replace(report, moments=(replace(sums, third=third),)), impostors="third_moments")
    _checked(report, impostors="third_moments")
    for sent, asked in ((report, "moments"), (_report(rows), "third_moments")):
        with pytest.raises(WireError, match="not asked for"):
            _checked(sent, impostors=asked)
    trains = _report(rows, evaluates=False, impostors="third_moments")
    _checked(trains, evaluates=False, impostors="third_moments")
    (silent,) = trains.moments
    forged = replace(trains, moments=(replace(silent, third=np.ones(size, np.int32)),))
    with pytest.raises(WireError, match="third moments"):
        _checked(forged, evaluates=False, impostors="third_moments")


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_own_samples_tell_on_average_what_fresh_probes_score(samples: int) -> None:
    """4,000 simulated people: within three standard errors, where the uncorrected ones are far lower."""
    rng = np.random.default_rng(samples)
    own, fresh, uncorrected = [], [], []
    for _ in range(4_000):
        rows = unit(rng.normal(size=64) + rng.normal(size=(samples + 1, 64)) * 0.8)
        fresh.append(float(rows[-1] @ unit(rows[:-1].mean(axis=0))))
        own.append(float(genuine_scores(rows[:-1].astype(np.float32)).mean()))
        uncorrected.append(float(leave_one_out(rows[:-1].astype(np.float32)).mean()))
    error = np.std(np.array(own) - np.array(fresh)) / np.sqrt(len(own))
    # The mean of a root is a little below the root of the mean where a is estimated from two samples.
    assert np.mean(own) == pytest.approx(np.mean(fresh), abs=3 * error + 0.002)
    assert np.mean(fresh) - np.mean(uncorrected) > 0.02 / (samples - 1)
