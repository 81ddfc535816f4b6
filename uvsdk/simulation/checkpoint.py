"""A simulation on disk: everything that the rounds to come depend on, without pickle, written in one step.

Layout: the SHA-256 of what follows (32 bytes) · a :class:`Checkpoint`, packed by :mod:`uvsdk.records.codec`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uvsdk.arrays import Array, Float32, Float64, UInt8
from uvsdk.errors import SettingsError, WireError
from uvsdk.federation.strategy import Memory
from uvsdk.records import codec

_DIGEST = 32


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
        optimiser: packed ``OptimiserState``.
        state: the algorithm's state, packed.
        start_norm: norm of the parameters that training started from.
        medians: float64 (n,), of the norms of the rounds so far (:func:`uvsdk.federation.clipping.round_median`).
        remembering: devices that keep a memory.
        memories: "place in ``remembering``/key" -> array.
    """

    config: str
    seed: str
    round_id: int
    committed: int
    started: bool
    refused: tuple[str, ...]
    batching: str
    theta: Float32
    optimiser: UInt8
    state: UInt8
    start_norm: float
    medians: Float64
    remembering: tuple[str, ...]
    memories: Mapping[str, Array]


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
        WireError: it is not a checkpoint, or a damaged one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
    body = memoryview(data)[_DIGEST:]
    if hashlib.sha256(body).digest() != data[:_DIGEST]:
        raise WireError(f"{path} is not a checkpoint of a simulation, or a damaged one; start without --resume")
    return codec.unpack(Checkpoint, body)


def flat(memories: Mapping[str, Memory]) -> tuple[tuple[str, ...], dict[str, Array]]:
    """``remembering`` and ``memories`` of a :class:`Checkpoint`."""
    users = tuple(sorted(memories))
    return users, {f"{place}/{key}": value for place, user in enumerate(users) for key, value in memories[user].items()}


def nested(checkpoint: Checkpoint) -> dict[str, Memory]:
    """The inverse of :func:`flat`."""
    found: dict[str, dict[str, Array]] = {user: {} for user in checkpoint.remembering}
    for name, value in checkpoint.memories.items():
        place, _, key = name.partition("/")
        found[checkpoint.remembering[int(place)]][key] = value
    return dict(found)
