"""The search for nearest classes against sorting all of them, ties, and what kept lists know."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float64, Int64
from uvsdk.errors import SettingsError
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings
from uvsdk.federation.algorithms.fedaws.server import SERVER
from uvsdk.federation.classes import neighbours, spreadout
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.classes.spreadout import Pairs, Spreadout
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import pack, unpack

seeds = st.integers(0, 2**32 - 1)


def rows(count: int, dimension: int, rng: np.random.Generator, *, spread: float = 1.0) -> Float64:
    normal = spread * rng.standard_normal((count, dimension))
    normal[:, 0] += 1.0
    return spreadout.unit_rows(normal)


def sorted_nearest(vectors: Float64, anchors: Int64, candidates: Int64, k: int) -> tuple[Int64, Float64]:
    """Indices and the distance of the next, by a stable sort of all distances: of equals, the smaller class."""
    indices = np.full((len(anchors), k), -1)
    following = np.full(len(anchors), 2.0)
    for place, anchor in enumerate(anchors):
        others = candidates[candidates != anchor]
        distances = 1.0 - np.einsum("yd,d->y", vectors[others], vectors[anchor])
        order = np.argsort(distances, kind="stable")
        indices[place, : min(k, len(others))] = others[order[:k]]
        if len(others) > k:
            following[place] = distances[order[k]]
    return indices, following


@pytest.fixture(params=["float64", "screened"])
def _search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to search, on as few rows as a sort of everything can check."""
    if request.param == "screened":
        monkeypatch.setattr(neighbours, "DENSE_LIMIT", 1)
    monkeypatch.setattr(neighbours, "_SCREEN_ROWS", 7)
    monkeypatch.setattr(neighbours, "_SCREEN_COLUMNS", 50)
    monkeypatch.setattr(neighbours, "_DENSE_NUMBERS", 400)
    monkeypatch.setattr(neighbours, "_DENSE_ROWS", 1)


