"""The weighted mean of many updates in the memory of one model.

Uploads are read chunk-major: the first chunk of every upload, then the second of every upload. The accumulator's
part stays in cache while all uploads are added to it, a few at a time and in small blocks, so that each upload is
read from memory once and only those few are held, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.guards import squared_norm
from uvsdk.federation.messages import TrainingConfig

CHUNK_PARAMETERS = 1 << 20
"""Parameters in one chunk of a delta: 4 MiB of float32."""

_BLOCK = 1 << 16
"""Parameters in one inner block: accumulator, scratch and input (256 KiB each) fit a level-2 cache together, and
numpy's cost of a call is small beside them."""

_NONE = np.empty(0, np.float32)
_ROUNDING = 1e-9


class DeltaSource(Protocol):
    """One accepted upload: its delta in order, float32 chunks cut at the same places for every source of a round."""

    def chunks(self) -> Iterator[Float32]:
        """The delta's chunks from the first; each call starts anew.

        A generator should keep no name for a chunk over its ``yield``: it would hold the chunk until its next turn.
        """
        ...


def sample_weights(samples: Sequence[int], config: TrainingConfig) -> Float64:
    """Weights p_i of the updates of one round, float64 (n,), summing to 1 (SPEC 1.2).

    ``samples``: p_i = n_i / sum n_j; ``capped``: the same with n_i at most ``config.samples_cap``, since n_i is
    the client's own word; ``uniform``: 1 / n. Always over those who took part (SPEC 1.2, partial participation).

    >>> config = TrainingConfig("d", "voice", "ge2e", "fedaws", weighting="capped", samples_cap=3)
    >>> sample_weights([1, 3, 900], config)
    array([0.14285714, 0.42857143, 0.42857143])

    Raises:
        UpdateRejectedError: no update, or one with no sample behind it.
    """
    counts = _counted(samples, config)
    weights: Float64 = counts / counts.sum()
    return weights


def weight_share(samples: Sequence[int], everybody: Sequence[int], config: TrainingConfig) -> float:
    """Share of all weight that took part, in (0, 1]: for ``uniform`` the share of all devices (SPEC 1.4).

    SCAFFOLD's c stays the weighted mean of all c_i only if it moves by this much; by the share of the devices instead,
    unequal weights leave a bias that no later round takes away.

    Args:
        samples: n_i of those who took part.
        everybody: n_i of all devices that could have.
        config: gives weighting and cap.

    >>> config = TrainingConfig("d", "voice", "ge2e", "fedaws", weighting="capped", samples_cap=3)
    >>> weight_share([1, 900], [1, 900, 2], config)
    0.6666666666666666

    Raises:
        UpdateRejectedError: no update, or one with no sample behind it.
    """
    took_part, total = float(_counted(samples, config).sum()), float(_counted(everybody, config).sum())
    return min(1.0, took_part / total)  # a device may have more samples by now than when it joined


def _counted(samples: Sequence[int], config: TrainingConfig) -> Float64:
    """Weights before they are divided by their sum, float64 (n,)."""
    counts = np.asarray(samples, np.float64)
    if counts.ndim != 1 or len(counts) == 0:
        raise UpdateRejectedError("a mean needs at least one update")
    if not bool((counts >= 1).all()):
        raise UpdateRejectedError(f"an update needs at least 1 sample behind it, got {int(counts.min())}")
    if config.weighting == "uniform":
        return np.ones_like(counts)
    return np.minimum(counts, config.samples_cap) if config.weighting == "capped" else counts


def weighted_mean(sources: Sequence[DeltaSource], weights: Float64, parameters: int, *, together: int = 8) -> Float32:
    """sum_i weights_i * delta_i, float32 (parameters,).

    The order of additions is the order of ``sources``, so a rerun over the same uploads in the same order is
    bit-identical. Reads every source once; memory is the result and ``together`` chunks.

    Args:
        sources: the uploads, already validated, in an order the caller fixed (sorted by user).
        weights: float64 (n,), see :func:`sample_weights`.
        parameters: P.
        together: chunks held at once, each pass over the accumulator adds this many. More is faster where they lie
            in memory already; 1 where each is made for the purpose. The result is the same.

    Raises:
        UpdateRejectedError: a source that is cut differently, too short, too long or not finite.
    """
    if len(sources) != len(weights) or not sources:
        raise UpdateRejectedError(
            f"{len(sources)} updates and {len(weights)} weights; expected equally many, at least 1"
        )
    # Weights in float32: a float64 scalar array would lift each product to float64 and double the traffic.
    weighted = [(source.chunks(), np.float32(weight)) for source, weight in zip(sources, weights, strict=True)]
    groups = [weighted[first : first + together] for first in range(0, len(weighted), together)]
    mean = np.empty(parameters, np.float32)
    scratch = np.empty(_BLOCK, np.float32)
    offset = 0
    # Sums that overflow or meet NaN are refused below; numpy need not warn of them as well.
    with np.errstate(over="ignore", invalid="ignore"):
        while offset < parameters:
            target = mean[offset:]
            for number, group in enumerate(groups):
                target = _add_chunks(target, group, scratch, first=number == 0)
            offset += len(target)
            # NaN and infinity survive addition, so one look at the sum stands for one at each upload.
            if not np.isfinite(squared_norm(target)):
                raise UpdateRejectedError("the mean of the updates is not finite: an upload was not validated")
    if any(next(chunks, None) is not None for chunks, _ in weighted):
        raise UpdateRejectedError(f"an update holds more numbers than the model's {parameters}")
    return mean


def renormalise(total: Float32, weight: float) -> Float32:
    """The mean of those who are left, float32 (P,): ``total`` of their deltas, whose weights sum to ``weight``."""
    return total if abs(weight - 1.0) < _ROUNDING else total / np.float32(weight)


def _add_chunks(
    target: Float32, group: Sequence[tuple[Iterator[Float32], np.float32]], scratch: Float32, *, first: bool
) -> Float32:
    """Add the next chunk of each source to ``target``, or set it to their sum; gives the part that they cover."""
    chunks = [(next(source, _NONE), weight) for source, weight in group]
    size = len(chunks[0][0])
    for chunk, _ in chunks:
        if chunk.dtype != np.float32 or chunk.ndim != 1:
            raise UpdateRejectedError(f"an update's chunk is {chunk.dtype} of {chunk.ndim} axes, expected flat float32")
        if len(chunk) != size or size == 0 or size > len(target) or (not first and size != len(target)):
            raise UpdateRejectedError(
                f"an update's chunk holds {len(chunk)} numbers where {size if first else len(target)} belong: the "
                "update is too short, too long or cut differently"
            )
    for start in range(0, size, _BLOCK):
        place = slice(start, min(start + _BLOCK, size))
        block, product = target[place], scratch[: place.stop - start]
        rest = iter(chunks)
        if first:
            chunk, weight = next(rest)
            np.multiply(chunk[place], weight, out=block)
        for chunk, weight in rest:
            np.multiply(chunk[place], weight, out=product)
            np.add(block, product, out=block)
    return target[:size]
