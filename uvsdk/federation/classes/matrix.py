"""The class matrix: one unit row per user, kept by the server; shared by every algorithm that has rows.

Before the first round a user is a mean embedding (or nothing); :func:`start` turns all of them into rows at
once. Whoever joins later gets a row at admission.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from uvsdk.arrays import Bool, Float, Float32, Float64, Int64
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation.classes import neighbours
from uvsdk.federation.classes.neighbours import Lists
from uvsdk.federation.guards import UNIT_TOLERANCE, check_samples, check_unit_vector, check_vector
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import MEAN, Contribution

INITIALISATIONS = ("centred_client_means", "client_means", "random")
"""How rows start: from the users' means with the common part taken out, from the means as they are, or at random.

Taking out the common part needs everybody's mean at the server, as a spreadout does; an algorithm without any view of
how rows lie to each other starts from ``client_means`` or ``random``.
"""

NEVER = -1
"""``last_round`` of a user who has taken part in none."""

_DRAWS = 64
_SMALLEST_CENTRED = 1e-6
_SMALLEST_AVERAGE = 1e-3


@dataclass(frozen=True, slots=True)
class ClassMatrix:
    """The users and their rows, in order of user.

    Args:
        users: hashed ids, sorted, distinct.
        vectors: float64 (C, d); unit rows once ``started``, zeros before.
        means: float64 (C, d); mean enrolment embedding of each user, zeros where none was asked for.
        samples: int64 (C,); samples behind each mean.
        last_round: int64 (C,); the count of rounds at which a user last took part, :data:`NEVER` for none.
        rounds: server steps made so far.
        refused: rows that arrived zero, not finite or not unit, where the old row was kept.
        started: whether the rows have been drawn.
        lists: of each row's neighbours, where a spreadout seeks these approximately.
    """

    users: tuple[str, ...]
    vectors: Float64
    means: Float64
    samples: Int64
    last_round: Int64
    rounds: int = 0
    refused: int = 0
    started: bool = False
    lists: Lists | None = None

    def __post_init__(self) -> None:
        count = len(self.users)
        if list(self.users) != sorted(set(self.users)):
            raise ValueError("the users of a class matrix are sorted and distinct")
        if self.vectors.ndim != 2 or self.vectors.shape[0] != count or self.means.shape != self.vectors.shape:
            raise ValueError(f"{count} users, vectors {self.vectors.shape} and means {self.means.shape} do not agree")
        if self.samples.shape != (count,) or self.last_round.shape != (count,):
            raise ValueError(f"{count} users, samples {self.samples.shape} and rounds {self.last_round.shape}")
        if self.lists is not None and not len(self.lists.members) == len(self.lists.searched) == count:
            raise ValueError(f"{count} users and neighbours of {len(self.lists.members)}, {len(self.lists.searched)}")

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.vectors.shape[1])

    def row(self, user: str) -> int:
        """Index of ``user``. Raises :class:`UpdateRejectedError` where there is no such user."""
        try:
            return self.users.index(user)
        except ValueError:
            raise UpdateRejectedError(
                f"that user is not among the {len(self.users)} admitted; send an admission first"
            ) from None

    def indices(self, users: Iterable[str]) -> Int64:
        """Sorted row indices of those of ``users`` who are here, int64."""
        wanted = set(users)
        return np.array([place for place, user in enumerate(self.users) if user in wanted], np.int64)


class RowSettings(Protocol):
    """Settings of an algorithm whose users have rows."""

    @property
    def initialisation(self) -> str:
        """One of :data:`INITIALISATIONS`."""
        ...


class HingeSettings(RowSettings, Protocol):
    """Settings of an algorithm whose devices pull their embeddings to the own row (``client``)."""

    @property
    def margin_positive(self) -> float:
        """tau_p, a cosine."""
        ...

    @property
    def vector_rate(self) -> float:
        """Learning rate of the row on the device as a multiple of the trunk's; 0 freezes it."""
        ...


class RowPayload(Protocol):
    """A payload that holds the trained row."""

    @property
    def vector(self) -> Float32:
        """float32 (d,), unit."""
        ...


SomePayload = TypeVar("SomePayload", bound=RowPayload)
Empty = TypeVar("Empty")


def needs(settings: RowSettings) -> frozenset[str]:
    """The users' mean embeddings, unless rows start at random."""
    return frozenset() if settings.initialisation == "random" else frozenset({MEAN})


def empty(dimension: int, settings: RowSettings) -> ClassMatrix:
    """No users yet, d = ``dimension``."""
    none = np.empty((0, dimension))
    return ClassMatrix((), none, none, np.empty(0, np.int64), np.empty(0, np.int64))


def check_initialisation(name: str) -> None:
    """Raise :class:`SettingsError` unless ``name`` is one of :data:`INITIALISATIONS`."""
    if name not in INITIALISATIONS:
        raise SettingsError(f"initialisation {name!r} is not one of {INITIALISATIONS}")


