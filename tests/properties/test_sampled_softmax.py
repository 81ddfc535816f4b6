"""Theory of the sampled softmax (SPEC 13.8): estimates, limits and gradients, in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float64, Int64
from uvsdk.federation import sampled_softmax
from uvsdk.federation.algorithms.fedss.payload import Payload, Settings
from uvsdk.federation.classes.matrix import random_rows
from uvsdk.federation.messages import Admission
from uvsdk.federation.sampled_softmax import client
from uvsdk.federation.sampled_softmax.client import LocalColumns
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.sampled_softmax.server import mean_change
from uvsdk.federation.strategy import Contribution

SEEDS = st.integers(0, 2**32 - 1)
HT = Settings(scale=3.0, pool="users", anchors=0, initialisation="random", foreign_cap=0.0)


def local(rows: Float64, own: int, label_space: int, how: Settings = HT) -> LocalColumns:
    """The first ``own`` of the columns are the device's; float64 throughout."""
    count = len(rows)
    positive = np.arange(count) < own
    shift = np.zeros(count)
    if how.correction == "ht" and count > own:
        shift[~positive] = math.log((count - own) / (label_space - own))
    return LocalColumns(
        rows=torch.tensor(rows),
        received=torch.tensor(rows),
        own=torch.arange(own),
        positive=torch.tensor(positive),
        shift=torch.tensor(shift),
        classes=torch.arange(count),
    )


def partition(g: Float64, columns: LocalColumns, how: Settings = HT) -> float:
    """Z hat = sum over S of exp o'."""
    return float(torch.exp(client.logits(torch.tensor(g[None]), columns, how)).sum())


@given(SEEDS, st.integers(3, 7), st.integers(1, 2), st.data())
@settings(max_examples=25, deadline=None)
def test_the_expected_partition_function_is_the_full_one(seed: int, n: int, own: int, data: st.DataObject) -> None:
    """E Z hat = Z: the mean over all samples, enumerated."""
    m = data.draw(st.integers(1, n - own))
    rng = np.random.default_rng(seed)
    rows, g = random_rows(n, 5, rng), random_rows(1, 5, rng)[0]
    samples = itertools.combinations(range(own, n), m)
    found = [partition(g, local(rows[[*range(own), *chosen]], own, n)) for chosen in samples]
    np.testing.assert_allclose(np.mean(found), np.exp(3 * rows @ g).sum(), rtol=1e-12)


@given(SEEDS, st.integers(2, 8), st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_all_negatives_are_the_full_softmax(seed: int, n: int, own: int) -> None:
    rng = np.random.default_rng(seed)
    rows, g = random_rows(n, 5, rng), torch.tensor(random_rows(4, 5, rng))
    places = torch.tensor(rng.integers(0, own, 4))
    found = client.loss(g, places, local(rows, own, n), HT)
    expected = torch.nn.functional.cross_entropy(3 * g @ torch.tensor(rows).T, places)
    torch.testing.assert_close(found, expected)


@given(SEEDS, st.integers(2, 6), st.floats(0.1, 60))
@settings(max_examples=25, deadline=None)
def test_equation_5_is_equation_6_and_never_negative(seed: int, s: int, scale: float) -> None:
    how = dataclasses.replace(HT, scale=scale)
    rng = np.random.default_rng(seed)
    rows, g = random_rows(s, 4, rng), random_rows(1, 4, rng)
    columns = local(rows, 1, 20, how)
    logits = client.logits(torch.tensor(g), columns, how)[0].numpy()
    equation_6 = math.log(1 + np.exp(logits[1:] - logits[0]).sum())
    found = float(client.loss(torch.tensor(g), torch.tensor([0]), columns, how))
    assert found >= 0
    assert math.isclose(found, equation_6, rel_tol=1e-9, abs_tol=1e-12)


@given(SEEDS, st.sampled_from(["sampled", "negatives", "positives"]))
@settings(max_examples=25, deadline=None)
def test_gradients_are_finite_differences_and_have_the_closed_form(seed: int, kind: str) -> None:
    """dL/dg = scale sum_j (p'_j - [j = t]) u_j and dL/dw_j = scale (p'_j - [j = t]) (I - u_j u_j^T) g / |w_j|."""
    how = dataclasses.replace(HT, loss=kind)
    rng = np.random.default_rng(seed)
    rows, g = random_rows(5, 3, rng) * rng.uniform(0.5, 2, (5, 1)), random_rows(1, 3, rng)
    place = torch.tensor([1])

    def value(at_g: Float64, at_rows: Float64) -> float:
        columns = local(at_rows, 2, 12, how)
        return float(client.loss(torch.tensor(at_g), place, columns, how))

    columns = local(rows, 2, 12, how)
    point, weights = torch.tensor(g, requires_grad=True), torch.tensor(rows, requires_grad=True)
    client.loss(point, place, dataclasses.replace(columns, rows=weights), how).backward()  # type: ignore[no-untyped-call]
    for tensor, start, other in ((point, g, 0), (weights, rows, 1)):
        numeric = np.zeros_like(start)
        for index in np.ndindex(start.shape):
            step = np.zeros_like(start)
            step[index] = 1e-6
            up, down = ((g + step, rows), (g - step, rows)) if other == 0 else ((g, rows + step), (g, rows - step))
            numeric[index] = (value(*up) - value(*down)) / 2e-6
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy(), numeric, atol=1e-7)
    logits = client.logits(torch.tensor(g), columns, how)[0].numpy()
    left_out = {"sampled": [], "negatives": [0], "positives": [2, 3, 4]}[kind]
    logits[left_out] = -np.inf
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    pull = 3 * (p - (np.arange(5) == 1))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / lengths
    np.testing.assert_allclose(point.grad.numpy()[0], pull @ units, atol=1e-10)  # type: ignore[union-attr]
    tangent = g - (units @ g[0])[:, None] * units
    np.testing.assert_allclose(weights.grad.numpy(), pull[:, None] * tangent / lengths, atol=1e-10)  # type: ignore[union-attr]


