"""Where the chunks of a round are trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import nn

from uvsdk.simulation import large, loop, stacked
from uvsdk.simulation.jobs import Chunk, DeviceJob

METHODS = {"large": large.train, "stacked": stacked.train, "loop": loop.train}


class Workers(Protocol):
    """Trains chunks of devices."""

    def train(self, batching: str, chunks: Iterable[Sequence[DeviceJob]], /) -> Iterator[Chunk]:
        """The outcome of each of ``chunks``, in their order.

        Raises:
            InseparableError: ``batching`` is ``large`` and cannot serve.
        """
        ...


class InProcess:
    """One chunk after another, on one trunk, so that memory is that of one chunk."""

    def __init__(self, module: nn.Module, threads: int = 1) -> None:
        self._module = module
        self._threads = threads

    def train(self, batching: str, chunks: Iterable[Sequence[DeviceJob]], /) -> Iterator[Chunk]:
        """See :class:`Workers`."""
        for jobs in chunks:
            torch.set_num_threads(self._threads)
            with torch.random.fork_rng(devices=[]):
                chunk = METHODS[batching](self._module, jobs)
            yield chunk
