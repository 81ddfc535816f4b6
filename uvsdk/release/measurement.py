"""Calibration and error rates of one model from the sums of an evaluation (SPEC 17)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from uvsdk.arrays import Float64, Int64
from uvsdk.errors import ThresholdError
from uvsdk.release import grid
from uvsdk.release.report import SUMMED
from uvsdk.release.sums import GroupSums, ModelSums
from uvsdk.scoring import Calibration
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.moments import ImpostorPairs, ScoreLaw, jackknife
from uvsdk.scoring.skewness import ThirdMoments
from uvsdk.scoring.tail import MOST_SKEWED, Tail

SUPPORTED: Final = ((8, 1e-2), (20, 1e-3), (50, 1e-4))
"""People who only evaluate -> lowest false match rate that their moments support."""

MOST_REJECTED: Final = 0.5
"""A false match rate at which more genuine trials than this are rejected is one that nobody could work with."""

LEAST_PLACED: Final = 50
"""People who only evaluate, from whom on a calibration tells where their embeddings lie. Mean and directions of few
give away who they are (tests/benchmarks/evaluation/membership.py)."""

PEOPLE_A_DIRECTION: Final = 50
"""So many people stand behind each principal direction that is told, at least."""

LEAST_SKEWED: Final = 20
"""People with two samples or more who only evaluate, from whom on a skewness of impostors' scores is told."""

AROUND: Final = tuple(10.0**-exponent for exponent in range(1, 7))
"""False match rates at whose thresholds (:func:`bounded_score`) two models are compared beside the one asked for."""

_NEAR_ONE: Final = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Measured:
    """What an evaluation says of one model at one false match rate.

    Args:
        model_version: which.
        fmr: false match rate at which it is measured.
        threshold: the cosine there.
        fnmr: share of genuine trials below it, every person weighing the same.
        worst_fnmr: the same of the worst tenth of people.
        around: the mean of such shares over :data:`AROUND`: much less a matter of chance than the one at one rate.
        replicates: float64 (g,), ``fnmr`` with one group of devices left out, threshold and all.
        worst_replicates: float64 (g,), likewise ``worst_fnmr``.
        around_replicates: float64 (g,), likewise ``around``.
        cells: float64 (cells,), ``fnmr`` of each cell of conditions (:func:`uvsdk.scoring.cells.names`), NaN where
            nobody told of it.
        cell_people: int64 (cells,), who told of each.
        people: who told of genuine trials.
        trials: their genuine trials.
        calibration: what would be released with the model.
    """

    model_version: str
    fmr: float
    threshold: float
    fnmr: float
    worst_fnmr: float
    around: float
    replicates: Float64
    worst_replicates: Float64
    around_replicates: Float64
    cells: Float64
    cell_people: Int64
    people: int
    trials: int
    calibration: Calibration = field(repr=False)


def supported_fmr(people: int) -> float:
    """The lowest false match rate that the moments of so many people support.

    Raises:
        ThresholdError: too few for any.
    """
    found = [rate for least, rate in SUPPORTED if people >= least]
    if not found:
        raise ThresholdError(
            f"{people} people who do not train have told of this model, {SUPPORTED[0][0]} are the least; let more "
            "devices evaluate (evaluation_share)"
        )
    return found[-1]


def calibrate(sums: ModelSums, *, source: str, now: float) -> Calibration:
    """The calibration of a model from the sums of its evaluation.

    Args:
        sums: of one model version.
        source: in words, whose they are.
        now: seconds since 1970.

    Raises:
        ThresholdError: too few people, or trials, for any false match rate.
    """
    whole = sums.total
    if whole is None:
        raise ThresholdError("no device has told of this model")
    if sums.impostors not in SUMMED:
        return _of_trials(sums, whole, source=source, now=now)
    lowest = supported_fmr(whole.people)
    law, without = _laws(sums)
    rows = [(left.mean, left.deviation, left.skewness) for left in without.values()]
    replicates = np.array(rows, np.float64).reshape(len(rows), 3)[:, : 3 if law.skewness else 2]
    tail = Tail(law.mean, law.deviation, whole.people, whole.templates, lowest, replicates, law.skewness)
    return Calibration(
        tail.values(),
        sums.model_version,
        source,
        people=whole.templates,
        measured_unix_s=now,
        tail=tail,
        domain=_domain(whole),
        centre=sums.centre,
    )


