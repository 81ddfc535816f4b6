"""Linear maps and score normalisation that sums over devices would give, in place of training and before it.

``python -m examples.reproduce.learning.linear [--only DOMAIN ...]`` writes ``linear.csv`` and the table in
``README.md``. Nothing of this is in the library but the mean (:mod:`uvsdk.release.centring`).

Everything is made of sums over the people who train: the mean m of their means, the covariance T of these, the
covariance W of single samples around a person's mean. Embeddings e become ``A (e - m)``, of length one.

``within C``: A = (W + C tr(W)/d)^-1/2, within-class covariance normalisation (Hatch et al. 2006); ``of evaluators``
takes W of those who evaluate, which is all that an evaluation sums today.
``total C``: the same with T. ``nuisance K``: A takes the K leading directions of W out (Campbell et al. 2006).
``discriminant``: within 3, then each direction weighted by sqrt(b / (b + c)), with b the variance of people along it
and c the median of these.
``normalised``: of the score of template t and probe p the mean ``t m'`` and variance ``t T' t`` of strangers' scores
are taken off on either side, and both halves averaged; m' and T' are those of the templates after A.
The constants were chosen on ``evaluators``, people who only evaluate, among themselves.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from examples.reproduce.learning import corpus
from examples.reproduce.learning.corpus import Person, Split
from examples.reproduce.learning.figures import Trials, changes
from examples.reproduce.learning.run import HERE, PARTIES, Laboratory
from examples.reproduce.record import Row, append, read
from uvsdk.arrays import Float32, Float64

DOMAINS: Final[Mapping[str, tuple[int, int]]] = {
    "telephone": (100, 40),
    "codec": (100, 40),
    "far field": (100, 40),
    "letters": (8, 8),
}
"""Domain -> how many train and how many only evaluate."""
CHOSEN: Final = "within 3"
SHOWN: Final = (
    "centred",
    "centred, normalised",
    CHOSEN,
    f"{CHOSEN}, normalised",
    "within 10, of evaluators",
    "total 10",
    "nuisance 5",
    "discriminant",
)
"""What the page has; ``linear.csv`` has all."""
SEEDS: Final = 3
_RIDGE: Final = 1e-3
_TABLE = re.compile(r"<!-- linear -->.*<!-- /linear -->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of people's unit embeddings: float64 (d,) and (d, d).

    Args:
        mean: of people's means.
        between: covariance of these.
        within: mean over people of the covariance of their samples around their mean.
        samples: mean number of samples of a person.
    """

    mean: Float64
    between: Float64
    within: Float64
    samples: float

    @classmethod
    def of(cls, people: list[Float64]) -> Sums:
        """Of people's embeddings, float64 (n, d) each.

        >>> found = Sums.of([np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[-1.0, 0.0], [0.0, 1.0]])])
        >>> found.mean.tolist(), found.within.tolist()  # of both 0.5 across; the first's axes lean the other way
        ([0.0, 0.5], [[0.5, 0.0], [0.0, 0.5]])
        """
        means = np.stack([rows.mean(axis=0) for rows in people])
        around = [np.cov(rows.T) for rows in people]
        samples = float(np.mean([len(rows) for rows in people]))
        return cls(means.mean(axis=0), np.cov(means.T, bias=True), np.mean(around, axis=0), samples)


def whitening(covariance: Float64, ridge: float) -> Float64:
    """(C + ridge tr(C)/d)^-1/2.

    >>> whitening(np.diag([3.0, 1.0]), 1.0).round(3).tolist()  # 3 + 2 and 1 + 2
    [[0.447, 0.0], [0.0, 0.577]]
    """
    size = len(covariance)
    values, vectors = np.linalg.eigh(covariance + ridge * np.trace(covariance) / size * np.eye(size))
    found: Float64 = (vectors / np.sqrt(values)) @ vectors.T
    return found


def discriminant(sums: Sums, ridge: float) -> Float64:
    """See ``discriminant`` in the module."""
    white = whitening(sums.within, ridge)
    values, vectors = np.linalg.eigh(white @ (sums.between - sums.within / sums.samples) @ white.T)
    values = np.maximum(values, _RIDGE)
    found: Float64 = np.sqrt(values / (values + np.median(values)))[:, None] * vectors.T @ white
    return found


def maps(own: Sums, evaluators: Sums) -> dict[str, Float64]:
    """A by name, float64 (d, d) each."""
    leading = np.linalg.eigh(own.within)[1][:, ::-1]
    unchanged = np.eye(len(own.mean))
    return {
        "centred": unchanged,
        "within 1": whitening(own.within, 1.0),
        CHOSEN: whitening(own.within, 3.0),
        "within 10": whitening(own.within, 10.0),
        "within 10, of evaluators": whitening(evaluators.within, 10.0),
        "total 3": whitening(own.between, 3.0),
        "total 10": whitening(own.between, 10.0),
        "nuisance 5": unchanged - leading[:, :5] @ leading[:, :5].T,
        "nuisance 20": unchanged - leading[:, :20] @ leading[:, :20].T,
        "discriminant": discriminant(own, 3.0),
    }


_Side = Callable[[Float64], Float64]
"""Makes vectors, float64 (n, d), of which products are scores."""


