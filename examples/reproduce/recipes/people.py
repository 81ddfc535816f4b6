"""Who trains, who only evaluates, and who is a stranger to both.

People and samples are those of :mod:`examples.reproduce.partial.corpus`. The seed deals them. Of the twenty voices of
letters eight train and eight only evaluate, since fewer tell nothing of a candidate; of the faces that are no strangers
a third only evaluates. On the telephone those who choose settings in that table only evaluate here, and the thirteen
people with more than one utterance are the strangers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from examples.reproduce.partial import corpus
from examples.reproduce.partial.corpus import Person, Split

DEALT: Final[Mapping[str, tuple[int, int]]] = {"letters": (8, 8), "small faces": (62, 31)}
"""How many train, and how many only evaluate; the others are strangers."""

_DEAL = 9000


def split(people: Mapping[str, Person], kind: str, seed: int) -> Split:
    """The parts under ``seed``; ``validation`` are those who only evaluate."""
    if kind not in DEALT:
        return corpus.split(people, kind, seed)
    names = sorted(people)
    order = [names[place] for place in np.random.default_rng(_DEAL + seed).permutation(len(names)).tolist()]
    train, told = DEALT[kind]

    def of(chosen: Sequence[str]) -> dict[str, Person]:
        return {name: people[name] for name in sorted(chosen)}

    return Split(train=of(order[:train]), unseen=of(order[train + told :]), validation=of(order[train : train + told]))
