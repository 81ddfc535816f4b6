"""The FedUV column of the degenerate-case matrix (SPEC 8), a test for each cell.

The contract of every cell: a defined result or a typed error, no NaN, and an unchanged state on abort.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.algorithms.feduv.client import CLIENT
from uvsdk.federation.algorithms.feduv.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.feduv.server import SERVER, Numbers
from uvsdk.federation.classes.spreadout import CollapseWarning
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution
from uvsdk.records.codec import pack
from uvsdk.training.loop import unit

C = 255


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def state_of(*users: str) -> Numbers:
    state = SERVER.empty(C, Settings())
    for user in users:
        state = SERVER.admit(state, Admission(user, "m", 5, np.empty(0, np.float32)), Settings(), rng())
    return state


def sent(*users: str) -> tuple[Contribution[Payload], ...]:
    return tuple(Contribution(user, 5, Payload()) for user in users)


def codeword(number: int, secret: bytes = bytes(9)) -> np.ndarray:
    code = codewords.code(C, 99)
    return code.vector(code.message(number, secret))


def local(number: int = 0, samples: int = 3) -> object:
    def embed(indices: object = None) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.ones(samples, C), dim=1)

    return CLIENT.begin(Task(number, C, 99), {}, embed, Settings(), rng(), bytes)


def loss(rows: torch.Tensor) -> torch.Tensor:
    return CLIENT.loss(unit(rows), torch.zeros(len(rows), dtype=torch.int64), local(), Settings())  # type: ignore[arg-type]


def test_one_class_trains_and_warns_that_it_cannot_reject() -> None:
    with pytest.warns(CollapseWarning, match="turned away"):
        state = SERVER.step(state_of("a"), sent("a"), Settings(), rng())
    assert state.rounds == 1
    # The trivial solution: a trunk that always gives the codeword has loss 0 whoever speaks.
    assert float(loss(torch.from_numpy(codeword(0)).tile(4, 1))) == pytest.approx(0.0, abs=1e-6)


def test_two_classes_have_two_codewords() -> None:
    state = SERVER.step(state_of("a", "b"), sent("a", "b"), Settings(), rng())
    assert state.numbers.tolist() == [0, 1]
    assert codeword(0) @ codeword(1) <= 1 - 2 * state.distance / C + 1e-6


def test_class_vectors_cannot_be_equal() -> None:
    # d_min: even with equal secrets, codewords of different numbers differ in 47 places at least.
    vectors = np.stack([codeword(number) for number in range(40)]).astype(np.float64)
    cosines = (vectors @ vectors.T)[~np.eye(40, dtype=bool)]
    assert cosines.max() <= 1 - 2 * 47 / C + 1e-6
    with pytest.raises(ValueError, match="one number"):
        replace(state_of("a", "b"), numbers=np.array([1, 1]))


def test_a_zero_vector_scores_0_and_has_no_gradient() -> None:
    rows = torch.zeros(2, C)
    rows[1] = 1e-10
    rows.requires_grad_()
    value = loss(rows)
    assert float(value.detach()) == pytest.approx(1.0)
    value.backward()
    assert rows.grad is not None
    assert float(rows.grad.abs().max()) == 0.0


def test_a_nan_vector_gives_a_loss_that_stops_the_round() -> None:
    # The engine sends nothing of a round whose loss is no number; see test_training.
    assert bool(torch.isnan(loss(torch.full((1, C), float("nan")))))


def test_all_but_one_drop_out_is_below_the_quorum() -> None:
    config = TrainingConfig("d", "voice", "ge2e+255", "feduv")
    assert config.quorum(20) == 10  # one update is fewer: the round aborts, and no step is made at all
    before = state_of("a", "b", "c")
    bytes_before = pack(before)
    SERVER.step(before, sent("a"), Settings(), rng())
    assert pack(before) == bytes_before


def test_of_a_class_unseen_for_50_rounds_nothing_is_stored() -> None:
    state = state_of("a", "b", "c")
    for _ in range(50):
        state = SERVER.step(state, sent("a", "b"), Settings(), rng())
    assert (state.users, state.numbers.tolist()) == (("a", "b", "c"), [0, 1, 2])
    assert SERVER.task(state, "c", None, Settings(), rng()) == Task(2, C, 99)
    assert state.cohort == 2


def test_one_person_as_two_users_has_two_codes() -> None:
    # Nothing links them, and they train towards vectors that agree no more than those of two people.
    assert codeword(3) @ codeword(4) <= 1 - 2 * 47 / C + 1e-6


def test_one_sample_is_legal() -> None:
    admitted = SERVER.admit(state_of(), Admission("a", "m", 1, np.empty(0, np.float32)), Settings(), rng())
    assert admitted.users == ("a",)
    value = CLIENT.loss(
        torch.ones(1, C) / C**0.5,
        torch.zeros(1, dtype=torch.int64),
        local(samples=1),  # type: ignore[arg-type]
        Settings(),
    )
    assert bool(torch.isfinite(value))
    with pytest.raises(UpdateRejectedError):
        SERVER.admit(state_of(), Admission("a", "m", 0, np.empty(0, np.float32)), Settings(), rng())
