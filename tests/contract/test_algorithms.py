"""What every algorithm must keep to, whatever it does; parametrised over the registry."""

import dataclasses
import typing

import numpy as np
import pytest
import torch

from uvsdk.arrays import Float64
from uvsdk.errors import SettingsError, UnknownNameError, UpdateRejectedError
from uvsdk.federation import algorithms
from uvsdk.federation.codec import pack, unpack
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import (
    AnyClientAlgorithm,
    AnyServerAlgorithm,
    ClientAlgorithm,
    Contribution,
    Disclosure,
    ServerAlgorithm,
)

D = 6
NAMES = algorithms.names()

# The privacy statement, repeated here on purpose: a field added to a payload must be added to this test as well.
SENT = {"fedaws": {"vector"}, "positive_only": {"vector"}, "fixed": set()}


def unit(rows: Float64) -> Float64:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def admission(user: str, seed: int, *, samples: int = 5) -> Admission:
    mean = 0.8 * unit(np.random.default_rng(seed).standard_normal(D))
    return Admission(user, "m", samples, mean.astype(np.float32))


class Federation:
    """A server half with users "a" to "e", started."""

    def __init__(self, name: str, users: str = "cadbe", **values: str | int | float | bool | None) -> None:
        self.half: AnyServerAlgorithm = algorithms.server(name)
        self.settings = algorithms.settings(name, values)
        self.rng = np.random.default_rng(0)
        self.state = self.half.empty(D, self.settings)
        for seed, user in enumerate(users):
            self.admit(user, seed)
        self.state = self.half.start(self.state, self.settings, self.rng)

    def admit(self, user: str, seed: int) -> None:
        self.state = self.half.admit(self.state, admission(user, seed), self.settings, self.rng)

    def payload(self, user: str) -> object:
        """What the device of ``user`` sends after training on nothing: its task's values, passed through the client."""
        client = algorithms.client(self.name)
        task = self.half.task(self.state, user, self.settings)
        local = client.begin(task, {}, embeddings, self.settings, self.rng)
        sent, _ = client.finish(local, embeddings)
        return sent

    @property
    def name(self) -> str:
        return self.half.payload.__module__.split(".")[-2]

    def step(self, users: str) -> None:
        items = tuple(Contribution(user, 5, self.payload(user)) for user in sorted(users))
        self.state = self.half.step(self.state, items, self.settings, self.rng)

    def rows(self) -> tuple[tuple[str, ...], Float64]:
        return self.half.class_matrix(self.state)


def embeddings() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.arange(1.0, 1 + 3 * D).reshape(3, D), dim=1)


def assert_same_state(one: object, other: object) -> None:
    assert pack(one) == pack(other)  # type: ignore[type-var, arg-type]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def federation(name: str) -> Federation:
    return Federation(name)


@pytest.fixture
def client(name: str) -> AnyClientAlgorithm:
    return algorithms.client(name)


def test_the_registry_knows_what_is_in_the_folder() -> None:
    assert set(NAMES) >= {"fedaws", "positive_only", "fixed"}
    assert set(SENT) == set(NAMES)
    with pytest.raises(UnknownNameError, match="fedaws"):
        algorithms.server("fedavg")
    with pytest.raises(UnknownNameError):
        algorithms.client("../fedaws")


def test_both_halves_speak_of_the_same_messages(name: str, federation: Federation, client: AnyClientAlgorithm) -> None:
    half = federation.half
    assert isinstance(half, ServerAlgorithm)
    assert isinstance(client, ClientAlgorithm)
    assert type(half.task(federation.state, "a", federation.settings)) is client.task
    assert type(federation.payload("a")) is half.payload
    assert half.payload.__module__ == client.task.__module__ == half.settings.__module__
    assert half.payload.__module__.endswith(f".{name}.payload")


def test_a_payload_carries_exactly_the_declared_fields(name: str, federation: Federation) -> None:
    kind = federation.half.payload
    assert {field.name for field in dataclasses.fields(kind)} == SENT[name]
    sent = federation.payload("a")
    assert set(typing.get_type_hints(kind)) == SENT[name]
    again = unpack(kind, pack(sent))  # type: ignore[arg-type]
    assert pack(again) == pack(sent)  # type: ignore[arg-type]


