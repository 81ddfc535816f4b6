"""The photographs of fold 1 by person, and the threshold that the other folds give for them."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from examples.reproduce import data
from examples.reproduce.lfw import run, unpack
from uvsdk.arrays import Float, Float32
from uvsdk.bundle import Bundle
from uvsdk.modality import Limits, image
from uvsdk.scoring import Calibration

FMR = 1e-3
RESAMPLES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Photograph:
    """One photograph, as LFW names it (``Name_0001.jpg``), decoded."""

    name: str
    picture: Image.Image

    @property
    def person(self) -> str:
        """Whose it is."""
        return self.name.rpartition("_")[0]


def originals(source: Path | None = None) -> list[Photograph]:
    """All of fold 1, by name."""
    archive = (source or data.folder()) / unpack.ORIGINALS
    if not archive.exists():
        raise data.MissingDataError(f"{archive} is absent (examples/reproduce/lfw/README.md says what it is)")
    found = []
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member) if member.name.endswith(".jpg") else None
            if content is not None:
                found.append(Photograph(Path(member.name).name, image.decode(content.read(), Limits()).upright))
    return sorted(found, key=lambda photograph: photograph.name)


def halves(people: set[str]) -> dict[str, int]:
    """Person to half: every other one by name."""
    return {person: index % 2 for index, person in enumerate(sorted(people))}


def chips_by_person(packed: unpack.Packed, *, folds: tuple[int, ...]) -> dict[str, list[int]]:
    """The chips of some folds, indices of ``packed.names``, by person."""
    chosen = np.unique(packed.pairs[np.isin(packed.fold, folds)])
    people: dict[str, list[int]] = {}
    for index in chosen.tolist():
        people.setdefault(packed.names[index].split("/")[0], []).append(index)
    return people


def released(bundle: Bundle, packed: unpack.Packed) -> float:
    """The cosine at which a false match rate of 0.1 % is measured, as a calibrated bundle gives it.

    All pairs of the first chips of the people of folds 2 to 5, who are none of fold 1's.
    """
    firsts = [indices[0] for indices in chips_by_person(packed, folds=(1, 2, 3, 4)).values()]
    rows = np.stack([run.chip_embedding(bundle, packed.chip(index)) for index in firsts])
    return threshold_of(rows, bundle.version)


def threshold_of(rows: Float32, version: str) -> float:
    """See :func:`released`; ``rows`` are unit embeddings of as many people."""
    scores = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    calibration = Calibration.from_scores(
        scores.astype(np.float64), model_version=version, source="chips of LFW, folds 2 to 5", people=len(rows)
    )
    return calibration.threshold(FMR).score


def share(failed: Float, people: np.ndarray, *, seed: int = 0) -> tuple[float, float, float]:
    """A share in percent with its 95 % interval: percentile bootstrap over people, 1,000 resamples.

    Where nothing failed the resamples say nothing, and the upper end is the rule of three over people.

    >>> share(np.array([1.0, 0.0]), np.array(["a", "a"]))
    (50.0, 50.0, 50.0)
    >>> share(np.zeros(2), np.array(["a", "b"]))
    (0.0, 0.0, 100.0)
    """
    names, index = np.unique(people, return_inverse=True)
    hits, counts = np.bincount(index, failed, len(names)), np.bincount(index, minlength=len(names))
    if not hits.any():
        return 0.0, 0.0, min(100.0, 300.0 / len(names))
    drawn = np.random.default_rng(seed).integers(0, len(names), (RESAMPLES, len(names)))
    low, high = np.quantile(hits[drawn].sum(1) / counts[drawn].sum(1), (0.025, 0.975))
    return 100 * float(hits.sum() / counts.sum()), 100 * float(low), 100 * float(high)
