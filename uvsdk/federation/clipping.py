"""How long one update may be, so that no device moves the model further than its share of that (SPEC 1.7).

An update longer than the norm its round announced is shortened to it, on the device and again on the server; it is
not refused, for a device that has much to learn may still say in which direction. The announced norm is the smaller of

* an absolute one, :func:`absolute_norm`, made of the configuration and of the model that training started from, which
  therefore holds in the first round, after aborted rounds and after a restart;
* :data:`FACTOR` times the largest median of the last :data:`ROUNDS` committed rounds.

A median says something only where at least :data:`FEWEST` updates moved: of three, one device cannot lift it above
what another sent. Updates of 0 do not count, since devices that have learned what they can send those; were they
counted, the few who still learn would be cut down to nothing. The relative norm never falls below :data:`FLOOR` of the
absolute one: whoever joins when all others are done may learn as well.

Norm clipping against poisoned updates: Sun et al., "Can You Really Backdoor Federated Learning?", 2019,
https://arxiv.org/abs/1911.07963; SPEC 1.7 refuses above ten times the median instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.guards import squared_norm
from uvsdk.federation.messages import TrainingConfig

FACTOR = 3.0
"""An update counts as at most this many times the median."""

ROUNDS = 20
"""Committed rounds whose medians are looked at."""

FEWEST = 3
"""Updates that are not 0 from which a round's median says something."""

FLOOR = 1e-3
"""The announced norm never falls below this part of the absolute one."""

_ROUNDING = 1e-6
_BLOCK = 1 << 20
_CONTROLLED = 3.0


def absolute_norm(start_norm: float, config: TrainingConfig) -> float:
    """The longest update that counts in any round; infinite where the configuration does without.

    ``config.clip_norm`` where it is given. Otherwise ``start_norm``, for local steps that move the model by its own
    length leave nothing of it, and at least 1, so that a model that starts at 0 can start. Where gradients are clipped
    an honest update is no longer than local_steps x learning_rate x gradient_clip, which is taken where it is less;
    control variates add to each step at most twice that.

    Args:
        start_norm: norm of the parameters that training started from.
        config: the configuration.
    """
    if config.clipping == "off":
        return math.inf
    if config.clip_norm:
        return config.clip_norm
    longest = max(start_norm, 1.0) if math.isfinite(start_norm) else 1.0
    if not config.gradient_clip:
        return longest
    steps = config.local_steps * config.learning_rate * config.gradient_clip
    return min(longest, steps * (_CONTROLLED if config.control_variates else 1.0))


def announced_norm(start_norm: float, medians: Sequence[float], *, config: TrainingConfig) -> float:
    """The norm that a round announces.

    >>> config = TrainingConfig("d", "voice", "ge2e", "fedaws")
    >>> [announced_norm(10.0, medians, config=config) for medians in ([], [0.1, 0.2], [9.0])]
    [10.0, 0.6000000000000001, 10.0]

    Args:
        start_norm: norm of the parameters that training started from.
        medians: :func:`round_median` of the committed rounds, oldest first, without those that say nothing.
        config: the configuration.
    """
    longest = absolute_norm(start_norm, config)
    if config.clipping != "median" or not medians:
        return longest
    return min(longest, max(FACTOR * max(medians[-ROUNDS:]), FLOOR * longest))


def round_median(norms: Sequence[float], clip_norm: float) -> float | None:
    """The median of the norms of a round's updates, as they counted; ``None`` where too few of them moved.

    >>> round_median([0.0, 0.2, 1e9, 0.1], clip_norm=5.0), round_median([0.0, 0.0, 1e9, 0.1], clip_norm=5.0)
    (0.2, None)
    """
    moved = [min(norm, clip_norm) for norm in norms if norm > 0]
    return float(np.median(moved)) if len(moved) >= FEWEST else None


def scale_of(norm: float, clip_norm: float) -> float:
    """What an update of that norm is multiplied by. An update that its device has clipped is left as it is.

    >>> scale_of(4.0, 1.0), scale_of(0.5, 1.0), scale_of(1.0000001, 1.0)
    (0.25, 1.0, 1.0)
    """
    return 1.0 if norm <= clip_norm * (1.0 + _ROUNDING) else clip_norm / norm


def norm_of(delta: Float32) -> float:
    """The L2 norm of a delta, float32 (P,); NaN or infinite where it holds such a value."""
    return math.sqrt(sum(squared_norm(delta[start : start + _BLOCK]) for start in range(0, len(delta), _BLOCK)))


def clip(delta: Float32, clip_norm: float) -> Float32:
    """``delta``, shortened to ``clip_norm`` where it is longer, its direction kept."""
    norm = norm_of(delta)
    scale = scale_of(norm, clip_norm) if math.isfinite(norm) else 1.0
    return delta if scale == 1.0 else delta * np.float32(scale)


def check_bounded(config: TrainingConfig) -> None:
    """Raise :class:`SettingsError` unless the updates of strangers' devices are bounded under ``config``."""
    if config.clipping == "off":
        raise SettingsError(
            "clipping is off: one device could then move the model as far as it likes. That is for simulations of "
            "honest devices; say clipping = median, or fixed with a clip_norm"
        )


def of_start(theta: Array) -> float:
    """``start_norm`` of the parameters that training starts from."""
    return norm_of(np.asarray(theta, np.float32))
