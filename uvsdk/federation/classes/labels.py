"""The class matrix with label sets beside it: what the server of FedALC and FedALC-fixed keeps (SPEC 3.1, 3.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from uvsdk.arrays import Int64, UInt8
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


@dataclass(frozen=True, slots=True)
class LabelMatrix:
    """Rows, and the instances that each user holds.

    Args:
        rows: of the users.
        hashes: uint8 (n, 32), keyed hashes of samples, user after user, sorted and distinct within each.
        pointers: int64 (C + 1,), where each user's begin.
        persons: of each user the keyed hash that links identities of one person; empty for no link.
        counts: of the label sets, nothing before the start.
    """

    rows: ClassMatrix
    hashes: UInt8 = field(default_factory=_no_hashes)
    pointers: Int64 = field(default_factory=_no_users)
    persons: tuple[str, ...] = ()
    counts: Correlation = field(default_factory=Correlation)

    def __post_init__(self) -> None:
        count = len(self.rows.users)
        if len(self.persons) != count or self.pointers.shape != (count + 1,):
            raise ValueError(f"{count} users, {len(self.persons)} persons and pointers {self.pointers.shape}")
        if self.hashes.shape != (int(self.pointers[-1]), _HASH_BYTES):
            raise ValueError(f"hashes of shape {self.hashes.shape}, the pointers end at {int(self.pointers[-1])}")
        if self.rows.started and self.counts.positives.shape != (count,):
            raise ValueError(f"{count} users and counts of shape {self.counts.positives.shape}")

    def correlation(self, smallest: int) -> Correlation:
        """The counts, without pairs of fewer than ``smallest`` common instances; links of a person always stay.

        Raises:
            ValueError: before the start nothing has been counted.
        """
        if not self.rows.started:
            raise ValueError("label sets are counted at the start of training; start the algorithm first")
        groups = _groups(self.persons)
        return self.counts.frequent(smallest, kept=groups[self.counts.rows] == groups[self.counts.columns])

    def count_linked(self, counts: Correlation) -> int:
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
    return LabelMatrix(matrix.empty(dimension, settings))


def admit(state: LabelMatrix, admission: Admission, settings: LabelSettings, rng: np.random.Generator) -> LabelMatrix:
    """:func:`matrix.admit`, and the user's instances and person; admitted again they are replaced.

    A device that sends no instance is a class without any: nothing is pushed away from it on its own account.

    Raises:
        UpdateRejectedError: as there, or instances that are not hashes, or more of them than samples.
    """
    instances = _checked(admission, settings)
    rows = matrix.admit(state.rows, admission, settings, rng)
    again = admission.user in state.rows.users
    index = rows.users.index(admission.user)
    first = int(state.pointers[index])
    last = int(state.pointers[index + 1]) if again else first
    lengths = np.diff(state.pointers)
    lengths = np.delete(lengths, index) if again else lengths
    return _counted(
        rows,
        hashes=np.concatenate([state.hashes[:first], instances, state.hashes[last:]]),
        lengths=np.insert(lengths, index, len(instances)),
        persons=(*state.persons[:index], admission.person, *state.persons[index + again :]),
    )


def remove(state: LabelMatrix, user: str) -> LabelMatrix:
    """``state`` without any row, instance or count of ``user``; unchanged where there is no such user."""
    if user not in state.rows.users:
        return state
    index = state.rows.users.index(user)
    return _counted(
        matrix.remove(state.rows, user),
        hashes=np.delete(state.hashes, np.arange(state.pointers[index], state.pointers[index + 1]), axis=0),
        lengths=np.delete(np.diff(state.pointers), index),
        persons=state.persons[:index] + state.persons[index + 1 :],
    )


def start(state: LabelMatrix, settings: LabelSettings, rng: np.random.Generator) -> LabelMatrix:
    """Draw the rows and count the label sets; unchanged where that has been done."""
    if state.rows.started:
        return state
    rows = matrix.start(state.rows, settings, rng)
    return _counted(rows, hashes=state.hashes, lengths=np.diff(state.pointers), persons=state.persons)


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


def _counted(rows: ClassMatrix, *, hashes: UInt8, lengths: Int64, persons: tuple[str, ...]) -> LabelMatrix:
    """The label sets are counted anew, once training has started."""
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    counts = correlation.count(hashes, pointers, _groups(persons)) if rows.started else Correlation()
    return LabelMatrix(rows, hashes=hashes, pointers=pointers, persons=persons, counts=counts)
