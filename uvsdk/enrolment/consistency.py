"""Whether the samples of one enrolment are of one person.

Samples are joined step by step, always the two groups whose means are most alike (agglomerative clustering, centroid
linkage), as long as the means look like those of one person. Whoever holds more than half of the samples is taken for
the person; everybody else's are outliers. Where nobody does, the samples contradict each other.

What one person looks like is known from the bundle's calibration: the cosine that one in a hundred impostors reaches.
Measured with it (``tests/benchmarks/enrolment``), genuine samples are refused hardly ever and nearly every planted
foreign one is. Without calibration the samples are judged by each other, which takes at least three of them and is
weaker: two groups are apart where they lie :data:`APART` times as far from each other as the samples inside them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from uvsdk.arrays import Bool, Float32, Float64, Int64
from uvsdk.scoring import Calibration, Scale
from uvsdk.scoring.personal import leave_one_out

IMPOSTOR_RATE: Final = 0.01
"""Two groups whose means score below the threshold of this false match rate are of two people. It does not follow an
application to lower rates: at 0.1 % it would refuse genuine short recordings."""

APART: Final = 2.0
"""How many times farther from each other than inside, in cosine distance, two groups lie that are of two people."""

FAR: Final = 0.4
"""Cosine distance below which groups are never apart without calibration, so that two pictures of one moment do not
make the third, of another day, an outlier."""


def limit(calibration: Calibration | None, fmr: float = IMPOSTOR_RATE, *, scale: Scale = "cosine") -> float | None:
    """The value below which two groups are of two people; ``None`` where it must be judged by the samples.

    Args:
        calibration: impostor scores. With fewer than 300 the value is the one at the lowest rate they support.
        fmr: the rate the person is verified at; where it is higher, samples need not be more alike than probes.
        scale: ``llr`` only where the calibration has a ratio, else ``None``.
    """
    if calibration is None or (scale == "llr" and calibration.ratio is None):
        return None
    lowest = calibration.lowest_fmr(scale)
    if lowest >= 1.0:
        return None
    return calibration.threshold(max(IMPOSTOR_RATE, fmr, float(np.nextafter(lowest, 1.0))), scale).score


def groups(embeddings: Float32, *, same: float | None) -> list[Int64]:
    """The people behind the samples, each as the ascending indices of theirs; the largest first, then the earliest.

    Args:
        embeddings: float32 (n, d), unit rows.
        same: cosine from which two groups are one person's, from :func:`limit`.
    """
    merges = _merges(embeddings.astype(np.float64))
    found = _joined(len(embeddings), merges, same) if same is not None else _parted(len(embeddings), merges)
    return sorted(
        (np.array(sorted(group), np.int64) for group in found), key=lambda group: (-len(group), int(group[0]))
    )


def majority(embeddings: Float32, *, same: float | None) -> Int64 | None:
    """Indices of the samples of whoever holds more than half of them; ``None`` where nobody does.

    >>> import numpy as np
    >>> majority(np.array([[1, 0], [0, 1], [0.8, 0.6]], np.float32), same=0.7).tolist()
    [0, 2]
    """
    if not len(embeddings):
        return None
    largest = groups(embeddings, same=same)[0]
    return largest if 2 * len(largest) > len(embeddings) else None


def like(embeddings: Float32, anchor: Float32, *, same: float | None) -> Bool:
    """Which samples are of the person behind ``anchor``: for enrolments that are extended, where it is no question
    whose they are.

    Args:
        embeddings: float32 (n, d), unit rows, the new samples.
        anchor: float32 (m, d), unit rows, m >= 1, the samples enrolled already.
        same: from :func:`limit`; without it a sample may lie :data:`APART` times as far as the farthest of the anchor's
            lies from the others, or :data:`FAR`.
    """
    scores = _scores(embeddings, anchor)
    if same is None:
        widest = 1.0 - float(leave_one_out(anchor).min()) if len(anchor) > 1 else 0.0
        same = 1.0 - max(APART * widest, FAR)
    alike: Bool = scores >= same
    return alike


def similarity(embedding: Float32, group: Float32, *, among: bool) -> float | None:
    """Cosine of one sample with the mean of a group, ``None`` where nobody else is in it.

    Args:
        embedding: float32 (d,), unit.
        group: float32 (n, d), unit rows.
        among: whether the sample is one of the group, and so left out of the mean.
    """
    if len(group) <= among:
        return None
    others = group.astype(np.float64).sum(axis=0) - (embedding if among else 0.0)
    return float(np.clip(embedding.astype(np.float64) @ others / max(float(np.linalg.norm(others)), 1e-12), -1.0, 1.0))


def _scores(embeddings: Float32, group: Float32) -> Float64:
    """Cosine of each row with the mean of ``group``, float64 (n,)."""
    mean = group.astype(np.float64).sum(axis=0)
    return np.asarray(embeddings.astype(np.float64) @ (mean / max(float(np.linalg.norm(mean)), 1e-12)), np.float64)


Merge = tuple[frozenset[int], frozenset[int], float]
"""Two groups of indices and the cosine of their means."""


def _merges(rows: Float64) -> list[Merge]:
    """All n - 1 merges, in order; of equally similar pairs the one that comes first."""
    members = [frozenset([place]) for place in range(len(rows))]
    sums = list(rows)
    merges: list[Merge] = []
    while len(members) > 1:
        lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        unit = np.asarray(sums) / lengths
        cosines = unit @ unit.T
        cosines[np.tril_indices(len(sums))] = -np.inf
        first, second = divmod(int(np.argmax(cosines)), len(sums))
        merges.append((members[first], members[second], float(cosines[first, second])))
        members[first], sums[first] = members[first] | members[second], sums[first] + sums[second]
        del members[second], sums[second]
    return merges


def _joined(count: int, merges: list[Merge], same: float) -> list[frozenset[int]]:
    """The groups that are left once no two means score ``same``."""
    left = {frozenset([place]) for place in range(count)}
    for first, second, cosine in merges:
        if cosine < same:
            break
        left -= {first, second}
        left.add(first | second)
    return list(left)


def _parted(count: int, merges: list[Merge]) -> list[frozenset[int]]:
    """The groups that are apart when all are cut where their halves lie far from each other, from the top down."""
    halves = {first | second: (first, second, 1.0 - cosine) for first, second, cosine in merges}
    width: dict[frozenset[int], float] = {}
    for first, second, cosine in merges:
        width[first | second] = max(1.0 - cosine, width.get(first, 0.0), width.get(second, 0.0))
    left, done = [frozenset(range(count))] if count else [], []
    while left:
        group = left.pop()
        first, second, distance = halves.get(group, (group, group, 0.0))
        inside = max(width.get(first, 0.0), width.get(second, 0.0))
        # Two single samples have no inside to compare with.
        if len(group) > 2 and distance > max(APART * inside, FAR):
            left += [first, second]
        else:
            done.append(group)
    return done
