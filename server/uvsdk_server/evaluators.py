"""Who tells of a model, how many of them an evaluation needs, and what an operator of fewer is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.roles import LEAST_TRAINERS
from uvsdk.federation.round import Method
from uvsdk.release.measurement import SUPPORTED
from uvsdk.release.report import SUMMED
from uvsdk_server.store.rows import Respondent

_LEAST_SCORED: Final = 3
"""People whose templates are scored against a cohort, at least: as many as a round has."""

NOTHING: Final = (
    "nothing is evaluated in this deployment: its method sends no vector of a person, so it needs a cohort "
    "(uvsdk cohort make, uvsdk cohort add), or evaluation = 'off' is configured"
)

_INSTEAD: Final = (
    "Sooner: calibrate it on recordings or photographs of your own people (uvsdk calibrate, then PUT "
    "/v1/models/VERSION/calibration); or found a deployment with evaluation = 'cohort' and a cohort of other people, "
    "for which three suffice"
)


@dataclass(frozen=True, slots=True)
class Evaluators:
    """People of a deployment by what they can tell.

    Args:
        config: of the training.
        people: whose devices may be asked.
        told: of those, who can tell of strangers: with moments those who only evaluate, with a cohort everybody.
    """

    config: TrainingConfig
    people: int
    told: int

    @classmethod
    def of(cls, config: TrainingConfig, devices: Sequence[Respondent]) -> Self:
        """Of the devices that may be asked."""
        everybody = {item.user for item in devices}
        only = {item.user for item in devices if item.evaluates}
        return cls(config, len(everybody), len(everybody if Method.of(config).impostors == "cohort" else only))

    @property
    def impostors(self) -> str:
        """Where impostors' scores come from."""
        return Method.of(self.config).impostors

    def scored(self, cohort: bool) -> bool:
        """Whether anything is evaluated here, with a cohort handed to the server or without."""
        return self.impostors in SUMMED or (self.impostors == "cohort" and cohort)

    @property
    def least(self) -> int:
        """Fewest that make an evaluation worth its cost."""
        return _LEAST_SCORED if self.impostors == "cohort" else SUPPORTED[0][0]

    @property
    def suffice(self) -> bool:
        """Whether there are so many."""
        return self.told >= self.least

    def words(self, *, candidate: bool) -> str:
        """Why there is no evaluation of so few, when there will be one, and what can be done without.

        Args:
            candidate: whether there is one beside what verifies.
        """
        kept = f"what verifies keeps its calibration (uvsdk releases show). {_INSTEAD}"
        if candidate:
            kept = "nothing is released by itself: look at the candidate and promote it (uvsdk releases promote)"
        if self.impostors == "cohort":
            return f"{self.people} people are here, {self.least} are the least. Until then {kept}"
        return (
            f"{self.told} of {self.people} people here only evaluate; it takes {self.least} of them to measure genuine "
            f"scores and strangers. {self._when()}. Until then {kept}"
        )

    def _when(self) -> str:
        config = self.config
        if not config.rounds:
            return f"Everybody here does, so {self.least - self.told} more must join"
        if not config.evaluation_share:
            return "evaluation_share is 0, so nobody ever will"
        first = max(LEAST_TRAINERS, config.quorum(config.cohort(LEAST_TRAINERS)))
        about = first + math.ceil(self.least / config.evaluation_share)
        return (
            f"The first {first} who join train, and a share of {config.evaluation_share:g} of those after them only "
            f"evaluates: about {about} people in all (with rounds = 0 nobody trains, and {self.least} suffice)"
        )
