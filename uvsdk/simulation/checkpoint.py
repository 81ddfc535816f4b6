"""A simulation on disk: everything that the rounds to come depend on, without pickle, written in one step.

Layout: the SHA-256 of what follows (32 bytes) · a :class:`Checkpoint`, packed by :mod:`uvsdk.records.codec`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import SettingsError, WireError
from uvsdk.federation.messages import OptimiserState
from uvsdk.federation.strategy import Memory
from uvsdk.records import codec

_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one device keeps from one round to the next."""

    user: str
    memory: Memory


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One simulation between two rounds.

    Args:
        config: the configuration, canonical JSON.
        seed: decimal, the seed in use, which the configuration need not have.
        round_id: of the last round.
        committed: rounds committed.
        started: whether devices have been admitted.
        refused: devices whose admission the algorithm refused.
        batching: how devices are trained: an algorithm that turned out to need its own trunks goes on with them.
        theta: float32 (P,).
        optimiser: the server optimiser's state.
        state: the algorithm's state, packed: the configuration says of which class it is.
        start_norm: norm of the parameters that training started from.
        medians: float64 (n,), of the norms of the rounds so far (:func:`uvsdk.federation.clipping.round_median`).
        memories: of the devices that keep one, by user.
    """

    config: str
    seed: str
    round_id: int
    committed: int
    started: bool
    refused: tuple[str, ...]
    batching: str
    theta: Float32
    optimiser: OptimiserState
    state: bytes
    start_norm: float
    medians: Float64
    memories: tuple[Remembered, ...]


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write it beside ``path`` and rename it: there is the former checkpoint or the new one, never half of one.

    Raises:
        SettingsError: the folder is missing or not writable, or the disk is full.
    """
    body = codec.pack(checkpoint)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(hashlib.sha256(body).digest())
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SettingsError(f"the checkpoint {path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """Read what :func:`write` wrote.

    Raises:
        SettingsError: there is no such file.
        WireError: it is not a checkpoint, a damaged one, or one of another version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
    body = memoryview(data)[_DIGEST:]
    if hashlib.sha256(body).digest() != data[:_DIGEST]:
        raise WireError(f"{path} is not a checkpoint of a simulation, or a damaged one; start without --resume")
    try:
        return codec.unpack(Checkpoint, body)
    except WireError as error:
        raise WireError(
            f"the checkpoint {path} was written by another version of uvsdk: go on with that one, or start without "
            "--resume"
        ) from error
