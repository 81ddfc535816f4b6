"""A process whose first verification runs in a thread while it forks: ``fresh_forks.py BUNDLE TEMPLATE PAUSE_S``.

Prints how each of 20 children ended: 0, another status, or -9 where it hung.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

import uvsdk

CHILDREN = 20


def main() -> None:
    bundle, pause_s = sys.argv[1], float(sys.argv[3])
    probe, template = pickle.loads(Path(sys.argv[2]).read_bytes())
    started = threading.Event()

    def first() -> None:
        started.set()
        uvsdk.verify(probe, template, model=bundle)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait()
    children = []
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            work(bundle, probe, template)
        children.append(child)
        time.sleep(pause_s)
    thread.join()
    print(*map(ended, children))


def work(bundle: str, probe: np.ndarray, template: uvsdk.Template) -> None:
    try:
        accepted = uvsdk.verify(probe, template, model=bundle).accepted
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0 if accepted else 3)


def ended(child: int, *, within_s: float = 30.0) -> int:
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


if __name__ == "__main__":
    main()
