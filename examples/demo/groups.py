"""Who trains, who only evaluates, and who never takes part: strangers, as those are whom a verification keeps out.

A model that was trained on somebody knows them better than it knows anybody else, as the person at the device and as an
impostor. So every error rate here is told twice: of people who trained, and of people who never did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.federation import roles
from uvsdk.federation.messages import TrainingConfig

_LEAST_OUTSIDE_OF = 6
"""Of so many people one is kept out."""
LEAST_EVALUATORS = 9
"""Who evaluates, at least, before anybody else trains or is kept out; eight are the fewest whose word supports a false
match rate of 1 %."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Names of people, each in one group, those who joined in the order in which they did.

    Args:
        trained: whose devices train.
        evaluate: whose devices only evaluate; the thresholds are from them.
        outside: whose recordings or images nobody was ever given.
    """

    trained: tuple[str, ...]
    evaluate: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def joined(self) -> tuple[str, ...]:
        """Who is enrolled: first those who train whatever is drawn, then everybody else."""
        return (*self.trained, *self.evaluate)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Who never trained."""
        return (*self.evaluate, *self.outside)


def share(people: int) -> float:
    """The ``evaluation_share`` by which about half of those who join only evaluate, and nine where there are so many:
    the first eight never do.

    >>> share(8), share(17), round(share(34), 2)
    (0.0, 0.999, 0.65)
    """
    drawn = people - roles.LEAST_TRAINERS
    return min(0.999, max(people / 2, LEAST_EVALUATORS) / drawn) if drawn > 0 else 0.0


def order(names: Sequence[str], seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Who joins, in which order, and who is kept out."""
    drawn = [names[index] for index in np.random.default_rng(seed).permutation(len(names))]
    outside = min(len(names) // _LEAST_OUTSIDE_OF, max(len(names) - roles.LEAST_TRAINERS - LEAST_EVALUATORS, 0))
    return tuple(drawn[: len(drawn) - outside]), tuple(drawn[len(drawn) - outside :])


def assign(joining: Sequence[str], outside: Sequence[str], users: Mapping[str, str], config: TrainingConfig) -> Groups:
    """What the server will draw for those who join in that order.

    Args:
        joining: names.
        outside: names of those who do not.
        users: name -> hashed id.
        config: with the seed that is drawn by.
    """
    evaluates = roles.split([users[name] for name in joining], seed=config.seed or 0, config=config)
    return Groups(
        tuple(name for name in joining if users[name] not in evaluates),
        tuple(name for name in joining if users[name] in evaluates),
        tuple(outside),
    )
