"""A server for the tests: like ``uvsdk serve``, and able to kill itself, or fill its disk, at a point of a round."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from uvsdk_server import Settings, create_app, observer
from uvsdk_server.commands import Server

AGGREGATION_HALFWAY = "aggregation-halfway"
"""Half of the uploads are in the sum. No observer is told of it: :class:`HalfwayKiller` watches the files."""


class Killer:
    """Kills this process, as a power cut would, when ``point`` is reached for the ``times``-th time."""

    def __init__(self, point: str, times: int) -> None:
        self._point = point
        self._left = times

    async def reached(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class HalfwayKiller:
    """Kills this process in the middle of its first aggregation: as the upload in the middle of the sum is opened."""

    def __init__(self, data: Path) -> None:
        self._data = data

    async def reached(self, point: str) -> None:
        if point != observer.AGGREGATION_STARTED:
            return
        query = "SELECT blob FROM uploads WHERE blob IS NOT NULL ORDER BY user, device_id"
        with closing(sqlite3.connect(self._data / "server.sqlite3")) as database:
            blobs = [str(name) for (name,) in database.execute(query)]
        middle = blobs[len(blobs) // 2]

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            if event == "open" and str(arguments[0]).endswith(middle):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)


class Filler:
    """Fills the disk under ``folder``, once, when ``point`` is reached."""

    def __init__(self, point: str, folder: Path) -> None:
        self._point = point
        self._folder = folder

    async def reached(self, point: str) -> None:
        if point == self._point:
            self._point = ""
            fill(self._folder)


def fill(folder: Path) -> Path:
    """Take all the space that is left under ``folder``, and give the file that holds it."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    return ballast


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    for name in ("data", "model", "training"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of Settings")
    parser.add_argument("--kill-at", default="")
    parser.add_argument("--kill-times", type=int, default=1)
    parser.add_argument("--fill-at", default="")
    arguments = parser.parse_args(words)
    extra = dict(item.split("=", 1) for item in arguments.set)
    settings = Settings.model_validate(
        {"data": arguments.data, "model": arguments.model, "training": arguments.training, "port": 0, **extra}
    )
    watcher: observer.Observer = Killer(arguments.kill_at, arguments.kill_times)
    if arguments.kill_at == AGGREGATION_HALFWAY:
        watcher = HalfwayKiller(arguments.data)
    elif arguments.fill_at:
        watcher = Filler(arguments.fill_at, arguments.data)
    app = create_app(settings, observer=watcher)
    Server(app, host=settings.host, port=settings.port).run()


if __name__ == "__main__":
    main()
