"""One round's result from its sealed uploads: a pure function of files and state, run in a worker thread.

Memory is that of a few models and one chunk, whatever the size of the cohort: uploads are opened chunk by chunk from
mapped files and never held.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.errors import SealError, WireError
from uvsdk.federation import aggregation, clipping, optimisers, streams
from uvsdk.federation.messages import OptimiserState, TrainingConfig
from uvsdk.federation.strategy import AnyServerAlgorithm, Contribution
from uvsdk.privacy.sealing import Digests, Envelope


@dataclass(frozen=True, slots=True)
class Upload:
    """One accepted update: where its sealed bytes lie, the norm of its delta, and what its head says."""

    path: Path
    norm: float
    contribution: Contribution[Any]


@dataclass(frozen=True, slots=True)
class Job:
    """All that a round's result depends on. ``uploads`` are in the order in which they are summed, ``seed`` is the
    round's, ``share`` the part of the weight of all devices that took part, and ``clip_norm`` what the round announced.
    """

    config: TrainingConfig
    algorithm: AnyServerAlgorithm
    settings: object
    private_key: X25519PrivateKey
    uploads: tuple[Upload, ...]
    bundle: Bundle
    state: object
    optimiser: OptimiserState
    seed: int
    share: float
    clip_norm: float
    halfway: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Result:
    """The next model and the state that goes with it."""

    bundle: Bundle
    state: object
    optimiser: OptimiserState


def aggregate(job: Job) -> Result:
    """Sum, optimiser step, the algorithm's server step.

    Raises:
        SealError: a stored upload no longer opens.
        UpdateRejectedError: the result would not be finite.
    """
    weights = aggregation.sample_weights([upload.contribution.samples for upload in job.uploads], job.config)
    # A device that sends more than was announced gains nothing: its whole delta is scaled where it is summed.
    scales = np.array([clipping.scale_of(upload.norm, job.clip_norm) for upload in job.uploads])
    delta = _mean(job, weights * scales)
    theta, optimiser = optimisers.step(job.bundle.theta, delta, job.optimiser, job.config, share=job.share)
    contributions = tuple(upload.contribution for upload in job.uploads)
    state = job.algorithm.step(job.state, contributions, job.settings, streams.server_stream(job.seed, streams.STEP))
    return Result(job.bundle.with_theta(theta), state, optimiser)


def _mean(job: Job, weights: Float64) -> Float32:
    sources = [SealedDelta(upload.path, job.private_key) for upload in job.uploads]
    sources[len(sources) // 2].before = job.halfway
    # One opened chunk at a time: the next one then takes its place in memory that is mapped and in cache.
    return aggregation.weighted_mean(sources, weights, len(job.bundle.theta), together=1)


class SealedDelta:
    """The delta of one sealed file, a :class:`uvsdk.federation.aggregation.DeltaSource` that holds nothing."""

    __slots__ = ("_path", "_private_key", "before")

    def __init__(self, path: Path, private_key: X25519PrivateKey) -> None:
        self._path = path
        self._private_key = private_key
        self.before: Callable[[], None] | None = None

    def chunks(self) -> Iterator[Float32]:
        """The delta's chunks; the first chunk of the envelope is the head and is left out."""
        if self.before is not None:
            self.before()
        with mapped_envelope(self._path) as envelope:
            count = len(envelope.chunk_lengths)
        for index in range(1, count):
            yield self._opened(index)

    def _opened(self, index: int) -> Float32:
        # Mapped anew for each chunk: what was read does not stay resident, and a cohort of thousands needs one file
        # descriptor.
        with mapped_envelope(self._path) as envelope:
            return np.frombuffer(envelope.open_chunk(index, self._private_key), "<f4")


@contextmanager
def mapped_envelope(path: Path, digests: Digests | None = None) -> Iterator[Envelope]:
    """The envelope in a file, without reading it into memory. Raises ``SealError``, ``WireError``.

    ``digests``: those of the file, where they are known (see :meth:`Envelope.parse`).
    """
    try:
        with path.open("rb") as file:
            # Never closed by hand: an error on its way up may still hold a view of it, which would turn that error
            # into a BufferError. The last reference unmaps it.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise SealError("a stored upload is missing from the data folder") from error
    except ValueError as error:
        raise WireError("an empty body is not a sealed message") from error
    with Envelope.parse(mapped, digests) as envelope:
        yield envelope
