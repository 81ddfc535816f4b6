"""The class matrix with label sets beside it: what the server of FedALC and FedALC-fixed keeps (SPEC 3.1, 3.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from uvsdk.arrays import Float64, Int64, UInt8
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation.classes import correlation, matrix
from uvsdk.federation.classes.correlation import Correlation
from uvsdk.federation.classes.matrix import ClassMatrix, RowSettings
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, PERSON

FORMS = ("content", "embedding", "off")
"""What devices hash: a sample's stored features, its quantised embedding under the first model, or nothing.

See :func:`uvsdk.privacy.identifiers.canonical_instance` and :func:`~uvsdk.privacy.identifiers.canonical_embedding`.
"""

_HASH_BYTES = 32


def _no_hashes() -> UInt8:
    return np.empty((0, _HASH_BYTES), np.uint8)


def _no_users() -> Int64:
    return np.zeros(1, np.int64)


def _none() -> Int64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LabelMatrix(ClassMatrix):
    """Rows, and the instances that each user holds.

    Args:
        hashes: uint8 (n, 32), keyed hashes of samples, user after user, sorted and distinct within each.
        pointers: int64 (C + 1,), where each user's begin.
        persons: of each user the keyed hash that links identities of one person; empty for no link.
        positives: int64 (C,), N_u; these and the next are those of :class:`Correlation`, empty before the start.
        pair_rows: int64 (P,).
        pair_columns: int64 (P,).
        pair_counts: int64 (P,), N_uv.
        instances: n_all.
    """

    hashes: UInt8 = field(default_factory=_no_hashes)
    pointers: Int64 = field(default_factory=_no_users)
    persons: tuple[str, ...] = ()
    positives: Int64 = field(default_factory=_none)
    pair_rows: Int64 = field(default_factory=_none)
    pair_columns: Int64 = field(default_factory=_none)
    pair_counts: Int64 = field(default_factory=_none)
    instances: int = 0

    def __post_init__(self) -> None:
        ClassMatrix.__post_init__(self)  # super() does not work in a dataclass with slots on Python 3.11
        count = len(self.users)
        if len(self.persons) != count or self.pointers.shape != (count + 1,):
            raise ValueError(f"{count} users, {len(self.persons)} persons and pointers {self.pointers.shape}")
        if self.hashes.shape != (int(self.pointers[-1]), _HASH_BYTES):
            raise ValueError(f"hashes of shape {self.hashes.shape}, the pointers end at {int(self.pointers[-1])}")
        if self.started and self.positives.shape != (count,):
            raise ValueError(f"{count} users and counts of shape {self.positives.shape}")

    def correlation(self, smallest: int) -> Correlation:
        """The counts, without pairs of fewer than ``smallest`` common instances; links of a person always stay.

        Raises:
            ValueError: before the start nothing has been counted.
        """
        if not self.started:
            raise ValueError("label sets are counted at the start of training; start the algorithm first")
        counts = Correlation(self.positives, self.pair_rows, self.pair_columns, self.pair_counts, self.instances)
        groups = _groups(self.persons)
        return counts.frequent(smallest, kept=groups[counts.rows] == groups[counts.columns])

    def linked(self, counts: Correlation) -> int:
        """How many of the pairs of ``counts`` are two identities of one person."""
        groups = _groups(self.persons)
        return int((groups[counts.rows] == groups[counts.columns]).sum())


class LabelSettings(RowSettings, Protocol):
    """Settings of an algorithm that uses label sets."""

    @property
    def instances(self) -> str:
        """One of :data:`FORMS`."""
        ...


def check_form(form: str, smallest_shared: int) -> None:
    """Raise :class:`SettingsError` for an unknown form, or a smallest count of common instances below 1."""
    if form not in FORMS:
        raise SettingsError(f"instances {form!r} is not one of {FORMS}")
    if smallest_shared < 1:
        raise SettingsError(f"smallest_shared is {smallest_shared}; a pair shares at least 1 instance")


def needs(settings: LabelSettings) -> frozenset[str]:
    """What :func:`matrix.needs` says, the link of a person, and the instances unless they are off."""
    hashed = {"content": frozenset({INSTANCES}), "embedding": frozenset({EMBEDDED}), "off": frozenset[str]()}
    return matrix.needs(settings) | {PERSON} | hashed[settings.instances]


def empty(dimension: int, settings: LabelSettings) -> LabelMatrix:
    """No users yet, d = ``dimension``."""
    rows = matrix.empty(dimension, settings)
    return LabelMatrix(rows.users, rows.vectors, rows.means, rows.samples, rows.last_round)


def admit(state: LabelMatrix, admission: Admission, settings: LabelSettings, rng: np.random.Generator) -> LabelMatrix:
    """:func:`matrix.admit`, and the user's instances and person; admitted again they are replaced.

    A device that sends no instance is a class without any: nothing is pushed away from it on its own account.

    Raises:
        UpdateRejectedError: as there, or instances that are not hashes, or more of them than samples.
    """
    instances = _checked(admission, settings)
    rows = matrix.admit(_rows(state), admission, settings, rng)
    again = admission.user in state.users
    index = rows.users.index(admission.user)
    first = int(state.pointers[index])
    last = int(state.pointers[index + 1]) if again else first
    lengths = np.diff(state.pointers)
    lengths = np.delete(lengths, index) if again else lengths
    joined = _joined(
        rows,
        hashes=np.concatenate([state.hashes[:first], instances, state.hashes[last:]]),
        lengths=np.insert(lengths, index, len(instances)),
        persons=(*state.persons[:index], admission.person, *state.persons[index + again :]),
    )
    return counted(joined) if joined.started else joined


def remove(state: LabelMatrix, user: str) -> LabelMatrix:
    """``state`` without any row, instance or count of ``user``; unchanged where there is no such user."""
    if user not in state.users:
        return state
    index = state.users.index(user)
    left = _joined(
        matrix.remove(_rows(state), user),
        hashes=np.delete(state.hashes, np.arange(state.pointers[index], state.pointers[index + 1]), axis=0),
        lengths=np.delete(np.diff(state.pointers), index),
        persons=state.persons[:index] + state.persons[index + 1 :],
    )
    return counted(left) if left.started else left


def start(state: LabelMatrix, settings: LabelSettings, rng: np.random.Generator) -> LabelMatrix:
    """Draw the rows and count the label sets; unchanged where that has been done."""
    if state.started:
        return state
    return counted(_with(state, matrix.start(_rows(state), settings, rng)))


def changed(state: LabelMatrix, change: Callable[[ClassMatrix], ClassMatrix]) -> LabelMatrix:
    """``state`` with other rows for the same users, e.g. those that :func:`matrix.write` gives."""
    return _with(state, change(_rows(state)))


def with_vectors(state: LabelMatrix, vectors: Float64) -> LabelMatrix:
    """``state`` with other class vectors."""
    return changed(state, lambda rows: matrix.with_vectors(rows, vectors))


def counted(state: LabelMatrix) -> LabelMatrix:
    """``state`` with the counts made anew from the instances."""
    found = correlation.count(state.hashes, state.pointers, _groups(state.persons))
    return _label_matrix(_rows(state), state.hashes, state.pointers, state.persons, found)


def _checked(admission: Admission, settings: LabelSettings) -> UInt8:
    instances = admission.instances
    if settings.instances == "off":
        return _no_hashes()  # Whatever was sent is not needed, so it is not kept.
    if instances.dtype != np.uint8 or instances.ndim != 2 or instances.shape[1] != _HASH_BYTES:
        raise UpdateRejectedError(
            f"instances are hashes of {_HASH_BYTES} bytes, got {instances.dtype} of shape {instances.shape}"
        )
    if len(instances) > admission.samples:
        raise UpdateRejectedError(f"{len(instances)} instances of {admission.samples} samples; send one for each")
    distinct: UInt8 = np.unique(instances, axis=0) if len(instances) else _no_hashes()
    return distinct


def _groups(persons: tuple[str, ...]) -> Int64:
    """A number for each user, equal for those linked as one person, int64 (C,)."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(person, place) if person else place for place, person in enumerate(persons)], np.int64
    )


