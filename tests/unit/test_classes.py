"""The class matrix: how rows start, by numbers done by hand."""

import numpy as np
import pytest

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedaws.payload import Settings
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.messages import Admission
from uvsdk.records.codec import pack, unpack

MEANS, RANDOM = Settings(), Settings(initialisation="random")


def admitted(means: dict[str, list[float]], settings: Settings = MEANS) -> ClassMatrix:
    state = matrix.empty(len(next(iter(means.values()))), settings)
    for user, mean in means.items():
        admission = Admission(user, "m", 5, np.array(mean, np.float32))
        state = matrix.admit(state, admission, settings, np.random.default_rng(0))
    return state


def test_rows_start_from_centred_means() -> None:
    # centre (0.5, 0.25); (0.75, 0.25) - centre = (0.25, 0), (0.25, 0.25) - centre = (-0.25, 0)
    state = matrix.start(admitted({"b": [0.25, 0.25], "a": [0.75, 0.25]}), MEANS, np.random.default_rng(0))
    assert state.users == ("a", "b")
    np.testing.assert_allclose(state.vectors, [[1, 0], [-1, 0]], atol=1e-7)


def test_rows_start_from_the_means_as_they_are() -> None:
    # (0.25, 0.25) / 0.3536 = (0.7071, 0.7071); (0.8, 0.6) is a unit vector already
    settings = Settings(initialisation="client_means")
    state = matrix.start(admitted({"b": [0.25, 0.25], "a": [0.8, 0.6]}, settings), settings, np.random.default_rng(0))
    np.testing.assert_allclose(state.vectors, [[0.8, 0.6], [np.sqrt(0.5), np.sqrt(0.5)]], atol=1e-7)


def test_the_collapse_monitor_is_the_mean_of_the_cosines() -> None:
    rows = matrix.random_rows(7, 5, np.random.default_rng(3))
    cosines = (rows @ rows.T)[~np.eye(7, dtype=bool)]
    assert matrix.mean_offdiagonal_cosine(rows) == pytest.approx(cosines.mean(), abs=1e-12)
    assert matrix.mean_offdiagonal_cosine(np.ones((4, 1))) == 1.0
    assert np.isnan(matrix.mean_offdiagonal_cosine(rows[:1]))


def test_centring_takes_out_the_common_part() -> None:
    rng = np.random.default_rng(0)
    common = np.array([0.7] + [0.0] * 15)
    means = {f"u{i:02}": list(common + 0.05 * rng.standard_normal(16)) for i in range(20)}
    state = matrix.start(admitted(means), MEANS, rng)
    cosines = (state.vectors @ state.vectors.T)[~np.eye(20, dtype=bool)]
    assert abs(cosines.mean()) < 0.1


def test_equal_means_leave_nothing_after_centring() -> None:
    state = matrix.start(admitted({"a": [0.0, 0.5], "b": [0.0, 0.5]}), MEANS, np.random.default_rng(0))
    np.testing.assert_allclose(state.vectors, [[0, 1], [0, 1]])


def test_random_rows_repeat_with_the_seed_and_differ_without() -> None:
    start = admitted({"a": [1.0, 0, 0], "b": [0, 1.0, 0]}, RANDOM)
    one, same, other = (matrix.start(start, RANDOM, np.random.default_rng(seed)).vectors for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_starting_twice_changes_nothing() -> None:
    state = matrix.start(admitted({"a": [1.0, 0], "b": [0, 1.0]}), MEANS, np.random.default_rng(0))
    again = matrix.start(state, MEANS, np.random.default_rng(9))
    np.testing.assert_array_equal(again.vectors, state.vectors)


def test_before_the_start_there_is_no_matrix_and_no_task() -> None:
    state = admitted({"a": [1.0, 0], "b": [0, 1.0]})
    users, rows = matrix.class_matrix(state)
    assert users == ()
    assert rows.shape == (0, 2)
    with pytest.raises(UpdateRejectedError, match="not been drawn"):
        matrix.vector_for(state, "a")


def test_a_newcomer_starts_from_the_own_mean() -> None:
    state = matrix.start(admitted({"a": [0.75, 0.25], "b": [0.25, 0.25]}), MEANS, np.random.default_rng(0))
    joined = matrix.admit(
        state, Admission("c", "m", 5, np.array([0.5, 1.0], np.float32) / 2), MEANS, np.random.default_rng(0)
    )
    # before the first round: centred on the mean of all three, (0.4167, 0.3333); (0.25, 0.5) - it = (-0.1667, 0.1667)
    np.testing.assert_allclose(joined.vectors[2], np.array([-1, 1]) / 2**0.5, atol=1e-6)
    later = matrix.write(state, {})
    joined = matrix.admit(
        later, Admission("c", "m", 5, np.array([0.5, 1.0], np.float32) / 2), MEANS, np.random.default_rng(0)
    )
    np.testing.assert_allclose(joined.vectors[2], np.array([1, 2]) / 5**0.5, atol=1e-6)
    np.testing.assert_array_equal(joined.vectors[:2], state.vectors)


def test_a_second_admission_replaces_the_mean() -> None:
    state = admitted({"a": [1.0, 0.0]})
    state = matrix.admit(state, Admission("a", "m", 9, np.array([0, 0.5], np.float32)), MEANS, np.random.default_rng(0))
    assert state.users == ("a",)
    np.testing.assert_array_equal(state.means, [[0, 0.5]])
    np.testing.assert_array_equal(state.samples, [9])


def test_a_state_that_contradicts_itself() -> None:
    good = admitted({"a": [1.0, 0.0], "b": [0.0, 1.0]})
    for users in (("b", "a"), ("a", "a"), ("a",)):
        with pytest.raises(ValueError):
            ClassMatrix(users, good.vectors, good.means, good.samples, good.last_round)
    with pytest.raises(ValueError):
        ClassMatrix(good.users, good.vectors[:, :1], good.means, good.samples, good.last_round)


def test_twenty_thousand_users_fit_a_message() -> None:
    users = tuple(f"{number:064x}" for number in range(20_000))
    rows = np.zeros((20_000, 1))
    state = ClassMatrix(users, rows, rows, np.ones(20_000, np.int64), np.zeros(20_000, np.int64))
    assert unpack(ClassMatrix, pack(state)).users == users