def server(n: int, holders: bool) -> tuple[Columns, Settings]:
    how = dataclasses.replace(HT, correction="none" if holders else "ht", negatives=1)
    state = sampled_softmax.columns.empty(4, how)
    for place in range(n):
        admission = Admission(f"{place:03}", "m", 5, np.empty(0, np.float32))
        state = sampled_softmax.columns.admit(state, admission, how, np.random.default_rng(place))
    return sampled_softmax.columns.start(state, how, np.random.default_rng(n)), how


def changes(state: Columns, g: Float64, chosen: list[Int64], how: Settings) -> list[Payload]:
    """Each device's gradient step on its columns, under HT-corrected logits."""
    sent, ht = [], dataclasses.replace(how, correction="ht", aggregation="auto")
    for user, places in enumerate(chosen):
        ordered = np.concatenate([[user], places[places != user]])
        columns = local(state.rows.vectors[ordered], 1, len(state.names), ht)
        weights = columns.rows.requires_grad_()
        client.loss(torch.tensor(g[user][None]), torch.tensor([0]), columns, ht).backward()  # type: ignore[no-untyped-call]
        assert weights.grad is not None
        by_id = np.argsort(state.ids[ordered])
        deltas = (-1e-2 * weights.grad.numpy())[by_id]
        sent.append(Payload(state.ids[ordered][by_id], deltas.astype(np.float32)))
    return sent


def test_zero_fill_is_unbiased_where_holders_counts_negatives_too_often() -> None:
    """Over many draws of S the mean change under ``zero_fill`` is that of the full softmax, up to the O(1/m) bias of
    1 / Z hat; under ``holders`` it is about n / m times as long on columns pushed as negatives (SPEC 5.3).
    """
    n, m, draws = 40, 20, 30
    rng = np.random.default_rng(5)
    (state, how), (_, by_holders) = server(n, False), server(n, True)
    # All samples lie in one half of the sphere, away from class 0, which then is a negative on all but one device.
    g = random_rows(n, 4, rng)
    everybody = [np.arange(n)] * n

    def mean(payloads: list[Payload], settings: Settings) -> Float64:
        items = [Contribution(f"{user:03}", 5, payload) for user, payload in enumerate(payloads) if user]
        return mean_change(state, items, settings)[0][0]

    full = mean(changes(state, g, everybody, how), how)
    zero_fill, holders = np.zeros(4), np.zeros(4)
    for _ in range(draws):
        chosen = [np.sort(rng.choice(np.setdiff1d(np.arange(n), [user]), m, replace=False)) for user in range(n)]
        payloads = changes(state, g, chosen, how)
        zero_fill += mean(payloads, how) / draws
        holders += mean(payloads, by_holders) / draws
    length = np.linalg.norm(full)
    assert 0.9 < zero_fill @ full / length**2 < 1.2
    assert 1.7 < holders @ full / length**2 < 2.6  # 1 / pi = 39 / 20 = 1.95


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_names_of_classes_do_not_matter(seed: int) -> None:
    """The loss is the same for any order of the columns."""
    rng = np.random.default_rng(seed)
    rows, g = random_rows(6, 4, rng), torch.tensor(random_rows(3, 4, rng))
    columns = local(rows, 2, 30)
    order = torch.tensor(rng.permutation(6))
    where = torch.argsort(order)
    shuffled = dataclasses.replace(
        columns,
        rows=columns.rows[order],
        positive=columns.positive[order],
        shift=columns.shift[order],
        own=where[columns.own],
    )
    places = torch.tensor([0, 1, 1])
    torch.testing.assert_close(client.loss(g, places, columns, HT), client.loss(g, places, shuffled, HT))
