"""Devices whose deltas are added in a random order, so that the spread between processors shows on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from uvsdk.simulation.jobs import Chunk, DeviceJob
from uvsdk.simulation.workers import InProcess


class Shuffled:
    """:class:`uvsdk.simulation.workers.Workers` that add up each chunk in an order drawn by ``seed``.

    Nothing else differs: every device draws from its own stream, and what is sent beside comes in the usual order.
    """

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._inner = InProcess(module)
        self._rng = np.random.default_rng(seed)

    def train(self, batching: str, chunks: Iterable[Sequence[DeviceJob]], /) -> Iterator[Chunk]:
        """See :class:`uvsdk.simulation.workers.Workers`."""
        for jobs in chunks:
            drawn = [jobs[place] for place in self._rng.permutation(len(jobs)).tolist()]
            chunk = next(iter(self._inner.train(batching, [drawn])))
            places = {job.user: place for place, job in enumerate(jobs)}
            yield replace(chunk, sent=tuple(sorted(chunk.sent, key=lambda item: places[item.user])))
