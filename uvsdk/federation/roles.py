"""Who trains and who only evaluates: drawn when a user is admitted, and for good (SPEC 17).

A threshold that comes from people who took part in training lets strangers through, because training pushes apart those
who take part. So a share of the users never trains, and only their devices tell of genuine scores and of strangers. The
draw is a keyed hash of the hashed user id, so that nobody chooses their part. The key is a secret of the server: who
had it would know of every hashed id whether it evaluates. A simulation draws under its seed (:func:`key_of`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from uvsdk.federation.messages import TrainingConfig

LEAST_TRAINERS: Final = 8
"""So many must train before anybody is drawn to only evaluate; and always as many as a round needs."""


def key_of(seed: int) -> bytes:
    """The key of a draw that anybody may repeat."""
    return str(seed).encode()


def evaluates(user: str, *, key: bytes, trainers: int, config: TrainingConfig) -> bool:
    """Whether a user who is admitted only evaluates, from now on; everybody does where no round is ever held.

    Args:
        user: hashed id.
        key: of the deployment.
        trainers: users who train already.
        config: gives the share, and what a round needs.

    >>> config = TrainingConfig("clinic", "voice", "ge2e", "fedaws", evaluation_share=0.999)
    >>> [evaluates("0f" * 32, key=key_of(7), trainers=trainers, config=config) for trainers in (7, 8)]
    [False, True]
    >>> resting = TrainingConfig("clinic", "voice", "ge2e", "fedaws", rounds=0)
    >>> evaluates("0f" * 32, key=key_of(7), trainers=0, config=resting)
    True
    """
    if config.evaluation == "off":
        return False
    if not config.rounds:
        return True
    if trainers < max(LEAST_TRAINERS, config.quorum(config.cohort(trainers))):
        return False
    return _drawn("role", user, key) < config.evaluation_share


def group(user: str, *, key: bytes, groups: int) -> int:
    """The group that a user's sums are added to, from 0: another keyed hash, which says nothing of the first."""
    return int(_drawn("group", user, key) * groups)


def split(users: Iterable[str], *, seed: int, config: TrainingConfig) -> frozenset[str]:
    """Those of ``users``, in the order in which they join, who only evaluate."""
    found, trainers = set[str](), 0
    for user in users:
        if evaluates(user, key=key_of(seed), trainers=trainers, config=config):
            found.add(user)
        else:
            trainers += 1
    return frozenset(found)


def _drawn(purpose: str, user: str, key: bytes) -> float:
    """A number in [0, 1), the same each time."""
    digest = hmac.new(key, f"uvsdk {purpose}/1 {user}".encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
