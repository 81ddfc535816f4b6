"""Whether somebody is among n people, guessed from a recording of them and the mean of those people's templates.

``python -m examples.reproduce.learning.membership`` writes ``membership.csv`` and the table in ``README.md``.

The mean is what a head that begins centred reveals (:mod:`uvsdk.release.centring`). A draw deals n members from the
people of a domain of :mod:`examples.reproduce.learning.corpus`; all others are not in the mean, and the attacker has
their templates to compare with. The recording is a probe, of the utterance that the template is made of, which flatters
the attacker. The area under the curve is the share of pairs of a member and another in
which the member's score is higher: 0.5 is a guess.

``product``: the recording's embedding times the difference of the released mean and that of the others.
``whitened``: the same, in units of the others' covariance, to which a 192nd of its trace is added on the diagonal.
Somebody who is no member is compared with the mean of the others but them, so both kinds meet a mean without them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from examples.reproduce.learning import corpus
from examples.reproduce.learning.run import Laboratory
from examples.reproduce.record import Row, append, read
from uvsdk.arrays import Float64

HERE = Path(__file__).resolve().parent
DOMAINS: Final = ("telephone", "codec", "far field", "clean")
SIZES: Final = (16, 20, 50, 100)
ATTACKS: Final = ("product", "whitened")
_DRAWS: Final = 60
_TABLE = re.compile(r"<!-- membership -->.*<!-- /membership -->", re.DOTALL)


def area(members: Float64, others: Float64) -> float:
    """Share of pairs in which the member's score is the higher one, ties counting half.

    >>> area(np.array([2.0, 1.0]), np.array([0.0, 1.0, 3.0]))  # 2 beats two of three, 1 beats one and ties with one
    0.5833333333333334
    """
    higher = np.mean(members[:, None] > others[None])
    return float(higher + 0.5 * np.mean(members[:, None] == others[None]))


def guessed(templates: Float64, recordings: Float64, members: int, *, whitened: bool) -> float:
    """The area under the curve of one draw.

    Args:
        templates: float64 (p, d), of everybody.
        recordings: float64 (p, d), one of everybody.
        members: n, the first n of both are in the mean.
        whitened: in units of the others' covariance.

    >>> people = np.eye(4)  # everybody alike but in a direction of their own
    >>> guessed(people, people, 2, whitened=False)
    1.0
    """
    released, apart = templates[:members].mean(axis=0), templates[members:]
    whole = apart.sum(axis=0)
    weight = np.eye(templates.shape[1])
    if whitened:
        spread = np.cov(apart.T)
        weight = np.linalg.inv(spread + np.eye(len(spread)) * np.trace(spread) / len(spread))
    mean, without = whole / len(apart), (whole - apart) / (len(apart) - 1)
    inside = recordings[:members] @ weight @ (released - mean)
    outside = np.sum((recordings[members:] @ weight) * (released - without), axis=1)
    return area(inside, outside)


def rows_of(domain: str) -> list[Row]:
    """Means over draws, and between which values 95 % of the draws lie."""
    laboratory, people = Laboratory(), corpus.load(domain)
    names = sorted(name for name in people if not name.startswith(corpus.STRANGER))
    templates = _unit(np.stack([laboratory.embedded(people[name].enrol).mean(axis=0) for name in names]))
    recordings = np.stack([laboratory.embedded(people[name].probes).mean(axis=0) for name in names]).astype(np.float64)
    rows = []
    for size in SIZES:
        orders = [np.random.default_rng([7, size, draw]).permutation(len(names)) for draw in range(_DRAWS)]
        for attack in ATTACKS:
            found = [
                guessed(templates[order], recordings[order], size, whitened=attack == "whitened") for order in orders
            ]
            low, high = np.quantile(found, (0.025, 0.975)).tolist()
            told = {"auc": float(np.mean(found)), "auc_low": low, "auc_high": high}
            rows += [Row(attack, f"{domain}, {size}", -1, name, value, "area") for name, value in told.items()]
    return rows


def _unit(rows: Float64) -> Float64:
    whole = rows.astype(np.float64)
    found: Float64 = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    return found


def table(rows: list[Row]) -> str:
    """Areas of both attacks, and of the second where 95 % of the draws lie."""
    known = {(row.method, row.setting, row.metric): row.value for row in rows}
    lines = [f"| domain | {' | '.join(f'mean of {size}' for size in SIZES)} |", "|---|" + "---|" * len(SIZES)]
    for domain in DOMAINS:
        cells = []
        for size in SIZES:
            product, whitened = (known[attack, f"{domain}, {size}", "auc"] for attack in ATTACKS)
            low, high = (known[ATTACKS[1], f"{domain}, {size}", f"auc_{end}"] for end in ("low", "high"))
            cells.append(f"{product:.2f}, {whitened:.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {domain} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    results, readme = HERE / "membership.csv", HERE / "README.md"
    for domain in DOMAINS:
        append(results, rows_of(domain))
    filled = f"<!-- membership -->\n{table(read(results))}\n<!-- /membership -->"
    readme.write_text(_TABLE.sub(lambda _: filled, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
