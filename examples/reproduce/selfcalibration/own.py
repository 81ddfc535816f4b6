"""What a device finds out about strangers alone: ``python -m examples.reproduce.selfcalibration.own voice.uvb``.

Under FedUV it can score its samples against codewords that it makes up, under FedMetric against the proxies it was
sent. A head is trained over the frozen model on some people, others only evaluate, and thresholds from such scores,
pooled over all devices, are held against people who took no part. Sources that would need more than a device has, and
a cohort, are there for comparison. A run whose rows are there is not made again; ``--table`` writes them into
README.md, which says more.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from uvsdk.bundle import Bundle
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import TEMPLATE
from uvsdk.scoring.moments import ScoreLaw, unit
from uvsdk.scoring.personal import genuine_threshold
from uvsdk.simulation import Simulation, Tensors

HERE = Path(__file__).parent
SAMPLES = 5
ROUNDS = (20, 60)
RATES = (0.01, 0.001)
DRAWS = 6
INVENTED = 300
"""Codewords that a device makes up."""

_RUN = ("domain", "method", "draw")
COLUMNS = (*_RUN, "rounds", "source", "asked", "fmr")
_TRAINING = {"local_steps": 5, "batch_size": 5, "learning_rate": 0.5}
_SENT = 3.0  # offset_factor of FedMetric's settings
_UNUSED_NUMBERS = 1 << 31  # the server hands numbers out from 0 on

Rows = NDArray[np.float64]
Thresholds = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Part:
    """How many people of a domain train, only evaluate, and are the operator's cohort; all others are strangers."""

    train: int
    evaluate: int
    cohort: int


PARTS = {
    "read speech, 8 kHz, 10 dB": Part(40, 20, 20),
    "letters": Part(8, 4, 0),
    "press photographs": Part(30, 20, 20),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Unit embeddings under the trained head.

    Args:
        trained: of each person who trains, float64 (k, d).
        evaluating: of each person who only evaluates.
        cohort: float64 (m, d), of the people whose features the operator gave the server; may be empty.
        strangers: float64 (n, d), of all who took no part.
        simulation: what the server and the devices hold.
    """

    trained: list[Rows]
    evaluating: list[Rows]
    cohort: Rows
    strangers: Rows
    simulation: Simulation

    def kept(self, name: str) -> Rows:
        """What every device that trains keeps under a name, in the order of ``trained``."""
        memories = self.simulation.memories
        return np.stack([memories[user][name] for user in sorted(memories)]).astype(np.float64)


def main() -> None:
    """Draws of people, each trained once by either method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="*", help="of uvsdk export ge2e and sface")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    parser.add_argument("--output", type=Path, default=HERE / "own.csv")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table of what was measured")
    chosen = parser.parse_args()
    if chosen.table:
        write_table(chosen.output)
        return
    torch.set_num_threads(1)
    done = {tuple(row[name] for name in _RUN) for row in _rows(chosen.output)}
    for path in chosen.bundles:
        bundle = Bundle.open(path)
        known = domains.VOICES if bundle.manifest.modality == "voice" else domains.FACES
        for name in (name for name in PARTS if name in known):
            embedded = domains.embedded(name, bundle, chosen.cache)
            people = [embedded.rows[embedded.person == index] for index in range(embedded.people)]
            for draw in range(DRAWS):
                for method in ("feduv", "fedmetric"):
                    if (name, method, str(draw)) not in done:
                        measure(people, (name, method, str(draw)), chosen.output)


def measure(people: Sequence[NDArray[np.float32]], run: tuple[str, str, str], output: Path) -> None:
    """One training of a domain by a method with the people of a draw; what was found is added to ``output``."""
    name, method, draw = run
    of = of_codewords if method == "feduv" else of_proxies
    found = []
    for rounds, seen in _trained(people, PARTS[name], method, int(draw)):
        rates = _let_in(of(seen, np.random.default_rng([int(draw), rounds])), _true_scores(seen, method))
        rates |= by_cohort(seen, method)
        found += [[*run, rounds, source, asked, f"{rate:.5g}"] for (source, asked), rate in rates.items()]
    fresh = not output.exists()
    with output.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS] * fresh + found)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _trained(people: Sequence[NDArray[np.float32]], part: Part, method: str, draw: int) -> Iterator[tuple[int, Seen]]:
    rng = np.random.default_rng(draw)
    able = [rows for rows in people if len(rows) >= SAMPLES]
    others = [rows for rows in people if len(rows) < SAMPLES]
    order = [able[place] for place in rng.permutation(len(able))]
    dimension = people[0].shape[1]
    out = dimension - 1 if method == "feduv" else dimension  # 255 or 127: a code's length
    head = torch.nn.Linear(dimension, out, bias=False)
    torch.manual_seed(draw)
    (torch.nn.init.eye_ if out == dimension else torch.nn.init.orthogonal_)(head.weight)
    training, rest = order[: part.train], order[part.train :]
    evaluating, rest = rest[: part.evaluate], rest[part.evaluate :]
    cohort, rest = rest[: part.cohort], rest[part.cohort :]
    population = Tensors(
        {f"device {place:03}": torch.from_numpy(rows[:SAMPLES]) for place, rows in enumerate(training)}
    )
    settings = {"least_secret_bits": 32} if method == "feduv" else {}
    config = TrainingConfig(
        "lab", "tensors", "custom", method, rounds=max(ROUNDS), seed=draw, algorithm_settings=settings, **_TRAINING
    )
    simulation = Simulation(config, head, population)
    for rounds in ROUNDS:
        simulation.run(rounds - simulation.committed)
        weight = head.weight.detach().numpy().astype(np.float64)
        enrolled = [[_embedded(rows[:SAMPLES], weight) for rows in group] for group in (training, evaluating)]
        apart = [_embedded(np.concatenate([people[0][:0], *group]), weight) for group in (cohort, [*rest, *others])]
        yield rounds, Seen(enrolled[0], enrolled[1], apart[0], apart[1], simulation)


