"""Trial lists in the forms that speaker recognition shares, and the scores that go back.

A line of a VoxCeleb list is ``1 id10270/x6uYqmx31kE/00001.wav id10270/8jEAjG6SegY/00008.wav``: 1 where both recordings
are of one person, 0 where they are not. ``target`` and ``nontarget`` stand for 1 and 0 in Kaldi's lists, there behind
the two paths. The list of a blind test set has the two paths alone. Plain text or gzip.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np

from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.errors import SettingsError
from uvsdk.evaluation import lines
from uvsdk.evaluation.pairs import PairList

LABELS = {"1": True, "0": False, "target": True, "nontarget": False}


def read(path: Path) -> PairList:
    """The trials of a list. Each line has the form of the first.

    Who a recording is of is told by the folders, at the first level where they agree with every label; where there is
    no such level, recordings that genuine trials join are of one person.

    Raises:
        SettingsError: no trial, malformed lines (each is named), or labels that contradict each other.
    """
    malformed = lines.MalformedLines(path)
    names: dict[str, int] = {}
    first, second, label, numbers = array("q"), array("q"), array("b"), array("q")
    fields = 0
    for number, line in lines.read(path):
        cells = lines.cells(line)
        fields = fields or len(cells)
        words = _fault(cells, fields)
        if words:
            malformed.add(number, words)
            continue
        own, one, other = _ordered(cells)
        first.append(names.setdefault(one, len(names)))
        second.append(names.setdefault(other, len(names)))
        label.append(own)
        numbers.append(number)
    malformed.check()
    if not first:
        raise SettingsError(f"{path.name} holds no trial; a line is `1 one/file another/file`")
    files = tuple(names)
    one_side, other_side = np.array(first, np.int64), np.array(second, np.int64)
    if fields == 2:
        return PairList(files, one_side, other_side, (), np.zeros(0, np.int64), f"the {len(first):,} trials of a list")
    labels = np.array(label, np.bool_)
    told, told_by = _by_folder(files, one_side, other_side, labels), "their folders"
    if told is None:
        told_by = "the labels: recordings joined by genuine trials are of one person"
        told = _joined(files, one_side, other_side, labels)
        _check_joined(told[1], one_side, other_side, labels, numbers, path)
    subjects, subject = told
    protocol = f"the {len(first):,} trials of a list; who a sample is of is told by {told_by}"
    return PairList(files, one_side, other_side, subjects, subject, protocol)


def write_scores(path: Path, pairs: PairList, *, scores: Float64) -> int:
    """Write ``score path path``, a line for each trial that has a score, and say how many have none.

    Args:
        path: the file to write.
        pairs: the trials.
        scores: float64 (N,), NaN where a trial has none.
    """
    made = ~np.isnan(scores)
    with path.open("w", encoding="utf-8") as file:
        for index in np.flatnonzero(made).tolist():
            one, other = pairs.files[pairs.first[index]], pairs.files[pairs.second[index]]
            # Parted by tabs where a name holds a space, so that the line can be read again.
            gap = "\t" if " " in one + other else " "
            file.write(f"{scores[index]:.6f}{gap}{one}{gap}{other}\n")
    return int((~made).sum())


def _fault(cells: Sequence[str], fields: int) -> str:
    """What is wrong with a line; empty where nothing is."""
    if len(cells) not in (2, 3):
        return f"{len(cells)} fields, need a label and two paths, or two paths"
    if "" in cells:
        return "an empty field"
    if len(cells) != fields:
        return f"{len(cells)} fields, the first line has {fields}; every line has a label or none has"
    if len(cells) == 3 and cells[0] not in LABELS and cells[2] not in LABELS:
        return f"the label is 1, 0, target or nontarget, got {cells[0]!r}"
    if len(cells) == 2 and cells[0] in LABELS:
        return "a label and one path, need two paths"
    return ""


def _ordered(cells: Sequence[str]) -> tuple[bool, str, str]:
    """Label and paths, whichever comes first; without a label the first is of no meaning."""
    if len(cells) == 2:
        return False, cells[0], cells[1]
    if cells[0] in LABELS:
        return LABELS[cells[0]], cells[1], cells[2]
    return LABELS[cells[2]], cells[0], cells[1]


_People: TypeAlias = tuple[tuple[str, ...], Int64]
"""Labels of the people, and each file's index into them."""


def _by_folder(files: Sequence[str], first: Int64, second: Int64, labels: Bool) -> _People | None:
    """The people by the first folder level that agrees with all labels; None where none does."""
    parents = [PurePosixPath(name.replace("\\", "/")).parts[:-1] for name in files]
    for level in range(min(len(parts) for parts in parents)):
        known: dict[str, int] = {}
        person = np.array([known.setdefault(parts[level], len(known)) for parts in parents], np.int64)
        if np.array_equal(person[first] == person[second], labels):
            return tuple(known), person
    return None


def _joined(files: Sequence[str], first: Int64, second: Int64, labels: Bool) -> _People:
    """The people where genuine trials join files (union-find); the first of the joined files names them."""
    root = list(range(len(files)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    for one, other in zip(first[labels].tolist(), second[labels].tolist(), strict=True):
        low, high = sorted((find(one), find(other)))
        root[high] = low
    stands, person = np.unique([find(index) for index in range(len(files))], return_inverse=True)
    return tuple(files[index] for index in stands.tolist()), person.astype(np.int64)


def _check_joined(people: Int64, first: Int64, second: Int64, labels: Bool, numbers: Sequence[int], path: Path) -> None:
    wrong = np.flatnonzero((people[first] == people[second]) & ~labels)
    malformed = lines.MalformedLines(path)
    for index in wrong.tolist():
        words = "labelled as two people, but other lines' labels join both files to one person"
        malformed.add(numbers[index], words)
    malformed.check()
