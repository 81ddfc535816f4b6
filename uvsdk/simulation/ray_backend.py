"""Chunks of a simulated round spread over the processes of a Ray cluster (extra ``scale``).

Every worker holds the population and a trunk of its own; a round sends it theta, tasks and memories. A chunk's outcome
depends on the chunk alone and chunks are summed in their order, so the result is, bit for bit, that of one process with
the same ``chunk_clients`` on the same kind of processor; with chunks cut elsewhere it differs by float32 rounding.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from uvsdk.errors import SettingsError, TrainingUnavailableError
from uvsdk.simulation.jobs import Chunk, DeviceJob
from uvsdk.simulation.population import Population, TensorSamples
from uvsdk.simulation.workers import InProcess
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone

LOCAL = "local"
"""The address that starts a cluster on this machine, for this simulation alone."""

_AHEAD = 2
_OBJECT_STORE_BYTES = 128 << 20
_UNSENT = TensorSamples(torch.empty(0))


class RayWorkers:
    """Workers on a Ray cluster, a context manager: what it started ends with it, and nothing else does.

    Args:
        trunk: the architecture; its values are replaced each round.
        population: the devices, sent to each worker once.
        address: of a running cluster (``ray://host:port``, ``host:port``, ``auto``), or :data:`LOCAL`.
        workers: processes, of one processor each.
        threads: threads torch may use in each.

    Raises:
        TrainingUnavailableError: ray is not installed.
        SettingsError: fewer than one worker, or no cluster answers at ``address``.
    """

    def __init__(
        self, trunk: nn.Module, population: Population, *, address: str = LOCAL, workers: int = 1, threads: int = 1
    ) -> None:
        if workers < 1:
            raise SettingsError(f"a simulation on ray needs at least 1 worker, got {workers}")
        self._ray = _ray()
        self._started = not self._ray.is_initialized()
        if self._started:
            _connect(self._ray, address, workers)
        module = self._ray.put(_carried(trunk))
        devices = self._ray.put(population)
        remote = self._ray.remote(num_cpus=1)(_Worker)
        self._actors = [remote.remote(module, devices, threads) for _ in range(workers)]

    def train(self, batching: str, chunks: Iterable[Sequence[DeviceJob]], /) -> Iterator[Chunk]:
        """See :class:`uvsdk.simulation.workers.Workers`; each worker has at most two chunks before it."""
        waiting: deque[Any] = deque()
        for number, jobs in enumerate(chunks):
            sent = [dataclasses.replace(job, samples=_UNSENT) for job in jobs]
            waiting.append(self._actors[number % len(self._actors)].train.remote(batching, sent))
            if len(waiting) == _AHEAD * len(self._actors):
                yield self._ray.get(waiting.popleft())
        while waiting:
            yield self._ray.get(waiting.popleft())

    def close(self) -> None:
        """End the workers, and the cluster where this object started it."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._started:
            self._ray.shutdown()
            self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_Carried = nn.Module | tuple[str, dict[str, torch.Tensor]]


def _carried(trunk: nn.Module) -> _Carried:
    """A trunk as it is sent: of a backbone its name and values, for the class of one with a head has no address."""
    return (trunk.name, trunk.state_dict()) if isinstance(trunk, Backbone) else trunk


def _built(carried: _Carried) -> nn.Module:
    if isinstance(carried, nn.Module):
        return carried
    name, values = carried
    trunk = backbones.get(name).random()
    trunk.load_state_dict(values)
    return trunk


class _Worker:
    """One process of the cluster."""

    def __init__(self, trunk: _Carried, population: Population, threads: int) -> None:
        self._population = population
        self._workers = InProcess(_built(trunk), threads)

    def train(self, batching: str, jobs: Sequence[DeviceJob]) -> Chunk:
        """One chunk, with the samples that this process holds."""
        whole = [dataclasses.replace(job, samples=self._population.samples(job.user)) for job in jobs]
        return next(iter(self._workers.train(batching, [whole])))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise TrainingUnavailableError(
            "a simulation on several machines needs ray: pip install 'uvsdk[scale]'"
        ) from error


def _connect(ray: Any, address: str, workers: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation reports to nobody
        store = _OBJECT_STORE_BYTES
        ray.init(address=LOCAL, num_cpus=workers, object_store_memory=store, include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise SettingsError(f"no ray cluster answers at {address!r}: {error}") from error
