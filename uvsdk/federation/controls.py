"""SCAFFOLD's control variates on one device (Karimireddy et al. 2020, option II; SPEC 1.4).

A device keeps c_i, float32 (P,), with what its algorithm keeps. A local step descends along grad - c_i + c, and after
K steps of rate eta c_i becomes c_i - c + (theta_t - theta_i) / (K eta). The server's c is the optimiser's
(:mod:`uvsdk.federation.optimisers`), and the method rests on c being the mean of the c_i: a difference between them
never goes away. So the c_i of before a round is kept beside the new one, and is taken up again where the next round
starts from the same theta: then the server has dropped that round, and its c knows nothing of it.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import Memory

KEPT = "scaffold"
"""Key of a device's memory under which c_i lies; no algorithm may use it, nor one that begins with it and a dot."""

_BEFORE, _MADE_FROM = f"{KEPT}.before", f"{KEPT}.theta"


class Assignment(Protocol):
    """What of a device's job in one round is read here."""

    @property
    def config(self) -> TrainingConfig:
        """The approved configuration."""
        ...

    @property
    def theta(self) -> Float32:
        """float32 (P,), the trunk at the start of the round."""
        ...

    @property
    def memory(self) -> Memory:
        """What was kept on this device since its last round."""
        ...

    @property
    def control(self) -> Float32 | None:
        """float32 (P,), SCAFFOLD's c."""
        ...


def split(job: Assignment) -> tuple[Memory, Float32 | None]:
    """The algorithm's own memory, and c - c_i, float32 (P,), or ``None`` without control variates.

    Raises:
        UpdateRejectedError: what was kept is of another model.
    """
    memory = {key: value for key, value in job.memory.items() if key not in (KEPT, _BEFORE, _MADE_FROM)}
    if job.control is None or not job.config.control_variates:
        return memory, None
    kept = _own(job)
    if kept is None:
        return memory, np.array(job.control)
    if kept.shape != job.control.shape:
        raise UpdateRejectedError(f"the control variate kept here has shape {kept.shape}, not {job.control.shape}")
    shift: Float32 = job.control - kept.astype(np.float32)
    return memory, shift


def join(memory: Memory, shift: Float32 | None, delta: Float32, job: Assignment) -> Memory:
    """``memory`` with the new c_i, made of the delta of the round, and with the one that it replaces."""
    if shift is None:
        return memory
    moved: Float32 = -shift - delta / np.float32(job.config.local_steps * job.config.learning_rate)
    before = _own(job)
    replaced: dict[str, Array] = {} if before is None else {_BEFORE: before}
    return {**memory, KEPT: moved, _MADE_FROM: _digest(job.theta), **replaced}


def _own(job: Assignment) -> Array | None:
    """c_i as of the last round that the server did not drop; ``None`` for 0."""
    made_from = job.memory.get(_MADE_FROM)
    dropped = made_from is not None and np.array_equal(made_from, _digest(job.theta))
    return job.memory.get(_BEFORE if dropped else KEPT)


def _digest(theta: Float32) -> Array:
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(theta).data).digest(), np.uint8)
