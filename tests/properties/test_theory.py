"""What the papers prove, and what they do not, as tests on random instances in float64 (SPEC 13).

``tests/README.md`` says where each of its ten items is tested.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.builders import unit
from tests.federated_run import Outcome, manifest_of, run
from uvsdk.arrays import Array, Float64
from uvsdk.federation import aggregation, algorithms, streams
from uvsdk.federation.classes import matrix, spreadout
from uvsdk.federation.classes.spreadout import Pairs, Spreadout
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution
from uvsdk.records import codec
from uvsdk.training import backbones
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob

seeds = st.integers(0, 2**32 - 1)


def instance(seed: int, *, largest: int = 8) -> tuple[Float64, Float64, np.ndarray]:
    """Class vectors W (C, d), embeddings g (n, d) scattered around their class's vector, labels."""
    rng = np.random.default_rng(seed)
    count, dimension, samples = int(rng.integers(2, largest)), int(rng.integers(2, 6)), int(rng.integers(1, 40))
    vectors = unit(rng.standard_normal((count, dimension)))
    labels = rng.integers(0, count, samples)
    noise = rng.choice([0.05, 0.3, 1.0, 3.0])
    return vectors, unit(vectors[labels] + noise * rng.standard_normal((samples, dimension))), labels


def chord(cosines: Float64) -> Float64:
    return np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines))


# S0 Prop 1: error rate against mean distance to the own vector (eps) and least distance of two vectors (rho).


@pytest.mark.parametrize("distance", ["chord", "angle"])
@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_proposition_1_holds_for_a_metric(distance: str, seed: int) -> None:
    vectors, embeddings, labels = instance(seed)
    measure = chord if distance == "chord" else lambda cosines: np.arccos(np.clip(cosines, -1, 1))
    scores = embeddings @ vectors.T
    errors = (scores.max(axis=1) > scores[np.arange(len(labels)), labels] + 1e-12).mean()
    between = measure(vectors @ vectors.T)[~np.eye(len(vectors), dtype=bool)].min()
    assume(between > 1e-6)
    mean_own = measure(scores[np.arange(len(labels)), labels]).mean()
    assert errors <= 2 * mean_own / between + 1e-9


def test_proposition_1_fails_for_the_cosine_distance() -> None:
    # w_y and w_z at 60 degrees, every embedding of y at 31 degrees from w_y: all are errors (P = 1).
    # 2 eps / rho = 2 (1 - cos 31) / (1 - cos 60) = 0.571 < 1; at the middle it is 2 (1 - cos 30) / 0.5 = 0.536.
    own = 1 - math.cos(math.radians(31))
    rho = 1 - math.cos(math.radians(60))
    assert 1 - math.cos(math.radians(29)) < own  # the other vector is nearer
    assert 2 * own / rho < 1.0
    assert 2 * (1 - math.cos(math.radians(30))) / rho == pytest.approx(0.536, abs=1e-3)
    assert 4 * own / rho >= 1.0


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_the_cosine_distance_obeys_the_bound_with_four(seed: int) -> None:
    vectors, embeddings, labels = instance(seed)
    scores = embeddings @ vectors.T
    own = scores[np.arange(len(labels)), labels]
    errors = (scores.max(axis=1) > own + 1e-12).mean()
    between = (1 - vectors @ vectors.T)[~np.eye(len(vectors), dtype=bool)].min()
    assume(between > 1e-6)
    assert errors <= 4 * (1 - own).mean() / between + 1e-9
    a, b, c = unit(np.random.default_rng(seed).standard_normal((3, 4)))
    assert 1 - a @ c <= 2 * ((1 - a @ b) + (1 - b @ c)) + 1e-12


# Losses of the paper's theory: positive part (1 - s)^2, contrastive part on scores, spreadout part on class vectors.


def contrastive(embedding: Float64, vectors: Float64, label: int, margin: float) -> float:
    scores = vectors @ embedding
    others = np.delete(scores, label)
    return float((1 - scores[label]) ** 2 + (np.maximum(0.0, margin - (1 - others)) ** 2).sum())


def spread(embedding: Float64, vectors: Float64, label: int, margin: float) -> float:
    between = np.delete(vectors @ vectors[label], label)
    return float((1 - vectors[label] @ embedding) ** 2 + (np.maximum(0.0, margin - (1 - between)) ** 2).sum())


@given(seed=seeds, margin=st.floats(1.001, 1.999))
@settings(max_examples=200, deadline=None)
def test_lemma_1(seed: int, margin: float) -> None:
    vectors, embeddings, labels = instance(seed)
    for embedding, label in zip(embeddings, labels, strict=True):
        scores = vectors @ embedding
        if np.delete(scores, label).max() >= scores[label]:
            assert contrastive(embedding, vectors, int(label), margin) >= margin**2 / 2 - 1e-9
    assert margin**2 / 2 >= 2 * (margin - 1)