def sides(templates: Float64) -> tuple[_Side, _Side]:
    """What templates and what probes become, so that their product is the normalised score.

    >>> template, probe = sides(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> row = np.array([[1.0, 0.0]])
    >>> float((template(row) @ probe(row).T).round(2)[0, 0])  # strangers' scores: 0 on average, deviation sqrt(2/3)
    1.22
    """
    mean, covariance = templates.mean(axis=0), np.cov(templates.T)
    covariance = covariance + _RIDGE * np.trace(covariance) / len(mean) * np.eye(len(mean))

    def own(rows: Float64) -> tuple[Float64, Float64, Float64]:
        half = 0.5 / np.sqrt(np.einsum("ni,ij,nj->n", rows, covariance, rows))
        return half[:, None] * rows, -(half * (rows @ mean))[:, None], np.ones((len(rows), 1))

    def template(rows: Float64) -> Float64:
        scaled, offset, one = own(rows)
        return np.hstack([scaled, rows, offset, one])

    def probe(rows: Float64) -> Float64:
        scaled, offset, one = own(rows)
        return np.hstack([rows, scaled, one, offset])

    return template, probe


_People = Mapping[str, Person[Float64]]


def trials(split: Split[Float64], change: _Side, *, normalised: bool) -> dict[str, Trials]:
    """By party, and ``evaluators`` among themselves; ``change`` makes unit vectors of embeddings."""

    def enrolled(people: _People) -> dict[str, Float64]:
        means = {name: change(person.enrol).mean(axis=0) for name, person in people.items()}
        return {name: mean / np.linalg.norm(mean) for name, mean in means.items()}

    template: _Side = lambda rows: rows  # noqa: E731
    probe = template
    if normalised:
        template, probe = sides(np.stack(list(enrolled(split.train).values())))

    def both(people: _People) -> tuple[dict[str, Float64], dict[str, Float64]]:
        made = {name: template(row[None])[0] for name, row in enrolled(people).items()}
        return made, {name: probe(change(person.probes)) for name, person in people.items()}

    (seen, own), (new, others), (tried, heard) = both(split.train), both(split.strangers), both(split.evaluate)
    return {
        "seen": Trials.of(seen, own, own),
        "strangers": Trials.of(seen, own, others),
        "newcomers": Trials.of(new, others, others),
        "evaluators": Trials.of(tried, heard, heard),
    }


def states(domain: str, seed: int, laboratory: Laboratory) -> dict[str, dict[str, Trials]]:
    """Trials by name of the state, the frozen encoder first, then by party."""

    def unit(rows: Float32) -> Float64:
        whole = laboratory.embedded(rows).astype(np.float64)
        found: Float64 = whole / np.linalg.norm(whole, axis=1, keepdims=True)
        return found

    people = {name: Person(unit(one.enrol), unit(one.probes)) for name, one in corpus.load(domain).items()}
    trainers, evaluators = DOMAINS[domain]
    split = corpus.split(people, seed, trainers=trainers, evaluators=evaluators)
    own, apart = (Sums.of([one.enrol for one in part.values()]) for part in (split.train, split.evaluate))

    def changed(matrix: Float64) -> _Side:
        def change(rows: Float64) -> Float64:
            moved = (rows - own.mean) @ matrix.T
            found: Float64 = moved / np.linalg.norm(moved, axis=1, keepdims=True)
            return found

        return change

    found = {"frozen": trials(split, lambda rows: rows, normalised=False)}
    for name, matrix in maps(own, apart).items():
        found[name] = trials(split, changed(matrix), normalised=False)
        if name in ("centred", CHOSEN):
            found[f"{name}, normalised"] = trials(split, changed(matrix), normalised=True)
    return found


def rows_of(domain: str) -> list[Row]:
    """Means over seeds; ``fallen`` against frozen, ``further`` against centred, each with its interval over people."""
    laboratory = Laboratory()
    every = [states(domain, seed, laboratory) for seed in range(SEEDS)]
    rows = []
    for party in (*PARTIES, "evaluators"):
        told = {name: [seed[name][party] for seed in every] for name in every[0]}
        against = {"centred": told["centred"], **told}
        for metric, found in (("fallen", changes(told)), ("further", changes(against))):
            for name, each in found.items():
                figures = {metric: each.fallen, f"{metric}_low": each.low, f"{metric}_high": each.high}
                figures |= {"fnmr": each.fnmr, "eer": each.eer}
                rows += [Row(name, domain, -1, f"{key}_{party}", value, "percent") for key, value in figures.items()]
    return rows


def table(rows: list[Row]) -> str:
    """FNMR at FMR 1 % and EER, and how much of the centred encoder's FNMR is gone."""
    known = {(row.method, row.setting, row.metric): row.value for row in rows}
    lines = [
        "| domain | model | evaluators | against those who took part | against strangers | newcomers |",
        "|---|---|---|---|---|---|",
    ]
    for method, domain in dict.fromkeys((row.method, row.setting) for row in rows if row.method in SHOWN):
        cells = []
        for party in ("evaluators", *PARTIES):
            fnmr, eer, gone, low, high = (
                known[method, domain, f"{name}_{party}"]
                for name in ("fnmr", "eer", "further", "further_low", "further_high")
            )
            cell = f"{fnmr:.1f}, {eer:.1f}"
            cells.append(cell if method == "centred" else f"{cell} ({-gone:+.0f} %: {-high:+.0f} to {-low:+.0f})")
        lines.append(f"| {domain} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(DOMAINS), choices=DOMAINS, metavar="DOMAIN")
    results, readme = HERE / "linear.csv", HERE / "README.md"
    for domain in parser.parse_args().only:
        append(results, rows_of(domain))
    filled = f"<!-- linear -->\n{table(read(results))}\n<!-- /linear -->"
    readme.write_text(_TABLE.sub(lambda _: filled, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
