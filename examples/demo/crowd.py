"""All the device processes: forked from a server process that has imported torch once, then left to themselves."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.process
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from data import Person
from people import Failed, Order, Stop, main

# A process that imports torch costs about 400 MB and seconds of CPU; forked after the import it costs neither.
_PRELOADED = ["people", "uvsdk.training.loop", "uvsdk.federation.classes.client", "uvsdk.training.backbones"]


class DeviceFailedError(RuntimeError):
    """A device process failed or ended; the message is what it reported."""


class Crowd:
    """A process per person. Leaving the ``with`` block ends every one of them."""

    def __init__(self, people: tuple[Person, ...], folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
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
        for process in self._processes.values():
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
                process.join()

    def ask(self, name: str, order: Order) -> object:
        """One person's answer."""
        self._ends[name].send(order)
        return self._answer(name)

    def ask_all(self, order: Order) -> None:
        """Give everyone the same order and wait until all have carried it out."""
        self.tell_all(order)
        for name in self._ends:
            self._answer(name)

    def tell_all(self, order: Order) -> None:
        """Give everyone the same order; :meth:`answers` collects what comes of it."""
        for end in self._ends.values():
            end.send(order)

    def tell_each(self, orders: Mapping[str, Order]) -> None:
        """Give everyone named an order of their own; :meth:`answers` collects what comes of it."""
        for name, order in orders.items():
            self._ends[name].send(order)

    def answers(self, timeout_s: float) -> Iterator[tuple[str, object]]:
        """Answers that have arrived within ``timeout_s``, as they come. Raises :class:`DeviceFailedError`."""
        names = {end: name for name, end in self._ends.items()}
        for end in multiprocessing.connection.wait(list(names), timeout_s):
            assert isinstance(end, multiprocessing.connection.Connection)
            yield names[end], self._answer(names[end])

    def _answer(self, name: str) -> object:
        try:
            answer = self._ends[name].recv()
        except EOFError:
            status = self._processes[name].exitcode
            raise DeviceFailedError(f"a device process ended with status {status}") from None
        if isinstance(answer, Failed):
            raise DeviceFailedError(answer.reason)
        return answer