def test_lemma_1_is_tight() -> None:
    # Both scores equal s: (1 - s)^2 + (nu - 1 + s)^2 is least, nu^2 / 2, at s = 1 - nu / 2.
    margin = 1.2
    s = 1 - margin / 2
    angle = math.acos(s)
    vectors = np.array([[math.cos(angle), math.sin(angle)], [math.cos(angle), -math.sin(angle)]])
    assert contrastive(np.array([1.0, 0.0]), vectors, 0, margin) == pytest.approx(margin**2 / 2)


@given(seed=seeds, margin=st.floats(1.001, 1.999))
@settings(max_examples=200, deadline=None)
def test_theorem_1(seed: int, margin: float) -> None:
    vectors, embeddings, labels = instance(seed)
    for embedding, label in zip(embeddings, labels, strict=True):
        gap = abs(spread(embedding, vectors, int(label), margin) - contrastive(embedding, vectors, int(label), margin))
        residue = vectors[label] - embedding
        assert gap <= 2 * margin * np.abs(np.delete(vectors @ residue, label)).sum() + 1e-9


def test_theorem_1_is_nearly_tight() -> None:
    # nu near 2 and both scores near 1: the derivative of the squared hinge is 2 (nu - 1 + s), near 2 nu.
    margin, near = 1.9999, math.radians(0.05)
    vectors = np.array([[1.0, 0.0], [math.cos(near), math.sin(near)]])
    embedding = np.array([math.cos(near / 100), -math.sin(near / 100)])
    gap = abs(spread(embedding, vectors, 0, margin) - contrastive(embedding, vectors, 0, margin))
    bound = 2 * margin * abs(vectors[1] @ (vectors[0] - embedding))
    assert 0.9999 < gap / bound <= 1.0


def regularised_risk(
    vectors: Float64, embeddings: Float64, labels: np.ndarray, weight: Float64, margin: float
) -> float:
    """(1/n) sum of (1 - s)^2, plus the spreadout with pair weights, as the SDK computes it."""
    own = (embeddings * vectors[labels]).sum(axis=1)
    options = Spreadout(margin=margin)
    return float(((1 - own) ** 2).mean()) + spreadout.regulariser(vectors, options, Pairs(weights=weight))


@given(seed=seeds, margin=st.floats(1.001, 1.999))
@settings(max_examples=60, deadline=None)
def test_proposition_2_balanced(seed: int, margin: float) -> None:
    rng = np.random.default_rng(seed)
    count, each = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    vectors = unit(rng.standard_normal((count, 4)))
    labels = np.repeat(np.arange(count), each)
    embeddings = unit(rng.standard_normal((len(labels), 4)))
    mean = np.mean([spread(g, vectors, int(c), margin) for g, c in zip(embeddings, labels, strict=True)])
    uniform = np.full((count, count), 1 / count)
    assert regularised_risk(vectors, embeddings, labels, uniform, margin) == pytest.approx(mean, abs=1e-12)


@given(seed=seeds, margin=st.floats(1.001, 1.999))
@settings(max_examples=60, deadline=None)
def test_proposition_2_unbalanced_needs_the_class_shares(seed: int, margin: float) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 7))
    sizes = rng.integers(1, 9, count)
    vectors = unit(rng.standard_normal((count, 4)))
    labels = np.repeat(np.arange(count), sizes)
    embeddings = unit(rng.standard_normal((len(labels), 4)))
    mean = np.mean([spread(g, vectors, int(c), margin) for g, c in zip(embeddings, labels, strict=True)])
    shares = np.repeat((sizes / sizes.sum())[:, None], count, axis=1)
    assert regularised_risk(vectors, embeddings, labels, shares, margin) == pytest.approx(mean, abs=1e-12)


def test_proposition_2_unbalanced_fails_with_one_over_c() -> None:
    # Three classes, two of them 60 degrees apart and small, one far from both and large.
    vectors = np.array([[1.0, 0.0], [0.5, math.sqrt(3) / 2], [-1.0, 0.0]])
    labels = np.array([0, 1] + [2] * 8)
    embeddings = vectors[labels]
    mean = np.mean([spread(g, vectors, int(c), 1.2) for g, c in zip(embeddings, labels, strict=True)])
    got = regularised_risk(vectors, embeddings, labels, np.full((3, 3), 1 / 3), 1.2)
    assert abs(got - mean) > 0.1


@pytest.mark.parametrize("mode", spreadout.MODES)
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_gradient_with_sigma_and_gamma_weights(mode: str, seed: int) -> None:
    # sigma_cc' = n_c / n for one label per instance; gamma_cc' = sigma_cc' / sum over v != c = 1 / (C - 1) (SPEC 3.5).
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 8))
    vectors = unit(rng.standard_normal((count, 4)))
    sizes = rng.integers(1, 9, count)
    sigma = np.repeat((sizes / sizes.sum())[:, None], count, axis=1)
    gamma = np.full((count, count), 1 / (count - 1))
    # k = C - 1 makes the neighbours all the others and the adaptive margin the constant 2, so that the value moves
    # with its arguments only.
    options = Spreadout(mode=mode, margin=1.1, neighbours=count - 1)
    for weights in (sigma, gamma):
        pairs = Pairs(weights=weights)
        slope = spreadout.gradient(vectors, options, pairs)
        direction = rng.standard_normal(vectors.shape)
        h = 1e-6
        rise = spreadout.regulariser(vectors + h * direction, options, pairs)
        fall = spreadout.regulariser(vectors - h * direction, options, pairs)
        assert (rise - fall) / (2 * h) == pytest.approx(float((slope * direction).sum()), abs=1e-6)


