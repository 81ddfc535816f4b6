"""One round's result from its sealed uploads: a pure function of files and state, run in a worker thread.

Memory is that of a few models and one chunk, whatever the size of the cohort: uploads are opened chunk by chunk from
mapped files and never held.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Float32
from uvsdk.errors import SealError, WireError
from uvsdk.federation.aggregation import weighted_mean
from uvsdk.federation.round import Method, Result, ServerState, Update, commit, weigh
from uvsdk.privacy.sealing import Digests, Envelope


@dataclass(frozen=True, slots=True)
class Upload:
    """One accepted update: where its sealed bytes lie, and what is known of it beside its delta."""

    path: Path
    update: Update


def aggregate(
    method: Method,
    state: ServerState,
    uploads: Sequence[Upload],
    private_key: X25519PrivateKey,
    *,
    clip_norm: float,
    everybody: Iterable[int],
    seed: int,
    tensors: Sequence[int],
) -> Result:
    """Open the uploads, whose order is that of the sum, and commit their mean (:func:`uvsdk.federation.round.commit`).

    Raises:
        SealError: a stored upload no longer opens.
        UpdateRejectedError: the result would not be finite.
    """
    updates = [upload.update for upload in uploads]
    sources = [SealedDelta(upload.path, private_key) for upload in uploads]
    weights = weigh(updates, clip_norm, method.config)
    # One opened chunk at a time: the next one then takes its place in memory that is mapped and in cache.
    mean = weighted_mean(sources, weights, len(state.theta), together=1)
    return commit(method, state, mean, updates, clip_norm=clip_norm, everybody=everybody, seed=seed, tensors=tensors)


class SealedDelta:
    """The delta of one sealed file, a :class:`uvsdk.federation.aggregation.DeltaSource` that holds nothing."""

    __slots__ = ("_path", "_private_key")

    def __init__(self, path: Path, private_key: X25519PrivateKey) -> None:
        self._path = path
        self._private_key = private_key

    def chunks(self) -> Iterator[Float32]:
        """The delta's chunks; the first chunk of the envelope is the head and is left out."""
        with map_envelope(self._path) as envelope:
            count = len(envelope.chunk_lengths)
        for index in range(1, count):
            yield self._opened(index)

    def _opened(self, index: int) -> Float32:
        # Mapped anew for each chunk: what was read does not stay resident, and a cohort of thousands needs one file
        # descriptor.
        with map_envelope(self._path) as envelope:
            return np.frombuffer(envelope.open_chunk(index, self._private_key), "<f4")


@contextmanager
def map_envelope(path: Path, digests: Digests | None = None) -> Iterator[Envelope]:
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
