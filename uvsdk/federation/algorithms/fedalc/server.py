"""The server's side of FedALC: write the rows that came back, then push apart what does not occur together (SPEC 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from uvsdk.federation.algorithms.fedalc.payload import Payload, Settings, Task
from uvsdk.federation.classes import correlation, matrix, spreadout
from uvsdk.federation.classes.correlation import PairWeights
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.classes.server import labelled_rows
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import Scalar


def pair_weights(state: LabelMatrix, settings: Settings) -> PairWeights | None:
    """The weights of the spreadout; ``None`` where all are 1 and FedALC is FedAwS (SPEC 3.5, 3.7)."""
    counts = state.correlation(settings.smallest_shared)
    if counts.instances == 0 or (len(counts.rows) == 0 and not settings.instance_weighted):
        return None
    weights = correlation.gamma(counts) if settings.weights == "gamma" else correlation.sigma(counts)
    return weights.with_unit_mean() if settings.unit_mean else weights


def _step(
    state: LabelMatrix, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> LabelMatrix:
    """One round: FedAwS' with weighted pairs. The gradient of the weighted sum is 2 (A + A^T) W, A_uv = a_uv slack."""
    written = matrix.write_sent(state.rows, contributions, settings, rng)
    rows = written.indices(item.user for item in contributions)
    pairs = spreadout.Pairs(weights=pair_weights(state, settings))
    for _ in range(settings.spread_steps):
        moved = rows if settings.moved == "participants" else None
        spread = spreadout.step(written.vectors, settings.spreadout(), rng, pairs=pairs, moved=moved)
        written = replace(written, vectors=spread.vectors)
    return replace(state, rows=written)


def _report(state: LabelMatrix, settings: Settings) -> dict[str, Scalar]:
    if not state.rows.started:
        return {}
    counts = state.correlation(settings.smallest_shared)
    return {
        "instances": counts.instances,
        "correlated_pairs": len(counts.rows),
        "linked_pairs": state.count_linked(counts),
        "equals_fedaws": pair_weights(state, settings) is None,
    }


SERVER = labelled_rows(Settings, Task, Payload, check=matrix.check_row, step=_step, report=_report)
