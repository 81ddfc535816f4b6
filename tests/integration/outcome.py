"""What training left in a stopped server's folder, to be compared bit for bit."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

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


def outcome(data: Path) -> Outcome:
    """Read a stopped server's folder."""
    keys = KeyFolder(data / "keys")
    database = sqlite3.connect(data / "server.sqlite3")
    version, config, state, optimiser = database.execute(
        "SELECT model_version, config, algorithm_blob, optimiser_blob FROM deployment"
    ).fetchone()
    (theta,) = database.execute("SELECT theta_blob FROM models WHERE model_version = ?", (version,)).fetchone()
    rounds = database.execute("SELECT round_id, state, accepted FROM rounds ORDER BY round_id").fetchall()
    database.close()
    blobs = data / "blobs"
    half = algorithms.server(json.loads(config)["algorithm"])
    users, vectors = half.class_matrix(unpack(half.state, keys.open_state((blobs / state).read_bytes())))
    moments = unpack(OptimiserState, keys.at_rest.open((blobs / optimiser).read_bytes(), "optimiser-state"))
    return Outcome((blobs / theta).read_bytes(), users, vectors.tobytes(), moments.first.tobytes(), tuple(rounds))
