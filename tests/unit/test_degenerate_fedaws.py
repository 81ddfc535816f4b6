"""The FedAwS column of the degenerate-case matrix (SPEC 8), a test for each cell.

The contract of every cell: a defined result or a typed error, no NaN, unit rows, and an unchanged state on abort.
"""

import math

import numpy as np
import pytest

from tests.builders import plane, unit
from uvsdk.arrays import Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings
from uvsdk.federation.algorithms.fedaws.server import SERVER
from uvsdk.federation.classes.matrix import NEVER, ClassMatrix
from uvsdk.federation.classes.spreadout import CollapseWarning
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution


def matrix(rows: Float64) -> ClassMatrix:
    """A started state with these rows, users a, b, c, ..."""
    count = len(rows)
    users = tuple(chr(ord("a") + place) for place in range(count))
    return ClassMatrix(users, rows, np.zeros_like(rows), np.full(count, 5), np.full(count, NEVER), started=True)


def sent(user: str, row: Float64, samples: int = 5) -> Contribution[Payload]:
    return Contribution(user, samples, Payload(np.asarray(row, np.float32)))


def step(state: ClassMatrix, *items: Contribution[Payload], settings: Settings, times: int = 1) -> ClassMatrix:
    rng = np.random.default_rng(0)
    for _ in range(times):
        state = SERVER.step(state, items, settings, rng)
        assert np.isfinite(state.vectors).all()
        np.testing.assert_allclose(np.linalg.norm(state.vectors, axis=1), 1.0, atol=1e-9)
    return state


def degrees_between(state: ClassMatrix) -> float:
    return math.degrees(math.acos(np.clip(state.vectors[0] @ state.vectors[1], -1, 1)))


def test_one_class_regulariser_0_and_a_warning() -> None:
    with pytest.warns(CollapseWarning, match="collapse"):
        state = SERVER.step(matrix(plane(10)), (sent("a", plane(20)[0]),), Settings(), np.random.default_rng(0))
    np.testing.assert_allclose(state.vectors, plane(20), atol=1e-7)  # the row that came, otherwise unmoved


def test_two_classes_hinge_stops_at_the_margin() -> None:
    # nu = 1.1: D = 1 - cos t = 1.1 at t = acos(-0.1) = 95.74 degrees
    state = step(matrix(plane(0, 3)), settings=Settings(mode="hinge", margin=1.1), times=200)
    assert degrees_between(state) == pytest.approx(math.degrees(math.acos(-0.1)), abs=0.01)


def test_two_classes_eq_8_runs_to_antipodal() -> None:
    state = step(matrix(plane(0, 40)), settings=Settings(mode="topk_neg_sq", neighbours=1), times=200)
    assert degrees_between(state) == pytest.approx(180, abs=0.01)


@pytest.mark.parametrize("mode", ["topk_neg_sq", "topk_hinge"])
def test_as_many_neighbours_as_classes_are_clamped(mode: str) -> None:
    start = matrix(unit(np.random.default_rng(1).standard_normal((5, 4))))
    clamped = step(start, settings=Settings(mode=mode, neighbours=4))
    for k in (5, 6, 1000):
        np.testing.assert_array_equal(step(start, settings=Settings(mode=mode, neighbours=k)).vectors, clamped.vectors)


def test_with_every_class_a_neighbour_the_adaptive_margin_is_2() -> None:
    start = matrix(unit(np.random.default_rng(1).standard_normal((5, 4))))
    adaptive = step(start, settings=Settings(mode="topk_hinge", neighbours=5))
    fixed = step(start, settings=Settings(mode="hinge", margin=2.0))
    np.testing.assert_allclose(adaptive.vectors, fixed.vectors, atol=1e-12)


@pytest.mark.parametrize("mode", ["hinge", "topk_hinge"])
def test_equal_rows_are_jittered_and_then_spread(mode: str) -> None:
    start = matrix(np.tile(unit(np.ones((1, 8))), (4, 1)))
    state = step(start, settings=Settings(mode=mode), times=100)
    cosines = (state.vectors @ state.vectors.T)[~np.eye(4, dtype=bool)]
    assert cosines.max() < 0.3


def test_equal_rows_under_eq_8_part_but_barely() -> None:
    # Its force vanishes with the cube of the angle (SPEC 2.3): defined, but it cannot undo a collapse.
    start = matrix(np.tile(unit(np.ones((1, 8))), (4, 1)))
    state = step(start, settings=Settings(mode="topk_neg_sq"), times=5)
    cosines = (state.vectors @ state.vectors.T)[~np.eye(4, dtype=bool)]
    assert 0.99 < cosines.max() < 1.0 - 1e-9


@pytest.mark.parametrize(
    "bad", [np.zeros(2), np.array([np.nan, 1.0]), np.array([np.inf, 0.0]), np.array([2.0, 0.0]), np.ones(3) / 3**0.5]
)
def test_a_zero_or_nan_row_is_refused_and_the_old_one_kept(bad: Float64) -> None:
    start = matrix(plane(0, 180))
    with pytest.raises(UpdateRejectedError):
        SERVER.check(Payload(bad.astype(np.float32)), start, "a", Settings())
    # Should one get past the check, the step keeps the old row and counts it.
    state = step(start, sent("a", bad), sent("b", plane(170)[0]), settings=Settings(step=0.0))
    np.testing.assert_allclose(state.vectors, plane(0, 170), atol=1e-7)
    assert state.refused == 1
    np.testing.assert_array_equal(state.last_round, [NEVER, 0])