def _embedded(rows: NDArray[np.float32], weight: Rows) -> Rows:
    return np.asarray(unit(rows @ weight.T), np.float64)


def of_codewords(seen: Seen, rng: np.random.Generator) -> dict[str, Thresholds]:
    """Thresholds under FedUV, by source."""
    enrolled = seen.kept(TEMPLATE)
    length = enrolled.shape[1]
    made_up = invented(length)
    trained, fresh = np.concatenate(seen.trained), np.concatenate(seen.evaluating)
    alone = (fresh @ made_up.T).ravel()
    # Were embeddings mixtures of the K codewords that training knows, their variance, 1 / c along a random codeword,
    # would be 1 / K along those.
    wider = math.sqrt(length / min(len(enrolled), length))
    return {
        "who trains: own samples, invented codewords": _quantiles((trained @ made_up.T).ravel()),
        "who only evaluates: own samples, invented codewords": _quantiles(alone),
        "the same, spread times sqrt(c / K)": _normal(float(alone.mean()), float(alone.std()) * wider),
        "comparison: evaluators' samples, everybody's secret codeword": _quantiles((fresh @ enrolled.T).ravel()),
    }


def invented(length: int) -> Rows:
    """Valid codewords of nobody, float64 (INVENTED, c), by a public rule: an unused number and its SHA-256."""
    code = codewords.code(length, codewords.MESSAGE_BITS[length])
    numbers = range(_UNUSED_NUMBERS, _UNUSED_NUMBERS + INVENTED)
    messages = [code.message(number, hashlib.sha256(number.to_bytes(4, "big")).digest()) for number in numbers]
    return np.stack([code.vector(message) for message in messages]).astype(np.float64)


def of_proxies(seen: Seen, rng: np.random.Generator) -> dict[str, Thresholds]:
    """Thresholds under FedMetric, by source.

    A proxy is A = C + o, C a person's mean embedding. For a vector x that has nothing to do with o, whose direction is
    uniform, x . A has the mean of x . C and a variance larger by |o|^2 / d. Devices are told the offsets' lengths and
    the mean of |C| here, more than the method tells them.
    """
    centres = np.stack([rows.mean(axis=0) for rows in seen.trained])
    templates = np.asarray(unit(centres), np.float64)
    offsets = seen.kept("offset")
    proxies = seen.simulation.state.centres.astype(np.float64)
    directions = np.asarray(unit(proxies), np.float64)
    fresh = np.concatenate(seen.evaluating)
    others = ~np.eye(len(templates), dtype=np.bool_)
    against_others = [
        (rows @ np.delete(directions, place, axis=0).T).ravel() for place, rows in enumerate(seen.trained)
    ]
    dimension = proxies.shape[1]
    length = float(np.linalg.norm(centres, axis=1).mean())
    products = (fresh @ proxies.T).ravel()
    variance = float(products.var() - (offsets**2).sum(axis=1).mean() / dimension)
    published, squares = _published(seen.evaluating, rng)
    theirs = (templates @ published.T).ravel()
    # The mean of k samples holds W / k of the spread within a person; a single sample has all of it.
    within = np.mean([(rows @ templates.T).var(axis=0, ddof=1).mean() for rows in seen.evaluating])
    spread = theirs.var() - squares / dimension + (1.0 - 1.0 / SAMPLES) * within
    return {
        "who trains: template, proxies": _quantiles((templates @ directions.T)[others]),
        "who trains: own samples, proxies": _quantiles(np.concatenate(against_others)),
        "who only evaluates: own samples, proxies": _quantiles((fresh @ directions.T).ravel()),
        "the same, offsets taken out": _normal(float(products.mean()) / length, _root(variance) / length),
        "comparison: templates, proxies that evaluators publish, offsets taken out": _normal(
            float(theirs.mean()), _root(float(spread))
        ),
        "comparison: evaluators' samples, everybody's template": _quantiles((fresh @ templates.T).ravel()),
    }


