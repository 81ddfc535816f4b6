"""Where the random numbers of a training come from: streams derived from its seed, the same in a server, on a device
and in a simulation, so that one seed gives one model wherever it is trained.
"""

from __future__ import annotations

import hashlib

import numpy as np

COHORT, ADMIT, STEP, TASK, DROPOUT = 1, 2, 3, 4, 5
"""What a stream of one round is for: the draw of the cohort, admissions, the server step, one device's task, and, in a
simulation, which devices fail."""


def round_seed(seed: int, round_id: int) -> int:
    """The seed of one round: 128 bits, a function of the training's seed and the round's number."""
    words = np.random.SeedSequence((seed, round_id)).generate_state(4)
    return int.from_bytes(words.tobytes(), "little")


def server_stream(seed_of_round: int, purpose: int, user: str = "") -> np.random.Generator:
    """The server's stream for one purpose in one round, and for :data:`TASK` for one user."""
    parts = (seed_of_round, purpose) if not user else (seed_of_round, purpose, _number(user))
    return np.random.default_rng(parts)


def device_stream(seed: int, user: str, round_id: int) -> np.random.Generator:
    """What a device draws batches and crops from in one round."""
    return np.random.default_rng((seed, _number(user), round_id))


def request_stream(seed: int, user: str, round_id: int) -> np.random.Generator:
    """What a device draws its request of one round from, where its algorithm has one.

    Apart from :func:`device_stream`, so that a device which was interrupted between request and training trains as
    one that was not.
    """
    return np.random.default_rng((seed, _number(user), round_id, 1))


def _number(user: str) -> int:
    return int.from_bytes(hashlib.sha256(user.encode()).digest()[:16], "little")
