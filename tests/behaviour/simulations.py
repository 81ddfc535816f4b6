"""Twenty simulated rounds of a method on scikit-learn's digits, ten classes that play ten people."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests.behaviour import values
from tests.integration.harness import PEPPER
from tests.integration.method_run import CHANGES
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import canonical_instance, hash_instance, hash_person
from uvsdk.simulation import Engine, Frozen, Prepared, Simulation, experiment
from uvsdk.simulation.population import Identity

ROUNDS, SAMPLES, SEED = 20, 10, 11
LOOKS = (1, 4, ROUNDS)
"""Rounds after which the model is looked at."""

DIRECTIONS = 4

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "drift control": (
        "fedaws",
        {
            "control_variates": True,
            "proximal": 0.01,
            "gradient_clip": 1.0,
            "optimiser": "adam",
            "server_learning_rate": 0.003,
            "warmup_rounds": 3,
            "cooldown_rounds": 5,
            "weighting": "capped",
            "samples_cap": 8,
            "clipping": "fixed",
        },
    ),
    "trained in part": ("fedaws", {"train": "head"}),
    "approximate neighbours": ("fedaws", {"algorithm_settings": {"neighbours_index": "approximate", "exact_limit": 0}}),
    "one large batch": ("fedaws", {"local_steps": 1, "clipping": "off"}),
}
"""Beside every method as it is configured first: what rounds can do beside a method, and other ways to compute."""


def configured(algorithm: str, changes: dict[str, Any]) -> TrainingConfig:
    base = {
        "backbone": "digits-cnn",
        "learning_rate": 0.003,
        "local_steps": 2,
        "batch_size": 4,
        "optimiser": "momentum",
        "rounds": ROUNDS,
        "cohort_size": 8,
        "seed": SEED,
    }
    return TrainingConfig(
        "behaviour", "handwriting", algorithm=algorithm, **(base | CHANGES.get(algorithm, {}) | changes)
    )


def simulated(name: str) -> dict[str, Any]:
    """What comes of the method, or of the variant, of that name."""
    algorithm, changes = VARIANTS.get(name, (name, {}))
    config = configured(algorithm, changes)
    module, bundle = experiment.trunk_of(config.backbone, seed=SEED, train=config.train)
    run = Simulation(config, module, population(bundle), Engine(failure_rate=0.1))
    start, records, looks = run.theta.copy(), [], {}
    for until in LOOKS:
        records += run.run(until - run.round_id)
        looks[str(until)] = moved(run.theta, start)
    return {
        "theta": values.of_array(run.theta),
        "moved": looks,
        "state": values.of_record(run.state),
        "optimiser": values.of_record(run.optimiser),
        "memories": values.of_record(run.memories),
        "participants": [record.participants for record in records],
        "first losses": [record.loss for record in records[:4]],
        "losses": values.of_array(np.array([record.loss for record in records])),
    }


def moved(theta: Float32, start: Float32) -> dict[str, Any]:
    """How far a model went: as a length, and along fixed directions as parts of that length."""
    way = theta.astype(np.float64) - start
    length = float(np.linalg.norm(way))
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], (DIRECTIONS, len(way)))
    return {"length": length, "along": [float(value) for value in signs @ way / length]}


def population(bundle: Bundle) -> Prepared | Frozen:
    """Ten devices; of each two neighbours both hold one page of the first, and the last two are one person."""
    people = pages(SAMPLES)
    names = sorted(people)
    held = {
        name: (*people[name], people[names[place - 1]][0]) if place % 2 else people[name]
        for place, name in enumerate(names)
    }
    known = {name: identity(names[-2] if name == names[-1] else name, pages) for name, pages in held.items()}
    if bundle.manifest.train == "all":
        return Prepared(held, bundle.manifest, known)
    return Frozen.of(held, bundle, known)


def identity(person: str, held: tuple[Array, ...]) -> Identity:
    hashes = {hash_instance(canonical_instance(item), deployment="behaviour", pepper=PEPPER) for item in held}
    rows = np.frombuffer(b"".join(sorted(hashes)), np.uint8).reshape(-1, 32)
    return Identity(rows, hash_person(person, deployment="behaviour", pepper=PEPPER))


@cache
def pages(size: int) -> dict[str, tuple[Array, ...]]:
    """Ten classes, as many prepared pages of each."""
    bundle = experiment.trunk_of("digits-cnn")[1]
    people = experiment.load(experiment.DIGITS, bundle, held_out=0.0, unseen=0.0, seed=SEED).train
    return {name: tuple(found[:size]) for name, found in people.items()}
