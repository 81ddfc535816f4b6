"""What a domain, noise, telephones and short clips do to every embedding alike, taken out before two of them are
compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from uvsdk.arrays import Float32, Float64

DIRECTIONS: Final = 20
"""Directions that are taken out at most; a twelfth of the dimension where that is less."""


@dataclass(frozen=True, slots=True, eq=False)
class Compensation:
    """Nuisance attribute projection (Campbell, Sturim and Reynolds, "SVM based speaker verification using a GMM
    supervector kernel and NAP variability compensation", 2006), on embeddings in place of supervectors.

    Both parts are averages over the people of a calibration; neither holds the embedding of anybody. Of no directions
    it takes the centre alone (:meth:`centring`): what a likelihood ratio does first, for a cosine.

    Args:
        centre: mean of the people's embeddings, float32 (d,); it is subtracted.
        directions: float32 (r, d), orthonormal rows, r >= 0, along which worse conditions move embeddings; what lies
            along them is left out.
    """

    centre: Float32
    directions: Float32

    def __post_init__(self) -> None:
        if self.centre.ndim != 1 or self.directions.ndim != 2 or self.directions.shape[1] != len(self.centre):
            raise ValueError(f"directions of shape {self.directions.shape} do not fit {len(self.centre)} dimensions")
        if not np.isfinite(self.centre).all() or not np.isfinite(self.directions).all():
            raise ValueError("a compensation holds numbers that are not finite")
        gram = self.directions.astype(np.float64) @ self.directions.T.astype(np.float64)
        if not np.allclose(gram, np.eye(len(gram)), atol=1e-3):
            raise ValueError("the directions of a compensation are orthonormal")

    @classmethod
    def centring(cls, centre: Float32) -> Self:
        """One that takes out the centre, float32 (d,), and no direction.

        >>> Compensation.centring(np.array([0.0, 0.8], np.float32)).apply(np.array([0.6, 0.8], np.float32)).round(6)
        array([1., 0.])
        """
        return cls(centre, np.zeros((0, len(centre)), np.float32))

    def apply(self, embeddings: Float32) -> Float64:
        """Unit rows without centre and directions, (..., d) -> float64 (..., d); zero where nothing is left."""
        rows = self.remainder(embeddings)
        norms = np.linalg.norm(rows, axis=-1, keepdims=True)
        return np.asarray(np.where(norms > 1e-9, rows / np.maximum(norms, 1e-9), 0.0), np.float64)

    def remainder(self, embeddings: Float32) -> Float64:
        """What is left without centre and directions, (..., d) -> float64 (..., d), as long as it is."""
        rows = embeddings.astype(np.float64) - self.centre
        return np.asarray(rows - (rows @ self.directions.T) @ self.directions, np.float64)


def compensation(originals: Float32, moved: Float32, *, directions: int = DIRECTIONS) -> Compensation:
    """Learn a compensation: the directions that hold most of the squared movement.

    Args:
        originals: embeddings of different people in good conditions, float32 (m, d).
        moved: float32 (n, d), how far a worse copy of a sample lies from it, ``copy - original``; n may be 0.
        directions: how many are taken out at most.
    """
    dimension = originals.shape[1]
    rank = min(directions, dimension // 12, len(moved))
    rows = np.zeros((0, dimension), np.float32)
    if rank:
        # The eigenvectors of the d x d second moment are the right singular vectors of the (n, d) movements.
        differences = moved.astype(np.float64)
        _, vectors = np.linalg.eigh(differences.T @ differences)
        rows = np.ascontiguousarray(vectors[:, ::-1][:, :rank].T, np.float32)
    return Compensation(originals.mean(axis=0, dtype=np.float64).astype(np.float32), rows)
