"""What training left in a stopped server's folder, to be compared bit for bit."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvsdk.federation import algorithms
from uvsdk.federation.messages import OptimiserState
from uvsdk.records.codec import unpack
from uvsdk_server.keys import KeyFolder


@dataclass(frozen=True)
class Outcome:
    """All that training leaves: the model, the class matrix, the optimiser, and what each round counted."""

    theta: bytes
    users: tuple[str, ...]
    vectors: bytes
    moments: bytes
    rounds: tuple[tuple[int, str, int], ...]


def state_of(data: Path) -> Any:
    """The state of the algorithm in a stopped server's folder."""
    with contextlib.closing(sqlite3.connect(data / "server.sqlite3")) as database:
        config, blob = database.execute("SELECT config, algorithm_blob FROM deployment").fetchone()
    sealed = (data / "blobs" / blob).read_bytes()
    return unpack(algorithms.server(json.loads(config)["algorithm"]).state, KeyFolder(data / "keys").open_state(sealed))


def outcome(data: Path) -> Outcome:
    """Read a stopped server's folder."""
    keys = KeyFolder(data / "keys")
    database = sqlite3.connect(data / "server.sqlite3")
    version, config, optimiser = database.execute(
        "SELECT model_version, config, optimiser_blob FROM deployment"
    ).fetchone()
    (theta,) = database.execute("SELECT theta_blob FROM models WHERE model_version = ?", (version,)).fetchone()
    rounds = database.execute("SELECT round_id, state, accepted FROM rounds ORDER BY round_id").fetchall()
    database.close()
    blobs = data / "blobs"
    half = algorithms.server(json.loads(config)["algorithm"])
    users, vectors = half.class_matrix(state_of(data))
    moments = unpack(OptimiserState, keys.at_rest.open((blobs / optimiser).read_bytes(), "optimiser-state"))
    return Outcome((blobs / theta).read_bytes(), users, vectors.tobytes(), moments.first.tobytes(), tuple(rounds))
