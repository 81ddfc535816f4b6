"""The columns of a sampled softmax: who holds what, what a device may ask for, what a round changes, by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from uvsdk.arrays import Float64, Int64
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import algorithms
from uvsdk.federation.algorithms.fedss.client import CLIENT
from uvsdk.federation.algorithms.fedss.payload import Payload, Request, Settings, Task
from uvsdk.federation.algorithms.fedss.request import KEY, REQUEST
from uvsdk.federation.algorithms.fedss.server import SERVER
from uvsdk.federation.messages import Admission
from uvsdk.federation.sampled_softmax import client, columns, server
from uvsdk.federation.sampled_softmax.columns import Columns, class_id
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import pack, unpack

D = 4
NONE = np.empty(0, np.float32)
LAB = Settings(pool="users", anchors=0, initialisation="random", negatives=2, foreign_cap=0.0)


def seeded() -> np.random.Generator:
    return np.random.default_rng(0)


def secret(count: int) -> bytes:
    return b"\7" * count


def federation(settings: Settings = LAB, **devices: tuple[str, ...]) -> Columns:
    """A started server; each device lists its classes, or holds its user alone for ()."""
    state = SERVER.empty(D, settings)
    for user, listed in devices.items():
        state = SERVER.admit(state, Admission(user, "m", 5, NONE, classes=listed), settings, seeded())
    return SERVER.start(state, settings, seeded())


def people(count: int, settings: Settings = LAB) -> Columns:
    return federation(settings, **{f"user-{place:03}": () for place in range(count)})


def asked(state: Columns, user: str, settings: Settings = LAB, seed: int = 0) -> Request:
    rng = np.random.default_rng(seed)
    return REQUEST.choose(REQUEST.invite(state, user, settings), {}, settings, rng, secret)[0]


def task(state: Columns, user: str, settings: Settings = LAB, seed: int = 0) -> Task:
    return SERVER.task(state, user, asked(state, user, settings, seed), settings, seeded())


def sent(user: str, ids: dict[str, list[float]], samples: int = 5) -> Contribution[Payload]:
    """A change for each class named."""
    order = sorted(ids, key=class_id)
    classes = np.array([class_id(name) for name in order], np.int64)
    return Contribution(user, samples, Payload(classes, np.array([ids[name] for name in order], np.float32)))


def with_vectors(state: Columns, **rows: list[float]) -> Columns:
    vectors = state.rows.vectors.copy()
    for name, row in rows.items():
        vectors[state.names.index(name)] = row
    return dataclasses.replace(state, rows=dataclasses.replace(state.rows, vectors=vectors))


# Who holds what


def test_a_person_is_a_class_and_a_device_may_list_several() -> None:
    state = federation(c=(), a=("x", "y"), b=("y", "z"))
    assert state.names == ("c", "x", "y", "z")
    assert [state.names[place] for place in state.own("b")] == ["y", "z"]
    assert [state.names[place] for place in state.own("c")] == ["c"]
    assert SERVER.users(state) == ("a", "b", "c")
    assert columns.most_held(state) == 2


def test_a_class_goes_with_its_last_holder() -> None:
    state = SERVER.remove(federation(a=("x", "y"), b=("y", "z"), c=()), "a")
    assert state.names == ("c", "y", "z")
    assert [state.names[place] for place in state.own("b")] == ["y", "z"]
    state = SERVER.remove(state, "b")
    assert (state.names, state.users) == (("c",), ("c",))
    assert [state.names[place] for place in state.own("c")] == ["c"]


def test_a_device_that_joins_again_holds_what_it_says_last() -> None:
    state = federation(a=("x", "y"), b=("y", "z"))
    kept = state.rows.vectors[state.names.index("y")]
    again = SERVER.admit(state, Admission("a", "m", 5, NONE, classes=("w", "y")), LAB, seeded())
    assert again.names == ("w", "y", "z")
    assert [again.names[place] for place in again.own("a")] == ["w", "y"]
    np.testing.assert_array_equal(again.rows.vectors[again.names.index("y")], kept)
    np.testing.assert_allclose(np.linalg.norm(again.rows.vectors, axis=1), 1)


@pytest.mark.parametrize(
    ("user", "listed"),
    [
        ("new", ("y", "x")),
        ("new", ("x", "x")),
        ("new", ("", "x")),
        ("new", ("alone", "x")),
        ("new", ("new", "x")),
        ("new", ("anchor/000001", "x")),
        ("anchor/000001", ()),
        ("x", ()),
    ],
)
def test_names_that_would_give_a_device_more_than_its_own(user: str, listed: tuple[str, ...]) -> None:
    state = federation(alone=(), several=("x", "y"))
    with pytest.raises(UpdateRejectedError) as refusal:
        SERVER.admit(state, Admission(user, "m", 5, NONE, classes=listed), LAB, seeded())
    assert "alone" not in str(refusal.value).split()


def test_a_person_starts_from_the_mean_and_an_anchor_at_random() -> None:
    settings = Settings(initialisation="client_means", anchors=3)
    state = SERVER.empty(D, settings)
    mean = np.array([0.6, 0, 0, 0], np.float32)
    state = SERVER.admit(state, Admission("a", "m", 5, mean), settings, seeded())
    state = SERVER.start(state, settings, seeded())
    assert state.names == ("a", "anchor/000000", "anchor/000001", "anchor/000002")
    np.testing.assert_allclose(state.rows.vectors[0], [1, 0, 0, 0])
    np.testing.assert_allclose(np.linalg.norm(state.rows.vectors, axis=1), 1)
    assert SERVER.class_matrix(state)[0] == ("a",)
    assert SERVER.report(state, settings)["anchors"] == 3


def test_whom_a_device_may_be_sent() -> None:
    """Persons are private unless the operator says otherwise; anchors and listed classes are not."""
    settings = Settings(initialisation="random", anchors=2)
    state = federation(settings, a=(), b=(), multi=("x", "y"))
    space = [state.names[place] for place in columns.label_space(state, "a", settings)]
    assert space == ["a", "anchor/000000", "anchor/000001", "x", "y"]
    everybody = dataclasses.replace(settings, pool="users")
    assert len(columns.label_space(state, "a", everybody)) == 6
    assert SERVER.restricted(settings) == ""
    assert "template" in SERVER.restricted(everybody)
    assert "template" in algorithms.server("softmax").restricted(algorithms.settings("softmax", {}))


# What a device asks for


def test_a_request_hides_how_many_classes_are_the_devices_own() -> None:
    state = federation(a=("k", "l", "m"), b=("n",), c=("o", "p", "q", "r", "s"))
    # the most that anyone holds is 5, and negatives is 2: everyone asks for 7 of 9
    sizes = {user: len(asked(state, user).classes) for user in "abc"}
    assert sizes == {"a": 7, "b": 7, "c": 7}


def test_a_task_is_what_was_asked_for() -> None:
    state = federation(a=("k", "l"), b=("m", "n", "o"), c=("p",))
    request = asked(state, "a")
    handed = SERVER.task(state, "a", request, LAB, seeded())
    assert (np.diff(handed.classes) > 0).all()
    np.testing.assert_array_equal(handed.classes, request.classes)
    assert [int(handed.classes[place]) for place in handed.own] == [class_id("k"), class_id("l")]
    assert handed.label_space == 6
    for name, vector in zip(handed.classes.tolist(), handed.vectors, strict=True):
        np.testing.assert_allclose(vector, state.rows.vectors[state.ids.tolist().index(name)], atol=1e-7)


def test_what_is_no_fair_request_is_refused_without_saying_which_class() -> None:
    settings = Settings(initialisation="random", anchors=2, negatives=1)
    state = federation(settings, a=(), b=(), c=())
    own, private = class_id("a"), class_id("b")
    anchors = [class_id("anchor/000000"), class_id("anchor/000001")]
    for classes in (
        [own, private],  # another person's
        [own, 12345],  # nobody's
        [own, own],  # twice
        anchors,  # without the own one
        [own, *anchors],  # one more than is sent
    ):
        with pytest.raises(UpdateRejectedError) as refusal:
            SERVER.task(state, "a", Request(np.sort(np.array(classes, np.int64))), settings, seeded())
        assert str(private) not in str(refusal.value)
        assert "12345" not in str(refusal.value)
    messages = []
    for stranger in (private, 12345):
        with pytest.raises(UpdateRejectedError) as refusal:
            SERVER.task(state, "a", Request(np.sort(np.array([own, stranger], np.int64))), settings, seeded())
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]  # whether such a class exists cannot be told either
    descending = np.sort(np.array([own, anchors[0]], np.int64))[::-1].copy()
    with pytest.raises(UpdateRejectedError, match="ascending"):
        SERVER.task(state, "a", Request(descending), settings, seeded())
    with pytest.raises(UpdateRejectedError, match="ask"):
        SERVER.task(state, "a", None, settings, seeded())
    with pytest.raises(UpdateRejectedError, match="admission"):
        REQUEST.invite(state, "stranger", settings)


def test_a_device_refuses_an_invitation_that_would_expose_it() -> None:
    state = people(9)
    good = REQUEST.invite(state, "user-000", LAB)
    assert good.size == 3
    for bad in (
        dataclasses.replace(good, size=1),
        dataclasses.replace(good, size=10),
        dataclasses.replace(good, own=np.array([5], np.int64)),
        dataclasses.replace(good, own=np.empty(0, np.int64)),
        dataclasses.replace(good, classes=good.classes[::-1].copy()),
        dataclasses.replace(good, classes=np.repeat(good.classes, 2)),
    ):
        with pytest.raises(UpdateRejectedError):
            REQUEST.choose(bad, {}, LAB, seeded(), secret)


def survivors(state: Columns, settings: Settings, rounds: int, seed: int = 0) -> Int64:
    """Ids that one device asked for in every one of ``rounds`` rounds: what a curious server is left with."""
    invitation, memory, rng = REQUEST.invite(state, "user-000", settings), {}, np.random.default_rng(seed)
    left = invitation.classes
    for _ in range(rounds):
        request, memory = REQUEST.choose(invitation, memory, settings, rng, np.random.default_rng(seed).bytes)
        left = np.intersect1d(left, request.classes)
    return left


def test_fresh_samples_reveal_the_positive_in_three_rounds_and_kept_ones_do_not() -> None:
    # n = 1000, m = 50: (n - 1)(m / (n - 1))^T = 50, 2.5, .125 false survivors after 1, 2, 3 rounds (SPEC 5.5)
    fresh = Settings(pool="users", anchors=0, initialisation="random", negatives=50)
    kept = dataclasses.replace(fresh, epoch_rounds=100)
    state = people(1000, fresh)
    assert len(survivors(state, fresh, 1)) == 51
    assert np.mean([len(survivors(state, fresh, 2, seed)) - 1 for seed in range(30)]) == pytest.approx(2.5, abs=1.0)
    alone = [len(survivors(state, fresh, 3, seed)) == 1 for seed in range(30)]
    assert np.mean(alone) > 0.7  # e^-.125 = .88 of devices are found out
    assert survivors(state, fresh, 6).tolist() == [class_id("user-000")]
    assert [len(survivors(state, kept, rounds)) for rounds in (1, 3, 20)] == [51, 51, 51]
    assert len(survivors(state, dataclasses.replace(kept, epoch_rounds=2), 4)) < 10  # two epochs: two samples


def test_a_kept_sample_outlives_those_who_join() -> None:
    settings = dataclasses.replace(LAB, negatives=30, epoch_rounds=10)
    state = people(100, settings)
    first, memory = REQUEST.choose(REQUEST.invite(state, "user-007", settings), {}, settings, seeded(), secret)
    grown = SERVER.admit(state, Admission("zoe", "m", 5, NONE), settings, seeded())
    second, after = REQUEST.choose(REQUEST.invite(grown, "user-007", settings), memory, settings, seeded(), secret)
    assert len(np.setdiff1d(first.classes, second.classes)) <= 1
    np.testing.assert_array_equal(memory[KEY], after[KEY])


def test_the_key_survives_the_round() -> None:
    settings = dataclasses.replace(LAB, epoch_rounds=3)
    state = people(9, settings)
    request, memory = REQUEST.choose(REQUEST.invite(state, "user-000", settings), {}, settings, seeded(), secret)
    handed = SERVER.task(state, "user-000", request, settings, seeded())
    local = CLIENT.begin(handed, memory, lambda indices=None: torch.eye(D), settings, seeded(), secret)
    _, kept = CLIENT.finish(local, lambda indices=None: torch.eye(D), settings, seeded(), secret)
    assert set(kept) == {"key", "rounds"}
    assert unpack(Request, pack(request)).classes.tolist() == request.classes.tolist()


# What a round changes


def test_zero_fill_and_holders_by_hand() -> None:
    # a and b hold one class each; only a had column c. Weights 3/4 and 1/4.
    # zero_fill: D_c = 3/4 x (0, .4, 0, 0) = (0, .3, 0, 0); holders: the same over 3/4, (0, .4, 0, 0)
    settings = dataclasses.replace(LAB, momentum=0.0, samples_cap=1000)
    state = with_vectors(people(3), **{"user-002": [1, 0, 0, 0]})
    items = (
        sent("user-000", {"user-000": [0, 0, 0, 0], "user-002": [0, 0.4, 0, 0]}, samples=30),
        sent("user-001", {"user-001": [0, 0, 0, 0]}, samples=10),
    )
    after = SERVER.step(state, items, settings, seeded())
    np.testing.assert_allclose(after.rows.vectors[2], np.array([1, 0.3, 0, 0]) / math.hypot(1, 0.3))
    after = SERVER.step(state, items, dataclasses.replace(settings, correction="none"), seeded())
    np.testing.assert_allclose(after.rows.vectors[2], np.array([1, 0.4, 0, 0]) / math.hypot(1, 0.4))
    after = SERVER.step(
        state, items, dataclasses.replace(settings, samples_cap=1), seeded()
    )  # the default, weights 1/2
    np.testing.assert_allclose(after.rows.vectors[2], np.array([1, 0.2, 0, 0]) / math.hypot(1, 0.2))


def test_momentum_acts_on_touched_columns_only() -> None:
    # v_1 = .1, w = (1, .1); v_2 = .9 x .1 + .1 = .19 on the column touched again
    state = with_vectors(people(2), **{"user-000": [1, 0, 0, 0], "user-001": [0, 0, 1, 0]})
    both = (sent("user-000", {"user-000": [0, 0.1, 0, 0], "user-001": [0, 0, 0, 0.1]}),)
    one = (sent("user-000", {"user-000": [0, 0.1, 0, 0]}),)
    first = SERVER.step(state, both, LAB, seeded())
    second = SERVER.step(first, one, LAB, seeded())
    np.testing.assert_allclose(first.momentum[:, [1, 3]], [[0.1, 0], [0, 0.1]], atol=1e-8)
    np.testing.assert_allclose(second.momentum[0], [0, 0.19, 0, 0], atol=1e-7)
    moved = first.rows.vectors[0] + [0, 0.19, 0, 0]
    np.testing.assert_allclose(second.rows.vectors[0], moved / np.linalg.norm(moved), atol=1e-7)
    np.testing.assert_array_equal(second.rows.vectors[1], first.rows.vectors[1])
    np.testing.assert_array_equal(second.momentum[1], first.momentum[1])
    assert second.rows.last_round.tolist() == [1, 0]


def test_nobody_pushes_anothers_column_far() -> None:
    settings = dataclasses.replace(LAB, foreign_cap=0.1, momentum=0.0)
    state = with_vectors(people(2), **{"user-000": [1, 0, 0, 0], "user-001": [0, 0, 1, 0]})
    item = sent("user-000", {"user-000": [0, 0.5, 0, 0], "user-001": [0, 0, 0, 2]})
    after = SERVER.step(state, (item,), settings, seeded())
    own = np.array([1, 0.5, 0, 0]) / math.hypot(1, 0.5)  # as it is
    np.testing.assert_allclose(after.rows.vectors[0], own)
    np.testing.assert_allclose(after.rows.vectors[1], np.array([0, 0, 1, 0.1]) / math.hypot(1, 0.1))


def test_the_order_of_devices_does_not_matter() -> None:
    state, rng = people(6), np.random.default_rng(3)
    items = []
    for user in state.users:
        handed = task(state, user, seed=len(items))
        deltas = (0.1 * rng.standard_normal(handed.vectors.shape)).astype(np.float32)
        items.append(Contribution(user, int(rng.integers(1, 9)), Payload(handed.classes, deltas)))
    forwards = SERVER.step(state, tuple(items), LAB, seeded())
    backwards = SERVER.step(state, tuple(reversed(items)), LAB, seeded())
    np.testing.assert_allclose(forwards.rows.vectors, backwards.rows.vectors, atol=1e-12)


def test_check_refuses_what_no_client_makes() -> None:
    state = people(5)
    handed = task(state, "user-000")
    good = Payload(handed.classes, np.full(handed.vectors.shape, 0.01, np.float32))
    SERVER.check(good, state, "user-000", LAB)
    spoilt = {
        "nan": np.where(np.arange(D) == 1, np.nan, good.deltas),
        "long": 3 + good.deltas,
        "short": good.deltas[:-1],
        "flat": good.deltas.ravel(),
        "integers": np.zeros(good.deltas.shape, np.int64),
    }
    for deltas in spoilt.values():
        with pytest.raises(UpdateRejectedError):
            SERVER.check(Payload(good.classes, deltas), state, "user-000", LAB)
    for classes in (good.classes[::-1].copy(), good.classes + 1, good.classes[None], good.classes.astype(np.int32)):
        with pytest.raises(UpdateRejectedError):
            SERVER.check(Payload(classes, good.deltas), state, "user-000", LAB)
    with pytest.raises(UpdateRejectedError):
        SERVER.check(good, state, "stranger", LAB)
    after = SERVER.step(state, (Contribution("user-000", 5, Payload(good.classes, spoilt["nan"])),), LAB, seeded())
    np.testing.assert_array_equal(after.rows.vectors, state.rows.vectors)
    assert after.rows.refused == 1


def test_a_class_that_left_in_the_middle_of_a_round_is_passed_over() -> None:
    state = people(3)
    handed = task(state, "user-000")
    payload = Payload(handed.classes, np.full(handed.vectors.shape, 0.01, np.float32))
    smaller = SERVER.remove(state, "user-001")
    after = SERVER.step(smaller, (Contribution("user-000", 5, payload),), LAB, seeded())
    assert after.names == ("user-000", "user-002")
    assert after.rows.refused == 0
    assert (np.linalg.norm(after.rows.vectors - smaller.rows.vectors, axis=1) > 0).all()


def test_the_state_survives_the_codec_with_momentum_and_holdings() -> None:
    state = federation(a=("x", "y"), b=(), c=())
    state = SERVER.step(state, (sent("b", {"b": [0.1, 0, 0, 0]}),), LAB, seeded())
    again = unpack(Columns, pack(state))
    assert pack(again) == pack(state)
    assert [again.names[place] for place in again.own("a")] == ["x", "y"]


def test_settings_that_count_negatives_wrongly_are_refused() -> None:
    assert not Settings().divide_by_holders
    assert Settings(correction="none").divide_by_holders
    for bad in (
        {"aggregation": "holders"},
        {"correction": "none", "aggregation": "zero_fill"},
        {"loss": "hinge"},
        {"pool": "friends"},
        {"scale": 0.0},
        {"momentum": 1.0},
        {"anchors": -1},
        {"negatives": -1},
        {"samples_cap": 0},
        {"server_rate": 0.0},
        {"foreign_cap": -0.1},
        {"vector_rate": -1.0},
        {"initialisation": "zeros"},
    ):
        with pytest.raises(SettingsError):
            algorithms.settings("fedss", bad)
    assert Settings.paper().pool == "users"


# The loss


def local(own: list[int], rows: Float64, label_space: int, settings: Settings) -> client.LocalColumns:
    handed = Task(np.arange(len(rows)), rows.astype(np.float32), np.array(own, np.int64), label_space)
    made = client.local_columns(handed, settings)
    return dataclasses.replace(made, rows=torch.tensor(rows), received=torch.tensor(rows), shift=made.shift.double())


def test_the_loss_by_hand() -> None:
    # g on the own class: cosines 1, 0, -1 with scale 2 are logits 2, 0, -2; one of two negatives of 9 - 1 = 8 others
    # was asked for with probability 2/8, so the negatives count 4 times: log(1 + 4 e^-2 + 4 e^-4)
    settings = dataclasses.replace(LAB, scale=2.0)
    rows = np.array([[1.0, 0], [0, 1.0], [-1.0, 0]])
    g, first = torch.tensor([[1.0, 0]], dtype=torch.float64), torch.tensor([0])
    expected = math.log(1 + 4 * math.exp(-2) + 4 * math.exp(-4))
    assert float(client.loss(g, first, local([0], rows, 9, settings), settings)) == pytest.approx(expected)
    plain = dataclasses.replace(settings, correction="none")
    expected = math.log(1 + math.exp(-2) + math.exp(-4))
    assert float(client.loss(g, first, local([0], rows, 9, plain), plain)) == pytest.approx(expected)


def test_negatives_only_and_positives_only_by_hand() -> None:
    # own classes 0 and 1, negative 2, no correction: logits 2, 0, -2 for a sample of class 0
    rows = np.array([[1.0, 0], [0, 1.0], [-1.0, 0]])
    g, first = torch.tensor([[1.0, 0]], dtype=torch.float64), torch.tensor([0])
    for loss, expected in (("negatives", math.log(1 + math.exp(-4))), ("positives", math.log(1 + math.exp(-2)))):
        settings = dataclasses.replace(LAB, scale=2.0, correction="none", loss=loss)
        found = client.loss(g, first, local([0, 1], rows, 9, settings), settings)
        assert float(found) == pytest.approx(expected), loss


def test_positives_only_teaches_a_device_of_one_class_nothing() -> None:
    settings = dataclasses.replace(LAB, loss="positives")
    state = people(5, settings)
    assert len(asked(state, "user-000", settings).classes) == 1
    rows = torch.nn.functional.normalize(torch.randn(1, D, dtype=torch.float64), dim=1).requires_grad_()
    g = torch.nn.functional.normalize(torch.randn(3, D, dtype=torch.float64), dim=1).requires_grad_()
    held = dataclasses.replace(local([0], rows.detach().numpy(), 5, settings), rows=rows)
    found = client.loss(g, torch.zeros(3, dtype=torch.int64), held, settings)
    found.backward()
    assert float(found.detach()) == 0
    assert g.grad is not None
    assert rows.grad is not None
    assert float(g.grad.abs().max()) == 0
    assert float(rows.grad.abs().max()) == 0


def test_a_device_refuses_columns_that_no_server_sends() -> None:
    state = people(5)
    good = task(state, "user-000")
    for bad in (
        dataclasses.replace(good, vectors=2 * good.vectors),
        dataclasses.replace(good, vectors=np.full_like(good.vectors, np.nan)),
        dataclasses.replace(good, vectors=good.vectors[:-1]),
        dataclasses.replace(good, classes=np.zeros_like(good.classes)),
        dataclasses.replace(good, own=np.empty(0, np.int64)),
        dataclasses.replace(good, own=np.array([7])),
        dataclasses.replace(good, own=np.array([0, 0])),
        dataclasses.replace(good, label_space=2),
    ):
        with pytest.raises(UpdateRejectedError):
            client.local_columns(bad, LAB)


def test_what_a_device_sends_is_the_change_of_its_columns() -> None:
    state = people(5)
    handed = task(state, "user-000")
    held = CLIENT.begin(handed, {}, lambda indices=None: torch.eye(D), LAB, seeded(), secret)
    (trained,) = CLIENT.parameters(held, LAB)
    g = torch.nn.functional.normalize(torch.randn(6, D), dim=1)
    trained.requires_grad_()
    CLIENT.loss(g, torch.zeros(6, dtype=torch.int64), held, LAB).backward()
    with torch.no_grad():
        trained -= 0.05 * trained.grad
    CLIENT.constrain(held, LAB)
    np.testing.assert_allclose(np.linalg.norm(held.rows.detach(), axis=1), 1, atol=1e-6)
    payload, _ = CLIENT.finish(held, lambda indices=None: g, LAB, seeded(), secret)
    np.testing.assert_allclose(payload.deltas, held.rows.detach().numpy() - handed.vectors, atol=1e-7)
    SERVER.check(payload, state, "user-000", LAB)
    frozen = dataclasses.replace(LAB, vector_rate=0.0)
    assert CLIENT.parameters(held, frozen) == ()


def test_the_oracle_hands_out_everything_and_gives_the_full_softmax() -> None:
    oracle, settings = algorithms.server("softmax"), algorithms.settings("softmax", {})
    state = oracle.empty(D, settings)
    for user in "abc":
        state = oracle.admit(state, Admission(user, "m", 5, NONE), settings, seeded())
    state = oracle.start(state, settings, seeded())
    handed = oracle.task(state, "b", None, settings, seeded())
    assert handed.label_space == len(handed.classes) == 3
    half = algorithms.client("softmax")
    held = half.begin(handed, {}, lambda indices=None: torch.eye(D), settings, seeded(), secret)
    g = torch.nn.functional.normalize(torch.randn(4, D), dim=1)
    target = torch.full((4,), int(handed.own[0]))
    expected = torch.nn.functional.cross_entropy(20 * g @ torch.tensor(handed.vectors).T, target)
    found = half.loss(g, torch.zeros(4, dtype=torch.int64), held, settings)
    torch.testing.assert_close(found, expected)
    payload, memory = half.finish(held, lambda indices=None: g, settings, seeded(), secret)
    oracle.check(payload, state, "b", settings)
    assert memory == {}
    again = oracle.step(state, (Contribution("b", 5, payload),), settings, seeded())
    np.testing.assert_allclose(again.rows.vectors, state.rows.vectors, atol=1e-7)
    assert server.vectors_at(again, np.array([0])).dtype == np.float32
