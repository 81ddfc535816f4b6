"""The FedALC-fixed column of the degenerate-case matrix (SPEC 8), a test for each cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedalc_fixed import codebook
from uvsdk.federation.algorithms.fedalc_fixed.client import CLIENT
from uvsdk.federation.algorithms.fedalc_fixed.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedalc_fixed.server import SERVER
from uvsdk.federation.classes.correlation import Correlation
from uvsdk.federation.classes.labels import LabelMatrix
from uvsdk.federation.classes.matrix import NEVER
from uvsdk.federation.classes.spreadout import CollapseWarning
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution

D = 8


def started(*held: tuple[int, ...], persons: tuple[str, ...] = (), **values: object) -> tuple[LabelMatrix, Settings]:
    """Users a, b, c, ... that hold instances by number."""
    options = Settings(**{"smallest_shared": 1, **values})  # type: ignore[arg-type]
    state = SERVER.empty(D, options)
    for place, numbers in enumerate(held):
        instances = np.repeat(np.array(numbers, np.uint8)[:, None], 32, axis=1).reshape(-1, 32)
        person = persons[place] if persons else ""
        admission = Admission(
            chr(ord("a") + place), "m", max(len(numbers), 1), np.empty(0, np.float32), instances, person
        )
        state = SERVER.admit(state, admission, options, np.random.default_rng(place))
    state = SERVER.start(state, options, np.random.default_rng(9))
    assert np.isfinite(state.rows.vectors).all()
    np.testing.assert_allclose(np.linalg.norm(state.rows.vectors, axis=1), 1.0, atol=1e-9)
    return state, options


def cosine(state: LabelMatrix) -> float:
    return float(state.rows.vectors[0] @ state.rows.vectors[1])


def test_one_class_is_kept_as_drawn_with_a_warning() -> None:
    with pytest.warns(CollapseWarning, match="second person"):
        state, _ = started((1, 2))
    assert state.rows.vectors.shape == (1, D)


def test_nobody_at_all() -> None:
    state, _ = started()
    assert state.rows.users == ()


def test_two_classes_stop_at_the_margin() -> None:
    # Nothing pulls them together, so the codebook is done at D = nu or beyond.
    state, _ = started((1, 2), (3, 4), margin=1.1)
    assert 1 - cosine(state) >= 1.1 - 1e-3


def test_every_other_class_counts() -> None:
    # There is no k: all pairs are in the sums. Four classes in 8 dimensions all reach a right angle.
    state, _ = started((1,), (2,), (3,), (4,), margin=1.0)
    off = (state.rows.vectors @ state.rows.vectors.T)[~np.eye(4, dtype=bool)]
    assert off.max() < 1e-3


def test_equal_rows_are_jittered_and_then_spread() -> None:
    counts = Correlation(np.array([2, 2, 2]), *(np.empty(0, np.int64) for _ in range(3)), instances=6)
    options = Settings(margin=1.0)
    same = np.tile(np.eye(D)[0], (3, 1))
    spread = codebook.optimise(
        same, codebook.objective(counts, options), settings=options, rng=np.random.default_rng(0)
    )
    assert (spread @ spread.T)[~np.eye(3, dtype=bool)].max() < 0.1


def test_an_antipodal_pair_is_stationary() -> None:
    counts = Correlation(np.array([2, 2]), *(np.empty(0, np.int64) for _ in range(3)), instances=4)
    options = Settings()
    pair = np.stack([np.eye(D)[0], -np.eye(D)[0]])
    spread = codebook.optimise(
        pair, codebook.objective(counts, options), settings=options, rng=np.random.default_rng(0)
    )
    np.testing.assert_array_equal(spread, pair)


def test_a_zero_or_nan_vector_is_refused_by_the_device() -> None:
    for bad in (np.full(D, np.nan), np.zeros((1, D)), np.zeros(D), np.full(D, 1.0)):
        with pytest.raises(UpdateRejectedError):
            CLIENT.begin(Task(bad.astype(np.float32)), {}, torch.eye, Settings(), np.random.default_rng(0), bytes)


def test_all_but_one_drop_out_is_below_the_quorum() -> None:
    assert TrainingConfig("d", "voice", "ge2e", "fedalc_fixed").quorum(20) == 10


def test_a_class_unseen_for_50_rounds_keeps_its_row_as_all_do() -> None:
    state, options = started((1, 2), (2, 3), (4,))
    later = state
    for _ in range(50):
        later = SERVER.step(later, (Contribution("a", 2, Payload()),), options, np.random.default_rng(0))
    np.testing.assert_array_equal(later.rows.vectors, state.rows.vectors)
    np.testing.assert_array_equal(later.rows.last_round, [49, NEVER, NEVER])


def test_a_duplicate_user_that_is_linked_becomes_one_point() -> None:
    state, _ = started((1,), (2,), (3,), persons=("p", "p", ""))
    assert cosine(state) > 0.99


def test_a_duplicate_user_that_nothing_links_is_pushed_apart() -> None:
    state, _ = started((1,), (2,), (3,))
    assert cosine(state) < 0.1


def test_one_sample_is_legal() -> None:
    state, options = started((1,), (2,), (3,))
    assert SERVER.report(state, options)["instances"] == 3


def test_empty_label_sets_give_a_spread_codebook() -> None:
    state, options = started((), (), (), margin=1.0)
    assert SERVER.report(state, options)["correlated_pairs"] == 0
    assert (state.rows.vectors @ state.rows.vectors.T)[~np.eye(3, dtype=bool)].max() < 1e-3


def test_everything_shared_leaves_nothing_to_push() -> None:
    with pytest.warns(codebook.InseparableWarning):
        state, _ = started((1, 2), (1, 2))
    assert cosine(state) > 0.99
    assert math.isfinite(cosine(state))


def test_the_round_of_someone_who_left_meanwhile() -> None:
    state, options = started((1, 2), (2, 3), (4,))
    left = SERVER.remove(state, "b")
    after = SERVER.step(left, (Contribution("b", 2, Payload()),), options, np.random.default_rng(0))
    assert after.rows.users == ("a", "c")
    with pytest.raises(UpdateRejectedError):
        SERVER.check(Payload(), after, "b", options)
