"""One person's device as a process of its own: enrol, take part, keep the newest model. Prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.builders import open_store
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.training.loop import LocalTrainer
from uvsdk_device import Federation, RoundReport


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("user", "store", "passphrase", "server", "token", "pepper"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    store = open_store(arguments.store, arguments.passphrase)
    federation = Federation(
        arguments.server,
        enrolment_token=arguments.token,
        pepper=arguments.pepper.encode(),
        trainer=LocalTrainer(),
        server_verification=True,
    )
    start = time.perf_counter()
    enroll(arguments.user, [Path(file) for file in arguments.files], model=shipped(), store=store)
    enrolled_s = time.perf_counter() - start
    reports = federation.participate(arguments.user, store, model=shipped(), progress=show)
    print(
        json.dumps(
            {
                "enrolled_s": enrolled_s,
                "rounds": [[report.round_id, report.state, report.samples, report.loss] for report in reports],
            }
        )
    )


def show(report: RoundReport) -> None:
    print(report, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
