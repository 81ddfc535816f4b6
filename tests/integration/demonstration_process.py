"""What the demonstration starts, without what it does with it: a server and two devices, whose numbers it prints."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

import leash
from crowd import Crowd
from data import Person


def main(folder: Path, module: str, arguments: list[str]) -> None:
    """Until it is ended."""
    people = [Person(name, (), ()) for name in ("ada", "bea")]
    with Crowd(people, folder / "stores", preloaded=("people",)) as crowd, (folder / "log").open("wb") as log:
        server = leash.start(module, arguments, log=log, environment={})
        try:
            crowd.processor_s()  # they are there
            print(server.pid, *crowd.processes, flush=True)
            time.sleep(600)
        finally:
            leash.stop(server)


if __name__ == "__main__":
    with leash.put_away():
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
