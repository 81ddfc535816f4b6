"""FedALC and FedALC-fixed: admission of label sets, weighted steps, the codebook and how it is sent once."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import unit
from uvsdk.arrays import UInt8
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import algorithms
from uvsdk.federation.algorithms.fedalc.payload import Payload, Settings
from uvsdk.federation.algorithms.fedalc.server import SERVER, pair_weights
from uvsdk.federation.algorithms.fedalc_fixed import codebook
from uvsdk.federation.algorithms.fedalc_fixed.client import CLIENT as FIXED_CLIENT
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload as FixedPayload
from uvsdk.federation.algorithms.fedalc_fixed.payload import Request
from uvsdk.federation.algorithms.fedalc_fixed.payload import Settings as FixedSettings
from uvsdk.federation.algorithms.fedalc_fixed.request import KEPT, REQUEST, digest
from uvsdk.federation.algorithms.fedalc_fixed.server import SERVER as FIXED
from uvsdk.federation.classes import correlation, spreadout
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import INSTANCES, MEAN, Contribution
from uvsdk.records.codec import pack, unpack
from uvsdk.simulation import Engine, Simulation, Tensors

D = 6
HELD = {"a": (1, 2, 3, 4, 5, 6), "b": (2, 3, 4, 5, 6, 7, 8), "c": (9, 10), "d": (11, 12, 13)}


def instances(*numbers: int) -> UInt8:
    return np.repeat(np.array(numbers, np.uint8)[:, None], 32, axis=1).reshape(-1, 32)


def admission(user: str, numbers: tuple[int, ...], *, person: str = "") -> Admission:
    return Admission(user, "m", max(len(numbers), 1), np.empty(0, np.float32), instances(*numbers), person)


def joined(
    half: object, options: object, held: dict[str, tuple[int, ...]], *, persons: dict[str, str] | None = None
) -> LabelMatrix:
    rng = np.random.default_rng(0)
    state = half.empty(D, options)  # type: ignore[attr-defined]
    for user, numbers in held.items():
        person = (persons or {}).get(user, "")
        state = half.admit(state, admission(user, numbers, person=person), options, rng)  # type: ignore[attr-defined]
    return half.start(state, options, np.random.default_rng(1))  # type: ignore[attr-defined, no-any-return]


RANDOM = Settings(initialisation="random")


# Label sets in the state.


def test_counts_follow_who_is_there() -> None:
    state = joined(SERVER, RANDOM, HELD)
    np.testing.assert_array_equal(state.counts.positives, [6, 7, 2, 3])
    assert (state.counts.instances, state.counts.rows.tolist(), state.counts.columns.tolist()) == (13, [0], [1])
    assert state.counts.together.tolist() == [5]
    later = SERVER.admit(state, admission("bb", (8, 9, 10)), RANDOM, np.random.default_rng(0))
    assert later.rows.users == ("a", "b", "bb", "c", "d")
    assert later.counts.positives.tolist() == [6, 7, 3, 2, 3]
    found = later.counts
    pairs = list(zip(found.rows.tolist(), found.columns.tolist(), found.together.tolist(), strict=True))
    assert pairs == [(0, 1, 5), (1, 2, 1), (2, 3, 2)]
    gone = SERVER.remove(later, "bb")
    assert pack(gone) == pack(state)
    without = SERVER.remove(SERVER.remove(state, "a"), "c")
    assert (without.rows.users, without.counts.instances, len(without.counts.together)) == (("b", "d"), 10, 0)
    assert instances(9).tobytes() not in without.hashes.tobytes()


def test_admitted_again_the_instances_are_replaced_and_the_row_stays() -> None:
    state = joined(SERVER, RANDOM, HELD)
    again = SERVER.admit(state, admission("b", (7, 8)), RANDOM, np.random.default_rng(0))
    assert again.rows.users == state.rows.users
    np.testing.assert_array_equal(again.rows.vectors, state.rows.vectors)
    assert again.counts.positives.tolist() == [6, 2, 2, 3]
    assert len(again.counts.together) == 0
    back = SERVER.admit(again, admission("b", HELD["b"]), RANDOM, np.random.default_rng(0))
    assert pack(back) == pack(state)


def test_the_state_survives_the_codec() -> None:
    for half, options in ((SERVER, RANDOM), (FIXED, FixedSettings())):
        state = joined(half, options, HELD, persons={"c": "p", "d": "p"})
        assert pack(unpack(LabelMatrix, pack(state))) == pack(state)
        with pytest.raises(ValueError, match="hashes"):
            dataclasses.replace(state, hashes=state.hashes[1:])


def test_one_person_under_two_names_is_not_pushed_apart() -> None:
    held = {user: (place,) for place, user in enumerate("abcd")}
    persons = {"a": "x", "c": "x"}
    state = joined(SERVER, RANDOM, held, persons=persons)
    weights = pair_weights(state, RANDOM)
    assert weights is not None
    assert weights.dense()[0, 2] == weights.dense()[2, 0] == 0.0
    assert SERVER.report(state, RANDOM) == {
        "instances": 4, "correlated_pairs": 1, "linked_pairs": 1, "equals_fedaws": False
    }  # fmt: skip
    # Started as one point, the two stay together while the others leave them.
    same = dataclasses.replace(state, rows=dataclasses.replace(state.rows, vectors=np.tile(np.eye(D)[0], (4, 1))))
    rng = np.random.default_rng(0)
    for _ in range(100):
        same = SERVER.step(same, (), RANDOM, rng)
    cosines = same.rows.vectors @ same.rows.vectors.T
    assert cosines[0, 2] > 0.9
    assert max(cosines[0, 1], cosines[0, 3], cosines[1, 3]) < 0.1


@pytest.mark.parametrize(
    "bad",
    [np.zeros((2, 31), np.uint8), np.zeros((2, 32), np.int64), np.zeros(32, np.uint8), np.zeros((7, 32), np.uint8)],
)
def test_an_admission_with_other_instances_is_refused(bad: UInt8) -> None:
    state = joined(SERVER, RANDOM, HELD)
    with pytest.raises(UpdateRejectedError):
        SERVER.admit(state, dataclasses.replace(admission("x", (1, 2)), instances=bad), RANDOM, np.random.default_rng())


def test_instances_that_are_off_are_neither_asked_for_nor_kept() -> None:
    off = Settings(initialisation="random", instances="off")
    assert INSTANCES not in SERVER.needs(off)
    assert {MEAN, INSTANCES} <= SERVER.needs(Settings())
    state = joined(SERVER, off, HELD)
    assert len(state.hashes) == 0
    assert SERVER.report(state, off)["equals_fedaws"] is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": "pi"},
        {"instances": "raw"},
        {"smallest_shared": 0},
        {"moved": "some"},
        {"margin": 3.0},
        {"step": -1.0},
        {"neighbours": -1},
        {"vector_rate": math.inf},
    ],
)
def test_settings_outside_their_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": -1.0}, {"codebook_steps": -1}, {"margin": 2.5}, {"max_angle_radians": 0.0}, {"largest_pull": math.nan}],
)
def test_fixed_settings_outside_their_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        FixedSettings(**wrong)  # type: ignore[arg-type]


# The weighted step.


@pytest.mark.parametrize("weights", ["sigma", "gamma", "eq11"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_the_step_is_the_spreadout_under_these_weights(weights: str, adaptive: bool) -> None:
    options = Settings(
        initialisation="random", weights=weights, adaptive_margin=adaptive, neighbours=2, margin=1.3, unit_mean=False
    )
    state = joined(SERVER, options, HELD)
    counts = state.correlation(5)
    matrix = (correlation.gamma if weights == "gamma" else correlation.sigma)(counts).dense()
    # G = 2 (A + A^T) W with A_uv = a_uv max(0, nu - D_uv) [v in N_k(u)], by hand (SPEC 3.2).
    distances = 1 - state.rows.vectors @ state.rows.vectors.T
    np.fill_diagonal(distances, np.inf)
    near, margins = np.isfinite(distances), np.full((4, 1), 1.3)
    if weights == "eq11":
        order = np.argsort(distances, axis=1)
        near = np.zeros_like(near)
        np.put_along_axis(near, order[:, :2], True, axis=1)
        if adaptive:
            margins = np.take_along_axis(distances, order[:, 2:3], axis=1)
    pull = np.where(near, matrix * np.maximum(0, margins - np.where(np.isinf(distances), 9, distances)), 0)
    slope = 2 * (pull + pull.T) @ state.rows.vectors
    tangent = slope - (slope * state.rows.vectors).sum(axis=1, keepdims=True) * state.rows.vectors
    expected = unit(state.rows.vectors - 0.1 * tangent)
    moved = SERVER.step(state, (), options, np.random.default_rng(0))
    np.testing.assert_allclose(moved.rows.vectors, expected, atol=1e-12)
    assert moved.rows.rounds == 1


def test_classes_that_occur_together_are_pushed_less() -> None:
    state = joined(SERVER, RANDOM, {"a": (1, 2, 3, 4, 5), "b": (1, 2, 3, 4, 5, 6), "c": (7, 8, 9, 10, 11)})
    # Three rows at 120 degrees on a cone: every pair equally near.
    angles = np.radians([0, 120, 240])
    rows = unit(np.stack([np.cos(angles), np.sin(angles), np.full(3, 2.0)], axis=1))
    cone = dataclasses.replace(state.rows, vectors=np.pad(rows, ((0, 0), (0, D - 3))), means=np.zeros((3, D)))
    start = dataclasses.replace(state, rows=cone)
    moved = SERVER.step(start, (), RANDOM, np.random.default_rng(0)).rows.vectors
    assert moved[0] @ moved[1] > max(moved[0] @ moved[2], moved[1] @ moved[2])


def test_unit_mean_weights_have_mean_1() -> None:
    for weights in ("sigma", "gamma", "eq11"):
        options = Settings(initialisation="random", weights=weights)
        found = pair_weights(joined(SERVER, options, HELD), options)
        assert found is not None
        assert found.mean() == pytest.approx(1.0)


def test_the_papers_preset() -> None:
    preset = Settings.paper()
    assert (preset.weights, preset.neighbours, preset.unit_mean, preset.smallest_shared) == ("eq11", 5, False, 1)
    assert preset.step == pytest.approx(1e-3)
    assert preset.spreadout().mode == "topk_hinge"
    SERVER.step(joined(SERVER, preset, HELD), (), preset, np.random.default_rng(0))


# One label an instance: FedALC is FedAwS (SPEC 3.5, 13.6).

ALONE = {"a": (1, 2, 3), "b": (4,), "c": (5, 6), "d": (7, 8, 9, 10)}


@pytest.mark.parametrize("weights", ["sigma", "gamma", "eq11"])
def test_without_common_instances_the_step_is_that_of_fedaws(weights: str) -> None:
    options = Settings(initialisation="random", weights=weights)
    state = joined(SERVER, options, ALONE)
    assert SERVER.report(state, options)["equals_fedaws"] is True
    half = algorithms.server("fedaws")
    mode = "topk_hinge" if weights == "eq11" else "hinge"
    plain = algorithms.settings("fedaws", {"initialisation": "random", "mode": mode})
    other = half.empty(D, plain)
    for user, numbers in ALONE.items():
        other = half.admit(other, admission(user, numbers), plain, np.random.default_rng(0))
    other = half.start(other, plain, np.random.default_rng(1))
    np.testing.assert_array_equal(state.rows.vectors, other.vectors)
    row = unit(np.arange(1.0, D + 1)).astype(np.float32)
    for _ in range(3):
        state = SERVER.step(state, (Contribution("a", 3, Payload(row)),), options, np.random.default_rng(2))
        kind = half.payload
        other = half.step(other, (Contribution("a", 3, kind(row)),), plain, np.random.default_rng(2))
    np.testing.assert_array_equal(state.rows.vectors, other.vectors)


def test_gamma_without_common_instances_is_hinge_with_lambda_over_c_minus_1() -> None:
    options = Settings(initialisation="random", weights="gamma", unit_mean=False, instance_weighted=True, step=0.3)
    state = joined(SERVER, options, ALONE)
    moved = SERVER.step(state, (), options, np.random.default_rng(0))
    by_hand = spreadout.step(
        state.rows.vectors, dataclasses.replace(options.spreadout(), step_size=0.3 / 3), np.random.default_rng(0)
    )
    np.testing.assert_allclose(moved.rows.vectors, by_hand.vectors, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), margin=st.floats(1.001, 1.999))
@settings(max_examples=30, deadline=None)
def test_sigma_at_lambda_1_makes_proposition_2_exact_for_unbalanced_data(seed: int, margin: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, int(rng.integers(2, 7)))
    pointers = np.concatenate([[0], np.cumsum(sizes)])
    counts = correlation.count(instances(*range(int(sizes.sum()))), pointers)
    vectors = unit(rng.standard_normal((len(sizes), 4)))
    regulariser = spreadout.regulariser(
        vectors, spreadout.Spreadout(margin=margin), spreadout.Pairs(weights=correlation.sigma(counts))
    )
    cosines = vectors @ vectors.T
    hinge = np.maximum(0, margin - 1 + cosines) ** 2
    np.fill_diagonal(hinge, 0)
    # The mean over instances of what each instance's own class is pushed away from.
    assert regulariser == pytest.approx(np.repeat(hinge.sum(axis=1), sizes).mean(), abs=1e-12)


# The codebook.


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_codebooks_gradient_is_the_finite_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = [tuple(rng.choice(9, int(rng.integers(1, 7)), replace=False).tolist()) for _ in range(5)]
    pointers = np.concatenate([[0], np.cumsum([len(part) for part in held])])
    counts = correlation.count(instances(*(number for part in held for number in part)), pointers)
    target = codebook.objective(counts, FixedSettings(margin=1.7, alpha=0.7, beta=1.3, largest_pull=2.0))
    vectors = unit(rng.standard_normal((5, 4)))
    direction = rng.standard_normal(vectors.shape)
    numeric = (target.value(vectors + 1e-6 * direction) - target.value(vectors - 1e-6 * direction)) / 2e-6
    assert numeric == pytest.approx(float((target.gradient(vectors) * direction).sum()), abs=1e-5, rel=1e-6)


def test_the_codebooks_value_by_hand() -> None:
    # Two classes of 2 and 3 instances, 1 in common, 4 in all: sigma 1/4 and 2/4, pi 1/4. Rows at 90 degrees: D = 1.
    counts = correlation.count(instances(1, 2, 2, 3, 4), np.array([0, 2, 5]))
    plain = FixedSettings(unit_mean=False, margin=1.5, alpha=2.0, beta=3.0, largest_pull=1e9)
    target = codebook.objective(counts, plain)
    # alpha 2 x (2 pairs x 1/4 x 1) + beta 3 x (1/4 + 2/4) x 0.5^2
    assert target.value(np.eye(2)) == pytest.approx(2 * 0.5 + 3 * 0.75 * 0.25)
    # With a cap of once the mean sigma, 3/8, the pull of 1/4 stays; with half of it, it becomes 3/16.
    assert codebook.objective(counts, dataclasses.replace(plain, largest_pull=0.5)).pull == pytest.approx(2 * 3 / 16)


def test_the_codebook_is_optimised_at_the_start_and_no_step_raises_it() -> None:
    options = FixedSettings(margin=1.2)
    drawn = joined(FIXED, dataclasses.replace(options, codebook_steps=0), HELD)
    state = joined(FIXED, options, HELD)
    target = codebook.objective(state.correlation(5), options)
    assert target.value(state.rows.vectors) < target.value(drawn.rows.vectors)
    slope = target.gradient(state.rows.vectors)
    tangent = slope - (slope * state.rows.vectors).sum(axis=1, keepdims=True) * state.rows.vectors
    assert np.linalg.norm(tangent, axis=1).max() < options.tolerance
    cosines = state.rows.vectors @ state.rows.vectors.T
    assert cosines[0, 1] > 0.1 > max(cosines[0, 2], cosines[1, 2], cosines[2, 3])
    assert pack(FIXED.start(state, options, np.random.default_rng(9))) == pack(state)


def test_any_step_size_converges() -> None:
    for step in (0.1, 50.0):
        state = joined(FIXED, FixedSettings(margin=1.2, step=step), HELD)
        target = codebook.objective(state.correlation(5), FixedSettings(margin=1.2))
        slope = target.gradient(state.rows.vectors)
        tangent = slope - (slope * state.rows.vectors).sum(axis=1, keepdims=True) * state.rows.vectors
        assert np.linalg.norm(tangent, axis=1).max() < 1e-3


def test_rows_never_move_and_a_newcomer_fits_in() -> None:
    options = FixedSettings(margin=1.2)
    state = joined(FIXED, options, HELD)
    stepped = FIXED.step(state, (Contribution("a", 3, FixedPayload()),), options, np.random.default_rng(0))
    np.testing.assert_array_equal(stepped.rows.vectors, state.rows.vectors)
    assert stepped.rows.last_round.tolist() == [0, -1, -1, -1]
    later = FIXED.admit(stepped, admission("bb", (*HELD["d"][:3], 20, 21)), options, np.random.default_rng(0))
    np.testing.assert_array_equal(np.delete(later.rows.vectors, 2, axis=0), state.rows.vectors)
    assert (later.rows.vectors @ later.rows.vectors[2])[[0, 1, 3]].max() < 0.2
    assert pack(FIXED.admit(later, admission("a", HELD["a"]), options, np.random.default_rng(0))) == pack(later)


def test_the_vector_is_sent_once_and_again_only_where_it_is_missing() -> None:
    options = FixedSettings()
    state = joined(FIXED, options, HELD)
    rng = np.random.default_rng(0)
    invitation = REQUEST.invite(state, "a", options)
    asked, memory = REQUEST.choose(invitation, {}, options, rng, bytes)
    assert asked == Request("")
    task = FIXED.task(state, "a", asked, options, rng)
    np.testing.assert_array_equal(task.vector, state.rows.vectors[0].astype(np.float32))
    local = FIXED_CLIENT.begin(task, memory, torch.eye, options, rng, bytes)
    payload, memory = FIXED_CLIENT.finish(local, torch.eye, options, rng, bytes)
    assert payload == FixedPayload()
    assert set(memory) == {KEPT}
    again, memory = REQUEST.choose(invitation, memory, options, rng, bytes)
    assert again.held == digest(state.rows.vectors[0])
    nothing = FIXED.task(state, "a", again, options, rng)
    assert nothing.vector.shape == (0,)
    local = FIXED_CLIENT.begin(nothing, memory, torch.eye, options, rng, bytes)
    np.testing.assert_array_equal(local.vector.numpy(), state.rows.vectors[0].astype(np.float32))
    # Another device of that user, or one set up anew, has none; one of another deployment has another.
    with pytest.raises(UpdateRejectedError, match="ask for it"):
        FIXED_CLIENT.begin(nothing, {}, torch.eye, options, rng, bytes)
    assert FIXED.task(state, "a", Request("ff" * 32), options, rng).vector.shape == (D,)
    with pytest.raises(UpdateRejectedError):
        REQUEST.invite(state, "stranger", options)


def test_classes_that_always_occur_together_are_warned_of() -> None:
    held = {"a": (1, 2, 3, 4, 5), "b": (1, 2, 3, 4, 5), "c": (6, 7)}
    with pytest.warns(codebook.InseparableWarning, match="1 pairs"):
        state = joined(FIXED, FixedSettings(), held)
    assert state.rows.vectors[0] @ state.rows.vectors[1] > 0.99
    assert FIXED.report(state, FixedSettings())["inseparable_pairs"] == 1
    # Two identities of one person are meant to be one point, and are not warned of.
    linked = joined(FIXED, FixedSettings(), {"a": (1,), "b": (2,), "c": (3,)}, persons={"a": "p", "b": "p"})
    assert linked.rows.vectors[0] @ linked.rows.vectors[1] > 0.99


def test_a_liar_cannot_tie_others_harder_than_they_are_pushed() -> None:
    # Class z claims all instances of a and of b. Only its own pairs are correlated: a and b stay apart.
    held = {"a": tuple(range(1, 7)), "b": tuple(range(11, 17)), "z": (*range(1, 7), *range(11, 17))}
    state = joined(FIXED, FixedSettings(margin=1.0), held)
    assert state.rows.vectors[0] @ state.rows.vectors[1] < 0.6
    target = codebook.objective(state.correlation(5), FixedSettings())
    mean = correlation.sigma(state.correlation(5)).mean()
    assert target.pull.max() <= 1.0 + 1e-12
    assert correlation.pi(state.correlation(5)).max() / mean > 1.0  # what it would be without the cap


# Several labels an instance, end to end.


@pytest.mark.parametrize("name", ["fedalc", "fedalc_fixed"])
def test_several_labels_an_instance_end_to_end(name: str) -> None:
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((40, 8)).astype(np.float32)
    labels = [np.arange(0, 16), np.arange(8, 24), np.arange(24, 32), np.arange(30, 40)]
    users = [f"label {place}" for place in range(4)]
    population = Tensors(
        {user: torch.from_numpy(samples[rows]) for user, rows in zip(users, labels, strict=True)},
        instances={user: instances(*(int(row) for row in rows)) for user, rows in zip(users, labels, strict=True)},
    )
    config = TrainingConfig("d", "tensors", "custom", name, rounds=6, seed=1, clipping="off")
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        simulation = Simulation(config, torch.nn.Linear(8, 5), population, Engine(batching="large"))
        records = simulation.run()
        found.append(simulation.theta)
        assert all(math.isfinite(record.loss) for record in records)
        report = simulation.method.server.report(simulation.state, simulation.method.settings)
        assert (report["instances"], report["correlated_pairs"]) == (40, 1)  # 8 in common; 2 are too few
    np.testing.assert_array_equal(found[0], found[1])
    if name == "fedalc_fixed":
        assert set(simulation.memories["label 0"]) == {KEPT}