def measure(sums: ModelSums, *, fmr: float | None, source: str, now: float) -> Measured:
    """Error rates at ``fmr``, by default the lowest that the calibration of the sums supports and by which people are
    still let in: of the rates of :data:`SUPPORTED` the first at which at most :data:`MOST_REJECTED` of the genuine
    trials are rejected, else the highest. More people who evaluate then never make a model useless, and a calibration
    from moments offers no lower rate than that.

    Raises:
        ThresholdError: too few people, or trials, for that rate.
    """
    calibration = calibrate(sums, source=source, now=now)
    whole = sums.total
    assert whole is not None  # calibrate() refuses an empty one
    rate = calibration.default_fmr() if fmr is None else fmr
    if fmr is None and calibration.tail is not None and whole.told:
        rates = sorted(each for _, each in SUPPORTED if each >= rate)
        usable = (each for each in rates if _rejected(whole, calibration, each) <= MOST_REJECTED)
        rate = next(usable, rates[-1])
        calibration = replace(calibration, tail=replace(calibration.tail, lowest_fmr=rate))
    threshold = calibration.threshold(rate).score
    laws = {} if calibration.tail is None else _laws(sums)[1]
    law = grid.law(whole.impostor) if calibration.tail is None else calibration.tail.law
    replicates, worst, around = [], [], []
    for place, group in enumerate(sums.groups):
        left = sums.without(place)
        if left is None or not left.told or not group.told:
            continue
        limit = threshold
        if calibration.tail is not None and place in laws:
            limit += laws[place].score_at(rate) - calibration.tail.law.score_at(rate)
        replicates.append(grid.share_below(left.genuine[0], limit))
        worst.append(grid.worst_share(left.rates, limit))
        around.append(_around(left, laws.get(place, law)))
    return Measured(
        model_version=sums.model_version,
        fmr=rate,
        threshold=threshold,
        fnmr=grid.share_below(whole.genuine[0], threshold) if whole.told else math.nan,
        worst_fnmr=grid.worst_share(whole.rates, threshold) if whole.told else math.nan,
        around=_around(whole, law),
        replicates=np.array(replicates, np.float64),
        worst_replicates=np.array(worst, np.float64),
        around_replicates=np.array(around, np.float64),
        cells=np.array([grid.share_below(counts, threshold) for counts in whole.genuine[1:]], np.float64),
        cell_people=whole.genuine[1:].sum(axis=1) // grid.SHARE,
        people=whole.told,
        trials=whole.trials,
        calibration=calibration,
    )


def _around(sums: GroupSums, law: ScoreLaw) -> float:
    """The mean over :data:`AROUND` of the share of genuine trials that are rejected; NaN where there are none."""
    return float(np.mean([grid.share_below(sums.genuine[0], bounded_score(law, each)) for each in AROUND]))


def bounded_score(law: ScoreLaw, fmr: float) -> float:
    """The cosine that a share ``fmr`` of impostors reaches if artanh of it is normal: never above 1.

    Where the cosines of strangers crowd near 1, as those of an encoder that knows one corner of the sphere alone, the
    normal law of the cosines themselves asks for more than any cosine, and whatever spreads them seems to gain. On such
    photographs (mean 0.90, deviation 0.025) strangers reach 0.947 at 1 % and 0.955 at 0.1 %; this says 0.943 and 0.953,
    the normal law 0.956 and 0.975.

    >>> law = ScoreLaw(0.898, 0.025)
    >>> [round(bounded_score(law, rate), 3) for rate in (0.01, 0.001)], round(law.score_at(0.001), 3)
    ([0.943, 0.953], 0.975)
    """
    mean = min(max(law.mean, -_NEAR_ONE), _NEAR_ONE)
    spread = law.deviation / (1.0 - mean * mean)
    return math.tanh(math.atanh(mean) - NormalDist().inv_cdf(fmr) * spread)