def _rows(state: LabelMatrix) -> ClassMatrix:
    return ClassMatrix(
        state.users, state.vectors, state.means, state.samples, state.last_round, state.rounds, state.refused,
        state.started,
    )  # fmt: skip


def _with(state: LabelMatrix, rows: ClassMatrix) -> LabelMatrix:
    counts = Correlation(state.positives, state.pair_rows, state.pair_columns, state.pair_counts, state.instances)
    if rows.started and not state.started:
        counts = Correlation(np.zeros(len(rows.users), np.int64))
    return _label_matrix(rows, state.hashes, state.pointers, state.persons, counts)


def _joined(rows: ClassMatrix, *, hashes: UInt8, lengths: Int64, persons: tuple[str, ...]) -> LabelMatrix:
    """Users changed: the counts are to be made anew."""
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    nothing = Correlation(np.zeros(len(rows.users) if rows.started else 0, np.int64))
    return _label_matrix(rows, hashes, pointers, persons, nothing)


def _label_matrix(
    rows: ClassMatrix, hashes: UInt8, pointers: Int64, persons: tuple[str, ...], counts: Correlation
) -> LabelMatrix:
    return LabelMatrix(
        users=rows.users,
        vectors=rows.vectors,
        means=rows.means,
        samples=rows.samples,
        last_round=rows.last_round,
        rounds=rows.rounds,
        refused=rows.refused,
        started=rows.started,
        hashes=hashes,
        pointers=pointers,
        persons=persons,
        positives=counts.positives,
        pair_rows=counts.rows,
        pair_columns=counts.columns,
        pair_counts=counts.together,
        instances=counts.instances,
    )
