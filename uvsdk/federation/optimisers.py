"""The server's optimiser on the averaged delta (FedOpt, Reddi et al. 2021; SPEC 1.3): pure, float32.

With D the mean delta and a the step size:
``sgd``: theta += a D. ``momentum``: v = b v + D; theta += a v.
``adam``, ``yogi``, ``adagrad``: m = b1 m + (1 - b1) D; theta += a m / (sqrt(v) + tau), where v is
b2 v + (1 - b2) D^2, or v - (1 - b2) D^2 sign(v - D^2), or v + D^2.
With ``config.control_variates`` the server's c follows SCAFFOLD (Karimireddy et al. 2020, option II): each device's
new c_i is c_i - c - Delta_i / (K eta), so c += share (-c - D / (K eta)), share being that of all weight that took
part (:func:`uvsdk.federation.aggregation.weight_share`). Nothing more than the deltas is sent; c is the mean of all c_i
weighted as the deltas are, where the paper has the plain mean.
tau is ``config.server_adaptivity``. As in FedOpt there is no bias correction; v starts at 0.

With ``config.trust_ratio`` r > 0 the step u of each tensor w of the trunk is shortened to r |w| (L2 norms, direction
kept), as LARS (You et al. 2017) and LAMB (You et al. 2020) bound what a layer may move by its own size; they also
lengthen short steps to that, which is left out here. Where tau is far below the deltas, adam moves every parameter by
a, whatever its gradient: in a recurrent matrix whose gradient is of rank one, as on a view that is silent for the most
part, n inputs then push in the same direction through every frame. A tensor counts as no smaller than
:data:`SMALLEST` times what its size lets expect of the whole trunk, so that one that starts at 0 can start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.guards import squared_norm
from uvsdk.federation.messages import OptimiserState, TrainingConfig

MOMENTUM = np.float32(0.9)
FIRST_DECAY = np.float32(0.9)
SECOND_DECAY = np.float32(0.99)
SMALLEST = 0.1
"""Least root mean square that a tensor counts with under a trust ratio, as a part of the whole trunk's."""
_FIRST_SHARE = np.float32(0.1)
_SECOND_SHARE = np.float32(0.01)

_FIRST = ("momentum", "adam", "yogi", "adagrad")
_SECOND = ("adam", "yogi", "adagrad")


def initial(parameters: int, config: TrainingConfig) -> OptimiserState:
    """The state before the first step; a moment that the optimiser does not use has shape (0,)."""
    return OptimiserState(
        steps=0,
        first=np.zeros(parameters if config.optimiser in _FIRST else 0, np.float32),
        second=np.zeros(parameters if config.optimiser in _SECOND else 0, np.float32),
        control=np.zeros(parameters if config.control_variates else 0, np.float32),
    )


def learning_rate(steps: int, config: TrainingConfig) -> float:
    """Step size of the step that follows ``steps`` earlier ones: rises over ``config.warmup_rounds``, falls at the end.

    >>> config = TrainingConfig("d", "voice", "ge2e", "fedaws", server_learning_rate=0.4, warmup_rounds=4)
    >>> [learning_rate(steps, config) for steps in (0, 1, 3, 9)]
    [0.1, 0.2, 0.4, 0.4]
    """
    rise = (steps + 1) / config.warmup_rounds if config.warmup_rounds else 1.0
    fall = max(config.rounds - steps, 1) / config.cooldown_rounds if config.cooldown_rounds else 1.0
    return config.server_learning_rate * min(1.0, rise, fall)