def check_hinge(settings: HingeSettings) -> None:
    """Raise :class:`SettingsError` for a value outside its range."""
    if not -1 < settings.margin_positive <= 1:
        raise SettingsError(f"margin_positive is a cosine in (-1, 1], got {settings.margin_positive}")
    if not 0 <= settings.vector_rate < float("inf"):
        raise SettingsError(f"vector_rate is {settings.vector_rate}; it must be finite and not negative")
    check_initialisation(settings.initialisation)


def admit(state: ClassMatrix, admission: Admission, settings: RowSettings, rng: np.random.Generator) -> ClassMatrix:
    """``state`` with that user; someone already there keeps the row and has mean and samples replaced.

    Once training has started the newcomer's row is the own normalised mean (centred, where that is asked for, while
    no round has been made: the other rows are then still centred means), or for ``random`` the most distant of 64
    random directions.

    Raises:
        UpdateRejectedError: no sample, classes other than the user alone, or a mean that is missing, not finite or
            longer than a mean of unit vectors.
    """
    check_samples(admission.samples)
    if admission.classes not in ((), (admission.user,)):
        raise UpdateRejectedError(
            f"each user has one class vector here, the admission names {len(admission.classes)} classes; name none"
        )
    mean = _checked_mean(admission, state.dimension, settings)
    if admission.user in state.users:
        index = state.users.index(admission.user)
        means, samples = state.means.copy(), state.samples.copy()
        means[index], samples[index] = mean, admission.samples
        return replace(state, means=means, samples=samples)
    index = int(np.searchsorted(np.array(state.users, dtype=np.str_), admission.user)) if state.users else 0
    users = (*state.users[:index], admission.user, *state.users[index:])
    joined = replace(
        state,
        users=users,
        vectors=np.insert(state.vectors, index, 0.0, axis=0),
        means=np.insert(state.means, index, mean, axis=0),
        samples=np.insert(state.samples, index, admission.samples),
        last_round=np.insert(state.last_round, index, NEVER),
        lists=None if state.lists is None else neighbours.insert(state.lists, index),
    )
    if not state.started:
        return joined
    vectors = joined.vectors.copy()
    vectors[index] = _newcomer(joined, index, state.vectors, settings, rng)
    return replace(joined, vectors=vectors)


def remove(state: ClassMatrix, user: str) -> ClassMatrix:
    """``state`` without any row, mean or count of ``user``; unchanged where there is no such user."""
    if user not in state.users:
        return state
    index = state.users.index(user)
    left = select(state, np.arange(len(state.users)) != index)
    return left if state.lists is None else replace(left, lists=neighbours.remove(state.lists, index))


def select(state: ClassMatrix, kept: Bool) -> ClassMatrix:
    """The rows marked ``kept``, bool (C,); not the lists of their neighbours."""
    return replace(
        state,
        users=tuple(itertools.compress(state.users, kept)),
        vectors=state.vectors[kept],
        means=state.means[kept],
        samples=state.samples[kept],
        last_round=state.last_round[kept],
        lists=None,
    )


def start(state: ClassMatrix, settings: RowSettings, rng: np.random.Generator) -> ClassMatrix:
    """Draw the rows of everybody admitted; unchanged where that has been done.

    Under ``centred_client_means`` a user with a mean m_c gets normalise(m_c - mean of all means): embeddings of one
    trunk share a large common part, and taking it out is worth more than the choice of regulariser (SPEC 16). Where
    nothing is left after centring (one user, equal means), and under ``client_means``, the row is normalise(m_c);
    without a mean it is a uniformly random direction.
    """
    if state.started:
        return state
    count, dimension = state.vectors.shape
    vectors = random_rows(count, dimension, rng)
    known = np.linalg.norm(state.means, axis=1) > 0
    if known.any():
        means = state.means[known]
        vectors[known] = [_direction(mean, _centre(means, settings)) for mean in means]
    return replace(state, vectors=vectors, started=True)


def write(
    state: ClassMatrix, rows: Mapping[str, Sequence[tuple[Float, float]]], *, took_part: Sequence[str] = ()
) -> ClassMatrix:
    """Replace the rows that arrived, re-normalised, and count one round.

    ``rows`` gives, per user, (vector, weight) of each of the user's devices: several are averaged, and an average
    shorter than 1e-3 keeps the old row (SPEC 2.8). A vector that is not finite, has the wrong shape or is not unit
    within 1e-3 is left out and counted in ``refused``. Users who are not (or no longer) here are ignored.
    """
    vectors, last_round = state.vectors.copy(), state.last_round.copy()
    refused = state.refused
    index = {user: place for place, user in enumerate(state.users)}
    for user in sorted(set(rows) | set(took_part)):
        if user not in index:
            continue
        usable = [
            (vector.astype(np.float64), weight) for vector, weight in rows.get(user, ()) if _is_unit(vector, state)
        ]
        refused += len(rows.get(user, ())) - len(usable)
        if usable:
            weights = np.array([weight for _, weight in usable], np.float64)
            average = (weights / weights.sum()) @ np.stack([vector for vector, _ in usable])
            length = float(np.linalg.norm(average))
            if length >= _SMALLEST_AVERAGE:
                vectors[index[user]] = average / length
        if usable or user in took_part:
            last_round[index[user]] = state.rounds
    return replace(state, vectors=vectors, last_round=last_round, rounds=state.rounds + 1, refused=refused)


