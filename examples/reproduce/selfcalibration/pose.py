"""Whether the turn of a head deserves a cell: ``python -m examples.reproduce.selfcalibration.pose face.uvb``.

Every press photograph is held against the mean of the person's others, as devices do when they evaluate, and counted
by how far the head is turned (``yaw`` of :func:`uvsdk.modality.face.quality.measure`). The photographs are aligned
faces of 112 pixels, in which the landmarks are found anew.
"""

from __future__ import annotations

import argparse
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from uvsdk.bundle import Bundle
from uvsdk.modality.face.detector import find
from uvsdk.modality.face.quality import pose
from uvsdk.scoring.moments import unit

BOUNDS = (0.0, 0.06, 0.12, 0.18, 0.24, np.inf)
RATES = (0.01, 0.001, 0.0001)
DOMAIN = "press photographs"
SAMPLES = 5
_BORDER = 56
_RESAMPLED = 2_000

Floats = NDArray[np.float64]


def main() -> None:
    """Print a table of false non-match rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="of uvsdk export sface")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    chosen = parser.parse_args()
    bundle = Bundle.open(chosen.bundle)
    seen = domains.embedded(DOMAIN, bundle, chosen.cache)
    turned = np.abs(yaws(bundle, chosen.cache))
    able = [index for index in range(seen.people) if (seen.person == index).sum() >= SAMPLES]
    rows = seen.rows.astype(np.float64)
    genuine, owner, turn, templates = [], [], [], []
    for index in able:
        own = np.flatnonzero(seen.person == index)
        whole = rows[own].sum(axis=0)
        genuine.append((np.asarray(unit(whole - rows[own])) * rows[own]).sum(axis=1))
        owner.append(np.full(len(own), index))
        turn.append(turned[own])
        templates.append(unit(whole))
    impostors = rows @ np.stack(templates).T
    impostors[seen.person[:, None] == np.array(able)[None]] = np.nan
    scores, people, sizes = np.concatenate(genuine), np.concatenate(owner), np.concatenate(turn)
    print(f"{len(scores)} photographs of {len(able)} people, the pose of {int(np.isfinite(sizes).sum())} was found")
    limits = [float(np.nanquantile(impostors, 1.0 - rate)) for rate in RATES]
    for low, high in itertools.pairwise(BOUNDS):
        among = (sizes >= low) & (sizes < high)
        told = [f"yaw from {low:g} to {high:g}: {int(among.sum())} photographs of {len(np.unique(people[among]))}"]
        for rate, limit in zip(RATES, limits, strict=True):
            rejected = 100.0 * (scores[among] < limit)
            down, up = _interval(rejected, people[among])
            strangers = impostors[(turned >= low) & (turned < high)]
            let_in = 100.0 * float(np.nanmean(strangers[np.isfinite(strangers)] >= limit))
            told.append(f"FNMR at {100 * rate:g} %: {rejected.mean():.2f} [{down:.2f}, {up:.2f}], FMR {let_in:.3f}")
        print("; ".join(told), flush=True)


def _interval(rejected: Floats, people: NDArray[np.int64]) -> tuple[float, float]:
    """95 %, by drawing people again."""
    names, place = np.unique(people, return_inverse=True)
    sums, counts = np.bincount(place, rejected), np.bincount(place)
    drawn = np.random.default_rng(0).integers(0, len(names), (_RESAMPLED, len(names)))
    rates = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975))


def yaws(bundle: Bundle, kept: Path) -> Floats:
    """Of each photograph of the domain, in its order; NaN where no face is found. From the cache where it is there."""
    path = kept / f"{DOMAIN.replace(' ', '-')}-yaw.npy"
    if not path.exists():
        np.save(path, np.array(list(_yaws(bundle))))
    return np.asarray(np.load(path), np.float64)


def _yaws(bundle: Bundle) -> Iterator[float]:
    session = bundle.session("detector")
    for _, _, chip in domains.press_photographs():
        assert isinstance(chip, domains.Chip)
        aligned = Image.open(io.BytesIO(chip.jpeg)).convert("RGB")
        picture = Image.new("RGB", tuple(side + 2 * _BORDER for side in aligned.size), (128, 128, 128))
        picture.paste(aligned, (_BORDER, _BORDER))
        faces = find(picture, session, score=0.3)
        yield pose(faces[0].landmarks)["yaw"] if faces else float("nan")


if __name__ == "__main__":
    main()