def test_the_disclosure_is_in_words(name: str) -> None:
    statement = algorithms.disclosure(name)
    assert isinstance(statement, Disclosure)
    assert statement.sends
    assert statement.receives
    assert statement.server_learns
    assert statement.others_learn
    assert any("class vector" in item for item in statement.sends) == ("vector" in SENT[name])


def test_admitted_twice_is_one_user(federation: Federation) -> None:
    users, before = federation.rows()
    federation.admit("a", 77)
    again, after = federation.rows()
    assert again == users == tuple("abcde")
    np.testing.assert_array_equal(after, before)


def test_the_order_of_joining_does_not_matter_before_the_start(name: str) -> None:
    if not algorithms.server(name).needs_mean(algorithms.settings(name, {})):
        return  # rows are drawn by place, and the places are the sorted users
    forwards, backwards = Federation(name, "a"), Federation(name, "a")
    for one, order in ((forwards, "bcd"), (backwards, "dcb")):
        one.state = one.half.empty(D, one.settings)
        for user in order:
            one.admit(user, ord(user))
    assert_same_state(forwards.state, backwards.state)


def test_removed_leaves_no_trace(federation: Federation) -> None:
    before = federation.state
    federation.admit("marked", 9)
    assert federation.half.class_matrix(federation.state)[0] == ("a", "b", "c", "d", "e", "marked")
    federation.state = federation.half.remove(federation.state, "marked")
    assert_same_state(federation.state, before)
    assert b"marked" not in pack(federation.state)  # type: ignore[arg-type]
    with pytest.raises(UpdateRejectedError):
        federation.half.task(federation.state, "marked", federation.settings)
    assert_same_state(federation.half.remove(federation.state, "nobody"), before)


def test_everyone_may_leave_and_come_back(federation: Federation) -> None:
    for user in "abcde":
        federation.state = federation.half.remove(federation.state, user)
    assert federation.rows()[0] == ()
    federation.admit("z", 3)
    users, rows = federation.rows()
    assert users == ("z",)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)


def test_state_task_and_payload_survive_the_codec(federation: Federation, client: AnyClientAlgorithm) -> None:
    federation.step("abc")
    again = unpack(federation.half.state, pack(federation.state))  # type: ignore[type-var]
    assert_same_state(again, federation.state)
    task = federation.half.task(again, "a", federation.settings)
    assert pack(unpack(client.task, pack(task))) == pack(task)
    stepped = federation.half.step(again, (), federation.settings, np.random.default_rng(1))
    direct = federation.half.step(federation.state, (), federation.settings, np.random.default_rng(1))
    assert_same_state(stepped, direct)


def test_rows_stay_unit_and_finite(federation: Federation) -> None:
    for cohort in ("abcde", "a", "", "ce"):
        federation.step(cohort)
        users, rows = federation.rows()
        assert rows.shape == (len(users), D)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-9)


def test_a_step_is_a_pure_function(federation: Federation) -> None:
    before = pack(federation.state)  # type: ignore[arg-type]
    items = tuple(Contribution(user, 5, federation.payload(user)) for user in "abc")
    results = [
        pack(federation.half.step(federation.state, items, federation.settings, np.random.default_rng(8)))
        for _ in range(2)
    ]
    assert results[0] == results[1]
    assert pack(federation.state) == before  # type: ignore[arg-type]


def test_check_takes_what_the_client_makes(federation: Federation) -> None:
    federation.half.check(federation.payload("b"), federation.state, "b", federation.settings)


def test_check_refuses_a_stranger(federation: Federation) -> None:
    with pytest.raises(UpdateRejectedError):
        federation.half.check(federation.payload("a"), federation.state, "stranger", federation.settings)


@pytest.mark.parametrize("spoil", ["nan", "infinity", "long", "zero", "doubled", "matrix"])
def test_check_refuses_what_no_client_makes(spoil: str, name: str, federation: Federation) -> None:
    if not SENT[name]:
        return  # there is nothing to spoil
    good = np.array(getattr(federation.payload("a"), "vector"))  # noqa: B009
    bad = {
        "nan": np.where(np.arange(D) == 2, np.nan, good),
        "infinity": np.where(np.arange(D) == 2, np.inf, good),
        "long": np.append(good, 0),
        "zero": np.zeros(D),
        "doubled": 2 * good,
        "matrix": good[None],
    }[spoil].astype(np.float32)
    with pytest.raises(UpdateRejectedError) as refusal:
        federation.half.check(federation.half.payload(vector=bad), federation.state, "a", federation.settings)
    for number in good:
        assert f"{number:.6g}" not in str(refusal.value)  # no part of an embedding in a message


