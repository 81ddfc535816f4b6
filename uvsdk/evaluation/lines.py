"""Lists that people hand in, read line by line, with every malformed line named by its number."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Generator
from pathlib import Path

from uvsdk.errors import SettingsError

_SHOWN = 10
_GZIP = b"\x1f\x8b"


def read(path: Path) -> Generator[tuple[int, str], None, None]:
    """Each line that is not blank with its number, from 1 on; plain or gzip, by content, never whole in memory.

    Raises:
        SettingsError: cannot be read, damaged, or not UTF-8 text; the message names the file.
    """
    number = 0
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
            file.seek(0)
            # A byte order mark would otherwise become part of the first label.
            with io.TextIOWrapper(gzip.open(file) if compressed else file, encoding="utf-8-sig") as text:
                for number, line in enumerate(text, 1):
                    if line.strip():
                        yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path.name} is not UTF-8 text after line {number}; is it really a list?") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SettingsError(f"{path.name} is a damaged gzip file after line {number}; copy it again") from error
    except OSError as error:
        raise SettingsError(f"cannot read the list {path.name}: {error.strerror}") from error


class MalformedLines:
    """Malformed lines of one list, gathered so that a person can mend all of them at once."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._found: list[str] = []
        self._count = 0

    def add(self, number: int, words: str) -> None:
        """Line ``number`` is wrong in this way."""
        self._count += 1
        if self._count <= _SHOWN:
            self._found.append(f"line {number}: {words}")

    def check(self) -> None:
        """Raises :class:`SettingsError` that names every malformed line (the first ten, and how many more)."""
        if not self._count:
            return
        more = f"; and {self._count - _SHOWN:,} more" if self._count > _SHOWN else ""
        lines = "line is" if self._count == 1 else "lines are"
        raise SettingsError(f"{self._name}: {self._count:,} {lines} malformed: {'; '.join(self._found)}{more}")


def cells(line: str) -> list[str]:
    """The fields of a line: parted by tabs where it has any, so that names may hold spaces, else by white space.

    >>> cells("1 a/1.wav b/2.wav"), cells("Ann Lee\\t1\\t4")
    (['1', 'a/1.wav', 'b/2.wav'], ['Ann Lee', '1', '4'])
    """
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


def commas(line: str) -> list[str]:
    """The fields of a line of a CSV file, without the space around them; none where it cannot be read as one.

    >>> commas('ann, enrol,"a, b.wav"')
    ['ann', 'enrol', 'a, b.wav']
    """
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []
