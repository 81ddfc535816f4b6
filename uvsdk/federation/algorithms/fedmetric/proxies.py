"""Proxy balls: a ball around a person's embeddings, moved aside and enlarged before anyone sees it (SPEC 4.3-4.4).

The true ball is centred on C = mean of the embeddings and has the radius R of the farthest. What is published is
A = C + o and M = R + |o|, with |o| >= s R: every embedding lies within M of A, and C lies anywhere on a sphere of
radius |o| around A. Distances are Euclidean; with the cosine distance containment is false.

The offset o is drawn once, direction **and** length, and kept (SPEC 4.4): with a fresh direction each round the mean
of about s^2 proxies of one C lies within R of it, and with a fixed direction a shrinking length would show it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from uvsdk.arrays import Array, Bool, Float, Float32, Float64, Int64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.guards import UNIT_TOLERANCE, check_vector
from uvsdk.federation.strategy import Memory, Secret

FEWEST_SAMPLES = 3
"""Samples that a published ball must stand for: with one, A - o would be an embedding itself (SPEC 4.6)."""

UNPUBLISHED = -1
"""``age`` of a user who has no proxy."""

UNDRAWN = -1
"""Rotations of a device that has drawn no offset."""

_OFFSET, _ROTATIONS = "offset", "rotations"


@dataclass(frozen=True, slots=True)
class Ball:
    """All points within ``radius`` of ``centre``, float64 (d,); Euclidean."""

    centre: Float64
    radius: float


@dataclass(frozen=True, slots=True)
class Shift:
    """How far a proxy is moved from the true centre.

    Args:
        factor: s, the length of a new offset as a multiple of the radius.
        fewest: the offset is replaced when it is shorter than this multiple of the radius (or than s, if less).
        shortest: D_min, the least length of any offset.
    """

    factor: float
    fewest: float
    shortest: float

    @property
    def rotations(self) -> int:
        """How often one device may replace its offset, floor(s^2 / 4).

        Each offset it ever used is one more proxy to average, and about s^2 of them give the centre away.
        """
        return int(self.factor**2 / 4)


def true_ball(embeddings: Float, *, percentile: float = 100.0, smallest: float = 0.0) -> Ball:
    """The ball around rows (n, d): their mean, and the distance of the farthest.

    Args:
        embeddings: float (n, d), n >= 1.
        percentile: of the distances that the radius is; under 100 one outlier does not inflate the ball, and the
            farthest samples are then not contained.
        smallest: least radius.
    """
    rows = embeddings.astype(np.float64)
    centre = rows.mean(axis=0)
    distances = np.linalg.norm(rows - centre, axis=1)
    return Ball(centre, max(float(np.percentile(distances, percentile)), smallest))


def proxy_ball(ball: Ball, offset: Float) -> Ball:
    """A = C + o, M = R + |o|: contains ``ball``, by the triangle inequality."""
    shift = offset.astype(np.float64)
    return Ball(ball.centre + shift, ball.radius + float(np.linalg.norm(shift)))


def direction(dimension: int, secret: Secret) -> Float64:
    """A direction uniform on the unit sphere, float64 (d,), from secret bytes: a normal vector, normalised.

    The normal deviates are Box and Muller's of uniform 53-bit numbers; 16 secret bytes make two of them.
    """
    pairs = -(-dimension // 2)
    words = np.frombuffer(secret(16 * pairs), "<u8").reshape(2, pairs)
    # (0, 1], so that the logarithm is finite.
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    length, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    normal = np.concatenate((length * np.cos(angle), length * np.sin(angle)))[:dimension]
    norm = float(np.linalg.norm(normal))
    result: Float64 = normal / norm if norm > 0 else np.eye(1, dimension)[0]
    return result


def offset_of(memory: Memory, dimension: int) -> tuple[Float32, int]:
    """The offset that a device keeps, float32 (d,), and how often it was replaced; zeros and -1 for none."""
    offset = memory.get(_OFFSET)
    if offset is None or offset.shape != (dimension,):
        return np.zeros(dimension, np.float32), UNDRAWN
    return offset.astype(np.float32), int(memory[_ROTATIONS][0])


def memory_of(offset: Float32, rotations: int) -> Memory:
    """What :func:`offset_of` reads again; nothing where no offset was drawn."""
    return {} if rotations == UNDRAWN else {_OFFSET: offset, _ROTATIONS: np.array([rotations], np.int64)}


def fit_offset(offset: Float32, rotations: int, *, radius: float, shift: Shift, secret: Secret) -> tuple[Float32, int]:
    """The offset for a ball of ``radius``, and how often it was replaced.

    The one kept is used as long as it :func:`hides` the ball. One that the ball outgrew is replaced, direction and
    length, at most ``shift.rotations`` times; after that it is returned as it is, and nothing may be published until
    the ball has shrunk again.
    """
    if hides(offset, radius, shift) or rotations >= shift.rotations:
        return offset, rotations
    length = max(shift.factor * radius, shift.shortest)
    drawn = (length * direction(len(offset), secret)).astype(np.float32)
    return drawn, rotations + 1


def hides(offset: Float, radius: float, shift: Shift) -> bool:
    """Whether ``offset`` is long enough for a ball of ``radius``."""
    length = float(np.linalg.norm(offset.astype(np.float64)))
    needed = max(min(shift.fewest, shift.factor) * radius, shift.shortest)
    # A length that was rounded to float32 is not too short; no offset at all always is.
    return length > 0.0 and length >= needed * (1.0 - 1e-6)


def log10_risk_volume(dimension: int, factor: float) -> float:
    """log10 of the paper's risk, (R / (R + D))^d with D = s R: an attacker who guesses anywhere in the proxy ball.

    >>> round(log10_risk_volume(128, 1.0), 1)
    -38.5
    """
    return -dimension * math.log10(1.0 + factor)


def log10_risk_sphere(dimension: int, factor: float) -> float:
    """log10 of the chance that the best single guess lies in the true ball, for an attacker who knows s (SPEC 4.4).

    C lies on a sphere of radius D = s R around A. The guess sqrt(D^2 - R^2) from A covers the cap of half-angle
    arcsin(1/s): 0.5 I_{1/s^2}((d - 1)/2, 1/2), the regularised incomplete beta function.

    >>> [round(log10_risk_sphere(d, s), 1) for d, s in ((128, 2.0), (64, 3.0), (32, 2.0))]
    [-39.6, -31.3, -10.4]
    """
    if factor <= 1.0:
        return math.log10(0.5) if dimension > 1 else 0.0
    a, b, x = (dimension - 1) / 2, 0.5, factor**-2.0
    # I_x(a, b) = x^a (1 - x)^b / (a B(a, b)) * sum over n of prod over i < n of x (a + b + i) / (a + 1 + i)
    term = total = 1.0
    n = 0
    while term > 1e-17 * total:
        term *= x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    natural = a * math.log(x) + b * math.log1p(-x) - math.log(a) - log_beta + math.log(total)
    return math.log10(0.5) + natural / math.log(10)


@dataclass(frozen=True, slots=True)
class ProxyStore:
    """What the server keeps to relay: the users and their last proxies, in order of user.

    Args:
        users: hashed ids, sorted, distinct.
        persons: per user the keyed hash that links the identities of one person; empty where there is no link.
        centres: float32 (C, d), A of each user, zeros where there is none.
        margins: float32 (C,), M.
        age: int64 (C,), rounds since that proxy came; :data:`UNPUBLISHED` where there is none.
        rounds: server steps made so far.
        expired: proxies dropped for their age so far.
    """

    users: tuple[str, ...]
    persons: tuple[str, ...]
    centres: Float32
    margins: Float32
    age: Int64
    rounds: int = 0
    expired: int = 0

    def __post_init__(self) -> None:
        count = len(self.users)
        if list(self.users) != sorted(set(self.users)):
            raise ValueError("the users of a proxy store are sorted and distinct")
        if self.centres.ndim != 2 or len(self.centres) != count or len(self.persons) != count:
            raise ValueError(f"{count} users, {len(self.persons)} persons, centres {self.centres.shape} do not agree")
        if self.margins.shape != (count,) or self.age.shape != (count,):
            raise ValueError(f"{count} users, margins {self.margins.shape} and ages {self.age.shape} do not agree")

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.centres.shape[1])

    @property
    def live(self) -> Bool:
        """bool (C,), which users have a proxy."""
        result: Bool = self.age != UNPUBLISHED
        return result

    def row(self, user: str) -> int:
        """Index of ``user``. Raises :class:`UpdateRejectedError` where there is no such user."""
        try:
            return self.users.index(user)
        except ValueError:
            raise UpdateRejectedError(
                f"that user is not among the {len(self.users)} admitted; send an admission first"
            ) from None


def empty(dimension: int) -> ProxyStore:
    """No users yet, d = ``dimension``."""
    return ProxyStore((), (), np.empty((0, dimension), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))


def admit(store: ProxyStore, user: str, person: str) -> ProxyStore:
    """``store`` with that user, without a proxy; someone already there keeps the proxy and has the link replaced."""
    if user in store.users:
        index = store.users.index(user)
        return replace(store, persons=(*store.persons[:index], person, *store.persons[index + 1 :]))
    index = sum(other < user for other in store.users)
    return replace(
        store,
        users=(*store.users[:index], user, *store.users[index:]),
        persons=(*store.persons[:index], person, *store.persons[index:]),
        centres=np.insert(store.centres, index, 0.0, axis=0),
        margins=np.insert(store.margins, index, 0.0),
        age=np.insert(store.age, index, UNPUBLISHED),
    )


def remove(store: ProxyStore, user: str) -> ProxyStore:
    """``store`` without any proxy or link of ``user``; unchanged where there is no such user."""
    if user not in store.users:
        return store
    index = store.users.index(user)
    return replace(
        store,
        users=store.users[:index] + store.users[index + 1 :],
        persons=store.persons[:index] + store.persons[index + 1 :],
        centres=np.delete(store.centres, index, axis=0),
        margins=np.delete(store.margins, index),
        age=np.delete(store.age, index),
    )


def refresh(store: ProxyStore, published: dict[str, tuple[Float32, float]], *, age_max: int) -> ProxyStore:
    """One round: everybody's proxy ages, those that came are written, and those older than ``age_max`` are dropped.

    Args:
        published: (A, M) by user; users who are not (or no longer) here are ignored.
        age_max: rounds that a proxy is relayed after the one it came in.
    """
    centres, margins = store.centres.copy(), store.margins.copy()
    age = np.where(store.live, store.age + 1, UNPUBLISHED)
    index = {user: place for place, user in enumerate(store.users)}
    for user, (centre, margin) in published.items():
        if user in index:
            centres[index[user]], margins[index[user]], age[index[user]] = centre, margin, 0
    late = age > age_max
    centres[late], margins[late], age[late] = 0.0, 0.0, UNPUBLISHED
    return replace(
        store,
        centres=centres,
        margins=margins,
        age=age,
        rounds=store.rounds + 1,
        expired=store.expired + int(late.sum()),
    )


def relay(store: ProxyStore, user: str, *, most: int, rng: np.random.Generator) -> tuple[Float32, Float32]:
    """The proxies for one device: of other persons, shuffled, unlabelled, at most ``most`` of them (0 for all).

    Of several linked identities of one person the youngest proxy goes out: two of them would push others twice, and
    the person's own are left out altogether, since they would push one another apart.

    Returns:
        Centres, float32 (q, d), and margins, float32 (q,). q is the same for every user of one store, so that their
        number does not tell who is linked: missing ones are zeros, and a ball of radius 0 pushes nothing.
    """
    own = store.row(user)
    live = np.flatnonzero(store.live)
    rows = len(live) if most == 0 else min(most, len(live))
    person = store.persons[own]
    chosen: dict[str, int] = {}
    for place in live[np.argsort(store.age[live], kind="stable")]:
        link = store.persons[place]
        if place != own and not (link and link == person):
            chosen.setdefault(link or f"user {store.users[place]}", int(place))
    picked = rng.permutation(np.array(list(chosen.values()), np.int64))[:rows]
    centres, margins = np.zeros((rows, store.dimension), np.float32), np.zeros(rows, np.float32)
    centres[: len(picked)], margins[: len(picked)] = store.centres[picked], store.margins[picked]
    return centres, margins


def check_proxy(centre: Array, margin: float, dimension: int, *, longest: float) -> None:
    """Raise :class:`UpdateRejectedError` unless a proxy is one that embeddings on the unit sphere can have.

    Args:
        longest: greatest margin; the centre is no farther from the sphere's than 1 + M.
    """
    check_vector(centre, dimension)
    if not 0.0 < margin <= longest * (1.0 + UNIT_TOLERANCE):
        raise UpdateRejectedError(f"a proxy's margin must lie in (0, {longest:.4g}], got {margin:.4g}")
    norm = float(np.linalg.norm(centre.astype(np.float64)))
    if norm > (1.0 + margin) * (1.0 + UNIT_TOLERANCE):
        raise UpdateRejectedError(
            f"a proxy's centre has norm {norm:.4g}: no ball of margin {margin:.4g} around it holds unit vectors"
        )
