"""What no honest measurement looks like: a calibration that is refused whoever signed it.

These bounds hold for every model and every people. They do not prove a calibration right: one that was forged with care
lies within them, and only a signature (:mod:`uvsdk.privacy.bundle_signing`) or the digest that a threshold, a store or
a server remembers tells it from the real one.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import BundleError
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.likelihood import LikelihoodRatio

LOWEST_MEAN: Final = -0.5
"""Unit vectors of n people have a mean cosine of -1 / (n - 1) at least; this is that of three."""

_ROUNDING = 1e-3
# Logistic regression puts the mean posterior of impostors at a half at most, where genuine and impostor trials weigh
# the same: sum over both of (posterior - truth) is 0 at its optimum. The rest is for thinning and clipping.
_HIGHEST_POSTERIOR = 0.6


def check(calibration: Calibration) -> None:
    """Raise :class:`BundleError` for scores, trials or ratios that cannot have been measured."""
    check_impostors(calibration.impostor)
    mean = calibration.ranked.mean
    if mean < LOWEST_MEAN - _ROUNDING:
        raise BundleError(
            f"the impostor scores average {mean:.2f}; those of three people or more cannot lie below "
            f"{LOWEST_MEAN:g}, so nobody measured these: get the bundle again from whoever made it, or "
            "calibrate it with more people"
        )
    if calibration.ratio is not None:
        _check_ratio(calibration.ratio)
    if calibration.centre is not None:
        check_centre(calibration.centre)


def check_centre(centre: Float32) -> None:
    """Raises :class:`BundleError` unless it can be a mean of unit vectors: finite, and no longer than they are."""
    if centre.ndim != 1 or not np.isfinite(centre).all() or float(np.linalg.norm(centre)) > 1.0 + _ROUNDING:
        raise BundleError("what is subtracted before two embeddings are compared is no mean of unit vectors")


def check_impostors(scores: Float32) -> None:
    """Raises :class:`BundleError` unless they are cosines in ascending order, at least one."""
    good = scores.ndim == 1 and len(scores) and np.isfinite(scores).all() and (np.diff(scores) >= 0).all()
    if not good or (np.abs(scores) > 1 + 1e-5).any():
        raise BundleError("impostor scores must be cosines in ascending order, at least one")


def _check_ratio(ratio: LikelihoodRatio) -> None:
    """The map, and the impostors' ratios that thresholds are read from, must agree with each other."""
    if not ratio.lowest < 0.0 < ratio.highest <= math.log(ratio.trials) + _ROUNDING:
        raise _implausible(
            f"its ratios lie in [{ratio.lowest:.2f}, {ratio.highest:.2f}], which {ratio.trials} trials cannot support"
        )
    least, greatest = float(ratio.impostor[0]), float(ratio.impostor[-1])
    if least < ratio.lowest - _ROUNDING or greatest > ratio.highest + _ROUNDING:
        raise _implausible(f"impostors' ratios span [{least:.2f}, {greatest:.2f}], more than the ratio can give")
    shares = ratio.ranked.weights / ratio.ranked.trials
    posterior = float(shares @ (1.0 / (1.0 + np.exp(-ratio.impostor.astype(np.float64)))))
    if posterior > _HIGHEST_POSTERIOR:
        raise _implausible(f"it takes impostors for the same person: mean posterior {posterior:.2f}")
    # z of impostors is around 0 by its definition, so their ratios are around the line's value there.
    expected = min(max(ratio.offset, ratio.lowest), ratio.highest)
    middle = ratio.ranked.median
    if abs(middle - expected) > ratio.slope + 0.5:
        raise _implausible(f"impostors' median ratio is {middle:.2f}, its line says {expected:.2f}")
    if float(np.linalg.norm(ratio.compensation.centre.astype(np.float64))) > 1.0 + _ROUNDING:
        raise _implausible("its centre is no mean of unit vectors")
    low, high = ratio.limits[0].tolist()
    if not ratio.top and not LOWEST_MEAN - _ROUNDING <= low <= high <= 1.0 + _ROUNDING:
        raise _implausible(f"impostors score {low:.2f} to {high:.2f} on average, which cosines of people do not")
    # Scores after AS-norm are standard deviations; cosines spread by 1 at most.
    if not ratio.top and float(ratio.limits[1, 1]) > _ROUNDING:
        raise _implausible("cosines do not spread that wide")


def _implausible(reason: str) -> BundleError:
    return BundleError(
        f"the likelihood ratio contradicts itself: {reason}; get the bundle again from whoever made it, or calibrate "
        "it anew"
    )
