"""Lay the packed LFW files out as LFW itself does, so that ``uvsdk evaluate`` and other tools can read them.

``python -m examples.reproduce.lfw.unpack FOLDER`` writes ``FOLDER/originals`` (photographs of fold 1) with
``FOLDER/pairs_fold1.txt``, and ``FOLDER/aligned`` (112 x 112 chips of folds 1 to 5) with ``FOLDER/pairs_folds1-5.txt``.
"""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.reproduce import data
from uvsdk.arrays import Int64, UInt8

ALIGNED, ORIGINALS = "lfw_folds1-5_aligned112.npz", "lfw_fold1_originals.tar"


@dataclass(frozen=True, slots=True)
class Packed:
    """The chips and the pairs.

    Args:
        names: ``Name/Name_0001.jpg`` of each image.
        jpeg: every chip's JPEG bytes, one after the other.
        offsets: where each starts, and the end of the last.
        pairs: int64 (N, 2), indices of images, fold after fold, the genuine pairs of a fold first.
        same: int64 (N,), 1 where a pair is of one person.
        fold: int64 (N,), from 0 on.
    """

    names: tuple[str, ...]
    jpeg: UInt8
    offsets: Int64
    pairs: Int64
    same: Int64
    fold: Int64

    def chip(self, index: int) -> bytes:
        """One chip's JPEG bytes."""
        return self.jpeg[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def pairs_file(self, folds: Sequence[int]) -> str:
        """These folds in the format of LFW's ``pairs.txt``."""
        each = int((self.same[self.fold == folds[0]] == 1).sum())
        lines = [f"{len(folds)}\t{each}" if len(folds) > 1 else f"{each}"]
        for fold in folds:
            for one, other in self.pairs[self.fold == fold].tolist():
                name, number = _parts(self.names[one])
                second, second_number = _parts(self.names[other])
                apart = "" if name == second else f"{second}\t"
                lines.append(f"{name}\t{number}\t{apart}{second_number}")
        return "\n".join(lines) + "\n"


def load(folder: Path | None = None) -> Packed:
    """The packed chips of :func:`examples.reproduce.data.folder`, or of another folder."""
    path = (folder or data.folder()) / ALIGNED
    if not path.exists():
        raise data.MissingDataError(f"{path} is absent (examples/reproduce/lfw/README.md says what it is)")
    with np.load(path) as archive:
        found = {key: archive[key] for key in ("names", "jpeg", "off", "pairs", "same", "fold")}
    return Packed(
        tuple(str(name) for name in found["names"]),
        found["jpeg"],
        *(found[key].astype(np.int64) for key in ("off", "pairs", "same", "fold")),
    )


def aligned(packed: Packed, folder: Path) -> Path:
    """Write the chips and ``pairs_folds1-5.txt``; gives the path of the pairs."""
    for index, name in enumerate(packed.names):
        path = folder / "aligned" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed.chip(index))
    pairs = folder / "pairs_folds1-5.txt"
    pairs.write_text(packed.pairs_file(np.unique(packed.fold).tolist()), encoding="utf-8")
    return pairs


def originals(packed: Packed, folder: Path, *, source: Path | None = None) -> Path:
    """Write the photographs of fold 1 and ``pairs_fold1.txt``; gives the path of the pairs."""
    archive = (source or data.folder()) / ORIGINALS
    if not archive.exists():
        raise data.MissingDataError(f"{archive} is absent (examples/reproduce/lfw/README.md says what it is)")
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            if content is None or not member.name.endswith(".jpg"):
                continue
            path = folder / "originals" / Path(member.name).parent.name / Path(member.name).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    pairs = folder / "pairs_fold1.txt"
    pairs.write_text(packed.pairs_file([0]), encoding="utf-8")
    return pairs


def _parts(name: str) -> tuple[str, int]:
    """``Name/Name_0001.jpg`` to name and number."""
    person, _, number = Path(name).stem.rpartition("_")
    return person, int(number)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    packed = load()
    for pairs in (originals(packed, folder), aligned(packed, folder)):
        print(pairs)


if __name__ == "__main__":
    main()