def write_sent(
    state: ClassMatrix, contributions: Iterable[Contribution[SomePayload]], settings: object, rng: np.random.Generator
) -> ClassMatrix:
    """:func:`write` of the rows that devices sent, those of one user together: a step that does nothing else."""
    rows: dict[str, list[tuple[Float, float]]] = {}
    for item in contributions:
        rows.setdefault(item.user, []).append((item.payload.vector, float(item.samples)))
    return write(state, rows)


def count_round(
    state: ClassMatrix, contributions: Iterable[Contribution[Empty]], settings: object, rng: np.random.Generator
) -> ClassMatrix:
    """The step of rows that never move: who took part."""
    return write(state, {}, took_part=[item.user for item in contributions])


def class_matrix(state: ClassMatrix) -> tuple[tuple[str, ...], Float64]:
    """(users, W), or no users and W of shape (0, d) before the rows are drawn."""
    if not state.started:
        return (), np.empty((0, state.dimension))
    return state.users, state.vectors


def mean_offdiagonal_cosine(rows: Float64) -> float:
    """How far unit rows (C, d) have fallen together, in O(C d): near 1 when collapsed, NaN for fewer than two.

    The sum of all cosines is the squared length of the sum of the rows; C of them are a row with itself.

    >>> mean_offdiagonal_cosine(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))  # 0, 0 and -1, each twice
    -0.3333333333333333
    """
    count = len(rows)
    if count < 2:
        return float("nan")
    total = rows.sum(axis=0)
    return (float(total @ total) - count) / (count * (count - 1))


def vector_for(state: ClassMatrix, user: str) -> Float64:
    """The row of ``user``. Raises :class:`UpdateRejectedError` for a stranger, or before the rows are drawn."""
    index = state.row(user)
    if not state.started:
        raise UpdateRejectedError("the class vectors have not been drawn yet; start the algorithm first")
    row: Float64 = state.vectors[index]
    return row


def check_user(payload: object, state: ClassMatrix, user: str, settings: object) -> None:
    """Raise :class:`UpdateRejectedError` for a stranger; ``payload`` holds nothing."""
    state.row(user)


def check_row(payload: RowPayload, state: ClassMatrix, user: str, settings: object) -> None:
    """Raise :class:`UpdateRejectedError` unless ``payload`` holds a unit row of the right size from a known user."""
    state.row(user)
    check_unit_vector(payload.vector, state.dimension)


def random_rows(count: int, dimension: int, rng: np.random.Generator) -> Float64:
    """``count`` independent directions, uniform on the sphere, float64 (count, dimension)."""
    normal = rng.standard_normal((count, dimension))
    rows: Float64 = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return rows


def _checked_mean(admission: Admission, dimension: int, settings: RowSettings) -> Float64:
    if MEAN not in needs(settings):
        return np.zeros(dimension)  # Whatever was sent is not needed, so it is not kept.
    check_vector(admission.mean, dimension)
    mean = admission.mean.astype(np.float64)
    length = float(np.linalg.norm(mean))
    if not 0.0 < length <= 1.0 + UNIT_TOLERANCE:
        raise UpdateRejectedError(f"the mean of unit embeddings has a norm in (0, 1], got {length:.6g}")
    return mean


def _newcomer(
    state: ClassMatrix, index: int, others: Float64, settings: RowSettings, rng: np.random.Generator
) -> Float64:
    mean = state.means[index]
    if not mean.any():
        draws = random_rows(_DRAWS, state.dimension, rng)
        if len(others) == 0:
            others = np.zeros((1, state.dimension))
        nearest = (draws @ others.T).max(axis=1)
        farthest: Float64 = draws[int(np.argmin(nearest))]
        return farthest
    if state.rounds:
        return _direction(mean, np.zeros_like(mean))
    known = np.linalg.norm(state.means, axis=1) > 0
    return _direction(mean, _centre(state.means[known], settings))


def _centre(means: Float64, settings: RowSettings) -> Float64:
    """What is taken out of each mean before it becomes a row."""
    if settings.initialisation == "centred_client_means":
        centre: Float64 = means.mean(axis=0)
        return centre
    return np.zeros(means.shape[1])


def _direction(mean: Float64, centre: Float64) -> Float64:
    centred = mean - centre
    if float(np.linalg.norm(centred)) < _SMALLEST_CENTRED:
        centred = mean
    result: Float64 = centred / np.linalg.norm(centred)
    return result


def _is_unit(vector: Float, state: ClassMatrix) -> bool:
    if vector.shape != (state.dimension,) or not bool(np.isfinite(vector).all()):
        return False
    return abs(float(np.linalg.norm(vector.astype(np.float64))) - 1.0) <= UNIT_TOLERANCE
