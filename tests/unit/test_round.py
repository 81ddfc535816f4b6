"""One round by hand: a toy method whose vectors are numbers, so that each function's part in it can be followed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from uvsdk.errors import SettingsError, UpdateRejectedError, WireError
from uvsdk.federation import algorithms, optimisers, streams
from uvsdk.federation.aggregation import renormalise
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.round import (
    Method,
    ServerState,
    Update,
    accept,
    admit,
    assign,
    choose,
    commit,
    invite,
    select,
    weigh,
)
from uvsdk.federation.strategy import Contribution, RequestAlgorithm, ServerAlgorithm
from uvsdk.records import codec

SEED = streams.round_seed(3, 1)
CONFIG = TrainingConfig("d", "voice", "ge2e", "toy", clipping="off")


@dataclass(frozen=True, slots=True)
class Number:
    """What this method's messages are: a task, a payload, an invitation and a request."""

    value: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Users in the order in which they joined, what the start drew, and the sums of the rounds."""

    users: tuple[str, ...] = ()
    drawn: float = 0.0
    sums: tuple[int, ...] = ()


def _admit(state: Ledger, admission: Admission, settings: None, rng: np.random.Generator) -> Ledger:
    if admission.samples > 9:
        raise UpdateRejectedError(f"{admission.samples} samples")
    if admission.samples < 0:
        raise ZeroDivisionError("a fault of the method")
    return replace(state, users=(*state.users, admission.user))


def _check(payload: Number, state: Ledger, user: str, settings: None) -> None:
    if payload.value > 9:
        raise UpdateRejectedError(f"{payload.value} of {user}")


def _step(state: Ledger, items: tuple[Contribution[Number], ...], settings: None, rng: np.random.Generator) -> Ledger:
    # Places, not sums alone, so that the order is seen: 10 a + b.
    return replace(state, sums=(*state.sums, int("".join(str(item.payload.value) for item in items))))


SERVER: ServerAlgorithm[Any, Any, Any, Any] = ServerAlgorithm(
    state=Ledger,
    settings=type(None),
    payload=Number,
    needs=lambda settings: frozenset(),
    empty=lambda dimension, settings: Ledger(),
    admit=_admit,
    remove=lambda state, user: replace(state, users=tuple(name for name in state.users if name != user)),
    start=lambda state, settings, rng: replace(state, drawn=float(rng.random())),
    users=lambda state: state.users,
    task=lambda state, user, request, settings, rng: Number((request.value if request else 0) + int(rng.integers(100))),
    check=_check,
    step=_step,
    class_matrix=lambda state: ((), np.empty((0, 1))),
)
REQUEST: RequestAlgorithm[Any, Any, Any, Any] = RequestAlgorithm(
    invitation=Number,
    request=Number,
    invite=lambda state, user, settings: Number(len(state.users)),
    choose=lambda invitation, memory, settings, rng, secret: (Number(1000 * invitation.value), {**memory, "asked": 1}),
)
PLAIN, CHOOSING = Method(CONFIG, SERVER, None, None), Method(CONFIG, SERVER, REQUEST, None)


def joining(**samples: int) -> Iterator[Admission]:
    return (Admission(user, "m", count, np.empty(0, np.float32)) for user, count in samples.items())


def updates(*norms: float, values: tuple[int, ...] = (1, 2, 3)) -> list[Update]:
    """Of users a, b, c, who have 1, 2, 3 samples."""
    return [
        Update(Contribution("abc"[place], place + 1, Number(value)), norm)
        for place, (norm, value) in enumerate(zip(norms, values, strict=False))
    ]


def test_who_is_refused_leaves_the_others_where_they_are() -> None:
    state, refused = admit(PLAIN, Ledger(), joining(a=1, b=10, c=3), seed=SEED, start=False)
    assert state == Ledger(("a", "c"))
    assert refused == {"b": "10 samples"}


def test_a_fault_of_the_method_is_raised_unless_it_is_to_refuse_one_user() -> None:
    with pytest.raises(ZeroDivisionError):
        admit(PLAIN, Ledger(), joining(a=1, b=-1), seed=SEED, start=False)
    state, refused = admit(PLAIN, Ledger(), joining(a=1, b=-1, c=1), seed=SEED, start=False, refusal=Exception)
    assert (state.users, refused) == (("a", "c"), {"b": "a fault of the method"})


def test_who_joins_anew_takes_the_place_of_what_was_there_and_a_refused_admission_leaves_it() -> None:
    state, _ = admit(PLAIN, Ledger(("a", "b")), joining(a=1), seed=SEED, start=False, anew={"a"})
    assert state.users == ("b", "a")
    state, refused = admit(PLAIN, Ledger(("a", "b")), joining(a=10), seed=SEED, start=False, anew={"a"})
    assert (state.users, set(refused)) == (("a", "b"), {"a"})


def test_the_start_draws_from_the_stream_of_admissions() -> None:
    state, _ = admit(PLAIN, Ledger(), joining(a=1), seed=SEED, start=True)
    assert state.drawn == streams.server_stream(SEED, streams.ADMIT).random()


def test_a_cohort_is_drawn_without_replacement_and_keeps_its_order() -> None:
    devices = [f"device {place}" for place in range(10)]
    of = replace(CONFIG, cohort_size=4)
    chosen = select(devices, of, seed=SEED)
    places = sorted(streams.server_stream(SEED, streams.COHORT).choice(10, 4, replace=False))
    assert chosen == [devices[place] for place in places]
    assert select(devices[:4], of, seed=SEED) == devices[:4]
    assert select(devices[:3], of, seed=SEED) == devices[:3]
    assert select(devices, CONFIG, seed=SEED) == devices
    assert [of.cohort(count) for count in (0, 3, 4, 5)] == [0, 3, 4, 4]


def test_a_device_that_chooses_is_sent_what_it_asked_for() -> None:
    state = Ledger(("a", "b"))
    invitation = invite(CHOOSING, state, "a")
    assert invitation == codec.pack(Number(2))
    rng = np.random.default_rng(0)
    request, memory = choose(CHOOSING, invitation, {"kept": np.ones(1)}, rng=rng, secret=rng.bytes)
    assert (request, set(memory)) == (codec.pack(Number(2000)), {"kept", "asked"})
    drawn = int(streams.server_stream(SEED, streams.TASK, "a").integers(100))
    assert assign(CHOOSING, state, "a", request=request, seed=SEED) == codec.pack(Number(2000 + drawn))
    with pytest.raises(WireError):
        assign(CHOOSING, state, "a", request=b"nothing of it", seed=SEED)


def test_a_method_without_requests_invites_nobody() -> None:
    assert invite(PLAIN, Ledger(("a",)), "a") is None
    drawn = int(streams.server_stream(SEED, streams.TASK, "a").integers(100))
    assert assign(PLAIN, Ledger(("a",)), "a", request=None, seed=SEED) == codec.pack(Number(drawn))


def test_a_payload_is_taken_apart_and_checked() -> None:
    assert accept(PLAIN, Ledger(), "a", codec.pack(Number(9))) == Number(9)
    with pytest.raises(UpdateRejectedError, match="10 of a"):
        accept(PLAIN, Ledger(), "a", codec.pack(Number(10)))
    with pytest.raises(WireError):
        accept(PLAIN, Ledger(), "a", b"")


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("uniform", [1 / 3 * 0.25, 1 / 3, 1 / 3 * 0.5]),
        ("samples", [1 / 6 * 0.25, 2 / 6, 3 / 6 * 0.5]),
        ("capped", [1 / 5 * 0.25, 2 / 5, 2 / 5 * 0.5]),
    ],
)
def test_a_delta_longer_than_announced_weighs_less_by_as_much(weighting: str, expected: list[float]) -> None:
    # Norms 8, 1 and 4 where 2 is the longest that counts: factors 1/4, 1 and 1/2.
    of = replace(CONFIG, weighting=weighting, samples_cap=2)
    np.testing.assert_allclose(weigh(updates(8.0, 1.0, 4.0), 2.0, of), expected)
    np.testing.assert_allclose(weigh(updates(8.0, 1.0, 4.0), math.inf, of).sum(), 1.0)


def test_a_commit_moves_theta_by_the_mean_and_the_method_by_the_payloads() -> None:
    theta = np.array([1.0, 2.0], np.float32)
    before = ServerState(theta, optimisers.initial(2, CONFIG), Ledger(("a", "b", "c"), 0.5, (7,)))
    mean = np.array([0.5, -1.0], np.float32)
    done = commit(
        PLAIN, before, mean, updates(8.0, 1.0, 4.0), clip_norm=6.0, everybody=_unread(), seed=SEED, tensors=(2,)
    )
    assert done.state.theta.tolist() == [1.5, 1.0]
    assert done.state.optimiser.steps == 1
    assert done.state.algorithm == Ledger(("a", "b", "c"), 0.5, (7, 123))
    assert done.norm_median == 4.0  # of 6 (8 was shortened), 1 and 4
    assert (before.theta.tolist(), before.optimiser.steps) == ([1.0, 2.0], 0)


def test_two_updates_that_moved_leave_no_median() -> None:
    before = ServerState(np.zeros(1, np.float32), optimisers.initial(1, CONFIG), Ledger())
    mean = np.zeros(1, np.float32)
    norms = updates(2.0, 1.0, 0.0)
    assert commit(PLAIN, before, mean, norms, clip_norm=3.0, everybody=(), seed=SEED, tensors=(1,)).norm_median is None


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 3 / 5), ("samples", 6 / 12)])
def test_the_servers_variate_moves_by_the_part_of_all_weight_that_took_part(weighting: str, share: float) -> None:
    # a, b and c of five devices with 1, 2, 3, 3, 3 samples. c = 0 moves to share x -D / (K eta), K eta = 2 x 0.25.
    of = replace(CONFIG, control_variates=True, local_steps=2, learning_rate=0.25, weighting=weighting)
    before = ServerState(np.zeros(1, np.float32), optimisers.initial(1, of), Ledger())
    mean = np.array([1.0], np.float32)
    method, everybody = replace(PLAIN, config=of), iter((1, 2, 3, 3, 3))
    done = commit(
        method, before, mean, updates(1.0, 1.0, 1.0), clip_norm=1.0, everybody=everybody, seed=SEED, tensors=(1,)
    )
    assert done.state.optimiser.control.tolist() == pytest.approx([-share * 1.0 / 0.5])


def test_a_step_that_is_not_finite_commits_nothing() -> None:
    before = ServerState(np.full(1, 3e38, np.float32), optimisers.initial(1, CONFIG), Ledger())
    with pytest.raises(UpdateRejectedError, match="not finite"):
        commit(PLAIN, before, before.theta, updates(1.0), clip_norm=1.0, everybody=(), seed=SEED, tensors=(1,))


def test_the_sum_of_those_who_are_left_is_brought_back_to_a_mean() -> None:
    # p = 0.5, 0.25, 0.25, and the first failed: 0.25 x 4 + 0.25 x 2 = 1.5, of weights that sum to a half.
    total = np.array([1.5], np.float32)
    assert renormalise(total, 0.5).tolist() == [3.0]
    assert renormalise(total, 1.0 - 1e-12) is total


def test_a_method_is_what_a_configuration_names() -> None:
    found = Method.of(replace(CONFIG, algorithm="fedss", algorithm_settings={"pool": "users"}))
    assert found.server is algorithms.server("fedss")
    assert found.request is algorithms.request("fedss") is not None
    assert found.settings == algorithms.settings("fedss", {"pool": "users"})
    assert Method.of(replace(CONFIG, algorithm="fedaws")).request is None
    with pytest.raises(SettingsError):
        Method.of(replace(CONFIG, algorithm="fedaws", algorithm_settings={"nothing": 1}))


def _unread() -> Iterator[int]:
    raise AssertionError("without control variates nobody counts all devices")
    yield 1
