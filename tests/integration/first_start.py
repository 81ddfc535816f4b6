"""A first start that is killed at its n-th step, and started again: run as a script, for it forks.

Its argument says how many steps lie between two kills; 1 tries every one.

A step is anything that changes the disk: a file that is opened to be written, flushed, renamed or removed, a folder
that is made, a transaction that is committed, and every eighth statement in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.integration.harness import CONFIG
from uvsdk.bundle import shipped
from uvsdk_server import Settings, create_app
from uvsdk_server.store.pairing import FILE

_CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.chmod"})


class Steps:
    """Counts what changes the disk, and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last
        self._statements = 0

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if name in _CHANGES or writes:
            self.step()

    def statement(self, *_: object) -> None:
        self._statements += 1
        if self._statements % 8 == 0:
            self.step()

    def commit(self, *_: object) -> None:
        self.step()

    def install(self) -> None:
        sys.addaudithook(self.audit)
        event.listen(Engine, "before_cursor_execute", self.statement)
        event.listen(Engine, "commit", self.commit)


def start(folder: Path, model: Path, training: Path) -> None:
    """Start a server and stop it again."""

    async def run() -> None:
        settings = Settings(data=folder, model=model, training=training, log_level="error")
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(run())


def forked(folder: Path, model: Path, training: Path, *, killed_at: int = 0) -> bool:
    """Whether a start in a process of its own came to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if killed_at:
                Steps(killed_at).install()
            start(folder, model, training)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, f"killed at step {killed_at}, the start failed"
    return True


def identity(folder: Path) -> dict[str, str]:
    """What must never change: the deployment's id and the keys of a first start."""
    found = {name: (folder / "keys" / name) for name in ("signing.key", "at-rest.key")}
    values = {name: path.read_bytes().hex() for name, path in found.items() if path.exists()}
    if (folder / FILE).exists():
        values["id"] = json.loads((folder / FILE).read_bytes())["deployment_id"]
    return values


def main(stride: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        model, training = Path(place) / "model.uvb", Path(place) / "training.json"
        shipped().save(model)
        training.write_text(CONFIG.to_json())
        step = 1
        while True:
            folder = Path(place) / f"data-{step}"
            if forked(folder, model, training, killed_at=step):
                break
            before = identity(folder)
            assert forked(folder, model, training)
            after = identity(folder)
            assert before.items() <= after.items(), f"killed at step {step}, the next start made other keys"
            assert json.loads((folder / FILE).read_bytes())["complete"]
            step += stride
        print(step)


if __name__ == "__main__":
    main(int(sys.argv[1]))
