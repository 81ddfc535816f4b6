"""FedAwS, Table 4: how many neighbours are pushed apart and how hard, on the 200-speaker corpus."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from examples.reproduce.record import Row
from examples.reproduce.speakers import protocol
from examples.reproduce.speakers.protocol import Corpus
from uvsdk.evaluation import ranking
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation import Engine, Simulation

MODES = ("topk_neg_sq", "hinge")
NEIGHBOURS = (3, 10, 30, protocol.TRAIN - 1)
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""lambda x eta_s, of which only the product acts."""

ROUNDS = 300
_COHORT, _VIEWS = 20, 4
_SWEPT_NEIGHBOURS, _SWEPT_STEP = 10, 0.1


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the table."""

    mode: str
    neighbours: int
    step: float

    @property
    def setting(self) -> str:
        """Its name in results.csv."""
        k = "all" if self.neighbours == protocol.TRAIN - 1 else self.neighbours
        return f"{self.mode} k={k} step={self.step:g}"

    def algorithm(self) -> Mapping[str, Scalar]:
        """Settings of FedAwS; ``exact_limit`` makes hinge, too, look at the nearest of those who took part only."""
        return {"mode": self.mode, "neighbours": self.neighbours, "step": self.step, "exact_limit": 1}


def cells(seed: int) -> list[Cell]:
    """The k sweep for every seed, the step sweep beside it for seed 0."""
    found = [Cell(mode, k, _SWEPT_STEP) for mode, k in itertools.product(MODES, NEIGHBOURS)]
    if seed == 0:
        found += [Cell(mode, _SWEPT_NEIGHBOURS, step) for mode, step in itertools.product(MODES, STEPS)]
    return list(dict.fromkeys(found))


def config(cell: Cell, seed: int) -> TrainingConfig:
    """The training of ``examples/reproduce/speakers`` with half the rounds and half the devices in a round."""
    return TrainingConfig(
        deployment="speakers",
        modality="tensors",
        backbone="speaker-statistics",
        algorithm="fedaws",
        algorithm_settings=dict(cell.algorithm()),
        cohort_size=_COHORT,
        batch_size=_VIEWS,
        learning_rate=0.1,
        weighting="samples",
        clipping="off",
        optimiser="adam",
        server_learning_rate=2e-3,
        server_adaptivity=1e-8,
        warmup_rounds=ROUNDS // 10,
        cooldown_rounds=ROUNDS // 2,
        rounds=ROUNDS,
        seed=seed,
    )


def run(cell: Cell, seed: int, corpus: Corpus) -> list[Row]:
    """Train and measure one cell."""
    started = time.perf_counter()
    trunk = protocol.statistics_trunk(corpus.public().features.flatten(0, 1), seed)
    simulation = Simulation(config(cell, seed), trunk, corpus.train.population(), engine=Engine())
    simulation.run()
    seconds = time.perf_counter() - started
    unseen = protocol.embed(simulation.trunk, corpus.test)
    seen = protocol.embed(simulation.trunk, corpus.seen)
    names, vectors = simulation.class_matrix()
    order = [names.index(name) for name in corpus.seen.names]
    own = np.repeat(np.eye(len(order), dtype=np.bool_), seen.shape[1], axis=0)
    scores = seen.reshape(-1, seen.shape[-1]).astype(np.float64) @ vectors[order].T
    figures = {
        "eer_unseen": (100 * protocol.metrics.eer(protocol.single_trials(unseen).curve()), "percent"),
        "top1": (100 * ranking.precision_at_k(scores, own, k=1), "percent"),
        "mean_cosine": (ranking.collapse(vectors, np.arange(len(vectors))).mean_cosine, "cosine"),
        "training_time": (seconds, "seconds"),
    }
    return [Row("fedaws", cell.setting, seed, metric, value, unit) for metric, (value, unit) in figures.items()]
