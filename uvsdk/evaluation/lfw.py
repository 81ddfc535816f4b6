"""Labeled Faces in the Wild, View 2: pairs in folds, and the accuracy with a threshold from the other folds.

``pairs.txt`` starts with the number of folds and of pairs a class in each (``10`` and ``300``), then has for every fold
its pairs of one person (``name n m``) and its pairs of two (``name n name m``); the images are
``Name/Name_0001.jpg``. A file of one set (``pairsDevTest.txt``) starts with the number of pairs a class alone.

Source: Huang, Ramesh, Berg and Learned-Miller, "Labeled Faces in the Wild", 2007, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.errors import SettingsError
from uvsdk.evaluation import lines, metrics
from uvsdk.evaluation.pairs import PairList

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy over folds, each with the threshold that is best on all others.

    Args:
        by_fold: share of right decisions in each fold.
        thresholds: the threshold each fold was decided by.
    """

    by_fold: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the folds."""
        return float(np.mean(self.by_fold))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean: the folds' sample standard deviation over the root of their number."""
        return float(np.std(self.by_fold, ddof=1)) / math.sqrt(len(self.by_fold))


def is_pairs(path: Path) -> bool:
    """Whether the first line of a file is that of LFW's pairs: one or two whole numbers and nothing else."""
    with closing(lines.read(path)) as found:
        cells = lines.cells(next(found, (0, ""))[1])
    return len(cells) in (1, 2) and all(cell.isdecimal() for cell in cells)


def read(path: Path) -> PairList:
    """The pairs of a file in LFW's own format, with the folds that it has.

    Raises:
        SettingsError: no heading, malformed lines (each is named), or not as many pairs as the heading says.
    """
    with closing(lines.read(path)) as found:
        folds, each = _heading(next(found, (0, ""))[1], path)
        malformed = lines.MalformedLines(path)
        images: dict[tuple[str, int], int] = {}
        sides: list[tuple[int, int]] = []
        for number, line in found:
            if len(sides) == folds * 2 * each:
                raise SettingsError(
                    f"{path.name}, line {number}: the heading announces {folds} folds of 2 x {each} pairs, and there "
                    "are more; correct the heading"
                )
            parsed = _pair(lines.cells(line), want_genuine=len(sides) % (2 * each) < each)
            if isinstance(parsed, str):
                malformed.add(number, parsed)
            # A malformed line keeps its place, so that the lines after it are judged by their own.
            ends = (("", 0), ("", 0)) if isinstance(parsed, str) else parsed
            sides.append((images.setdefault(ends[0], len(images)), images.setdefault(ends[1], len(images))))
        malformed.check()
    if len(sides) != folds * 2 * each:
        raise SettingsError(
            f"{path.name} has {len(sides)} pairs, its heading announces {folds} folds of 2 x {each} = "
            f"{folds * 2 * each}; copy it again, or correct the heading"
        )
    people: dict[str, int] = {}
    subject = np.array([people.setdefault(name, len(people)) for name, _ in images], np.int64)
    both = np.array(sides, np.int64)
    return PairList(
        tuple(f"{name}/{name}_{number:04}" for name, number in images),
        both[:, 0],
        both[:, 1],
        tuple(people),
        subject,
        f"LFW pairs: {folds} folds of {each} genuine and {each} impostor pairs"
        if folds > 1
        else f"LFW pairs: {each} genuine and {each} impostor pairs, no folds",
        np.repeat(np.arange(folds), 2 * each) if folds > 1 else None,
    )


def locate(root: Path, name: str) -> Path:
    """An image of the list in LFW's folder layout, with whichever suffix it has there; else with ``.jpg``."""
    for suffix in SUFFIXES:
        path = root / f"{name}{suffix}"
        if path.is_file():
            return path
    return root / f"{name}{SUFFIXES[0]}"


def accuracy(scores: Float64, genuine: Bool, *, folds: Int64) -> Accuracy:
    """Accuracy of each fold with the threshold that makes most decisions right on all other folds.

    Args:
        scores: float64 (N,).
        genuine: bool (N,), whether each pair is of one person.
        folds: int64 (N,), which fold each pair is in.

    Raises:
        ValueError: fewer than two folds hold pairs, or the others of one fold lack genuine or impostor pairs.

    >>> scores = np.array([0.75, 0.25, 1.0, 0.375])
    >>> accuracy(scores, np.array([True, False, True, False]), folds=np.array([0, 0, 1, 1]))
    Accuracy(by_fold=(1.0, 1.0), thresholds=(0.6875, 0.5))
    """
    present = np.unique(folds).tolist()
    if len(present) < 2:
        raise ValueError(f"a threshold from other folds needs at least two folds, got {len(present)}")
    rates, thresholds = [], []
    for fold in present:
        here = folds == fold
        threshold = best_threshold(scores[~here & genuine], scores[~here & ~genuine])
        thresholds.append(threshold)
        rates.append(float(np.mean((scores[here] >= threshold) == genuine[here])))
    return Accuracy(tuple(rates), tuple(thresholds))


def best_threshold(genuine: Float64, impostor: Float64) -> float:
    """The threshold with most right decisions: half way between two scores, of several such the middle one.

    >>> best_threshold(np.array([0.75, 0.875]), np.array([0.25]))
    0.5
    """
    points = metrics.curve(genuine, impostor)
    right = (points.impostor - points.false_matches) + (points.genuine - points.false_non_matches)
    tied = np.flatnonzero(right == right.max())
    index = int(tied[len(tied) // 2])
    above = float(points.thresholds[index])
    if index == 0:
        return above
    below = float(points.thresholds[index - 1])
    return float(np.nextafter(below, np.inf)) if math.isinf(above) else (below + above) / 2


def _heading(line: str, path: Path) -> tuple[int, int]:
    """Folds, and pairs a class in each."""
    cells = lines.cells(line)
    if len(cells) not in (1, 2) or not all(cell.isdecimal() and int(cell) for cell in cells):
        raise SettingsError(
            f"{path.name}: the first line of LFW pairs is the number of folds and of pairs a class in each, got "
            f"{line[:40]!r}"
        )
    return (1, int(cells[0])) if len(cells) == 1 else (int(cells[0]), int(cells[1]))


def _pair(cells: Sequence[str], *, want_genuine: bool) -> tuple[tuple[str, int], tuple[str, int]] | str:
    """Both images of a line, or what is wrong with it."""
    wanted = "a pair of one person, `name n m`" if want_genuine else "a pair of two people, `name n name m`"
    if len(cells) != (3 if want_genuine else 4):
        return f"{len(cells)} fields, here stands {wanted}"
    numbers = cells[1:3] if want_genuine else (cells[1], cells[3])
    if not all(cell.isdecimal() and int(cell) for cell in numbers):
        return f"images are numbered from 1 on, got {' and '.join(numbers)}"
    names = (cells[0], cells[0]) if want_genuine else (cells[0], cells[2])
    if any(not name or "/" in name or "\\" in name for name in names):
        return "a name is empty or holds a slash"
    one, other = ((name, int(number)) for name, number in zip(names, numbers, strict=True))
    if one == other:
        return "compares an image with itself"
    if not want_genuine and names[0] == names[1]:
        return "one person twice where a pair of two people stands"
    return one, other
