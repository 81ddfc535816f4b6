"""The FedSS column of the degenerate-case matrix (SPEC 8), a test for each cell.

The contract of every cell: a defined result or a typed error, no NaN, unit rows, and an unchanged state on abort.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from uvsdk.arrays import Float64
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation.algorithms.fedss.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedss.request import REQUEST
from uvsdk.federation.algorithms.fedss.server import SERVER
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.sampled_softmax import client
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.strategy import Contribution

D = 3
NONE = np.empty(0, np.float32)
LAB = Settings(pool="users", anchors=0, initialisation="random")


def seeded() -> np.random.Generator:
    return np.random.default_rng(0)


def secret(count: int) -> bytes:
    return bytes(count)


def people(count: int, settings: Settings = LAB) -> Columns:
    state = SERVER.empty(D, settings)
    for place in range(count):
        state = SERVER.admit(state, Admission(chr(ord("a") + place), "m", 5, NONE), settings, seeded())
    return SERVER.start(state, settings, seeded())


def handed(state: Columns, user: str, settings: Settings = LAB) -> Task:
    request, _ = REQUEST.choose(REQUEST.invite(state, user, settings), {}, settings, seeded(), secret)
    return SERVER.task(state, user, request, settings, seeded())


def trained(
    task: Task, settings: Settings, g: torch.Tensor, *, rate: float = 0.01
) -> tuple[Payload, torch.Tensor, float]:
    """(what a device sends after one step on ``g``, the gradient at ``g``, the loss)."""
    local = client.local_columns(task, settings)
    embeddings = g.clone().requires_grad_()
    local.rows.requires_grad_()
    loss = client.loss(embeddings, torch.zeros(len(g), dtype=torch.int64), local, settings)
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        assert local.rows.grad is not None
        local.rows.sub_(rate * local.rows.grad)
    client.constrain(local, settings)
    assert embeddings.grad is not None
    return Payload(task.classes, client.changes(local)), embeddings.grad, float(loss.detach())


def one(values: list[float]) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.tensor([values]), dim=1)


def step(state: Columns, *items: Contribution[Payload], settings: Settings = LAB, times: int = 1) -> Columns:
    for _ in range(times):
        state = SERVER.step(state, items, settings, seeded())
        assert np.isfinite(state.rows.vectors).all()
        np.testing.assert_allclose(np.linalg.norm(state.rows.vectors, axis=1), 1.0, atol=1e-9)
    return state


def with_vectors(state: Columns, vectors: Float64) -> Columns:
    return dataclasses.replace(state, rows=dataclasses.replace(state.rows, vectors=vectors))


def test_one_class_is_an_error_unless_there_are_anchors() -> None:
    with pytest.raises(SettingsError, match="anchors"):
        people(1)
    with pytest.raises(SettingsError, match="anchors"):
        people(3, Settings(anchors=0, initialisation="random"))  # persons are private: each would see itself alone
    settings = Settings(anchors=4, initialisation="random")
    state = people(1, settings)
    payload, gradient, loss = trained(handed(state, "a", settings), settings, one([1.0, 2, 3]))
    assert loss > 0
    assert float(gradient.abs().max()) > 0
    step(state, Contribution("a", 5, payload), settings=settings)


def test_two_classes_leave_one_negative_at_most() -> None:
    state = people(2, dataclasses.replace(LAB, negatives=7))
    task = handed(state, "a", dataclasses.replace(LAB, negatives=7))
    assert len(task.classes) == 2
    payload, _, loss = trained(task, LAB, one([1.0, 2, 3]))
    assert math.isfinite(loss)
    step(state, Contribution("a", 5, payload))


def test_more_negatives_than_classes_is_the_full_softmax_without_a_correction() -> None:
    settings = dataclasses.replace(LAB, negatives=100)
    state = people(6, settings)
    task = handed(state, "c", settings)
    assert len(task.classes) == task.label_space == 6
    local = client.local_columns(task, settings)
    assert local.shift.tolist() == [0] * 6
    g = one([1.0, 2, 3])
    _, _, loss = trained(task, settings, g)
    expected = torch.nn.functional.cross_entropy(20 * g @ torch.tensor(task.vectors).T, torch.tensor(task.own))
    assert loss == pytest.approx(float(expected), rel=1e-6)


def test_equal_class_vectors_split_the_gradient_evenly() -> None:
    state = with_vectors(people(5), np.tile([1.0, 0, 0], (5, 1)))
    task = handed(state, "b")
    # p' = 1/5 each, and all u equal: dL/dg = 20 (sum p' - 1) u = 0; of the columns, four are pushed by 1/5 each and
    # the own one is pulled by 4/5: four times as far
    payload, gradient, loss = trained(task, LAB, one([1.0, 1, 0]), rate=1e-3)
    assert loss == pytest.approx(math.log(5), rel=1e-6)
    assert float(gradient.abs().max()) < 1e-5
    own = int(task.own[0])
    others = [payload.deltas[place, 1] for place in range(5) if place != own]
    assert np.ptp(others) < 1e-7
    assert payload.deltas[own, 1] == pytest.approx(-4 * others[0], rel=0.05)
    step(state, Contribution("b", 5, payload))


@pytest.mark.parametrize("spoil", [0.0, math.nan, math.inf])
def test_a_change_that_is_no_change_or_no_number(spoil: float) -> None:
    state = people(3)
    task = handed(state, "a")
    payload = Payload(task.classes, np.full(task.vectors.shape, spoil, np.float32))
    if spoil == 0:
        SERVER.check(payload, state, "a", LAB)
    else:
        with pytest.raises(UpdateRejectedError, match="NaN"):
            SERVER.check(payload, state, "a", LAB)
    after = step(state, Contribution("a", 5, payload))
    np.testing.assert_allclose(after.rows.vectors, state.rows.vectors, atol=1e-12)


def test_a_change_that_brings_a_column_to_zero_keeps_it() -> None:
    state = with_vectors(people(2), np.array([[1.0, 0, 0], [0, 1.0, 0]]))
    payload = Payload(np.sort(state.ids[:1]), np.array([[-1, 0, 0]], np.float32))
    after = step(state, Contribution("a", 5, payload))
    np.testing.assert_array_equal(after.rows.vectors, state.rows.vectors)
    assert after.rows.refused == 1


def test_an_antipodal_pair_has_a_logit_of_minus_the_scale() -> None:
    state = with_vectors(people(2), np.array([[1.0, 0, 0], [-1.0, 0, 0]]))
    task = handed(state, "a")
    local = client.local_columns(task, LAB)
    values = client.logits(torch.tensor(task.vectors[task.own]), local, LAB)[0]
    assert sorted(values.tolist()) == pytest.approx([-20, 20])
    payload, _, loss = trained(task, LAB, torch.tensor(task.vectors[task.own]))
    assert loss == pytest.approx(0, abs=1e-6)
    step(state, Contribution("a", 5, payload))


def test_all_but_one_drop_out_aborts() -> None:
    config = TrainingConfig("d", "voice", "ge2e", "fedss")
    assert config.quorum(5) == 3  # one update of five is below it, so no step is made
    state = people(5)
    after = step(state)  # and a step without any contribution moves nothing
    np.testing.assert_array_equal(after.rows.vectors, state.rows.vectors)


def test_a_class_unseen_for_fifty_rounds_stays_without_stale_momentum() -> None:
    state = with_vectors(people(3), np.eye(3))
    first = Payload(np.sort(state.ids[:1]), np.array([[0, 0.2, 0]], np.float32))
    state = step(state, Contribution("a", 5, first))
    there = state.rows.vectors[0]
    other = Payload(np.sort(state.ids[1:2]), np.array([[0, 0, 0.01]], np.float32))
    after = step(state, Contribution("b", 5, other), times=50)
    np.testing.assert_array_equal(after.rows.vectors[0], there)
    assert after.rows.last_round.tolist() == [0, 50, -1]


def test_one_class_on_two_clients_is_fine() -> None:
    state = SERVER.empty(D, LAB)
    for user, classes in (("a", ("x", "y")), ("b", ("x", "z"))):
        state = SERVER.admit(state, Admission(user, "m", 5, NONE, classes=classes), LAB, seeded())
    state = SERVER.start(state, LAB, seeded())
    assert state.names == ("x", "y", "z")
    x = np.sort(state.ids[:1])
    changes = np.array([[0.1, 0, 0]], np.float32)
    items = [Contribution(user, 5, Payload(x, changes)) for user in "ab"]
    both, single = step(state, *items), step(state, Contribution("a", 5, Payload(x, changes)))
    np.testing.assert_allclose(both.rows.vectors, single.rows.vectors, atol=1e-12)  # the mean of two equal changes
    assert SERVER.remove(state, "a").names == ("x", "z")
    twice = step(state, *(Contribution("a", 5, Payload(x, changes)) for _ in range(2)))  # two devices of one user
    np.testing.assert_allclose(twice.rows.vectors, single.rows.vectors, atol=1e-12)


def test_one_sample_is_fine() -> None:
    state = people(4)
    payload, _, loss = trained(handed(state, "a"), LAB, one([1.0, 0, 0]))
    assert math.isfinite(loss)
    SERVER.check(payload, state, "a", LAB)
    step(state, Contribution("a", 1, payload))
