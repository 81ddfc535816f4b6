"""Where keys and blobs go that no row names and whose removal nobody ordered.

They are what a crash left half-made, or what a database does not know because an older copy of it was put in place. So
they are moved and not unlinked, into ``quarantine/DATE/FOLDER`` of the data folder, and go for good after a while.
Putting them back is moving them back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

from uvsdk_server.store.blobs import flush_folder


class Quarantine:
    """The folder ``quarantine`` of a data folder.

    Args:
        data: the data folder.
        days: how long a file is kept.
    """

    def __init__(self, data: Path, *, days: float) -> None:
        self._folder = data / "quarantine"
        self._days = days

    def take(self, files: Iterable[Path], now: float) -> int:
        """Move files of the data folder here, and give their number. Raises :class:`OSError`."""
        taken = 0
        for file in files:
            folder = self._folder / _day(now).isoformat() / file.parent.name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.rename(_free(folder / file.name))
            flush_folder(folder)
            flush_folder(file.parent)
            taken += 1
        return taken

    def drop(self, names: Iterable[str]) -> None:
        """Unlink whatever lies here under these names: their removal has been ordered after all."""
        for name in names:
            for file in self._folder.glob(f"*/*/{name}*"):
                file.unlink()

    def expire(self, now: float) -> int:
        """Remove the days that are over, and give the number of files that went."""
        gone = 0
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            try:
                since = date.fromisoformat(folder.name)
            except ValueError:
                continue  # somebody else's
            if since + timedelta(days=self._days) < _day(now):
                gone += sum(1 for file in folder.rglob("*") if file.is_file())
                shutil.rmtree(folder)
        return gone


def _day(now: float) -> date:
    return datetime.fromtimestamp(now, UTC).date()


def _free(path: Path) -> Path:
    """``path``, or with a number where there is such a file already."""
    if not path.exists():
        return path
    return next(other for number in count(1) if not (other := path.with_name(f"{path.name}.{number}")).exists())
