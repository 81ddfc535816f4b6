"""Several decisions become one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.errors import ModelMismatchError, ThresholdError
from uvsdk.scoring import Calibration, Decision, LikelihoodRatio, Presentation, Quality, Threshold, fuse
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.fusion import _tail
from uvsdk.scoring.likelihood import Surroundings
from uvsdk.scoring.ranked import RankedScores, keep

LIMIT = Threshold(2.0, 0.01, 1000, scale="llr")
VOICE = Decision(0.8, LIMIT, "voice", Quality(advice=("speak longer",)), {"model": 0.25}, llr=3.0)
FACE = Decision(0.5, replace(LIMIT, trials=500), "face", timings_s={"model": 0.5}, llr=2.0)


def calibration(model_version: str, impostor: np.ndarray) -> Calibration:
    ratio = LikelihoodRatio(
        compensation=Compensation(np.zeros(2, np.float32), np.zeros((0, 2), np.float32)),
        top=0,
        surroundings=Surroundings.of([]),
        location=np.zeros(1),
        log_scale=np.zeros(1),
        limits=np.zeros((2, 2)),
        slope=1.0,
        offset=0.0,
        lowest=-9.0,
        highest=9.0,
        impostor=np.sort(impostor).astype(np.float32),
        trials=len(impostor),
    )
    return Calibration(np.zeros(4, np.float32), model_version, "made by hand", ratio)


def test_the_sum_decides() -> None:
    whole = fuse([VOICE, FACE], fmr=0.01)
    assert whole.llr == 5.0
    assert whole.threshold.score == pytest.approx(math.log(100))
    assert whole.accepted
    assert not fuse([VOICE, replace(FACE, llr=1.5)], fmr=0.01).accepted  # 4.5 < 4.605
    assert whole.score == 0.8
    assert whole.parts == (VOICE, FACE)
    assert whole.quality.advice == ("speak longer",)
    assert whole.timings_s == {"model": 0.75}
    assert whole.model_version == "fused:voice+face"
    assert (whole.threshold.scale, whole.threshold.trials) == ("llr", 500)


def test_neither_part_need_pass_alone_nor_can_one_outvote_the_other() -> None:
    weak = replace(LIMIT, score=4.0)
    assert fuse([replace(VOICE, threshold=weak), replace(FACE, threshold=weak, llr=3.0)], fmr=0.01).accepted
    assert not fuse([replace(VOICE, llr=9.0), replace(FACE, llr=-6.0)], fmr=0.01).accepted


def test_an_attack_on_one_part_fails_the_whole() -> None:
    attacked = replace(FACE, llr=9.0, presentations=(Presentation("face-antispoof", 0.1, 0.5),))
    whole = fuse([VOICE, attacked])
    assert whole.matched
    assert not whole.accepted
    assert len(whole.presentations) == 1


def test_the_convolution_by_hand() -> None:
    # Each part is 0 or 4, evenly: sums 0 (1/4), 4 (1/2), 8 (1/4). A rate of 0.3 admits the 8 alone, one of 0.2 nothing.
    coin = RankedScores.of(np.array([0.0, 4.0], np.float32))
    assert 4.0 < _tail([coin, coin], 0.3) <= 8.0
    assert _tail([coin, coin], 0.2) > 8.0
    assert _tail([coin, coin], 0.75) <= 4.0


def test_calibrations_raise_the_threshold_and_never_lower_it() -> None:
    low = [calibration("voice", np.full(1000, -5.0)), calibration("face", np.full(1000, -5.0))]
    assert fuse([VOICE, FACE], calibrations=low).threshold.score == pytest.approx(math.log(100))
    # Overconfident: impostors reach 4 in one case of two, so 8 comes up a quarter of the time.
    high = [calibration(name, np.repeat([0.0, 4.0], 500)) for name in ("voice", "face")]
    assert fuse([VOICE, FACE], calibrations=high).threshold.score > 8.0
    assert fuse([VOICE, FACE], calibrations=[high[0], None]).threshold.score == pytest.approx(math.log(100))


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.3))
def test_the_tail_of_the_convolution_holds_for_independent_draws(seed: int, fmr: float) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.normal(-4, 2, 300).astype(np.float32), rng.normal(-2, 3, 200).astype(np.float32)
    threshold = _tail([keep(first, 300), keep(second, 200)], fmr)
    assert _tail([keep(first, 50), keep(second, 40)], fmr) >= threshold - 0.02  # of fewer, never laxer but for the grid
    sums = (first[:, None] + second).ravel()
    assert (sums >= threshold).mean() <= fmr + 1e-9
    assert (sums >= threshold - 0.05).mean() >= fmr - 0.01  # and not much stricter than needed


def test_what_cannot_be_fused() -> None:
    with pytest.raises(ValueError, match="two decisions or more, got 1"):
        fuse([VOICE])
    with pytest.raises(ValueError, match="given twice"):
        fuse([VOICE, VOICE])
    with pytest.raises(ValueError, match="fused already"):
        fuse([VOICE, fuse([VOICE, FACE])])
    with pytest.raises(ThresholdError, match="1 of 2 decisions have no likelihood ratio"):
        fuse([VOICE, Decision(0.9, Threshold(0.5, 0.01, 9), "face")])
    with pytest.raises(ThresholdError, match="between 0 and 1"):
        fuse([VOICE, FACE], fmr=0.0)
    with pytest.raises(ValueError, match="as many calibrations, got 1"):
        fuse([VOICE, FACE], calibrations=[None])
    with pytest.raises(ModelMismatchError, match="in the same order"):
        fuse([VOICE, FACE], calibrations=[calibration("face", np.zeros(9)), None])
