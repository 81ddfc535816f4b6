"""The class columns of a softmax whose devices see all of them or a sample; shared by FedSS and the softmax oracle.

A class is a person (named by the user's hashed id), a class that a device listed by name when it joined, or a
synthetic anchor that nobody holds. Persons are private; listed classes and anchors are the pool of negatives that any
device may be sent. On the wire a class is the first eight bytes of a hash of its name, so that what a device asked for
still means the same after others have joined or left.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from uvsdk.arrays import Float64, Int64, UInt8
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.messages import Admission

PERSON, LISTED, ANCHOR = 0, 1, 2
"""What a class is."""

POOLS = ("anchors", "users")
"""Whose columns serve as negatives: those of anchors and listed classes, or everybody's."""

ANCHOR_PREFIX = "anchor/"
"""Names of synthetic anchors begin with it, and no other class's name does."""


class ColumnSettings(Protocol):
    """Settings that both algorithms have; the device's side reads the first two."""

    @property
    def scale(self) -> float:
        """Of the cosines."""
        ...

    @property
    def vector_rate(self) -> float:
        """Learning rate of the columns on a device as a multiple of the trunk's."""
        ...

    @property
    def initialisation(self) -> str:
        """One of :data:`uvsdk.federation.classes.matrix.INITIALISATIONS`."""
        ...

    @property
    def pool(self) -> str:
        """One of :data:`POOLS`."""
        ...

    @property
    def anchors(self) -> int:
        """Synthetic classes that nobody holds."""
        ...

    @property
    def divide_by_holders(self) -> bool:
        """Whether column j's change is divided by the weight of the devices that had it (``holders``)."""
        ...

    @property
    def momentum(self) -> float:
        """b, in [0, 1)."""
        ...

    @property
    def server_rate(self) -> float:
        """a."""
        ...

    @property
    def foreign_cap(self) -> float:
        """Longest change of a column that is not the device's own, before weighting; 0 for any."""
        ...

    @property
    def samples_cap(self) -> int:
        """n_k counts as at most this; 1 weights all devices alike."""
        ...