@pytest.mark.parametrize("mode", ["hinge", "topk_neg_sq", "topk_hinge"])
def test_an_antipodal_pair_is_stationary(mode: str) -> None:
    start = matrix(plane(30, 210))
    state = step(start, settings=Settings(mode=mode), times=20)
    np.testing.assert_allclose(state.vectors, start.vectors, atol=1e-9)


def test_all_but_one_drop_out_is_below_the_quorum() -> None:
    config = TrainingConfig("d", "voice", "ge2e", "fedaws")
    assert config.quorum(20) == 10  # one update is fewer: the round aborts, and no step is made at all
    assert config.quorum(2) == 3


def test_a_dropout_leaves_its_row_unchanged_but_for_the_spreadout() -> None:
    start = matrix(plane(0, 100, 200))
    state = step(start, sent("a", plane(10)[0]), settings=Settings(step=0.0))
    np.testing.assert_allclose(state.vectors, plane(10, 100, 200), atol=1e-7)
    np.testing.assert_array_equal(state.last_round, [0, NEVER, NEVER])


def test_a_class_unseen_for_50_rounds_keeps_its_row() -> None:
    start = matrix(unit(np.random.default_rng(2).standard_normal((4, 6)) + 1.0))
    for moved in ("all", "participants"):
        state = start
        for _ in range(50):
            items = [sent(user, state.vectors[place]) for place, user in enumerate("abc")]
            state = step(state, *items, settings=Settings(moved=moved))
        assert state.users == ("a", "b", "c", "d")
        np.testing.assert_array_equal(state.last_round, [49, 49, 49, NEVER])
        frozen = bool((state.vectors[3] == start.vectors[3]).all())
        assert frozen == (moved == "participants")


def test_two_devices_of_one_user_are_averaged_by_samples() -> None:
    # weights 1/4 and 3/4 of directions at 0 and 90 degrees: direction (1, 3)
    state = step(
        matrix(plane(45, 225)), sent("a", plane(0)[0], 5), sent("a", plane(90)[0], 15), settings=Settings(step=0.0)
    )
    np.testing.assert_allclose(state.vectors[0], np.array([1, 3]) / math.sqrt(10), atol=1e-6)


def test_two_devices_that_cancel_keep_the_old_row() -> None:
    state = step(matrix(plane(45, 225)), sent("a", plane(0)[0]), sent("a", plane(180)[0]), settings=Settings(step=0.0))
    np.testing.assert_allclose(state.vectors[0], plane(45)[0])


def test_one_person_as_two_users_is_pushed_apart() -> None:
    state = step(matrix(plane(0, 0.5)), settings=Settings(), times=50)
    assert degrees_between(state) > 80


def test_one_sample_is_legal() -> None:
    admission = Admission("a", "m", 1, np.array([0.6, 0.8], np.float32))
    state = SERVER.admit(SERVER.empty(2, Settings()), admission, Settings(), np.random.default_rng(0))
    state = SERVER.start(state, Settings(), np.random.default_rng(0))
    np.testing.assert_allclose(state.vectors, [[0.6, 0.8]], atol=1e-7)  # alone, so its mean is not centred away
    with pytest.warns(CollapseWarning):
        state = SERVER.step(state, (sent("a", np.array([0.0, 1.0]), 1),), Settings(), np.random.default_rng(0))
    np.testing.assert_allclose(state.vectors, [[0, 1]])


def test_a_class_that_joins_in_mid_training() -> None:
    rng = np.random.default_rng(0)
    settings = Settings(initialisation="random")
    state = step(matrix(unit(rng.standard_normal((10, 8)))), settings=settings, times=3)
    state = SERVER.admit(state, Admission("late", "m", 5, np.empty(0, np.float32)), settings, rng)
    row = state.vectors[state.row("late")]
    others = np.delete(state.vectors, state.row("late"), axis=0)
    assert np.linalg.norm(row) == pytest.approx(1.0)
    # The best of 64 draws is farther from all others than most draws are.
    draws = unit(np.random.default_rng(5).standard_normal((64, 8)))
    assert (others @ row).max() < np.median((draws @ others.T).max(axis=1))


def test_nobody_took_part() -> None:
    state = step(matrix(plane(0, 120, 240)), settings=Settings())
    assert state.rounds == 1


def test_an_update_of_someone_who_left_meanwhile_is_ignored() -> None:
    start = SERVER.remove(matrix(plane(0, 120, 240)), "b")
    state = step(start, sent("a", plane(1)[0]), sent("b", plane(2)[0]), settings=Settings(step=0.0))
    assert state.users == ("a", "c")
    np.testing.assert_allclose(state.vectors, plane(1, 240), atol=1e-7)
    assert state.refused == 0


def test_a_subset_of_candidates_and_of_rows() -> None:
    start = matrix(unit(np.random.default_rng(2).standard_normal((12, 6)) + 1.0))
    settings = Settings(candidates=4, moved="participants")
    state = step(start, sent("a", start.vectors[0]), sent("b", start.vectors[1]), settings=settings)
    changed = np.flatnonzero(np.abs(state.vectors - start.vectors).max(axis=1) > 1e-6)
    assert set(changed) == {0, 1}


def test_the_papers_preset_is_reachable() -> None:
    preset = Settings.paper()
    assert (preset.mode, preset.neighbours, preset.step) == ("topk_neg_sq", 100, 1.0)
    step(matrix(unit(np.random.default_rng(2).standard_normal((12, 6)))), settings=preset)