def _published(people: Sequence[Rows], rng: np.random.Generator) -> tuple[Rows, float]:
    """A proxy of each of these people, float64 (n, d), and the mean square of their offsets' lengths."""
    found, squares = [], []
    for rows in people:
        centre = rows.mean(axis=0)
        radius = float(np.linalg.norm(rows - centre, axis=1).max())
        found.append(centre + _SENT * radius * np.asarray(unit(rng.standard_normal(len(centre)))))
        squares.append((_SENT * radius) ** 2)
    return np.stack(found), float(np.mean(squares))


def _true_scores(seen: Seen, method: str) -> Rows:
    """Every stranger's sample against what everybody who trains is verified by."""
    if method == "feduv":
        return np.asarray(seen.strangers @ seen.kept(TEMPLATE).T)
    templates = unit(np.stack([rows.mean(axis=0) for rows in seen.trained]))
    return np.asarray(seen.strangers @ templates.T)


def by_cohort(seen: Seen, method: str) -> dict[tuple[str, float], float]:
    """What strangers get in at the threshold that a cohort gives, which all devices score their template against: by
    everybody's template, and by those of either kind where there are two. Nothing without a cohort."""
    if not len(seen.cohort):
        return {}
    means = [np.asarray(unit(rows.mean(axis=0)), np.float64) for rows in (*seen.trained, *seen.evaluating)]
    secret = list(seen.kept(TEMPLATE)) if method == "feduv" else []
    learnt = [
        genuine_threshold(rows @ codeword) >= float((seen.cohort @ codeword).max())
        for rows, codeword in zip(seen.trained, secret, strict=False)
    ]
    by_codeword = [codeword for codeword, known in zip(secret, learnt, strict=True) if known]
    by_mean = [mean for place, mean in enumerate(means) if place >= len(learnt) or not learnt[place]]
    everybody = np.stack([*by_codeword, *by_mean])
    kinds = {"a cohort of 20 people of the same domain": everybody}
    if by_codeword:
        kinds["the same cohort: those who are verified by a codeword"] = np.stack(by_codeword)
        kinds["the same cohort: those who are verified by their mean"] = np.stack(by_mean)
    thresholds = _quantiles((seen.cohort @ everybody.T).ravel())
    return {
        (name, asked): float((seen.strangers @ templates.T >= limit).mean())
        for name, templates in kinds.items()
        for asked, limit in thresholds.items()
    }


def _let_in(found: Mapping[str, Thresholds], scores: Rows) -> dict[tuple[str, float], float]:
    return {
        (source, asked): float((scores >= limit).mean())
        for source, thresholds in found.items()
        for asked, limit in thresholds.items()
    }


def write_table(path: Path) -> None:
    """Put the medians [lowest, highest] over draws, in per cent, between the markers of README.md."""
    rates: dict[tuple[str, str, str, str], dict[str, list[float]]] = {}
    for row in _rows(path):
        key = (row["domain"], row["method"], row["source"], row["rounds"])
        rates.setdefault(key, {}).setdefault(row["asked"], []).append(100.0 * float(row["fmr"]))
    lines = ["| domain | method, rounds | source | asked 1 % | in bounds | asked 0.1 % |", "|---|---|---|---|---|---|"]
    for (domain, method, source, rounds), by_rate in rates.items():
        one, tenth = by_rate["0.01"], by_rate["0.001"]
        inside = sum(0.5 <= rate <= 2.0 for rate in one)
        lines.append(
            f"| {domain} | {method}, {rounds} | {source} | {_spread(one)} | {inside} of {len(one)} | {_spread(tenth)} |"
        )
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- own -->")
    after = rest.partition("<!-- end of own -->")[2]
    text = "\n".join([f"{before}<!-- own -->", "", *lines, "", f"<!-- end of own -->{after}"])
    readme.write_text(text, encoding="utf-8")


def _spread(rates: Sequence[float]) -> str:
    middle, low, high = (
        f"{value:.2g}" if value < 99.5 else "100" for value in (np.median(rates), min(rates), max(rates))
    )
    return f"{middle} [{low}, {high}]"


def _quantiles(scores: Rows) -> Thresholds:
    return {rate: float(np.quantile(scores, 1.0 - rate)) for rate in RATES}


def _normal(mean: float, deviation: float) -> Thresholds:
    return {rate: ScoreLaw(mean, deviation).score_at(rate) for rate in RATES}


def _root(variance: float) -> float:
    return math.sqrt(max(variance, 1e-6))


if __name__ == "__main__":
    main()
