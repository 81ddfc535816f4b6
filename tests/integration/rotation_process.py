"""A device that replaces its keys and is killed at every moment of it, one after another.

Prints a line of JSON: how often it was killed, and for each time what the server said to the identity that was left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.builders import open_store
from tests.integration.harness import PEPPER
from tests.integration.numpy_devices import FixedTrainer
from uvsdk_device import EncryptedStore, Federation
from uvsdk_device.connection import Connection


def main(url: str, folder: str, user_id: str) -> None:
    federation = Federation(url, pepper=PEPPER, trainer=FixedTrainer())
    told = []
    moment = 0
    while True:
        moment += 1
        pid = os.fork()
        if pid == 0:
            _die_at(moment)
            federation.rotate_keys(user_id, open_store(folder))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        (device,) = federation.devices(user_id, open_store(folder))
        told.append([device.state, device.device_id])
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
    print(json.dumps({"kills": moment - 1, "told": told}))


def _die_at(moment: int) -> None:
    """Kill this process at the ``moment``-th of all moments before and after something is written or sent."""
    left = [moment]

    def reached() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            reached()
            result = work(*arguments, **named)
            reached()
            return result

        return wrapped

    EncryptedStore.put = deadly(EncryptedStore.put)  # type: ignore[method-assign]
    Connection._send = deadly(Connection._send)  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