def step(
    theta: Float32,
    delta: Float32,
    state: OptimiserState,
    config: TrainingConfig,
    *,
    share: float = 1.0,
    tensors: Sequence[int] = (),
    scale: float = 1.0,
) -> tuple[Float32, OptimiserState]:
    """One step of ``config.optimiser``; neither ``theta`` nor ``state`` is changed.

    Args:
        theta: float32 (P,), the model of the round.
        delta: float32 (P,), the mean of local minus global.
        state: of the optimiser, before.
        config: the configuration.
        share: of all weight, that of those who took part, (0, 1]; only SCAFFOLD reads it.
        tensors: how many of the P numbers each tensor of the trunk has, in order; only a trust ratio reads it.
        scale: what the step is multiplied by in the end (:mod:`uvsdk.release.backtracking`).

    Raises:
        UpdateRejectedError: shapes differ, or the step would leave theta not finite.
    """
    if theta.shape != delta.shape:
        raise UpdateRejectedError(f"theta has shape {theta.shape}, the mean delta {delta.shape}")
    for name, moment in (("first", state.first), ("second", state.second)):
        needed = config.optimiser in (_FIRST if name == "first" else _SECOND)
        if needed and moment.shape != theta.shape:
            raise UpdateRejectedError(f"the {name} moment has shape {moment.shape}, theta {theta.shape}")
    rate = np.float32(learning_rate(state.steps, config))
    with np.errstate(over="ignore", invalid="ignore"):
        direction, first, second = _direction(delta, state, config)
        move: Float32 = rate * direction
        if config.trust_ratio:
            _shorten(move, theta, tensors, config.trust_ratio)
        if scale != 1.0:
            move *= np.float32(scale)
        moved = theta + move
    if not bool(np.isfinite(moved).all()):
        raise UpdateRejectedError(
            f"a step of {config.optimiser} at rate {rate:g} left theta not finite; lower the rate"
        )
    return moved, OptimiserState(state.steps + 1, first, second, _control(state.control, delta, share, config))


def largest_ratio(before: Float32, after: Float32, tensors: Sequence[int]) -> float:
    """How far a step moved the tensor that it moved most, as a part of that tensor's norm, as a trust ratio bounds it.

    >>> before, after = np.array([3.0, 4.0, 1.0], np.float32), np.array([3.0, 4.5, 1.2], np.float32)
    >>> round(largest_ratio(before, after, (2, 1)), 3)  # 0.5 / 5 and 0.2 / 1
    0.2

    Args:
        before: float32 (P,).
        after: float32 (P,).
        tensors: how many of the P numbers each tensor has, in order.
    """
    moved = 0.0
    for part, norm in _norms(before, tensors):
        length = math.sqrt(squared_norm(after[part] - before[part]))
        moved = max(moved, length / norm if norm else math.inf if length else 0.0)
    return moved


def _shorten(move: Float32, theta: Float32, tensors: Sequence[int], ratio: float) -> None:
    """Shorten, in place, each tensor's part of ``move`` to ``ratio`` times the norm that the tensor counts with."""
    for part, norm in _norms(theta, tensors):
        length = math.sqrt(squared_norm(move[part]))
        if length > ratio * norm > 0:
            move[part] *= np.float32(ratio * norm / length)


def _norms(theta: Float32, tensors: Sequence[int]) -> Iterator[tuple[slice, float]]:
    """Where each tensor lies, and the norm that it counts with: 0 for all of them where theta is 0."""
    if sum(tensors) != len(theta):
        raise UpdateRejectedError(
            f"the tensors of the trunk have {sum(tensors)} parameters together, theta {len(theta)}"
        )
    parts, start = [], 0
    for size in tensors:
        parts.append(slice(start, start + size))
        start += size
    squares = [squared_norm(theta[part]) for part in parts]
    least = SMALLEST**2 * sum(squares) / len(theta)
    for part, square in zip(parts, squares, strict=True):
        yield part, math.sqrt(max(square, least * (part.stop - part.start)))


def _direction(delta: Float32, state: OptimiserState, config: TrainingConfig) -> tuple[Float32, Float32, Float32]:
    first, second = state.first, state.second
    if config.optimiser == "sgd":
        direction = delta
    elif config.optimiser == "momentum":
        direction = first = MOMENTUM * first + delta
    else:
        first = FIRST_DECAY * first + _FIRST_SHARE * delta
        second = _second_moment(second, delta * delta, config.optimiser)
        scale: Float32 = np.sqrt(second) + np.float32(config.server_adaptivity)
        direction = first / scale
    return direction, first, second


def _control(control: Float32, delta: Float32, share: float, config: TrainingConfig) -> Float32:
    if not config.control_variates:
        return control
    if control.shape != delta.shape:  # switched on in the middle of training
        control = np.zeros_like(delta)
    mean_gradient = delta / np.float32(-config.local_steps * config.learning_rate)
    moved: Float32 = control + np.float32(share) * (mean_gradient - control)
    return moved


def _second_moment(second: Float32, squares: Float32, optimiser: str) -> Float32:
    if optimiser == "adam":
        return SECOND_DECAY * second + _SECOND_SHARE * squares
    if optimiser == "yogi":
        sign: Float32 = np.sign(second - squares)
        return second - _SECOND_SHARE * squares * sign
    return second + squares