# Item 10: what the federation reduces to.


def joined(name: str, values: dict[str, object], count: int = 5) -> tuple[object, object, object]:
    half, rng = algorithms.server(name), np.random.default_rng(3)
    options = algorithms.settings(name, values)  # type: ignore[arg-type]
    state = half.empty(6, options)
    for user in range(count):
        mean = 0.9 * unit(rng.standard_normal(6))
        state = half.admit(state, Admission(f"u{user}", "m", 4, mean.astype(np.float32)), options, rng)
    return half, options, half.start(state, options, np.random.default_rng(4))


def rounds(name: str, values: dict[str, object], seed: int) -> matrix.ClassMatrix:
    half, options, state = joined(name, values)
    rng = np.random.default_rng(seed)
    kind = half.payload  # type: ignore[attr-defined]
    for _ in range(3):
        sent = unit(rng.standard_normal((4, 6))).astype(np.float32)
        items = tuple(
            Contribution(f"u{user}", 4, kind(vector=row) if kind.__dataclass_fields__ else kind())
            for user, row in enumerate(sent)
        )
        state = half.step(state, items, options, rng)  # type: ignore[attr-defined]
    assert isinstance(state, matrix.ClassMatrix)
    return state


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_fedaws_with_lambda_0_is_positive_only(seed: int) -> None:
    # From the same rows: FedAwS centres the means it starts from, positives-only by default does not.
    start = {"initialisation": "client_means"}
    one, other = rounds("fedaws", {"step": 0.0, **start}, seed), rounds("positive_only", dict(start), seed)
    np.testing.assert_array_equal(one.vectors, other.vectors)
    assert one.users == other.users


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_fixed_rows_never_move_and_equal_fedaws_drawn_with_the_same_seed(seed: int) -> None:
    _, _, start = joined("fedaws", {"initialisation": "random"})
    assert isinstance(start, matrix.ClassMatrix)
    np.testing.assert_array_equal(rounds("fixed", {}, seed).vectors, start.vectors)


def test_the_mean_of_one_device_is_its_own_training() -> None:
    config = TrainingConfig("d", "voice", "ge2e", "fedaws")
    np.testing.assert_array_equal(aggregation.sample_weights([17], config), [1.0])


# The same over whole rounds with the real trainer

PEOPLE: dict[str, list[Array]] = {
    user: list(np.random.default_rng(seed).random((4, 8, 8), np.float32)) for seed, user in enumerate("abc")
}


def trained(algorithm: str, values: dict[str, object], people: dict[str, list[Array]] = PEOPLE) -> Outcome:
    config = TrainingConfig(
        "d",
        "handwriting",
        "digits-cnn",
        algorithm,
        values,  # type: ignore[arg-type]
        local_steps=2,
        rounds=3,
        min_clients=1,
    )
    theta = backbones.flatten(backbones.get("digits-cnn").random(1))
    return run(config, people, {}, theta=theta, seed=6)  # type: ignore[arg-type]


def test_fedaws_without_its_regulariser_is_baseline_1_to_the_last_bit() -> None:
    one = trained("fedaws", {"initialisation": "random", "step": 0.0})
    other = trained("positive_only", {"initialisation": "random"})
    assert one.theta.tobytes() == other.theta.tobytes()
    np.testing.assert_array_equal(one.vectors, other.vectors)


def test_fedaws_with_frozen_vectors_and_no_regulariser_is_baseline_2_to_the_last_bit() -> None:
    one = trained("fedaws", {"initialisation": "random", "step": 0.0, "vector_rate": 0.0})
    other = trained("fixed", {"initialisation": "random"})
    assert one.theta.tobytes() == other.theta.tobytes()
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-7)  # once through float32 and back


def test_a_federation_of_one_device_is_that_device_training_alone() -> None:
    alone = {"a": PEOPLE["a"]}
    outcome = trained("fixed", {"initialisation": "random"}, alone)
    manifest, trainer = manifest_of("digits-cnn"), LocalTrainer()
    config = TrainingConfig("d", "handwriting", "digits-cnn", "fixed", local_steps=2)
    theta = backbones.flatten(backbones.get("digits-cnn").random(1))
    task = codec.pack(algorithms.client("fixed").task(outcome.vectors[0].astype(np.float32)))
    for round_id in (1, 2, 3):
        job = TrainingJob(config, manifest, round_id, theta, tuple(PEOPLE["a"]), task, {})
        theta = theta + trainer.train(job, streams.device_stream(6, "a", round_id)).delta
    np.testing.assert_allclose(outcome.theta, theta, atol=1e-7)


def test_the_order_in_which_devices_are_named_does_not_matter() -> None:
    one = trained("positive_only", {"initialisation": "random"})
    other = trained("positive_only", {"initialisation": "random"}, dict(reversed(PEOPLE.items())))
    assert one.theta.tobytes() == other.theta.tobytes()
