"""What the server of FedAwS keeps: the class matrix, and the lists of neighbours of an approximate search."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Int64
from uvsdk.federation.algorithms.fedaws.payload import Settings
from uvsdk.federation.classes import matrix, neighbours
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.classes.neighbours import Int32, Lists
from uvsdk.federation.messages import Admission


def _no_members() -> Int32:
    return np.empty((0, neighbours.LIST_LENGTH), np.int32)


def _never() -> Int64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class SpreadMatrix(ClassMatrix):
    """Rows, and the fields of :class:`~uvsdk.federation.classes.neighbours.Lists`; none where the search is exact.

    Args:
        members: int32 (C or 0, list length).
        searched: int64 (C or 0,).
        looks: searches so far.
        share: see there.
        recall: see there.
    """

    members: Int32 = field(default_factory=_no_members)
    searched: Int64 = field(default_factory=_never)
    looks: int = 0
    share: float = neighbours.FIRST_SHARE
    recall: float = 1.0

    def __post_init__(self) -> None:
        ClassMatrix.__post_init__(self)  # super() does not work in a dataclass with slots on Python 3.11
        if len(self.members) not in (0, len(self.users)) or self.searched.shape != (len(self.members),):
            raise ValueError(
                f"{len(self.users)} users, lists of shape {self.members.shape}, searched of {self.searched.shape}"
            )

    @property
    def lists(self) -> Lists | None:
        """The lists, ``None`` where there are none."""
        if len(self.members) == 0:
            return None
        return Lists(self.members, self.searched, self.looks, self.share, self.recall)


def with_lists(rows: ClassMatrix, lists: Lists | None) -> SpreadMatrix:
    """Those rows with ``lists`` of their neighbours."""
    plain = (rows.users, rows.vectors, rows.means, rows.samples, rows.last_round)
    counts = (rows.rounds, rows.refused, rows.started)
    if lists is None:
        return SpreadMatrix(*plain, *counts)
    return SpreadMatrix(
        *plain, *counts, lists.members, lists.searched, lists.round_id, share=lists.share, recall=lists.recall
    )


def empty(dimension: int, settings: Settings) -> SpreadMatrix:
    """No users yet, d = ``dimension``."""
    return with_lists(matrix.empty(dimension, settings), None)


def admit(state: SpreadMatrix, admission: Admission, settings: Settings, rng: np.random.Generator) -> SpreadMatrix:
    """:func:`uvsdk.federation.classes.matrix.admit`; a newcomer has no list yet."""
    rows, lists = matrix.admit(_rows(state), admission, settings, rng), state.lists
    if lists is not None and len(rows.users) > len(state.users):
        lists = neighbours.inserted(lists, rows.users.index(admission.user))
    return with_lists(rows, lists)


def remove(state: SpreadMatrix, user: str) -> SpreadMatrix:
    """``state`` without any row, mean or count of ``user``, who is in nobody's list either."""
    if user not in state.users:
        return state
    lists = state.lists
    left = None if lists is None else neighbours.removed(lists, state.users.index(user))
    return with_lists(matrix.remove(_rows(state), user), left)


def start(state: SpreadMatrix, settings: Settings, rng: np.random.Generator) -> SpreadMatrix:
    """:func:`uvsdk.federation.classes.matrix.start`."""
    return with_lists(matrix.start(_rows(state), settings, rng), state.lists)


def _rows(state: ClassMatrix) -> ClassMatrix:
    return ClassMatrix(
        state.users,
        state.vectors,
        state.means,
        state.samples,
        state.last_round,
        state.rounds,
        state.refused,
        state.started,
    )
