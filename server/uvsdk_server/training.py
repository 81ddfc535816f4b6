"""What is being trained: the configuration, the algorithm's server side, and the state between rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from uvsdk.errors import SettingsError
from uvsdk.federation import algorithms, clipping, optimisers, roles, streams
from uvsdk.federation.classes.matrix import mean_offdiagonal_cosine
from uvsdk.federation.messages import OptimiserState, TrainingConfig
from uvsdk.federation.round import Method
from uvsdk.records.codec import Scalar
from uvsdk.release.report import GROUPS


class Training:
    """Configuration and state of one deployment; :class:`uvsdk_server.rounds.Rounds` alone replaces the state."""

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        *,
        role_key: bytes,
        dimension: int,
        parameters: int,
        start_norm: float,
    ) -> None:
        """A state before anyone has joined; ``dimension`` is d, ``parameters`` P and ``start_norm`` the norm of the
        parameters that training started from. ``step`` is what the server's step is multiplied by. Roles are drawn
        under ``role_key``, all else under ``seed``.
        """
        self.config = config
        self.method = Method.of(config)
        self.parameters = parameters
        self.state: Any = self.method.server.empty(dimension, self.method.settings)
        self.optimiser: OptimiserState = optimisers.initial(parameters, config)
        self.step = 1.0
        self.start_norm = start_norm
        self._seed = seed
        self._role_key = role_key

    @property
    def needs(self) -> tuple[str, ...]:
        """What an admission holds, sorted words of :mod:`uvsdk.federation.strategy`; it may hold nothing else."""
        return tuple(sorted(self.method.server.needs(self.method.settings)))

    def resume(self, state: Any, optimiser: OptimiserState) -> None:
        """Go on from where a committed round left off, maybe under a changed configuration."""
        self.state, fresh = state, self.optimiser
        # A configuration with another optimiser starts its moments anew, one that turns control variates on starts c.
        if (optimiser.first.shape, optimiser.second.shape) == (fresh.first.shape, fresh.second.shape):
            kept = optimiser.control.shape == fresh.control.shape
            self.optimiser = optimiser if kept else replace(optimiser, control=fresh.control)

    @property
    def returns(self) -> bool:
        """Whether training goes back to the best state that evaluations find (:mod:`uvsdk.release.backtracking`)."""
        return self.config.backtracking and self.method.impostors != "off"

    def round_seed(self, round_id: int) -> str:
        """The seed of one round, decimal: a function of the deployment's seed and the round's number."""
        return str(streams.round_seed(self._seed, round_id))

    def evaluates(self, user: str, trainers: int) -> bool:
        """Whether a user who joins while so many train never does (:mod:`uvsdk.federation.roles`)."""
        return roles.evaluates(user, key=self._role_key, trainers=trainers, config=self.config)

    def group(self, user: str) -> int:
        """The group that a user's sums are added to when a model is evaluated."""
        return roles.group(user, key=self._role_key, groups=GROUPS)

    def announced_norm(self, medians: Sequence[float]) -> float:
        """The longest update that counts in a round that follows committed rounds with these medians."""
        return clipping.announced_norm(self.start_norm, medians, config=self.config)

    def clip_norm(self, announced: float | None) -> float:
        """The longest update that counts in a round that announced this; an earlier version announced nothing."""
        return clipping.absolute_norm(self.start_norm, self.config) if announced is None else announced

    def mean_offdiagonal_cosine(self) -> float:
        """The collapse monitor: of the class matrix as it is now, NaN where the algorithm has none."""
        return mean_offdiagonal_cosine(self.method.server.class_matrix(self.state)[1])

    def report(self) -> dict[str, Scalar]:
        """What the algorithm tells the operator of this training; ``None`` for a number that is not finite."""
        told = self.method.server.report(self.state, self.method.settings)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in told.items()
        }


def check_restricted(config: TrainingConfig, allowed: Sequence[str]) -> None:
    """Raise ``SettingsError`` where the algorithm advises against these settings and the operator has not named it,
    where one device could move the model without bound, or where no model could be evaluated as it is asked for.
    """
    clipping.check_bounded(config)
    _ = Method.of(config).impostors
    settings = algorithms.settings(config.algorithm, config.algorithm_settings)
    reason = algorithms.server(config.algorithm).restricted(settings)
    if reason and config.algorithm not in allowed:
        raise SettingsError(
            f"these settings of {config.algorithm} are refused: {reason}. Whoever accepts that starts the server with "
            f"--allow {config.algorithm}"
        )