@pytest.mark.usefixtures("_search")
@pytest.mark.parametrize("spread", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_the_nearest_are_those_that_sorting_finds(k: int, spread: float) -> None:
    rng = np.random.default_rng(k)
    vectors = rows(300, 6, rng, spread=spread)
    candidates = np.sort(rng.choice(300, 220, replace=False))
    anchors = rng.choice(300, 40, replace=False)
    found = neighbours.nearest(vectors, anchors, candidates, k)
    indices, following = sorted_nearest(vectors, anchors, candidates, k)
    true = 1.0 - np.einsum("ad,akd->ak", vectors[anchors], vectors[indices])
    # At a spread of 1e-5 distances of 1e-10 differ by rounding alone, so which of two is nearer is not defined.
    np.testing.assert_allclose(found.distances, true, atol=1e-14)
    np.testing.assert_allclose(found.following, following, atol=1e-14)
    if spread > 1e-3:
        np.testing.assert_array_equal(found.indices, indices)


@pytest.mark.usefixtures("_search")
def test_of_equal_distances_the_smaller_class_is_nearer() -> None:
    # Class 0 looks at 60 copies each of three directions: cosines 0.8, 0.6 and 0, exactly equal within each.
    directions = np.array([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    vectors = np.concatenate([[[1.0, 0.0]], np.tile(directions, (60, 1))])
    found = neighbours.nearest(vectors, np.array([0]), np.arange(181), 63)
    np.testing.assert_array_equal(found.indices[0], [*range(1, 181, 3), 2, 5, 8])
    assert found.following[0] == pytest.approx(0.4)


@pytest.mark.usefixtures("_search")
def test_fewer_candidates_than_wanted_leave_empty_places() -> None:
    vectors = rows(100, 4, np.random.default_rng(0))
    found = neighbours.nearest(vectors, np.array([3, 50]), np.array([2, 3, 4]), 4)
    assert {tuple(sorted(row)) for row in found.indices.tolist()} == {(-1, -1, 2, 4), (-1, 2, 3, 4)}
    np.testing.assert_array_equal(np.isinf(found.distances), found.indices == -1)
    np.testing.assert_array_equal(found.following, [2.0, 2.0])


@pytest.mark.usefixtures("_search")
def test_every_tied_class_is_named() -> None:
    vectors = rows(200, 5, np.random.default_rng(0))
    vectors[[10, 20, 30, 40, 50, 60]] = vectors[5]
    vectors[70] = vectors[71]
    everyone = np.arange(200)
    np.testing.assert_array_equal(
        neighbours.nearest(vectors, everyone, everyone, 2).tied, [5, 10, 20, 30, 40, 50, 60, 70, 71]
    )
    np.testing.assert_array_equal(neighbours.nearest(vectors, np.array([70, 100]), everyone, 2).tied, [70, 71])


@given(seed=seeds, mode=st.sampled_from(["topk_neg_sq", "topk_hinge"]))
@settings(max_examples=15, deadline=None)
def test_a_step_is_the_same_by_either_search(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    vectors = rows(250, 8, rng)
    anchors = np.sort(rng.choice(250, 40, replace=False))
    options = Spreadout(mode=mode, neighbours=6, step_size=0.02)
    in_float64 = spreadout.step(vectors, options, rng, pairs=Pairs(anchors)).vectors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "DENSE_LIMIT", 1)
        screened = spreadout.step(vectors, options, rng, pairs=Pairs(anchors)).vectors
    np.testing.assert_allclose(screened, in_float64, atol=1e-14)


def test_rows_that_no_pair_pulls_stay_as_they_are() -> None:
    vectors = rows(60, 5, np.random.default_rng(3))
    result = spreadout.step(
        vectors, Spreadout(mode="topk_neg_sq", neighbours=2), np.random.default_rng(0), pairs=Pairs(np.array([7, 9]))
    )
    pulled = {7, 9, *neighbours.nearest(vectors, np.array([7, 9]), np.arange(60), 2).indices.ravel().tolist()}
    assert set(np.flatnonzero((result.vectors != vectors).any(axis=1)).tolist()) == pulled
    assert result.median_angle_radians > 0


@pytest.fixture
def _with_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "DENSE_LIMIT", 1)


@pytest.mark.usefixtures("_with_lists")
def test_lists_begin_with_an_exact_search() -> None:
    vectors = rows(1000, 16, np.random.default_rng(0))
    anchors, everyone = np.arange(0, 1000, 7), np.arange(1000)
    found, lists = neighbours.from_lists(vectors, anchors, 5, neighbours.empty(1000))
    np.testing.assert_array_equal(found.indices, neighbours.nearest(vectors, anchors, everyone, 5).indices)
    np.testing.assert_array_equal(np.flatnonzero(lists.searched >= 0), anchors)
    # Whoever is near an anchor has it in its own list now, though not searched itself, unless two took one place there.
    told = [(lists.members[near] == anchor).any() for anchor, near in zip(anchors, found.indices[:, 0], strict=True)]
    assert np.mean(told) > 0.8


@pytest.mark.usefixtures("_with_lists")
@pytest.mark.parametrize("turn", [0.02, 0.1])
def test_lists_keep_their_recall_while_rows_move(turn: float) -> None:
    rng = np.random.default_rng(0)
    count, cohort = 2000, 200
    vectors, lists = rows(count, 64, rng), neighbours.empty(count)
    everyone = np.arange(count)
    recalls, searched = [], []
    for number in range(45):
        anchors = np.sort(rng.choice(count, cohort, replace=False))
        vectors[anchors] = spreadout.unit_rows(vectors[anchors] + turn / 8 * rng.standard_normal((cohort, 64)))
        exact_before = int((lists.searched == lists.round_id - 1).sum())
        found, lists = neighbours.from_lists(vectors, anchors, 10, lists)
        if number >= 20:
            true = neighbours.nearest(vectors, anchors, everyone, 10)
            hits = (true.indices[:, :, None] == found.indices[:, None, :]).any(axis=2)
            recalls.append(hits.mean())
            searched.append(exact_before)
            near = np.take_along_axis(found.distances, np.argsort(found.distances, axis=1), axis=1)
            np.testing.assert_array_equal(found.distances, near)
    assert np.mean(recalls) > 0.97
    assert min(recalls) > 0.95
    assert np.mean(searched) < 0.35 * cohort


@pytest.mark.usefixtures("_with_lists")
def test_more_is_searched_when_lists_turn_out_stale() -> None:
    rng = np.random.default_rng(0)
    lists = neighbours.empty(1000)
    anchors = np.arange(1000)
    shares = []
    for _ in range(5):  # rows drawn anew each time: no list is worth anything
        _, lists = neighbours.from_lists(rows(1000, 32, rng), anchors, 5, lists)
        shares.append(lists.share)
    assert lists.recall < 0.5
    assert shares[-1] > shares[1] > 0.1


def test_newcomers_and_leavers_shift_the_lists() -> None:
    lists = neighbours.empty(3)
    members = lists.members.copy()
    members[0, :2], members[1, :2], members[2, :2] = [1, 2], [2, 0], [1, 0]
    lists = neighbours.Lists(members, np.array([4, 5, 6]))
    more = neighbours.insert(lists, 1)  # old 1 and 2 are now 2 and 3
    np.testing.assert_array_equal(more.members[:, :2], [[2, 3], [-1, -1], [3, 0], [2, 0]])
    np.testing.assert_array_equal(more.searched, [4, -1, 5, 6])
    less = neighbours.remove(lists, 1)
    np.testing.assert_array_equal(less.members[:, :2], [[-1, 1], [-1, 0]])
    np.testing.assert_array_equal(less.searched, [4, 6])


@pytest.mark.usefixtures("_with_lists")
def test_fedaws_keeps_its_lists_through_rounds_storage_and_comings_and_goings() -> None:
    rng = np.random.default_rng(0)
    options = Settings(initialisation="random", mode="topk_neg_sq", neighbours_index="approximate", exact_limit=10)
    state = SERVER.empty(8, options)
    for number in range(300):
        state = SERVER.admit(state, Admission(f"u{number:03}", "m", 5, np.empty(0, np.float32)), options, rng)
    state = SERVER.start(state, options, rng)

    def one_round(state: ClassMatrix) -> ClassMatrix:
        chosen = sorted(rng.choice(len(state.users), 30, replace=False).tolist())
        sent = tuple(
            Contribution(state.users[row], 5, Payload(state.vectors[row].astype(np.float32))) for row in chosen
        )
        return SERVER.step(state, sent, options, rng)

    state = one_round(one_round(state))
    assert state.lists is not None
    assert int((state.lists.searched >= 0).sum()) > 30
    assert set(SERVER.report(state, options)) == {"neighbours_recall", "neighbours_searched"}
    again = unpack(ClassMatrix, pack(state))
    assert again.lists is not None
    np.testing.assert_array_equal(again.lists.members, state.lists.members)
    state = SERVER.remove(state, "u100")
    state = SERVER.admit(state, Admission("u100a", "m", 5, np.empty(0, np.float32)), options, rng)
    assert state.lists.members.shape == (300, neighbours.LIST_LENGTH)
    assert state.lists.searched[state.row("u100a")] == -1
    assert one_round(state).lists.round_id == 3
    exact = SERVER.step(state, (), Settings(initialisation="random"), rng)
    assert exact.lists is None
    assert SERVER.report(exact, Settings()) == {}


def test_an_unknown_index_is_refused() -> None:
    with pytest.raises(SettingsError, match="neighbours_index"):
        Settings(neighbours_index="ivf")


def test_lists_are_not_asked_where_there_are_few_classes() -> None:
    vectors = rows(50, 4, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, lists = neighbours.from_lists(vectors, np.arange(50), 3, neighbours.empty(50))
    np.testing.assert_array_equal(found.indices, neighbours.nearest(vectors, np.arange(50), np.arange(50), 3).indices)
    assert (lists.searched == -1).all()
    assert lists.round_id == 1
