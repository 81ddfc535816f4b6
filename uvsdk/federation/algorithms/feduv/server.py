"""The server's side of FedUV: a number for everyone, never the same one twice (SPEC 6.1)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from uvsdk.arrays import Float64, Int64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.algorithms.feduv.codewords import NUMBER_BITS
from uvsdk.federation.algorithms.feduv.payload import Payload, Settings, Task
from uvsdk.federation.classes.spreadout import CollapseWarning
from uvsdk.federation.guards import check_samples
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import Contribution, ServerAlgorithm
from uvsdk.records.codec import Scalar


@dataclass(frozen=True, slots=True)
class Numbers:
    """The users and their numbers, in order of user.

    Args:
        dimension: c, the code's length.
        message_bits: k.
        distance: d_min of the code.
        users: hashed ids, sorted, distinct.
        numbers: int64 (C,); b_u of each user, distinct.
        following: the number that the next admission gets; one that was given is never given again.
        cohort: updates in the smallest round so far; 0 before the first.
        rounds: server steps made so far.
    """

    dimension: int
    message_bits: int
    distance: int
    users: tuple[str, ...]
    numbers: Int64
    following: int = 0
    cohort: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)) or self.numbers.shape != (len(self.users),):
            raise ValueError("the users of a table of numbers are sorted and distinct, and have a number each")
        given = self.numbers.tolist()
        if len(set(given)) != len(given) or not all(0 <= number < self.following for number in given):
            raise ValueError("two users have one number, or one that was never handed out; this table is damaged")

    def row(self, user: str) -> int:
        """Index of ``user``. Raises :class:`UpdateRejectedError` where there is no such user."""
        if user not in self.users:
            raise UpdateRejectedError(f"that user is not among the {len(self.users)} admitted; send an admission first")
        return self.users.index(user)


def _needs(settings: Settings) -> frozenset[str]:
    return frozenset()


def _empty(dimension: int, settings: Settings) -> Numbers:
    message_bits = settings.message_bits or codewords.MESSAGE_BITS.get(dimension, 0)
    codewords.check_layout(dimension, message_bits, settings.least_secret_bits)
    distance = codewords.code(dimension, message_bits).distance
    return Numbers(dimension, message_bits, distance, (), np.empty(0, np.int64))


def _admit(state: Numbers, admission: Admission, settings: Settings, rng: np.random.Generator) -> Numbers:
    """A new number. Whoever is admitted again enrols anew and gets another: the secret may have been lost (SPEC 6.7).

    Raises:
        UpdateRejectedError: no sample, classes other than the user alone, or no number left.
    """
    check_samples(admission.samples)
    if admission.classes:
        raise UpdateRejectedError(f"FedUV has one class a device, the admission names {len(admission.classes)}")
    if state.following >= 1 << NUMBER_BITS:
        raise UpdateRejectedError(f"all {NUMBER_BITS}-bit numbers have been handed out; start a new deployment")
    others = _remove(state, admission.user)
    place = int(np.searchsorted(np.array(others.users, dtype=np.str_), admission.user)) if others.users else 0
    return replace(
        others,
        users=(*others.users[:place], admission.user, *others.users[place:]),
        numbers=np.insert(others.numbers, place, state.following),
        following=state.following + 1,
    )


def _remove(state: Numbers, user: str) -> Numbers:
    """``state`` without ``user``, whose number stays used; unchanged where there is no such user."""
    if user not in state.users:
        return state
    place = state.users.index(user)
    users = state.users[:place] + state.users[place + 1 :]
    return replace(state, users=users, numbers=np.delete(state.numbers, place))


def _start(state: Numbers, settings: Settings, rng: np.random.Generator) -> Numbers:
    return state


def _users(state: Numbers) -> tuple[str, ...]:
    return state.users


def _task(state: Numbers, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    return Task(int(state.numbers[state.row(user)]), state.dimension, state.message_bits)


def _check(payload: Payload, state: Numbers, user: str, settings: Settings) -> None:
    state.row(user)


def _step(
    state: Numbers, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> Numbers:
    if len(state.users) == 1:
        warnings.warn(
            "FedUV trains with one user: a constant embedding solves that, and nobody else would be turned away",
            CollapseWarning,
            stacklevel=2,
        )
    cohort = min(state.cohort or len(contributions), len(contributions))
    return replace(state, cohort=cohort, rounds=state.rounds + 1)


def _class_matrix(state: Numbers) -> tuple[tuple[str, ...], Float64]:
    return (), np.empty((0, state.dimension))


def _report(state: Numbers, settings: Settings) -> dict[str, Scalar]:
    return {
        # The change of the head is (codeword) x (features): codeword_recovery reads it off (SPEC 6.6).
        "codeword_secrecy": "none",
        "codeword_secrecy_reason": "updates arrive in the clear, and a single one gives its codeword away",
        "code_length": state.dimension,
        "code_distance": state.distance,
        "largest_codeword_cosine": 1.0 - 2.0 * state.distance / state.dimension,
        "secret_bits": state.message_bits - NUMBER_BITS,
    }


SERVER = ServerAlgorithm(
    state=Numbers,
    settings=Settings,
    payload=Payload,
    needs=_needs,
    empty=_empty,
    admit=_admit,
    remove=_remove,
    start=_start,
    users=_users,
    task=_task,
    check=_check,
    step=_step,
    class_matrix=_class_matrix,
    report=_report,
    verifies_on_server=False,
    impostors="cohort",
)