def test_admission_refuses_what_no_enrolment_makes(name: str) -> None:
    federation = Federation(name, initialisation="client_means")
    assert federation.half.needs_mean(federation.settings)
    good = admission("x", 1)
    for bad in (
        dataclasses.replace(good, samples=0),
        dataclasses.replace(good, mean=np.empty(0, np.float32)),
        dataclasses.replace(good, mean=np.full(D, np.nan, np.float32)),
        dataclasses.replace(good, mean=np.zeros(D, np.float32)),
        dataclasses.replace(good, mean=(2 * good.mean).astype(np.float32)),
    ):
        with pytest.raises(UpdateRejectedError):
            federation.half.admit(federation.state, bad, federation.settings, federation.rng)


def test_a_mean_that_is_not_needed_is_not_kept(name: str) -> None:
    federation = Federation(name, initialisation="random")
    assert not federation.half.needs_mean(federation.settings)
    mean = admission("a", 1).mean
    assert mean.astype(np.float64).tobytes() not in pack(federation.state)  # type: ignore[arg-type]
    federation.admit("late", 5)
    np.testing.assert_allclose(np.linalg.norm(federation.rows()[1], axis=1), 1.0)


def test_settings(name: str) -> None:
    with pytest.raises(SettingsError):
        algorithms.settings(name, {"no_such_setting": 1})
    for wrong in ({"initialisation": "zeros"}, {"margin_positive": 1.5}):
        with pytest.raises(SettingsError):
            algorithms.settings(name, wrong)


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_the_clients_loss_gradient_is_the_finite_difference(rate: float, name: str, client: AnyClientAlgorithm) -> None:
    torch.manual_seed(0)
    values = {"vector_rate": rate} if "vector" in SENT[name] else {}
    settings = algorithms.settings(name, values)  # type: ignore[arg-type]
    vector = unit(np.random.default_rng(2).standard_normal(D))
    local = client.begin(client.task(vector), {}, embeddings, settings, np.random.default_rng(0))
    batch = torch.nn.functional.normalize(torch.randn(4, D, dtype=torch.float64), dim=1).requires_grad_()
    client.loss(batch, local, settings).backward()  # type: ignore[no-untyped-call]
    # The class vector's learning rate is a factor on its gradient.
    for tensor, factor in ((batch, 1.0), *((tensor, rate) for tensor in client.parameters(local))):
        assert tensor.grad is not None
        numeric = torch.empty_like(tensor)
        with torch.no_grad():
            flat, out = tensor.view(-1), numeric.view(-1)
            for place in range(flat.numel()):
                kept = float(flat[place])
                values_around = []
                for shift in (1e-6, -1e-6):
                    flat[place] = kept + shift
                    values_around.append(float(client.loss(batch, local, settings)))
                flat[place] = kept
                out[place] = (values_around[0] - values_around[1]) / 2e-6
        torch.testing.assert_close(tensor.grad, factor * numeric, atol=1e-6, rtol=1e-6)


def test_constrain_puts_what_was_trained_back_on_the_sphere(name: str, client: AnyClientAlgorithm) -> None:
    settings = algorithms.settings(name, {})
    vector = unit(np.random.default_rng(2).standard_normal(D)).astype(np.float32)
    local = client.begin(client.task(vector), {}, embeddings, settings, np.random.default_rng(0))
    for tensor in client.parameters(local):
        with torch.no_grad():
            tensor.mul_(3.0)
    client.constrain(local)
    for tensor in client.parameters(local):
        assert float(tensor.detach().norm()) == pytest.approx(1.0)
    payload, memory = client.finish(local, embeddings)
    assert dict(memory) == {}
    for field in SENT[name]:
        np.testing.assert_allclose(getattr(payload, field), vector, atol=1e-6)


def test_a_client_refuses_a_task_that_is_not_a_unit_vector(name: str, client: AnyClientAlgorithm) -> None:
    settings = algorithms.settings(name, {})
    for bad in (np.zeros(D, np.float32), np.full(D, np.nan, np.float32), np.ones(D, np.float32)):
        with pytest.raises(UpdateRejectedError):
            client.begin(client.task(bad), {}, embeddings, settings, np.random.default_rng(0))
