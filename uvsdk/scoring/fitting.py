"""Fitting a :class:`uvsdk.scoring.likelihood.LikelihoodRatio` to trials, with Newton's method and numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from uvsdk.arrays import Float64

RIDGE: Final = 1e-3
"""Weight of the squared weights (not the intercepts) beside the mean loss of a trial."""

_STEPS = 100
_HALVINGS = 30
_CONVERGED = 1e-10
# A straight line through two classes that do not overlap has no steepest slope; this keeps it finite.
_SLOPE_RIDGE = 1e-4


def impostor_loss(
    parameters: Float64, rows: Float64, scores: Float64, weights: Float64, ridge: float = RIDGE
) -> tuple[float, Float64]:
    """Negative log likelihood of impostor scores, normal with a location and a log scale linear in ``rows``.

    ``sum w (log_scale + z^2 / 2) + ridge / 2 |parameters without intercepts|^2`` with ``z = (score - location) /
    exp(log_scale)``, up to a constant.

    Args:
        parameters: location weights, then log scale weights, float64 (2 k,); the first of each is the intercept.
        rows: float64 (n, k), first column 1.
        scores: float64 (n,).
        weights: float64 (n,), sum 1.
        ridge: see :data:`RIDGE`.

    Returns:
        The loss and its gradient, float64 (2 k,).
    """
    size = rows.shape[1]
    log_scale = rows @ parameters[size:]
    z = (scores - rows @ parameters[:size]) * np.exp(-log_scale)
    held = _without_intercepts(parameters, size)
    loss = float(weights @ (log_scale + z**2 / 2) + ridge / 2 * held @ held)
    location_gradient = -rows.T @ (weights * z * np.exp(-log_scale))
    scale_gradient = rows.T @ (weights * (1.0 - z**2))
    return loss, np.concatenate([location_gradient, scale_gradient]) + ridge * held


def fit_impostors(rows: Float64, scores: Float64, *, weights: Float64, ridge: float = RIDGE) -> tuple[Float64, Float64]:
    """Location and log scale weights of impostor scores, float64 (k,) each, by Fisher scoring with step halving.

    Args:
        rows, scores, weights, ridge: as for :func:`impostor_loss`.

    Raises:
        ValueError: no trials, or scores that do not differ.
    """
    size = rows.shape[1]
    weights = weights / weights.sum() if len(weights) else weights
    mean = float(weights @ scores) if len(scores) else 0.0
    deviation = float(np.sqrt(weights @ (scores - mean) ** 2)) if len(scores) else 0.0
    if not deviation > 0:
        raise ValueError(f"{len(scores)} impostor scores do not differ; nothing can be fitted")
    parameters = np.zeros(2 * size)
    parameters[0], parameters[size] = mean, np.log(deviation)
    penalty = ridge * np.diag(_without_intercepts(np.ones(2 * size), size))

    def step(at: Float64, gradient: Float64) -> Float64:
        # Expected curvature: location w / scale^2, log scale 2 w; no cross terms.
        information = penalty.copy()
        precision = weights * np.exp(-2.0 * (rows @ at[size:]))
        information[:size, :size] += (rows * precision[:, None]).T @ rows
        information[size:, size:] += 2.0 * (rows * weights[:, None]).T @ rows
        return np.asarray(np.linalg.lstsq(information, gradient, rcond=None)[0], np.float64)

    fitted = _minimum(parameters, lambda at: impostor_loss(at, rows, scores, weights, ridge), step)
    return fitted[:size], fitted[size:]


def logistic_loss(
    line: Float64, z: Float64, genuine: Float64, weights: Float64, log_odds: float = 0.0
) -> tuple[float, Float64]:
    """Prior-weighted cross entropy of ``slope z + offset + log_odds`` with a little ridge on the slope.

    Args:
        line: slope and offset, float64 (2,).
        z: float64 (n,).
        genuine: 1 for a genuine trial, 0 for an impostor's, float64 (n,).
        weights: float64 (n,); those of the genuine sum to the prior, the others to the rest.
        log_odds: of the prior.

    Returns:
        The loss and its gradient, float64 (2,).
    """
    logits = line[0] * z + line[1] + log_odds
    loss = float(weights @ np.logaddexp(0.0, np.where(genuine > 0, -logits, logits)))
    error = weights * (_logistic(logits) - genuine)
    gradient = np.array([error @ z + _SLOPE_RIDGE * line[0], error.sum()])
    return loss + _SLOPE_RIDGE / 2 * float(line[0]) ** 2, gradient


def fit_line(
    z_genuine: Float64,
    z_impostor: Float64,
    *,
    prior: float = 0.5,
    genuine_weights: Float64 | None = None,
    impostor_weights: Float64 | None = None,
) -> tuple[float, float]:
    """Slope and offset of the log likelihood ratio, by iteratively reweighted least squares.

    Args:
        z_genuine: float64 (n,).
        z_impostor: float64 (m,).
        prior: of a genuine trial, in (0, 1): where the fit should be best.
        genuine_weights: relative weights of the genuine trials, float64 (n,); ``None`` for equal ones.
        impostor_weights: likewise.

    Raises:
        ValueError: one of the lists is empty, or genuine trials do not score higher.
    """
    if not len(z_genuine) or not len(z_impostor):
        raise ValueError(f"a ratio needs genuine and impostor trials, got {len(z_genuine)} and {len(z_impostor)}")
    z = np.concatenate([z_genuine, z_impostor])
    genuine = np.concatenate([np.ones(len(z_genuine)), np.zeros(len(z_impostor))])
    weights = np.concatenate(
        [
            prior * _shares(genuine_weights, len(z_genuine)),
            (1.0 - prior) * _shares(impostor_weights, len(z_impostor)),
        ]
    )
    log_odds = float(np.log(prior / (1.0 - prior)))
    design = np.stack([z, np.ones(len(z))], axis=1)

    def step(at: Float64, gradient: Float64) -> Float64:
        chance = _logistic(at[0] * z + at[1] + log_odds)
        curvature = weights * np.maximum(chance * (1.0 - chance), 1e-12)
        return np.linalg.solve((design * curvature[:, None]).T @ design + np.diag([_SLOPE_RIDGE, 1e-12]), gradient)

    line = _minimum(np.zeros(2), lambda at: logistic_loss(at, z, genuine, weights, log_odds), step)
    if not line[0] > 0:
        raise ValueError("genuine trials do not score higher than impostors; this model cannot be calibrated")
    return float(line[0]), float(line[1])


def _minimum(
    start: Float64, value: Callable[[Float64], tuple[float, Float64]], step: Callable[[Float64, Float64], Float64]
) -> Float64:
    """Where ``value`` (a loss and its gradient) is least: each Newton ``step`` is halved until it helps."""
    at, (loss, gradient) = start, value(start)
    for _ in range(_STEPS):
        direction = step(at, gradient)
        for halving in range(_HALVINGS):
            trial = at - direction * 0.5**halving
            trial_loss, trial_gradient = value(trial)
            if trial_loss <= loss:
                break
        else:
            break
        gained, loss, gradient, at = loss - trial_loss, trial_loss, trial_gradient, trial
        if gained < _CONVERGED:
            break
    return at


def _shares(weights: Float64 | None, count: int) -> Float64:
    return np.full(count, 1.0 / count) if weights is None else weights / weights.sum()


def _logistic(logits: Float64) -> Float64:
    return np.exp(-np.logaddexp(0.0, -logits))


def _without_intercepts(parameters: Float64, size: int) -> Float64:
    held = parameters.copy()
    held[0] = held[size] = 0.0
    return held
