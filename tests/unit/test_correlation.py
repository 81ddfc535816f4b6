"""Counts over label sets and the pair weights that follow, with numbers by hand (SPEC 3.1-3.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Int64, UInt8
from uvsdk.federation.classes import correlation, spreadout
from uvsdk.federation.classes.correlation import Correlation, PairWeights
from uvsdk.federation.classes.spreadout import Pairs, Spreadout


def hashes(*held: tuple[int, ...]) -> tuple[UInt8, Int64]:
    """Instances by number, class after class."""
    numbers = np.array([number for part in held for number in part], np.uint8)
    pointers = np.concatenate([[0], np.cumsum([len(part) for part in held])]).astype(np.int64)
    return np.repeat(numbers[:, None], 32, axis=1).reshape(-1, 32), pointers


# Six instances of three classes: a holds 1 2 3, b holds 2 3 4 5, c holds 6. a and b share 2 and 3.
SHARED = ((1, 2, 3), (2, 3, 4, 5), (6,))


def test_counts_by_hand() -> None:
    counts = correlation.count(*hashes(*SHARED))
    np.testing.assert_array_equal(counts.positives, [3, 4, 1])
    assert counts.instances == 6
    np.testing.assert_array_equal((counts.rows, counts.columns, counts.together), [[0], [1], [2]])


def test_sigma_gamma_and_pi_by_hand() -> None:
    counts = correlation.count(*hashes(*SHARED))
    # sigma_ab = (3 - 2) / 6, sigma_ba = (4 - 2) / 6, everything else N_u / 6.
    expected = np.array([[0, 1, 3], [2, 0, 4], [1, 1, 0]]) / 6
    np.testing.assert_allclose(correlation.sigma(counts).dense(), expected, atol=1e-15)
    # Rows divided by their sums 4/6, 6/6 and 2/6.
    np.testing.assert_allclose(
        correlation.gamma(counts).dense(), [[0, 1 / 4, 3 / 4], [1 / 3, 0, 2 / 3], [1 / 2, 1 / 2, 0]], atol=1e-15
    )
    np.testing.assert_allclose(correlation.pi(counts), [2 / 6])
    np.testing.assert_allclose(correlation.pi(counts, largest=0.1), [0.1])


def test_a_sample_held_twice_by_one_device_is_one_instance() -> None:
    counts = correlation.count(*hashes((1, 1, 2), (2, 2)))
    np.testing.assert_array_equal(counts.positives, [2, 1])
    assert (counts.instances, counts.together.tolist()) == (2, [1])


def test_no_instances_and_a_class_without_any() -> None:
    nothing = correlation.count(*hashes((), ()))
    assert nothing.instances == 0
    np.testing.assert_array_equal(correlation.sigma(nothing).dense(), np.zeros((2, 2)))
    counts = correlation.count(*hashes((), (1, 2), (2,)))
    np.testing.assert_allclose(correlation.sigma(counts).dense(), [[0, 0, 0], [1, 0, 0.5], [0.5, 0, 0]])
    weights = correlation.gamma(counts).dense()
    np.testing.assert_allclose(weights.sum(axis=1), [0, 1, 1])


def test_rare_pairs_are_left_out_and_links_of_a_person_stay() -> None:
    counts = correlation.count(*hashes((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6), (1,)))
    assert list(zip(counts.rows, counts.columns, counts.together, strict=True)) == [(0, 1, 5), (0, 2, 1), (1, 2, 1)]
    assert counts.frequent(5).together.tolist() == [5]
    assert counts.frequent(6, kept=counts.columns == 2).together.tolist() == [1, 1]


def test_two_identities_of_one_person_are_one_label() -> None:
    # a and c are one person: N = |{1, 2, 3, 6}| = 4 for both, shared by both, and 2 of them with b.
    counts = correlation.count(*hashes(*SHARED), groups=np.array([0, 1, 0]))
    np.testing.assert_array_equal(counts.positives, [4, 4, 4])
    assert list(zip(counts.rows, counts.columns, counts.together, strict=True)) == [(0, 1, 2), (0, 2, 4), (1, 2, 2)]
    weights = correlation.sigma(counts).dense()
    assert weights[0, 2] == weights[2, 0] == 0.0
    assert counts.inseparable().tolist() == [False, True, False]


def test_an_instance_that_nearly_everyone_holds_relates_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "MOST_LABELS", 2)
    counts = correlation.count(*hashes((1, 9), (1, 9), (9,)))
    assert (counts.instances, counts.positives.tolist()) == (2, [2, 2, 1])
    assert counts.together.tolist() == [1]  # of instance 1; 9 has three labels


@st.composite
def label_sets(draw: st.DrawFn) -> list[list[int]]:
    return draw(st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=2, max_size=7))


@given(held=label_sets())
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_dense_incidence(held: list[list[int]]) -> None:
    counts = correlation.count(*hashes(*map(tuple, held)))
    present = np.zeros((len(held), 13), np.int64)
    for place, numbers in enumerate(held):
        present[place, numbers] = 1
    both = present @ present.T
    np.testing.assert_array_equal(counts.positives, np.diag(both))
    assert counts.instances == (present.sum(axis=0) > 0).sum()
    pairs = np.zeros_like(both)
    pairs[counts.rows, counts.columns] = counts.together
    np.testing.assert_array_equal(pairs, np.triu(both, 1))
    # S2 Eq 9 as it is printed: instances with u and without v.
    printed = np.array([[int((u & ~v & 1).sum()) for v in present] for u in present]) / max(counts.instances, 1)
    np.fill_diagonal(printed, 0.0)
    sigma = correlation.sigma(counts)
    np.testing.assert_allclose(sigma.dense(), printed, atol=1e-12)
    np.testing.assert_allclose(sigma.row_sums(), printed.sum(axis=1), atol=1e-12)
    assert sigma.mean() == pytest.approx(printed.sum() / (len(held) * (len(held) - 1)))


@given(held=label_sets(), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_weights_are_indexed_like_the_matrix_they_stand_for(held: list[list[int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for make in (correlation.sigma, correlation.gamma):
        weights = make(correlation.count(*hashes(*map(tuple, held)))).with_unit_mean()
        dense = weights.dense()
        some, others = rng.permutation(len(held))[:3], rng.permutation(len(held))[:4]
        np.testing.assert_allclose(weights[some[:, None], others[None, :]], dense[np.ix_(some, others)], atol=1e-14)
        heads, tails = rng.integers(0, len(held), (2, 9))
        np.testing.assert_allclose(weights[heads, tails], dense[heads, tails], atol=1e-14)
        assert (dense >= 0).all()
        assert weights.mean() == pytest.approx(1.0) or not dense.any()


@given(held=label_sets(), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_order_in_which_devices_joined_does_not_matter(held: list[list[int]], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(held))
    one = correlation.sigma(correlation.count(*hashes(*map(tuple, held)))).dense()
    other = correlation.sigma(correlation.count(*hashes(*(tuple(held[place]) for place in order)))).dense()
    np.testing.assert_allclose(other, one[np.ix_(order, order)], atol=1e-14)


@pytest.mark.parametrize("mode", spreadout.MODES)
def test_the_spreadout_takes_sparse_weights_as_it_takes_a_matrix(mode: str) -> None:
    rng = np.random.default_rng(3)
    vectors = spreadout.unit_rows(rng.standard_normal((3, 4)))
    weights = correlation.sigma(correlation.count(*hashes(*SHARED)))
    options = Spreadout(mode=mode, margin=1.2, neighbours=1)
    np.testing.assert_allclose(
        spreadout.gradient(vectors, options, Pairs(weights=weights)),
        spreadout.gradient(vectors, options, Pairs(weights=weights.dense())),
        atol=1e-14,
    )


def test_one_label_an_instance_is_weighted_by_class_sizes() -> None:
    # SPEC 3.5: sigma_uv = n_u / n and gamma_uv = 1 / (C - 1).
    counts = correlation.count(*hashes((1, 2, 3), (4,), (5, 6)))
    assert len(counts.rows) == 0
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(
        correlation.sigma(counts).dense()[off], np.repeat([[3 / 6], [1 / 6], [2 / 6]], 3, axis=1)[off]
    )
    np.testing.assert_allclose(correlation.gamma(counts).dense()[off], 1 / 2)


def test_many_classes_need_no_matrix() -> None:
    import tracemalloc

    count = 20_000
    weights = correlation.sigma(Correlation(np.full(count, 5), np.arange(9), np.arange(9) + 1, np.full(9, 2), 100))
    tracemalloc.start()
    weights.with_unit_mean()[np.arange(count), np.arange(count)[::-1]]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < count * 200


def test_constant_weights() -> None:
    np.testing.assert_array_equal(PairWeights.constant(2, 0.5).dense(), [[0, 0.5], [0.5, 0]])
