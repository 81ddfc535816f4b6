"""One person's device as a process of its own: enrols, takes part until training rests, says what each step cost.

Prints a line of JSON for each round and each evaluation: processor seconds, and bytes sent and received on its sockets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from httpcore._backends.sync import SyncStream

from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk_device import EncryptedStore, Federation

_PASSED: Counter[str] = Counter()


class Meter:
    """What was spent since the step before."""

    def __init__(self) -> None:
        self._since = time.process_time()
        _PASSED.clear()

    def tell(self, kind: str, number: int, state: str) -> None:
        """Print one step, and begin the next."""
        now = time.process_time()
        line = {"kind": kind, "number": number, "state": state, "processor_s": now - self._since, **_PASSED}
        print(json.dumps(line), flush=True)
        self._since = now
        _PASSED.clear()


def main() -> None:
    """Enrol and take part."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("user", "store", "server", "token", "pepper-file", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    _count()
    store = EncryptedStore.open(arguments.store, passphrase="of a benchmark")
    model = Bundle.open(arguments.model)
    enroll(arguments.user, arguments.files, model=model, store=store)
    federation = Federation(
        arguments.server,
        enrolment_token=arguments.token,
        pepper=Path(arguments.pepper_file).read_bytes(),
        server_verification=True,
    )
    meter = Meter()
    federation.participate(
        arguments.user,
        store,
        model=model,
        progress=lambda report: meter.tell("round", report.round_id, report.state),
        evaluated=lambda done: meter.tell("evaluation", done.evaluation_id, done.state),
    )


def _count() -> None:
    """Count what passes the sockets of httpx, which talks to nobody but the server."""
    read, write = SyncStream.read, SyncStream.write

    def counted_read(self: SyncStream, *arguments: Any, **values: Any) -> bytes:
        data = read(self, *arguments, **values)
        _PASSED["received_bytes"] += len(data)
        return data

    def counted_write(self: SyncStream, buffer: bytes, *arguments: Any, **values: Any) -> None:
        _PASSED["sent_bytes"] += len(buffer)
        write(self, buffer, *arguments, **values)

    SyncStream.read = counted_read  # type: ignore[method-assign]
    SyncStream.write = counted_write  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
