"""The Bibtex reproduction's rounds are those of the simulation engine, with every instance embedded once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from examples.reproduce.fedalc import laboratory
from examples.reproduce.fedalc.corpus import Corpus, Part, precision
from examples.reproduce.fedalc.federation import Federation
from examples.reproduce.fedalc.trunk import Residual
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation import Engine, Simulation

WORDS, LABELS, EACH = 20, 5, 8


def tiny(seed: int = 0) -> Corpus:
    """24 instances of 5 labels, 8 instances a label, several labels an instance."""
    rng = np.random.default_rng(seed)
    words = np.sort(rng.permuted(np.tile(np.arange(WORDS), (24, 1)), axis=1)[:, :6], axis=1)
    words[::3, 4:] = WORDS  # shorter ones are filled up
    marks = np.zeros((24, LABELS), np.bool_)
    for label in range(LABELS):
        marks[(3 * label + np.arange(EACH)) % 24, label] = True
    part = Part(torch.from_numpy(words), marks)
    return Corpus(part, part, WORDS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedalc", {"initialisation": "random", "smallest_shared": 1, "vector_rate": 0.5}),
        ("fedalc_fixed", {"smallest_shared": 1}),
        ("fedaws", {"initialisation": "random"}),
        ("softmax", {}),
    ],
)
def test_the_rounds_are_those_of_the_engine(name: str, settings: dict[str, Scalar]) -> None:
    corpus = tiny()
    config = TrainingConfig(
        "bibtex",
        "tensors",
        "custom",
        name,
        algorithm_settings=settings,
        batch_size=EACH,
        weighting="samples",
        clipping="off",
        rounds=4,
        seed=3,
    )
    torch.manual_seed(0)
    start = Residual(WORDS, 6, 8, dropout=0.0).state_dict()
    found = []
    for make in (Federation, Simulation):
        trunk = Residual(WORDS, 6, 8, dropout=0.0)
        trunk.load_state_dict(start)
        if make is Federation:
            federation = Federation(config, trunk, corpus, fraction=1.0)
            federation.run()
            found.append((federation.state.theta, federation.class_matrix()[1]))
        else:
            simulation = Simulation(config, trunk, corpus.population(), Engine(batching="large"))
            simulation.run()
            found.append((simulation.theta, simulation.class_matrix()[1]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=2e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=2e-6)


def test_precision_by_hand() -> None:
    scores = np.array([[0.9, 0.9, 0.1, 0.5], [0.0, 0.1, 0.2, 0.3]])
    labels = np.array([[False, True, False, True], [False, False, False, True]])
    # First row ranks 0 1 3 (ties by number): hits at 2 and 3. Second ranks 3 2 1: a hit at 1.
    assert precision(scores, labels, (1, 3)) == [50.0, pytest.approx(100 * 3 / 6)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ridge_by_hand() -> None:
    corpus = tiny()
    scores = laboratory.ridge(corpus, 0)
    assert scores.shape == (24, LABELS)
    assert np.isfinite(scores).all()
    assert precision(scores, corpus.test.labels, (1,))[0] > 60
