"""How a simulation computes, and what it tells of each round."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.errors import SettingsError

BATCHINGS = ("auto", "large", "stacked", "loop")
"""How devices are trained in one process, see :class:`Engine`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How a simulation computes; none of it changes what is computed, up to float32 rounding, but ``failure_rate``.

    Layers that draw numbers (dropout) draw others under another ``batching`` or ``chunk_clients``: a loop seeds them
    for each device, the others for each chunk. The same engine and seed give the same bits.

    Args:
        batching: ``loop`` trains one device after another by the function that a real device uses, ``stacked`` many
            side by side on stacked parameters, ``large`` all as one batch, which one local step allows where updates
            are not clipped (``clipping`` off); ``auto`` is ``large`` where that gives the same, else ``stacked``.
        chunk_clients: devices trained at once; 0 for what fits about 256 MB.
        failure_rate: share of the selected devices that fail in a round, drawn anew each round.
        threads: threads torch may use.
    """

    batching: str = "auto"
    chunk_clients: int = 0
    failure_rate: float = 0.0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.batching not in BATCHINGS:
            raise SettingsError(f"batching {self.batching!r} is not one of {BATCHINGS}")
        if self.chunk_clients < 0 or self.threads < 1:
            raise SettingsError("chunk_clients cannot be negative and threads is at least 1")
        if not 0 <= self.failure_rate <= 1:
            raise SettingsError(f"failure_rate is {self.failure_rate}; it is a share of the devices, 0 to 1")


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What came of one round.

    Args:
        round_id: 1, 2, ...; an aborted round has a number too.
        loss: mean over participants, weighted as their deltas, of the last local step's loss; NaN when aborted.
        participants: devices whose update counts.
        failed: selected devices without one.
        seconds: wall-clock time.
        mean_cosine: mean off-diagonal cosine of the class matrix after the round, NaN where there is none.
        mean_norm: L2 norm of the mean delta, NaN when aborted; it falls as training settles.
        largest_ratio: how far the server's step moved a tensor of the trunk at most, as a part of its norm; NaN when
            aborted.
        committed: whether the round changed anything; fewer updates than the quorum abort it.
    """

    round_id: int
    loss: float
    participants: int
    failed: int
    seconds: float
    mean_cosine: float
    mean_norm: float
    largest_ratio: float
    committed: bool
