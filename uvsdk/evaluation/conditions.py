"""Error rates of good and of poor samples: the trials parted by what was measured of their samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.evaluation.rates import Rate, Resampled
from uvsdk.evaluation.trials import Trials

BINS = 4
GENUINE_IN_A_BIN = 10


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """The samples behind each trial: what was measured of them, and their embeddings.

    Args:
        template: quality -> value, a mapping for each template; of several samples as
            :func:`uvsdk.scoring.conditions.together` has it.
        probe: likewise for each probe.
        template_index: int64 (N,), which of ``template`` each trial has.
        probe_index: int64 (N,), which of ``probe``.
        paired: whether templates are single samples too.
        template_rows: float32 (T, d), the embedding of each template, unit rows.
        probe_rows: float32 (P, d), likewise.
    """

    template: Sequence[Mapping[str, float]]
    probe: Sequence[Mapping[str, float]]
    template_index: Int64
    probe_index: Int64
    paired: bool
    template_rows: Float32
    probe_rows: Float32

    def poorer(self, name: str) -> Float64:
        """The quality of each trial, float64 (N,), NaN where unknown: of a pair the lower value, else the probe's."""
        probe = _values(self.probe, name)[self.probe_index]
        return np.minimum(probe, _values(self.template, name)[self.template_index]) if self.paired else probe


@dataclass(frozen=True, slots=True)
class Bin:
    """The trials whose condition lies in [low, high) (the last: [low, high]), and their rates at the threshold."""

    low: float
    high: float
    fnmr: Rate | None
    fmr: Rate | None


def measure(
    trials: Trials, sides: Sides, *, threshold: float, names: Iterable[str], resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[Bin, ...]]:
    """Quality -> bins of about as many genuine trials each; a quality that does not vary enough is left out.

    Args:
        trials: what was compared.
        sides: what was measured of the samples of each trial.
        threshold: the one at which all rates are read.
        names: the qualities to look at, see :attr:`uvsdk.modality.Modality.reported`.
        resamples: of people, for the intervals.
        seed: of these.
    """
    own = trials.is_genuine
    accepted = trials.scores >= threshold
    found: dict[str, tuple[Bin, ...]] = {}
    drawn: Resampled | None = None
    for name in names:
        values = sides.poorer(name)
        edges = _edges(values[own & np.isfinite(values)])
        if edges is None:
            continue
        drawn = drawn or Resampled(trials, resamples=resamples, seed=seed)
        # Impostor trials beyond the ends of the genuine ones belong to the bins at the ends.
        place = np.searchsorted(edges[1:-1], np.nan_to_num(values), side="right").astype(np.int64)
        place[~np.isfinite(values)] = -1
        count = len(edges) - 1
        fnmr = drawn.tally(~accepted, [np.where(own, place, -1)], count)
        fmr = drawn.tally(accepted, [np.where(own, -1, place)], count)
        known = values[np.isfinite(values)]
        edges[0], edges[-1] = known.min(), known.max()
        found[name] = tuple(Bin(float(edges[i]), float(edges[i + 1]), fnmr.rate(i), fmr.rate(i)) for i in range(count))
    return found


def _values(samples: Sequence[Mapping[str, float]], name: str) -> Float64:
    return np.array([sample.get(name, np.nan) for sample in samples], np.float64)


def _edges(values: Float64) -> Float64 | None:
    """Quantiles that part the genuine trials into up to four bins; None where not even two can be made."""
    bins = min(BINS, len(values) // GENUINE_IN_A_BIN)
    if bins < 2:
        return None
    edges: Float64 = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    return edges if len(edges) > 2 else None
