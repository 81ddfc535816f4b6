"""The FedALC column of the degenerate-case matrix (SPEC 8), a test for each cell.

The contract of every cell: a defined result or a typed error, no NaN, unit rows, and an unchanged state on abort.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.builders import plane, unit
from uvsdk.arrays import Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedalc.payload import Payload, Settings
from uvsdk.federation.algorithms.fedalc.server import SERVER, pair_weights
from uvsdk.federation.classes import correlation
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.classes.matrix import NEVER, ClassMatrix
from uvsdk.federation.classes.spreadout import CollapseWarning
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution

WEIGHTS = ("sigma", "gamma", "eq11")


def matrix(rows: Float64, *held: tuple[int, ...]) -> LabelMatrix:
    """A started state with these rows, users a, b, c, ... that hold instances by number."""
    sizes = [len(part) for part in held] or [0] * len(rows)
    numbers = np.array([number for part in held for number in part], np.uint8)
    count = len(rows)
    users = tuple(chr(ord("a") + place) for place in range(count))
    hashes = np.repeat(numbers[:, None], 32, axis=1).reshape(-1, 32)
    pointers = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return LabelMatrix(
        ClassMatrix(users, rows, np.zeros_like(rows), np.full(count, 5), np.full(count, NEVER), started=True),
        hashes=hashes,
        pointers=pointers,
        persons=("",) * count,
        counts=correlation.count(hashes, pointers),
    )


def sent(user: str, row: Float64, samples: int = 5) -> Contribution[Payload]:
    return Contribution(user, samples, Payload(np.asarray(row, np.float32)))


def settings(**values: object) -> Settings:
    return Settings(**{"initialisation": "random", "smallest_shared": 1, **values})  # type: ignore[arg-type]


def step(state: LabelMatrix, *items: Contribution[Payload], options: Settings, times: int = 1) -> LabelMatrix:
    rng = np.random.default_rng(0)
    for _ in range(times):
        state = SERVER.step(state, items, options, rng)
        assert np.isfinite(state.rows.vectors).all()
        np.testing.assert_allclose(np.linalg.norm(state.rows.vectors, axis=1), 1.0, atol=1e-9)
    return state


def degrees_between(state: LabelMatrix) -> float:
    return math.degrees(math.acos(np.clip(state.rows.vectors[0] @ state.rows.vectors[1], -1, 1)))


CORRELATED = ((1, 2, 3), (2, 3, 4), (5, 6), (7, 8))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_one_class_regulariser_0_and_a_warning(weights: str) -> None:
    with pytest.warns(CollapseWarning, match="collapse"):
        state = SERVER.step(
            matrix(plane(10), (1, 2)), (sent("a", plane(20)[0]),), settings(weights=weights), np.random.default_rng(0)
        )
    np.testing.assert_allclose(state.rows.vectors, plane(20), atol=1e-7)


@pytest.mark.parametrize("weights", ["sigma", "gamma"])
def test_two_classes_stop_at_the_margin(weights: str) -> None:
    # nu = 1.1: D = 1 - cos t = 1.1 at t = 95.74 degrees, whatever the weights, if they are not 0.
    state = step(
        matrix(plane(0, 3), (1, 2, 3), (3, 4)), options=settings(weights=weights, margin=1.1, step=0.05), times=400
    )
    assert degrees_between(state) == pytest.approx(math.degrees(math.acos(-0.1)), abs=0.01)


def test_two_classes_gamma_is_1() -> None:
    state = matrix(plane(0, 3), (1, 2, 3), (3, 4))
    found = pair_weights(state, settings(weights="gamma", unit_mean=False))
    assert found is not None
    np.testing.assert_allclose(found.dense(), [[0, 1], [1, 0]])


def test_as_many_neighbours_as_classes_are_clamped() -> None:
    start = matrix(unit(np.random.default_rng(1).standard_normal((4, 4))), *CORRELATED)
    clamped = step(start, options=settings(weights="eq11", neighbours=3))
    for k in (4, 5, 1000):
        moved = step(start, options=settings(weights="eq11", neighbours=k))
        np.testing.assert_array_equal(moved.rows.vectors, clamped.rows.vectors)


def test_with_every_class_a_neighbour_the_adaptive_margin_is_2() -> None:
    start = matrix(unit(np.random.default_rng(1).standard_normal((4, 4))), *CORRELATED)
    adaptive = step(start, options=settings(weights="eq11", neighbours=4))
    fixed = step(start, options=settings(weights="sigma", margin=2.0))
    np.testing.assert_allclose(adaptive.rows.vectors, fixed.rows.vectors, atol=1e-12)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_equal_rows_are_jittered_and_then_spread(weights: str) -> None:
    start = matrix(np.tile(unit(np.ones((1, 8))), (4, 1)), *CORRELATED)
    state = step(start, options=settings(weights=weights, margin=1.0), times=200)
    assert (state.rows.vectors @ state.rows.vectors.T)[~np.eye(4, dtype=bool)].max() < 0.3


def test_equal_rows_of_classes_that_always_occur_together_stay_defined() -> None:
    start = matrix(np.tile(unit(np.ones((1, 8))), (3, 1)), (1, 2), (1, 2), (3,))
    state = step(start, options=settings(), times=50)
    assert state.rows.vectors[0] @ state.rows.vectors[1] > 0.9
    assert state.rows.vectors[0] @ state.rows.vectors[2] < 0.1


@pytest.mark.parametrize(
    "bad", [np.zeros(2), np.array([np.nan, 1.0]), np.array([np.inf, 0.0]), np.array([2.0, 0.0]), np.ones(3) / 3**0.5]
)
def test_a_zero_or_nan_row_is_refused_and_the_old_one_kept(bad: Float64) -> None:
    start = matrix(plane(0, 180), (1, 2), (2, 3))
    with pytest.raises(UpdateRejectedError):
        SERVER.check(Payload(bad.astype(np.float32)), start, "a", settings())
    state = step(start, sent("a", bad), sent("b", plane(170)[0]), options=settings(step=0.0))
    np.testing.assert_allclose(state.rows.vectors, plane(0, 170), atol=1e-7)
    assert state.rows.refused == 1


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_antipodal_pair_is_stationary(weights: str) -> None:
    start = matrix(plane(30, 210), (1, 2), (2, 3))
    later = step(start, options=settings(weights=weights), times=20)
    np.testing.assert_allclose(later.rows.vectors, start.rows.vectors)


def test_all_but_one_drop_out_is_below_the_quorum() -> None:
    assert TrainingConfig("d", "voice", "ge2e", "fedalc").quorum(20) == 10


def test_a_dropout_leaves_its_row_unchanged_but_for_the_spreadout() -> None:
    state = step(matrix(plane(0, 100, 200), (1,), (1, 2), (3,)), sent("a", plane(10)[0]), options=settings(step=0.0))
    np.testing.assert_allclose(state.rows.vectors, plane(10, 100, 200), atol=1e-7)
    np.testing.assert_array_equal(state.rows.last_round, [0, NEVER, NEVER])


def test_a_class_unseen_for_50_rounds_keeps_its_row() -> None:
    start = matrix(unit(np.random.default_rng(2).standard_normal((4, 6)) + 1.0), *CORRELATED)
    for moved in ("all", "participants"):
        state = start
        for _ in range(50):
            items = [sent(user, state.rows.vectors[place]) for place, user in enumerate("abc")]
            state = step(state, *items, options=settings(moved=moved))
        assert state.rows.users == ("a", "b", "c", "d")
        frozen = bool((state.rows.vectors[3] == start.rows.vectors[3]).all())
        assert frozen == (moved == "participants")
    assert state.counts.positives.tolist() == [3, 3, 2, 2]


def test_a_duplicate_user_that_is_linked_is_not_pushed_away() -> None:
    start = matrix(plane(0, 1, 90), (1, 2), (3, 4), (5, 6))
    counts = correlation.count(start.hashes, start.pointers, np.array([0, 0, 2]))
    linked = dataclasses.replace(start, persons=("p", "p", ""), counts=counts)
    assert degrees_between(step(linked, options=settings(), times=50)) < 5


def test_a_duplicate_user_with_the_same_samples_is_not_pushed_away() -> None:
    assert degrees_between(step(matrix(plane(0, 1, 90), (1, 2), (1, 2), (5, 6)), options=settings(), times=50)) < 5


def test_a_duplicate_user_that_nothing_links_is_pushed_apart() -> None:
    assert degrees_between(step(matrix(plane(0, 1, 90), (1, 2), (3, 4), (5, 6)), options=settings(), times=50)) > 60


def test_two_devices_of_one_user_are_averaged_by_samples() -> None:
    state = step(
        matrix(plane(45, 225), (1,), (1, 2)),
        sent("a", plane(0)[0], 5),
        sent("a", plane(90)[0], 15),
        options=settings(step=0.0),
    )
    np.testing.assert_allclose(state.rows.vectors[0], np.array([1, 3]) / math.sqrt(10), atol=1e-6)


def test_one_sample_is_legal() -> None:
    one = np.full((1, 32), 7, np.uint8)
    admission = Admission("a", "m", 1, np.empty(0, np.float32), one)
    state = SERVER.admit(SERVER.empty(2, settings()), admission, settings(), np.random.default_rng(0))
    state = SERVER.start(state, settings(), np.random.default_rng(0))
    assert (state.counts.positives.tolist(), state.counts.instances) == ([1], 1)
    with pytest.warns(CollapseWarning):
        step(state, options=settings())


@pytest.mark.parametrize("weights", WEIGHTS)
def test_empty_label_sets_fall_back_to_fedaws(weights: str) -> None:
    start = matrix(unit(np.random.default_rng(1).standard_normal((4, 4))))
    options = settings(weights=weights)
    assert pair_weights(start, options) is None
    assert SERVER.report(start, options)["equals_fedaws"] is True
    step(start, options=options)


def test_a_class_without_instances_pushes_nobody() -> None:
    start = matrix(plane(0, 10, 180), (), (1, 2), (2, 3))
    found = pair_weights(start, settings())
    assert found is not None
    np.testing.assert_array_equal(found.dense()[0], 0.0)
    step(start, options=settings(), times=5)


def test_nobody_took_part_and_someone_left_meanwhile() -> None:
    assert step(matrix(plane(0, 120, 240), (1,), (1, 2), (3,)), options=settings()).rows.rounds == 1
    start = SERVER.remove(matrix(plane(0, 120, 240), (1,), (1, 2), (3,)), "b")
    state = step(start, sent("a", plane(1)[0]), sent("b", plane(2)[0]), options=settings(step=0.0))
    assert state.rows.users == ("a", "c")
    np.testing.assert_allclose(state.rows.vectors, plane(1, 240), atol=1e-7)
