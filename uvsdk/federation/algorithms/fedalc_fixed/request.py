"""Before a round a device says whether it has its class vector, so that this is sent once (S2 Alg 2).

The server could guess from who took part before, but a user may have several devices, and a device can be set up anew.
"""

from __future__ import annotations

import hashlib

import numpy as np

from uvsdk.arrays import Array
from uvsdk.federation.algorithms.fedalc_fixed.payload import Invitation, Request, Settings
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.strategy import Memory, RequestAlgorithm, Secret

KEPT = "vector"
"""Key of a device's memory under which the class vector lies, float32 (d,)."""


def digest(vector: Array) -> str:
    """SHA-256 of a class vector's float32 bytes, little endian, hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(vector, "<f4").tobytes()).hexdigest()


def _invite(state: LabelMatrix, user: str, settings: Settings) -> Invitation:
    state.rows.row(user)
    return Invitation()


def _choose(
    invitation: Invitation, memory: Memory, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Request, Memory]:
    kept = memory.get(KEPT)
    return Request("" if kept is None else digest(kept)), memory


REQUEST = RequestAlgorithm(invitation=Invitation, request=Request, invite=_invite, choose=_choose)
