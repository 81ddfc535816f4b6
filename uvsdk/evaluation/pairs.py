"""Comparisons that a list names one by one, and what was scored of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.errors import EnrolmentError
from uvsdk.evaluation.acquisition import Acquisition, Embedder, Progress, acquire
from uvsdk.evaluation.conditions import Sides
from uvsdk.evaluation.protocols import ProtocolOutcome, digest
from uvsdk.evaluation.trials import Trials

_SCORED_AT_ONCE = 1 << 16

Locate = Callable[[str], Path]
"""From a file as the list spells it to where it lies."""


@dataclass(frozen=True, slots=True, eq=False)
class PairList:
    """A list of comparisons.

    Args:
        files: every file once, as the list spells it.
        first: int64 (N,), index into ``files`` of each trial's one side.
        second: int64 (N,), of the other.
        subjects: labels of the people; empty for a list that does not say which trials are genuine.
        subject: int64 (F,), whose each file is, index into ``subjects``; of length 0 likewise.
        protocol: in words.
        folds: int64 (N,), the fold of each trial, where the list has folds.
    """

    files: tuple[str, ...]
    first: Int64
    second: Int64
    subjects: tuple[str, ...]
    subject: Int64
    protocol: str
    folds: Int64 | None = None

    @property
    def labelled(self) -> bool:
        """Whether the list says which trials are genuine."""
        return bool(self.subjects)


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A list's scores.

    Args:
        pairs: what was compared.
        scores: float64 (N,), cosine similarity; NaN where a sample of the trial failed.
        repeated: bool (N,), trials that compare a sample with itself: the same file, or one person's files with the
            same bytes.
        acquisition: the samples, in the order of ``pairs.files``.
    """

    pairs: PairList
    scores: Float64
    repeated: Bool
    acquisition: Acquisition

    @property
    def left_out(self) -> int:
        """How many trials have no score."""
        return int(np.isnan(self.scores).sum())

    def outcome(self) -> ProtocolOutcome:
        """The trials that could be made, for a list that says which are genuine.

        Raises:
            EnrolmentError: no genuine or no impostor trial is left, or the list has no labels.
        """
        pairs = self.pairs
        if not pairs.labelled:
            raise EnrolmentError("the list does not say which trials are genuine; it gives scores and no error rates")
        kept = np.flatnonzero(~np.isnan(self.scores) & ~self.repeated)
        first, second = pairs.first[kept], pairs.second[kept]
        trials = Trials(self.scores[kept], pairs.subject[first], pairs.subject[second], pairs.subjects)
        genuine = int(trials.is_genuine.sum())
        if genuine in (0, len(kept)):
            failures = len(self.acquisition.failures)
            raise EnrolmentError(
                f"{genuine} genuine and {len(kept) - genuine} impostor trials could be made of {len(self.scores)} "
                f"listed ones ({failures} of {len(pairs.files)} samples could not be used); error rates need both; "
                "check that --root is the folder that the listed paths start from"
            )
        measured = [sample.measured for sample in self.acquisition.found if sample is not None]
        row, rows = _rows(self.acquisition)
        return ProtocolOutcome(
            trials,
            len(pairs.files),
            self.acquisition.failures,
            (),
            int(self.repeated.sum()),
            pairs.protocol,
            left_out=self.left_out,
            sides=Sides(measured, measured, row[first], row[second], True, rows, rows),
            timings_s=self.acquisition.timings_s,
            folds=None if pairs.folds is None else pairs.folds[kept],
        )


def score(
    pairs: PairList, locate: Locate, embed: Embedder, *, jobs: int = 1, progress: Progress | None = None
) -> Scored:
    """Embed every file once and score every trial.

    Args:
        pairs: the list.
        locate: where its files lie.
        embed: the model.
        jobs: threads that read samples.
        progress: told of each sample.
    """
    paths = [locate(name) for name in pairs.files]
    owners = [pairs.subjects[index] for index in pairs.subject] if pairs.labelled else [""] * len(paths)
    acquisition = acquire(list(zip(owners, paths, strict=True)), embed, jobs=jobs, progress=progress)
    return Scored(pairs, _cosines(acquisition, pairs.first, pairs.second), _repeated(pairs, paths), acquisition)


def _cosines(acquisition: Acquisition, first: Int64, second: Int64) -> Float64:
    row, rows = _rows(acquisition)
    scores = np.full(len(first), np.nan)
    matrix = rows.astype(np.float64)
    one, other = row[first], row[second]
    made = np.flatnonzero((one >= 0) & (other >= 0))
    # In portions: a list may be far longer than the memory for two gathered matrices.
    for start in range(0, len(made), _SCORED_AT_ONCE):
        part = made[start : start + _SCORED_AT_ONCE]
        scores[part] = np.einsum("nd,nd->n", matrix[one[part]], matrix[other[part]])
    return scores


def _rows(acquisition: Acquisition) -> tuple[Int64, Float32]:
    """Each sample's place among the usable ones, -1 where it is none, and their embeddings, (n, d)."""
    usable = np.array([sample is not None for sample in acquisition.found], np.bool_)
    row = np.where(usable, np.cumsum(usable) - 1, -1)
    return row, np.asarray([sample.embedding for sample in acquisition.found if sample is not None], np.float32)


def _repeated(pairs: PairList, paths: Sequence[Path]) -> Bool:
    """Trials of a sample with itself. Bytes are compared within a person only: a copy that is listed under two people
    is a fault of the data that the reader of a report must see as the false match it makes."""
    same: Bool = pairs.first == pairs.second
    if not pairs.labelled:
        return same
    contents: dict[tuple[int, bytes], int] = {}
    content = np.arange(len(paths))
    for index, path in enumerate(paths):
        found = digest(path)
        if found is not None:
            content[index] = contents.setdefault((int(pairs.subject[index]), found), index)
    copies: Bool = same | (content[pairs.first] == content[pairs.second])
    return copies