def _rejected(whole: GroupSums, calibration: Calibration, fmr: float) -> float:
    return grid.share_below(whole.genuine[0], calibration.threshold(fmr).score)


def _domain(whole: GroupSums) -> Domain | None:
    """Where those who only evaluate lie; ``None`` where they are few enough to be told by it."""
    if whole.people < LEAST_PLACED:
        return None
    return Domain.of(whole.strangers, directions=whole.people // PEOPLE_A_DIRECTION)


def _laws(sums: ModelSums) -> tuple[ScoreLaw, dict[int, ScoreLaw]]:
    """The law of impostors' scores, and by place of a group that of all others.

    The skewness is drawn towards that of a normal law as far as the jackknife does not tell it from one.
    """
    strangers, enrolled = [group.strangers for group in sums.groups], [group.enrolled for group in sums.groups]
    pairs = ImpostorPairs.of(strangers, enrolled)
    law, without = pairs.law(), pairs.laws_without()
    if sums.centre is not None:
        shift = _shift(sums, law)
        law = replace(law, mean=law.mean + shift)
        without = {place: replace(other, mean=other.mean + shift) for place, other in without.items()}
    counts = [(group.within_people, group.sketched) for group in sums.groups]
    told = sum(sketched for _, sketched in counts)
    if told < LEAST_SKEWED or any(people != sketched for people, sketched in counts):
        return law, without
    # A group in which nobody told any has none.
    length = max(len(group.third) for group in sums.groups)
    thirds = [grid.restored(group.third) if group.third.size else np.zeros(length) for group in sums.groups]
    moments = ThirdMoments.of(strangers, thirds, enrolled)
    found = moments.cumulant() / law.deviation**3
    left = {place: moments.cumulant(place) / other.deviation**3 for place, other in without.items()}
    error = jackknife(list(left.values()))
    share = found**2 / (found**2 + error**2) if found else 0.0

    def skewed(of: ScoreLaw, skewness: float) -> ScoreLaw:
        return replace(of, skewness=min(max(share * skewness, -MOST_SKEWED), MOST_SKEWED))

    return skewed(law, found), {place: skewed(other, left[place]) for place, other in without.items()}


def _shift(sums: ModelSums, law: ScoreLaw) -> float:
    """By how much strangers score higher on average than those whose centre was taken out do with each other.

    Rows that lose their own mean point away from each other: of n people by 1 / n of the square of how far they spread.
    Somebody who is not among them has no part in that mean, and scores with their templates as the product of both
    means says. Where the centre is of other people the two agree, but for each person's own part in that product,
    which is on the safe side.
    """
    whole = sums.total
    assert whole is not None  # there is a law
    return max(float(whole.strangers.centre @ whole.enrolled.centre) - law.mean, 0.0)


def _of_trials(sums: ModelSums, whole: GroupSums, *, source: str, now: float) -> Calibration:
    """Of histograms of impostors' scores: every count stands at the upper end of its bin."""
    counts = whole.impostor
    if not counts.sum():
        raise ThresholdError("no device has told of impostors' scores against this model")
    filled = np.flatnonzero(counts)
    edges = ((filled + 1) * (2.0 / grid.BINS) - 1.0).astype(np.float32)
    above = np.cumsum(counts[filled][::-1])[::-1]
    return Calibration(
        edges,
        sums.model_version,
        source,
        people=whole.devices,
        measured_unix_s=now,
        above=np.ascontiguousarray(above, np.int64),
        centre=sums.centre,
    )
