"""What every algorithm must keep to, whatever it does; parametrised over the registry."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contract.declared import DECLARED, ONCE, Words
from tests.contract.party import SAMPLES, Party, arrays, doubled, hashes, number, secret, unit
from uvsdk.errors import SettingsError, UnknownNameError, UpdateRejectedError, WireError
from uvsdk.federation import algorithms, controls
from uvsdk.federation.strategy import (
    EMBEDDED,
    INSTANCES,
    MEAN,
    PERSON,
    ClientAlgorithm,
    Disclosure,
    RequestAlgorithm,
    ServerAlgorithm,
)
from uvsdk.records.codec import pack, unpack

NAMES = algorithms.names()
WORDS = {MEAN, INSTANCES, EMBEDDED, PERSON}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def party(name: str) -> Party:
    return Party(name)


def test_the_registry_knows_what_is_in_the_folder() -> None:
    assert set(NAMES) >= set(DECLARED)
    with pytest.raises(UnknownNameError, match="fedaws"):
        algorithms.server("fedavg")
    for outside in ("../fedaws", "", "fedaws.server"):
        with pytest.raises(UnknownNameError):
            algorithms.client(outside)


class TestMessages:
    """What crosses the wire: of one type on both sides, packable, and named in the disclosure."""

    def test_both_halves_speak_of_the_same(self, name: str, party: Party) -> None:
        assert isinstance(party.half, ServerAlgorithm)
        assert isinstance(party.client, ClientAlgorithm)
        assert type(party.task("a")) is party.client.task
        assert type(party.payload("a")) is party.half.payload
        for kind in (party.half.settings, party.half.payload, party.client.task):
            assert kind.__module__.endswith(f".{name}.payload")
        if party.request is not None:
            assert isinstance(party.request, RequestAlgorithm)
            assert type(party.request.invite(party.state, "a", party.settings)) is party.request.invitation
            assert type(party.ask("a", {})[0]) is party.request.request

    def test_they_survive_the_codec(self, party: Party) -> None:
        messages = [(party.client.task, party.task("a")), (party.half.payload, party.payload("a"))]
        if party.request is not None:
            invitation = party.request.invite(party.state, "a", party.settings)
            messages += [(party.request.invitation, invitation), (party.request.request, party.ask("a", {})[0])]
        for kind, message in messages:
            assert pack(unpack(kind, pack(message))) == pack(message)

    def test_the_disclosure_names_every_field(self, name: str, party: Party) -> None:
        """A field added to a message is a promise broken until the disclosure, and ``declared.py``, name it."""
        statement = algorithms.disclosure(name)
        assert isinstance(statement, Disclosure)
        assert statement.sends
        assert statement.receives
        assert statement.server_learns
        assert statement.others_learn
        sends, receives = "; ".join(statement.sends), "; ".join((*statement.receives, *statement.once))
        declared = DECLARED.get(name)
        messages: list[tuple[type, str, Words | None]] = [
            (party.half.payload, sends, declared and declared.payload),
            (party.client.task, receives, declared and declared.task),
        ]
        if party.request is not None:
            messages.append((party.request.invitation, receives, declared and declared.invitation))
            messages.append((party.request.request, sends, declared and declared.request))
        for kind, text, words in messages:
            fields = {field.name for field in dataclasses.fields(kind)}
            assert fields == set(typing.get_type_hints(kind))
            if words is None:
                words = {field: field.replace("_", " ") for field in fields}
            assert fields == set(words), f"declared.py does not say what {kind.__name__}'s fields are called"
            for field, phrase in words.items():
                assert phrase is None or phrase in text, f"the disclosure does not name {kind.__name__}.{field}"

    def test_the_disclosure_names_what_an_admission_holds(self, name: str, party: Party) -> None:
        once = "; ".join(algorithms.disclosure(name).once)
        assert party.needs <= WORDS
        for word in party.needs:
            assert ONCE[word] in once, f"{name} asks an admission for {word}, and its disclosure's once does not say so"


class TestSettings:
    def test_an_unknown_one_is_refused(self, name: str) -> None:
        with pytest.raises(SettingsError):
            algorithms.settings(name, {"no_such_setting": 1})

    def test_they_are_plain_values_with_defaults(self, party: Party) -> None:
        values = dataclasses.asdict(party.settings)
        assert json.loads(json.dumps(values)) == values
        assert party.half.settings(**values) == party.settings

    def test_what_they_mean_for_a_deployment_is_said(self, party: Party) -> None:
        assert isinstance(party.half.restricted(party.settings), str)
        assert isinstance(party.half.verifies_on_server, bool)
        assert party.client.rate(party.settings) >= 0

    def test_reports_are_plain_values_at_any_time(self, name: str) -> None:
        for party in (Party(name, "", started=False), Party(name, started=False), Party(name)):
            report = dict(party.half.report(party.state, party.settings))
            assert all(
                type(key) is str and isinstance(value, str | int | float | None) for key, value in report.items()
            )
            assert all(type(value) in (str, int, float, bool, type(None)) for value in report.values())


class TestAdmission:
    def test_admitted_twice_is_one_user(self, party: Party) -> None:
        before, rows = party.users(), party.half.class_matrix(party.state)
        party.admit("a")
        assert party.users() == before == tuple("abcde")
        assert party.half.class_matrix(party.state)[0] == rows[0]
        np.testing.assert_array_equal(party.half.class_matrix(party.state)[1], rows[1])

    def test_who_is_in_does_not_depend_on_the_order_of_joining(self, name: str) -> None:
        forwards, backwards = Party(name, "abcd", started=False), Party(name, "dcba", started=False)
        assert forwards.users() == backwards.users() == tuple("abcd")

    def test_an_admission_without_samples_is_refused(self, party: Party) -> None:
        with pytest.raises(UpdateRejectedError):
            party.admit("x", samples=0)

    @pytest.mark.parametrize("spoil", ["missing", "nan", "zero", "long", "wide"])
    def test_a_mean_that_no_enrolment_makes_is_refused(self, spoil: str, party: Party) -> None:
        if MEAN not in party.needs:
            return
        good = party.admission("x").mean
        bad = {
            "missing": np.empty(0),
            "nan": np.where(np.arange(party.dimension) == 2, np.nan, good),
            "zero": np.zeros(party.dimension),
            "long": 2 * good,
            "wide": np.append(good, 0),
        }[spoil]
        with pytest.raises(UpdateRejectedError) as refusal:
            party.admit("x", mean=bad.astype(np.float32))
        assert not any(f"{value:.5g}" in str(refusal.value) for value in good)

    def test_several_classes_are_told_apart_or_refused(self, party: Party) -> None:
        before = party.packed()
        try:
            party.admit("x", classes=("first", "second"))
        except UpdateRejectedError:
            assert party.packed() == before
        else:
            assert "x" in party.users()
            losses = [
                float(party.client.loss(batch(party, 3).float(), place + places(3), party.local("x"), party.settings))
                for place in (0, 1)
            ]
            assert losses[0] != losses[1]

    def test_what_is_not_asked_for_is_not_kept(self, party: Party) -> None:
        rng = np.random.default_rng(0)
        mean = (0.5 * unit(rng.standard_normal(party.dimension))).astype(np.float32)
        sent = replace(party.admission("late"), mean=mean, instances=hashes("late"), person="f" * 64)
        party.state = party.half.admit(party.state, sent, party.settings, rng)
        if MEAN not in party.needs:
            assert mean.astype(np.float64).tobytes() not in party.packed()
        if not party.needs & {INSTANCES, EMBEDDED}:
            assert bytes(hashes("late")[0]) not in party.packed()
        if PERSON not in party.needs:
            assert b"f" * 64 not in party.packed()


class TestLeaving:
    def test_nothing_is_left(self, party: Party) -> None:
        party.state = party.stepped("abc")
        before = party.users()
        sent = party.admission("marked")
        party.admit("marked")
        party.state = party.stepped("abc")
        party.state = party.half.remove(party.state, "marked")
        assert party.users() == before
        left = party.packed()
        assert b"marked" not in left
        assert not sent.person or sent.person.encode() not in left
        assert sent.mean.size == 0 or sent.mean.astype(np.float64).tobytes() not in left
        own = {bytes(row) for row in sent.instances} - {bytes(range(32))}
        assert not any(row in left for row in own)

    def test_a_stranger_is_handed_nothing(self, party: Party) -> None:
        request, _ = party.ask("a", {})
        party.state = party.half.remove(party.state, "b")
        for stranger in ("b", "nobody"):
            with pytest.raises(UpdateRejectedError):
                party.half.task(party.state, stranger, request, party.settings, np.random.default_rng(0))
            if party.request is not None:
                with pytest.raises(UpdateRejectedError):
                    party.request.invite(party.state, stranger, party.settings)

    def test_whoever_is_not_there_may_leave(self, party: Party) -> None:
        before = party.packed()
        assert pack(party.half.remove(party.state, "nobody")) == before

    @pytest.mark.filterwarnings("ignore::uvsdk.federation.classes.spreadout.CollapseWarning")
    def test_everyone_may_leave_and_others_come(self, party: Party) -> None:
        for user in "abcde":
            party.state = party.half.remove(party.state, user)
        assert party.users() == ()
        party.admit("z")
        assert party.users() == ("z",)
        assert type(party.task("z")) is party.client.task


class TestState:
    def test_it_survives_the_codec_and_goes_on_the_same(self, party: Party) -> None:
        party.state = party.stepped("abc")
        again = unpack(party.half.state, party.packed())
        assert pack(again) == party.packed()
        items = party.contributions("bd")
        results = [
            pack(party.half.step(state, items, party.settings, np.random.default_rng(1)))
            for state in (again, party.state)
        ]
        assert results[0] == results[1]

    def test_every_function_is_pure(self, party: Party) -> None:
        """The same arguments give the same result, and nothing that went in is changed."""
        before = party.packed()
        request, items, rng = party.ask("a", {})[0], party.contributions("abc"), np.random.default_rng
        sent = [pack(item.payload) for item in items]
        for twice in (
            lambda: party.half.step(party.state, items, party.settings, rng(8)),
            lambda: party.half.admit(party.state, party.admission("late"), party.settings, rng(8)),
            lambda: party.half.remove(party.state, "a"),
            lambda: party.half.start(party.state, party.settings, rng(8)),
            lambda: party.half.task(party.state, "a", request, party.settings, rng(8)),
            lambda: party.ask("a", {})[0] if party.request is not None else party.payload("a"),
        ):
            assert pack(twice()) == pack(twice())
            assert party.packed() == before
        assert [pack(item.payload) for item in items] == sent

    def test_starting_again_changes_nothing(self, party: Party) -> None:
        before = party.packed()
        assert pack(party.half.start(party.state, party.settings, np.random.default_rng(99))) == before

    def test_it_stays_finite_whoever_drops_out(self, party: Party) -> None:
        for cohort in ("abcde", "a", "", "ce"):
            party.state = party.stepped(cohort)
            users, rows = party.half.class_matrix(party.state)
            assert rows.shape == (len(users), party.dimension)
            np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-9)
            for values in arrays(party.state).values():
                assert np.isfinite(values).all()
            assert party.users() == tuple("abcde")

    def test_an_update_of_someone_who_left_meanwhile_is_harmless(self, party: Party) -> None:
        items = party.contributions("abc")
        party.state = party.half.remove(party.state, "b")
        party.state = party.half.step(party.state, items, party.settings, np.random.default_rng(0))
        assert party.users() == tuple("acde")


class TestCheck:
    def test_takes_what_a_device_makes(self, party: Party) -> None:
        for user in "ab":
            party.half.check(party.payload(user), party.state, user, party.settings)

    def test_refuses_a_stranger(self, party: Party) -> None:
        with pytest.raises(UpdateRejectedError):
            party.half.check(party.payload("a"), party.state, "stranger", party.settings)

    @pytest.mark.parametrize("spoil", ["nan", "infinity", "longer", "flat", "huge"])
    def test_refuses_what_no_device_makes(self, spoil: str, party: Party) -> None:
        good = party.payload("a")
        for field, values in arrays(good).items():
            first = np.arange(values.size).reshape(values.shape) == 1
            bad = {
                "nan": np.where(first, np.nan, values),
                "infinity": np.where(first, np.inf, values),
                "longer": np.concatenate([values, values[..., :1]], axis=-1),
                "flat": values[None],
                "huge": np.where(first, 1e6, values),
            }[spoil].astype(values.dtype)
            with pytest.raises(UpdateRejectedError) as refusal:
                party.half.check(replace(good, **{field: bad}), party.state, "a", party.settings)
            # No part of an embedding in a message.
            assert not any(f"{value:.5g}" in str(refusal.value) for value in values.ravel()[:50] if value)

    def test_a_number_that_is_not_finite_does_not_reach_it(self, party: Party) -> None:
        good = party.payload("a")
        for field in dataclasses.fields(good):
            if isinstance(getattr(good, field.name), float):
                with pytest.raises(WireError):
                    pack(replace(good, **{field.name: math.nan}))


class TestRequests:
    def test_the_same_stream_asks_for_the_same(self, party: Party) -> None:
        if party.request is None:
            return
        invitation = party.request.invite(party.state, "a", party.settings)
        asked = [
            party.request.choose(invitation, {}, party.settings, np.random.default_rng(2), secret("a"))
            for _ in range(2)
        ]
        assert pack(asked[0][0]) == pack(asked[1][0])
        assert controls.KEPT not in asked[0][1]

    def test_what_is_not_offered_is_refused_without_saying_what(self, party: Party) -> None:
        if party.request is None:
            return
        good, _ = party.ask("a", {})
        for field in dataclasses.fields(good):
            values = getattr(good, field.name)
            if not isinstance(values, np.ndarray) or values.dtype.kind != "i" or not values.size:
                continue
            for bad in (np.sort(np.append(values[1:], 12345678901)), np.append(values, values[-1]), values[:0]):
                with pytest.raises(UpdateRejectedError) as refusal:
                    party.task("a", request=replace(good, **{field.name: bad.astype(values.dtype)}))
                text = str(refusal.value)
                assert "12345678901" not in text
                assert not any(str(value) in text for value in values if value > 999)


class TestDevice:
    def test_a_task_that_is_not_a_number_is_refused(self, party: Party) -> None:
        good = party.task("a")
        for field, values in arrays(good).items():
            for wrong in (np.nan, np.inf):
                bad = np.full_like(values, wrong)
                with pytest.raises(UpdateRejectedError):
                    party.begin("a", replace(good, **{field: bad}))

    def test_memory_is_kept_and_taken_up_again(self, party: Party) -> None:
        @dataclasses.dataclass(frozen=True)
        class Kept:
            arrays: dict[str, np.ndarray[Any, Any]]

        _, asked = party.ask("a", {})
        _, memory = party.finish("a", party.local("a", asked))
        assert controls.KEPT not in memory
        kept = unpack(Kept, pack(Kept(dict(memory)))).arrays
        _, again = party.finish("a", party.local("a", kept))
        assert set(again) == set(memory)
        party.finish("a", party.local("a", {}))  # a device that lost it goes on all the same

    def test_the_loss_is_a_finite_scalar_of_every_batch(self, party: Party) -> None:
        local = party.local("a")
        for size in (1, 5):
            value = party.client.loss(batch(party, size).float(), places(size), local, party.settings)
            assert value.shape == ()
            assert bool(torch.isfinite(value))

    def test_its_gradient_is_the_finite_difference(self, party: Party) -> None:
        party.state = party.stepped("abcde")  # so that there is something of others to be pushed from
        client, settings = party.client, party.settings
        local = doubled(party.local("a"))
        rows = batch(party, 3).requires_grad_()
        trained = [value.requires_grad_() for value in client.parameters(local, settings)]
        client.loss(rows, places(3), local, settings).backward()  # type: ignore[no-untyped-call]
        rng = np.random.default_rng(0)
        for tensor in (rows, *trained):
            assert tensor.grad is not None
            for flat_place in rng.choice(tensor.numel(), min(tensor.numel(), 12), replace=False):
                numeric = difference(tensor, int(flat_place), lambda: client.loss(rows, places(3), local, settings))
                assert float(tensor.grad.view(-1)[int(flat_place)]) == pytest.approx(numeric, abs=2e-6, rel=1e-5)

    def test_many_devices_are_computed_at_once(self, party: Party) -> None:
        """What a simulation does: the tensors of many devices stacked, ``loss`` under ``torch.func.vmap``."""
        party.state = party.stepped("abcde")
        locals_ = [party.local(user) for user in "ab"]
        batches = torch.stack([batch(party, 4, seed=seed).float() for seed in (0, 1)])
        names = [
            field.name
            for field in dataclasses.fields(locals_[0])
            if isinstance(getattr(locals_[0], field.name), Tensor)
        ]
        stacked = {field: torch.stack([getattr(local, field) for local in locals_]) for field in names}

        def loss(rows: Tensor, fields: dict[str, Tensor]) -> Tensor:
            return party.client.loss(rows, places(4), replace(locals_[0], **fields), party.settings)

        together = torch.func.vmap(loss)(batches, stacked)
        alone = [
            party.client.loss(rows, places(4), local, party.settings)
            for rows, local in zip(batches, locals_, strict=True)
        ]
        torch.testing.assert_close(together, torch.stack(alone), atol=1e-6, rtol=1e-5)

    def test_what_was_trained_and_constrained_passes_the_server(self, party: Party) -> None:
        local = party.local("a")
        trained = party.client.parameters(local, party.settings)
        with torch.no_grad():
            for tensor in trained:
                tensor.mul_(1.5).add_(0.01)
        party.client.constrain(local, party.settings)
        once = [tensor.detach().clone() for tensor in trained]
        party.client.constrain(local, party.settings)
        for tensor, before in zip(trained, once, strict=True):
            torch.testing.assert_close(tensor.detach(), before, atol=1e-6, rtol=1e-6)
        payload, _ = party.finish("a", local)
        party.half.check(payload, party.state, "a", party.settings)


def batch(party: Party, size: int, *, seed: int = 0) -> Tensor:
    """Unit embeddings (size, d), float64, spread so that no two coincide."""
    rows = unit(np.random.default_rng((12, number(party.name), seed)).standard_normal((size, party.dimension)))
    return torch.from_numpy(rows)


def places(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64)


def difference(tensor: Tensor, place: int, loss: typing.Callable[[], Tensor], step: float = 1e-6) -> float:
    """Central difference of ``loss`` by one number of ``tensor``."""
    with torch.no_grad():
        flat = tensor.view(-1)
        kept = float(flat[place])
        values = []
        for shift in (step, -step):
            flat[place] = kept + shift
            values.append(float(loss()))
        flat[place] = kept
    return (values[0] - values[1]) / (2 * step)


assert SAMPLES >= 3  # what some algorithms need before they publish anything
