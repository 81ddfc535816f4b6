"""The attack on FedUV's secrecy: codewords read off an update, or off a sum of updates (SPEC 6.6).

The head's gradient is the sum over users of (codeword) x (mean feature), rank one a user. One user's update therefore
has the codeword as its left singular vector, up to a sign. The sum over K users spans K codewords, binary and nearly
independent, which is what independent component analysis separates. The code itself mends the entries that come out
wrong, and the number at the head of a message, which the server knows, tells a codeword from its opposite.

It is here so that tests, and operators, can measure what a training gives away. Neither a frozen head nor a longer code
stops it; secure aggregation over cohorts of twice the head's inputs, and noise, do.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from uvsdk.arrays import Float64, UInt8
from uvsdk.federation.algorithms.feduv.codewords import Code, number_of

_STEPS = 200
_SETTLED = 1e-9


def recover(
    update: Float64,
    code: Code,
    numbers: Collection[int],
    rng: np.random.Generator,
    *,
    users: int = 1,
    restarts: int = 3,
) -> dict[int, UInt8]:
    """The messages, uint8 (k,), that a change of the head gives away, by the number of their user.

    Args:
        update: (c, n_d), the head's change: of one device, or summed over several.
        code: the users' code.
        numbers: b_u of everyone it may be; a message that starts otherwise is not taken for one.
        rng: starting points of the separation.
        users: devices in the sum.
        restarts: separations tried from different starting points.

    Raises:
        ValueError: the update has not c rows.
    """
    if update.ndim != 2 or len(update) != code.length:
        raise ValueError(f"a change of the head has {code.length} rows, got shape {update.shape}")
    known = set(numbers)
    found: dict[int, UInt8] = {}
    components = min(users, *update.shape)
    directions, _, _ = np.linalg.svd(update.astype(np.float64), full_matrices=False)
    basis = directions[:, :components].T * np.sqrt(code.length)
    for _ in range(1 if components == 1 else restarts):
        sources = basis if components == 1 else independent_components(basis, rng)
        positive = sources > 0
        messages, decoded = code.decode(np.concatenate((positive, ~positive)).astype(np.uint8))
        for message in messages[decoded]:
            if number_of(message) in known:
                found[number_of(message)] = message
    return found


def independent_components(rows: Float64, rng: np.random.Generator, *, tolerance: float = _SETTLED) -> Float64:
    """Sources (K, n) that white rows (K, n) are mixtures of, in any order and sign: FastICA with the cubic contrast.

    Source: Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", 1999; symmetric
    orthogonalisation. The cube is the contrast that suits two-valued sources. Every step costs O(K^2 n).

    Args:
        rows: float64, of unit mean square and uncorrelated, as singular vectors are.
        rng: draws the starting rotation.
        tolerance: rotations that change by less are settled.
    """
    count, samples = rows.shape
    # White again after the mean is taken out; sources are read off the rows with their mean.
    centred = rows - rows.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(centred @ centred.T / samples)
    whitening = (vectors / np.sqrt(np.maximum(values, 1e-12))) @ vectors.T
    white = whitening @ centred
    rotation = _orthogonal(rng.standard_normal((count, count)))
    for _ in range(_STEPS):
        projected = rotation @ white
        turned = _orthogonal((projected**3) @ white.T / samples - 3.0 * rotation)
        moved = float(np.abs(np.abs((turned * rotation).sum(axis=1)) - 1.0).max())
        rotation = turned
        if moved < tolerance:
            break
    sources: Float64 = rotation @ (whitening @ rows)
    return sources


def _orthogonal(matrix: Float64) -> Float64:
    """The orthogonal matrix nearest to ``matrix``: U V^T of its singular value decomposition."""
    left, _, right = np.linalg.svd(matrix)
    nearest: Float64 = left @ right
    return nearest
