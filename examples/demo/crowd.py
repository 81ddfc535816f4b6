"""All the device processes: forked from a server process that has imported torch once, then left to themselves."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from data import Person
from leash import GRACE_S
from people import Failed, Order, Stop, TellTime, main

# A process that imports torch costs about 400 MB and seconds of CPU; forked after the import it costs neither.
PRELOADED = ("people", "uvsdk.training.loop", "uvsdk.federation.classes.client", "uvsdk.training.backbones")


class DeviceFailedError(RuntimeError):
    """A device process failed or ended; the message is what it reported."""


class Crowd:
    """A process per person. Leaving the ``with`` block ends every one of them."""

    def __init__(self, people: Sequence[Person], folder: Path, *, preloaded: Sequence[str] = PRELOADED) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preloaded))
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}
        self._ends: dict[str, multiprocessing.connection.Connection] = {}
        for person in people:
            ours, theirs = self._context.Pipe()
            arguments = (person.name, person.enrol, folder / person.name, theirs)
            process = self._context.Process(target=main, args=arguments, name=person.name, daemon=True)
            process.start()
            theirs.close()
            self._processes[person.name] = process
            self._ends[person.name] = ours

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends.values():
            try:
                end.send(Stop())
            except OSError:
                continue
        ends_at = time.monotonic() + GRACE_S
        for process in self._processes.values():
            process.join(timeout=max(0.1, ends_at - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def processes(self) -> tuple[int, ...]:
        """Of the devices, by the system's numbers."""
        return tuple(process.pid for process in self._processes.values() if process.pid is not None)

    def ask(self, name: str, order: Order) -> object:
        """One person's answer. Raises :class:`DeviceFailedError`."""
        return self.ask_each({name: order})[name]

    def ask_each(self, orders: Mapping[str, Order]) -> dict[str, object]:
        """Give everyone named an order of their own, all at once, and wait for what comes of them.

        Raises:
            DeviceFailedError: of one of them; the others' answers are lost.
        """
        for name, order in orders.items():
            self._send(name, order)
        return {name: self._answer(name) for name in orders}

    def ask_all(self, order: Order, names: Iterable[str] | None = None) -> dict[str, object]:
        """The same order to all, or to those of the names."""
        return self.ask_each(dict.fromkeys(self._ends if names is None else names, order))

    def processor_s(self) -> float:
        """Processor seconds of all devices so far."""
        return sum(answer for answer in self.ask_all(TellTime()).values() if isinstance(answer, float))

    def _send(self, name: str, order: Order) -> None:
        try:
            self._ends[name].send(order)
        except OSError:
            raise self._ended(name) from None

    def _answer(self, name: str) -> object:
        try:
            answer = self._ends[name].recv()
        except (EOFError, OSError):
            raise self._ended(name) from None
        if isinstance(answer, Failed):
            raise DeviceFailedError(answer.reason)
        return answer

    def _ended(self, name: str) -> DeviceFailedError:
        self._processes[name].join(timeout=1.0)
        return DeviceFailedError(f"a device process ended with status {self._processes[name].exitcode}")