@dataclass(frozen=True, slots=True)
class Columns:
    """The label space and who holds what of it, in order of class name.

    Args:
        rows: the columns, a row for each class: its users are the classes' names; means are persons' and zeros
            elsewhere, ``samples`` those of the device that joined last with a class, ``last_round`` is when a column
            was last touched, ``refused`` counts contributions left out of a step and columns that one would have
            brought to zero.
        ids: int64 (n,), what each class is called on the wire (:func:`class_id`).
        kinds: uint8 (n,), :data:`PERSON`, :data:`LISTED` or :data:`ANCHOR`.
        momentum: float64 (n, d), v.
        users: hashed ids of those who joined, sorted, distinct.
        holders: int64 (p,), for each holding the place of its user, ascending.
        held: int64 (p,), for each holding the place of its class; ascending for each user.
    """

    rows: ClassMatrix
    ids: Int64
    kinds: UInt8
    momentum: Float64
    users: tuple[str, ...]
    holders: Int64
    held: Int64

    def __post_init__(self) -> None:
        count = len(self.names)
        if self.ids.shape != (count,) or self.kinds.shape != (count,) or self.momentum.shape != self.rows.vectors.shape:
            raise ValueError(f"{count} classes, ids {self.ids.shape}, momentum {self.momentum.shape} do not agree")
        if self.holders.shape != self.held.shape or list(self.users) != sorted(set(self.users)):
            raise ValueError("users are sorted and distinct, and each holding is of one user and one class")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, sorted, distinct."""
        return self.rows.users

    def own(self, user: str) -> Int64:
        """Places of the classes that ``user`` holds, ascending. Raises :class:`UpdateRejectedError` for a stranger."""
        place = bisect_left(self.users, user)
        if place == len(self.users) or self.users[place] != user:
            raise UpdateRejectedError(f"that user is not among the {len(self.users)} admitted; send an admission first")
        first, last = np.searchsorted(self.holders, [place, place + 1])
        return self.held[first:last]


def class_id(name: str) -> int:
    """What the class of that name is called on the wire: 63 bits, the same in every round and on every server."""
    digest = hashlib.sha256(b"uvsdk class\0" + name.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def empty(dimension: int, settings: ColumnSettings) -> Columns:
    """Nobody yet: only the synthetic anchors, d = ``dimension``."""
    names = tuple(sorted(f"{ANCHOR_PREFIX}{number:06}" for number in range(settings.anchors)))
    count = len(names)
    none = np.zeros((count, dimension))
    return Columns(
        rows=ClassMatrix(names, none, none, np.zeros(count, np.int64), np.full(count, matrix.NEVER, np.int64)),
        ids=np.array([class_id(name) for name in names], np.int64),
        kinds=np.full(count, ANCHOR, np.uint8),
        momentum=none,
        users=(),
        holders=np.empty(0, np.int64),
        held=np.empty(0, np.int64),
    )


def admit(state: Columns, admission: Admission, settings: ColumnSettings, rng: np.random.Generator) -> Columns:
    """``state`` with that user and the classes it holds; classes already there keep their columns.

    A user who joins again holds what the last admission says. A person's column starts as in
    :func:`uvsdk.federation.classes.matrix.admit`; one listed by name starts at random, since a device of several
    classes sends no mean of any.

    Raises:
        UpdateRejectedError: no sample, a mean that is needed and unusable, or names that are not sorted and distinct,
            belong to a person or begin as an anchor's do.
    """
    kind, names = _classes_of(state, admission)
    joined = state
    for name in names:
        joined = _with_class(joined, name, kind, admission, settings, rng)
    if admission.user in joined.users:
        joined = _without_holdings(joined, admission.user)
    place = bisect_left(joined.users, admission.user)
    if place == len(joined.users) or joined.users[place] != admission.user:
        joined = replace(
            joined,
            users=(*joined.users[:place], admission.user, *joined.users[place:]),
            holders=joined.holders + (joined.holders >= place),
        )
    at = int(np.searchsorted(joined.holders, place))
    held = np.array([bisect_left(joined.names, name) for name in names], np.int64)
    return _without_orphans(
        replace(
            joined,
            holders=np.insert(joined.holders, at, np.full_like(held, place)),
            held=np.insert(joined.held, at, held),
        )
    )


def remove(state: Columns, user: str) -> Columns:
    """``state`` without ``user`` and without the classes that nobody else holds; unchanged for a stranger."""
    if user not in state.users:
        return state
    place = bisect_left(state.users, user)
    left = _without_holdings(state, user)
    return _without_orphans(
        replace(
            left,
            users=left.users[:place] + left.users[place + 1 :],
            holders=left.holders - (left.holders > place),
        )
    )


def start(state: Columns, settings: ColumnSettings, rng: np.random.Generator) -> Columns:
    """Draw the columns as :func:`uvsdk.federation.classes.matrix.start` draws rows; unchanged where that has been done.

    Raises:
        SettingsError: some device would see its only class and nothing else: its loss would be 0 whatever it does.
    """
    if state.rows.started:
        return state
    for user in state.users:
        if len(label_space(state, user, settings)) < 2:
            raise SettingsError(
                "a softmax over one class teaches nothing: a device here would see its own class alone; set anchors to "
                "a number of synthetic classes, or wait until others have joined"
            )
    return replace(state, rows=matrix.start(state.rows, settings, rng))


def class_matrix(state: Columns) -> tuple[tuple[str, ...], Float64]:
    """(classes that somebody holds, their columns), or none and (0, d) before the columns are drawn."""
    names, vectors = matrix.class_matrix(state.rows)
    held = np.flatnonzero(state.kinds != ANCHOR) if names else np.empty(0, np.int64)
    return tuple(names[place] for place in held), vectors[held]


def label_space(state: Columns, user: str, settings: ColumnSettings) -> Int64:
    """Places of all classes that ``user`` may be sent: the own ones and the pool, ascending."""
    own = state.own(user)
    if settings.pool == "users":
        return np.arange(len(state.names))
    return np.union1d(np.flatnonzero(state.kinds != PERSON), own)


def most_held(state: Columns) -> int:
    """The most classes that one user holds."""
    return int(np.bincount(state.holders).max()) if len(state.holders) else 0


def places_of(state: Columns, ids: Int64) -> Int64:
    """Places of the classes called ``ids``, -1 for an id that no class has; int64 of the shape of ``ids``."""
    if len(state.ids) == 0:
        return np.full(ids.shape, -1, np.int64)
    order = np.argsort(state.ids)
    found = order[np.minimum(np.searchsorted(state.ids, ids, sorter=order), len(order) - 1)]
    return np.where(state.ids[found] == ids, found, -1)


def check_ids(state: Columns, ids: Int64, user: str, settings: ColumnSettings) -> Int64:
    """The places of the classes that a device names, in its order.

    Raises:
        UpdateRejectedError: ids that are not ascending and distinct, that lack one of the user's own classes, or one of
            which is not in the user's label space; the message does not say which.
    """
    own = state.own(user)
    if ids.ndim != 1 or ids.dtype != np.int64 or bool((np.diff(ids) <= 0).any()):
        raise UpdateRejectedError("the classes named are not a list of distinct ids in ascending order")
    places = places_of(state, ids)
    allowed, named = np.zeros((2, len(state.names)), np.bool_)
    allowed[label_space(state, user, settings)] = True
    if not bool((places >= 0).all() and allowed[places].all()):
        raise UpdateRejectedError("not every class named is in the label space; ask again at the next round")
    named[places] = True
    if not bool(named[own].all()):
        raise UpdateRejectedError("the device's own classes are not all among those named")
    return places


def check_column_settings(settings: ColumnSettings) -> None:
    """Raise :class:`SettingsError` for a value outside its range."""
    if not 0 < settings.scale < float("inf"):
        raise SettingsError(f"scale is {settings.scale}; it must be positive and finite")
    if not 0 <= settings.vector_rate < float("inf"):
        raise SettingsError(f"vector_rate is {settings.vector_rate}; it must be finite and not negative")
    matrix.check_initialisation(settings.initialisation)
    if settings.pool not in POOLS:
        raise SettingsError(f"pool {settings.pool!r} is not one of {POOLS}")
    if settings.anchors < 0:
        raise SettingsError(f"anchors is {settings.anchors}; it cannot be negative")
    if not 0 <= settings.momentum < 1:
        raise SettingsError(f"momentum is in [0, 1), got {settings.momentum}")
    if not 0 < settings.server_rate < float("inf"):
        raise SettingsError(f"server_rate is {settings.server_rate}; it must be positive and finite")
    if not 0 <= settings.foreign_cap < float("inf"):
        raise SettingsError(f"foreign_cap is {settings.foreign_cap}; it must be finite and not negative")
    if settings.samples_cap < 1:
        raise SettingsError(f"samples_cap is {settings.samples_cap}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class _AtRandom:
    """Settings under which a class starts at random, whatever the others start from."""

    initialisation: str = "random"


def _classes_of(state: Columns, admission: Admission) -> tuple[int, tuple[str, ...]]:
    """What a device holds: the user alone, or the classes it lists."""
    user, listed = admission.user, admission.classes
    if user.startswith(ANCHOR_PREFIX):
        raise UpdateRejectedError(f"a user's name cannot begin with {ANCHOR_PREFIX!r}")
    if listed in ((), (user,)):
        place = bisect_left(state.names, user)
        if place < len(state.names) and state.names[place] == user and state.kinds[place] == LISTED:
            raise UpdateRejectedError("another device lists a class of this user's name; choose another name for it")
        return PERSON, (user,)
    if list(listed) != sorted(set(listed)) or "" in listed:
        raise UpdateRejectedError("the classes of an admission are sorted, distinct and not empty")
    for name in listed:
        if name == user or name in state.users or name.startswith(ANCHOR_PREFIX):
            raise UpdateRejectedError("a device lists a class that is a person's or an anchor's; it can list neither")
    return LISTED, listed


def _with_class(
    state: Columns, name: str, kind: int, admission: Admission, settings: ColumnSettings, rng: np.random.Generator
) -> Columns:
    how = settings if kind == PERSON else _AtRandom()
    rows = matrix.admit(state.rows, replace(admission, user=name, classes=()), how, rng)
    place = bisect_left(state.names, name)
    if place < len(state.names) and state.names[place] == name:
        return replace(state, rows=rows)
    wire = class_id(name)
    if wire in state.ids:
        raise UpdateRejectedError("that class cannot be told from another on the wire; choose another name for it")
    return replace(
        state,
        rows=rows,
        ids=np.insert(state.ids, place, wire),
        kinds=np.insert(state.kinds, place, kind),
        momentum=np.insert(state.momentum, place, 0.0, axis=0),
        held=state.held + (state.held >= place),
    )


def _without_holdings(state: Columns, user: str) -> Columns:
    kept = state.holders != bisect_left(state.users, user)
    return replace(state, holders=state.holders[kept], held=state.held[kept])


def _without_orphans(state: Columns) -> Columns:
    """Drop the classes that nobody holds any more, anchors apart."""
    kept = state.kinds == ANCHOR
    kept[state.held] = True
    if bool(kept.all()):
        return state
    moved = np.cumsum(kept) - 1
    return replace(
        state,
        rows=matrix.select(state.rows, kept),
        ids=state.ids[kept],
        kinds=state.kinds[kept],
        momentum=state.momentum[kept],
        held=moved[state.held],
    )
