"""Where the records of rounds go: a CSV file, TensorBoard."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import math
from pathlib import Path
from typing import Any

from uvsdk.errors import TrainingUnavailableError
from uvsdk.simulation.records import RoundRecord

_COLUMNS = tuple(field.name for field in dataclasses.fields(RoundRecord))


class CsvSink:
    """Appends a row for each round, on disk when the call returns.

    Args:
        path: the file; made where it is absent.
        after: rows of later rounds are dropped first: a simulation that goes on from a checkpoint makes them again.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self._path = path
        kept: list[list[str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as lines:
                rows = list(csv.reader(lines))
            kept = [row for row in rows[1:] if len(row) == len(_COLUMNS) and int(row[0]) <= after]
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_COLUMNS, *kept])

    def __call__(self, record: RoundRecord) -> None:
        """Append one round."""
        row = [_cell(getattr(record, name)) for name in _COLUMNS]
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(row)


class TensorBoardSink:
    """Writes each round's numbers as scalars for TensorBoard (extra ``simulate``).

    Raises:
        TrainingUnavailableError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, *, after: int = 0) -> None:
        try:
            tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise TrainingUnavailableError("TensorBoard output needs: pip install 'uvsdk[simulate]'") from error
        self._writer = tensorboard.SummaryWriter(str(folder), purge_step=after + 1)

    def __call__(self, record: RoundRecord) -> None:
        """Write one round; what is not a number is left out."""
        for name in ("loss", "mean_cosine", "mean_norm", "largest_ratio", "participants", "failed", "seconds"):
            value = float(getattr(record, name))
            if math.isfinite(value):
                self._writer.add_scalar(name, value, record.round_id)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _cell(value: float) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
