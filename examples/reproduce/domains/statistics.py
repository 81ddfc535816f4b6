"""What a single photograph shows of another camera: ``python -m examples.reproduce.domains.statistics face.uvb``.

Every statistic of one embedding that is at hand: of strangers of the calibration's own kind (the other half of the
press photographs), against portraits of one laboratory, and grey and coarse copies. See README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from examples.reproduce.domains import samples
from examples.reproduce.domains.run import MAIN, SEED, SHIFTS
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.evaluation import calibrating
from uvsdk.evaluation.observations import Observations
from uvsdk.modality import get
from uvsdk.scoring.domain import Domain

FALSE_ALARM = 0.05
_NEIGHBOURS = 10

Statistic = Callable[[Observations], Float64]


def main() -> None:
    """Print, for each statistic and set, area under the curve and what is noticed at a false alarm of 5 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="of uvsdk export")
    bundle = Bundle.open(parser.parse_args().bundle)
    modality = bundle.manifest.modality
    seen = samples.load(MAIN[modality], bundle, seed=SEED)
    people = np.random.default_rng(SEED).permutation(np.unique(seen.person))
    card, own = seen.of(np.sort(people[::2])), _originals(seen.of(np.sort(people[1::2])))
    others = {name: _originals(samples.load(name, bundle, seed=SEED)) for name in SHIFTS[modality]}
    held_out = {int(person) for person in np.unique(own.person)}
    print("statistic", *(f"{name}: area, noticed" for name in others), sep=" | ")
    for name, statistic in statistics(card, bundle).items():
        inside = statistic(own)
        told = []
        for other, shifted in others.items():
            values = statistic(shifted)
            if other != "studio":  # copies of the same people: of those that did not calibrate
                values = values[[int(person) in held_out for person in shifted.person]]
            told.append("{:.2f}, {:.0%}".format(*separation(inside, values)))
        print(name, *told, sep=" | ", flush=True)


def statistics(card: Observations, bundle: Bundle) -> dict[str, Statistic]:
    """By name: of embeddings, against the people of ``card``; and of what is measured in the picture."""
    people = _originals(card)
    rows = people.embeddings.astype(np.float64)
    mean = rows.mean(axis=0)
    covariance = np.cov(rows.T)
    plain = Domain.of_people(people.embeddings, people.person)
    fitted = calibrating.fit(
        card,
        model_version=bundle.version,
        source="half",
        directions=get(bundle.manifest.modality).directions,
        seed=SEED,
    ).calibration
    assert plain is not None
    assert fitted.ratio is not None
    assert fitted.domain is not None
    domain, compensation = fitted.domain, fitted.ratio.compensation
    ridged = np.linalg.inv(covariance + np.eye(len(mean)) * np.trace(covariance) / len(mean))
    sharp = np.linalg.inv(covariance + np.eye(len(mean)) * np.trace(covariance) / len(mean) / 10)
    kinds = [kind.name for kind in card.kinds]

    def each(one: Callable[[Float32], float]) -> Statistic:
        return lambda seen: np.array([one(row) for row in seen.embeddings])

    def scores(seen: Observations) -> Float64:
        return np.asarray(seen.embeddings.astype(np.float64) @ rows.T, np.float64)

    def quadratic(matrix: Float64) -> Statistic:
        return lambda seen: np.einsum("ni,ij,nj->n", seen.embeddings - mean, matrix, seen.embeddings - mean)

    def standardised(seen: Observations) -> Float64:
        found = scores(seen)
        centred = found - found.mean(axis=1, keepdims=True)
        return np.asarray((centred**3).mean(axis=1) / found.std(axis=1) ** 3)

    def measured(kind: str) -> Statistic:
        return lambda seen: np.array([row.get(kind, np.nan) for row in seen.conditions])

    found: dict[str, Statistic] = {
        "D, 60 directions, compensated (the guard)": each(lambda row: domain.distance(compensation.apply(row))),
        "D, 60 directions, cosine (the guard)": each(plain.distance),
        "D, every direction": quadratic(ridged),
        "D, every direction, a tenth of the ridge": quadratic(sharp),
        "share of the offset outside of 60 directions": each(lambda row: _outside(plain, row)),
        "cosine to the mean": each(lambda row: float(row @ mean) / float(np.linalg.norm(mean))),
        "length of the compensated remainder": each(lambda row: float(np.linalg.norm(compensation.remainder(row)))),
        "mean score with the card's people": lambda seen: scores(seen).mean(axis=1),
        "deviation of these scores": lambda seen: scores(seen).std(axis=1),
        "skewness of these scores": standardised,
        "the ten highest of these scores": lambda seen: np.sort(scores(seen), axis=1)[:, -_NEIGHBOURS:].mean(axis=1),
    }
    return found | {f"measured: {kind}": measured(kind) for kind in kinds}


def separation(inside: Float64, shifted: Float64) -> tuple[float, float]:
    """Area under the curve, and the share noticed at :data:`FALSE_ALARM`, on the side that separates better."""
    inside, shifted = inside[np.isfinite(inside)], shifted[np.isfinite(shifted)]
    if not len(inside) or not len(shifted):
        return 0.5, FALSE_ALARM
    order = np.sort(inside)
    below = np.searchsorted(order, shifted, "left") + np.searchsorted(order, shifted, "right")
    area = float(below.mean()) / (2 * len(order))
    if area < 0.5:
        return 1 - area, float((shifted < np.quantile(inside, FALSE_ALARM)).mean())
    return area, float((shifted > np.quantile(inside, 1 - FALSE_ALARM)).mean())


def _outside(domain: Domain, row: Float32) -> float:
    offset = row.astype(np.float64) - domain.mean
    along = domain.directions.astype(np.float64) @ offset
    return 1.0 - float(along @ along) / float(offset @ offset)


def _originals(seen: Observations) -> Observations:
    return seen.of(np.unique(seen.person)) if not seen.copy.any() else _only(seen)


def _only(seen: Observations) -> Observations:
    kept = seen.copy == 0
    return Observations(
        seen.embeddings[kept],
        seen.person[kept],
        seen.recording[kept],
        seen.copy[kept],
        seen.enrolled[kept],
        tuple(row for row, keep in zip(seen.conditions, kept, strict=True) if keep),
        seen.copies,
        seen.kinds,
    )


if __name__ == "__main__":
    main()
