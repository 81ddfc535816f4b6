"""How much of CAM++'s measured activations gets codes: the choice behind ``ranges.py``'s ``_ROWS`` and its neighbours.

Ranges and means are measured on three of four speakers of ``measure_ranges.py``'s letters and digits; every setting is
then held against the float network on pieces of the fourth: the mean of 1 - cosine between embeddings, of 1 s and of
3 s. One setting after another takes its best value. Nobody of the test sets of this folder is among them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.choose_reach --data FOLDER --letters /usr/share/klettres
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.voice.measure_ranges import HERE, clips, digits, exact, letters, measure, statistics
from uvsdk.arrays import Float32
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.graphs.campplus import integer, ranges

TRIED = {
    "_ROWS": (1.3, 1.6, 2.0),
    "_FRONT": (0.75, 0.85, 1.0),
    "_NARROW": (1.0, 1.15, 1.3),
    "_CUT": (0.5, 0.6, 0.8),
}
"""What is tried, beginning from what is set now."""
ROOM = {name: integer if hasattr(integer, name) else ranges for name in TRIED}
"""Where each is set."""
SECONDS = ((1.0, 96), (3.0, 48))
"""Lengths of the pieces, and how many: a third as recorded, a third over a telephone, a third with noise."""
MEASURED = 160
SEED = 1


def main() -> None:
    """Print what every setting costs, and which was taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--letters", type=Path, default=Path("/usr/share/klettres"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speech = [*letters(arguments.letters), *digits(arguments.data / "fsdd_8k.npz")]
    rng = np.random.default_rng(SEED)
    own = list(clips([speaker for at, speaker in enumerate(speech) if at % 4], rng, MEASURED))
    pieces = [list(clips(speech[::4], rng, count, seconds=(length,))) for length, count in SECONDS]
    measures = measure(backbones.get("campplus").load(), own)
    frozen = backbones.get("campplus", "head").load()
    assert isinstance(frozen, Partial)
    reference, expected = exact(frozen, own), [exact(frozen, views) for views in pieces]

    def cost(**changed: float) -> tuple[float, ...]:
        kept = {name: getattr(ROOM[name], name) for name in changed}
        try:
            for name, value in changed.items():
                setattr(ROOM[name], name, value)
            left = (statistics(frozen, measures.ranges(), own[::2]) - reference[::2]).mean(axis=0)
            made = [statistics(frozen, measures.ranges(left=left), views) for views in pieces]
        finally:
            for name, value in kept.items():
                setattr(ROOM[name], name, value)
        return tuple(_apart(frozen, *pair) for pair in zip(made, expected, strict=True))

    taken = {name: float(getattr(ROOM[name], name)) for name in TRIED}
    found: dict[tuple[float, ...], tuple[float, ...]] = {}
    for name, values in TRIED.items():
        for value in values:
            key = tuple({**taken, name: value}.values())
            if key not in found:
                found[key] = cost(**taken | {name: value})
            print(f"{name} {value:<5}", " ".join(f"{each:.5f}" for each in found[key]), flush=True)
        taken[name] = min(values, key=lambda value: sum(found[tuple({**taken, name: value}.values())]))
    print(taken)


def _apart(frozen: Partial, made: Float32, expected: Float32) -> float:
    """Mean of 1 - cosine of the embeddings that the head makes of both."""
    with torch.no_grad():
        first, second = (frozen.rest(torch.from_numpy(rows)).numpy() for rows in (made, expected))
    first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, second))
    return float(1 - (first * second).sum(axis=1).mean())


if __name__ == "__main__":
    main()
