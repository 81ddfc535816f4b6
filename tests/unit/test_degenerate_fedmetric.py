"""The FedMetric column of the degenerate-case matrix (SPEC 8, 4.6), a test for each cell.

The contract of every cell: a defined result or a typed error, no NaN, and an unchanged state on abort.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedmetric import proxies
from uvsdk.federation.algorithms.fedmetric.client import CLIENT, Local
from uvsdk.federation.algorithms.fedmetric.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedmetric.proxies import ProxyStore
from uvsdk.federation.algorithms.fedmetric.server import SERVER
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import Contribution, Memory
from uvsdk.records.codec import pack

D = 4
PAPER = Settings.paper()
BOTH = pytest.mark.parametrize("settings", [Settings(), PAPER])


def rows_of(*points: Sequence[float]) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(points), dim=1)


THREE = rows_of([1, 0.1, 0, 0], [1, -0.1, 0, 0], [1, 0, 0.1, 0])


def begun(rows: Tensor, settings: Settings, task: Task, memory: Memory | None = None) -> Local:
    def embed(indices: Sequence[int] | None = None, /) -> Tensor:
        return rows if indices is None else rows[torch.tensor(list(indices))]

    rng = np.random.default_rng(0)
    return CLIENT.begin(task, memory or {}, embed, settings, rng, np.random.default_rng(1).bytes)


def ended(local: Local, rows: Tensor, settings: Settings) -> tuple[Payload, Memory]:
    def embed(indices: Sequence[int] | None = None, /) -> Tensor:
        return rows if indices is None else rows[torch.tensor(list(indices))]

    return CLIENT.finish(local, embed, settings, np.random.default_rng(0), np.random.default_rng(1).bytes)


def task_of(*balls: tuple[Sequence[float], float], publish: bool = True) -> Task:
    centres = np.array([centre for centre, _ in balls], np.float32).reshape(-1, D)
    return Task(centres, np.array([margin for _, margin in balls], np.float32), publish)


def gradient(rows: Tensor, local: Local, settings: Settings) -> tuple[float, Tensor]:
    batch = rows.clone().requires_grad_()
    value = CLIENT.loss(batch, torch.zeros(len(rows), dtype=torch.int64), local, settings)
    value.backward()  # type: ignore[no-untyped-call]
    assert batch.grad is not None
    assert math.isfinite(float(value.detach()))
    assert torch.isfinite(batch.grad).all()
    return float(value.detach()), batch.grad


def state_of(users: str, settings: Settings, **persons: str) -> ProxyStore:
    state = SERVER.empty(D, settings)
    for user in users:
        admission = Admission(user, "m", 5, np.empty(0, np.float32), person=persons.get(user, ""))
        state = SERVER.admit(state, admission, settings, np.random.default_rng(0))
    return SERVER.start(state, settings, np.random.default_rng(0))


def step(state: ProxyStore, settings: Settings, **sent: Payload) -> ProxyStore:
    items = tuple(Contribution(user, 5, payload) for user, payload in sorted(sent.items()))
    state = SERVER.step(state, items, settings, np.random.default_rng(0))
    assert np.isfinite(state.centres).all()
    assert np.isfinite(state.margins).all()
    return state


def sent_to(state: ProxyStore, user: str, settings: Settings) -> list[float]:
    """First coordinates of the proxies that a device is sent, without the rows that fill up."""
    task = SERVER.task(state, user, None, settings, np.random.default_rng(0))
    return sorted(task.centres[task.margins > 0][:, 0].tolist())


def proxy(first: float, margin: float = 1.0) -> Payload:
    return Payload(np.array([first, 0, 0, 0], np.float32), margin)


@BOTH
def test_one_user_trains_on_positives_only(settings: Settings) -> None:
    state = step(state_of("a", settings), settings, a=proxy(1.0))
    assert sent_to(state, "a", settings) == []
    task = SERVER.task(state, "a", None, settings, np.random.default_rng(0))
    with_task, alone = begun(THREE, settings, task), begun(THREE, settings, task_of())
    assert gradient(THREE, with_task, settings)[0] == pytest.approx(gradient(THREE, alone, settings)[0])


def test_two_users_get_one_proxy_each() -> None:
    settings = Settings()
    state = step(state_of("ab", settings), settings, a=proxy(1.0), b=proxy(-1.0))
    assert sent_to(state, "a", settings) == [-1.0]
    assert sent_to(state, "b", settings) == [1.0]


def test_more_proxies_than_there_are_is_all_of_them() -> None:
    settings = Settings(proxies=1000)
    state = step(state_of("abc", settings), settings, a=proxy(1.0), b=proxy(-1.0), c=proxy(0.5))
    assert sent_to(state, "a", settings) == [-1.0, 0.5]


@BOTH
def test_all_centres_equal_the_push_is_active_for_all_and_along_g_minus_a(settings: Settings) -> None:
    # A collapsed trunk: every embedding is e1, every proxy is e1 + (0, 0.5, 0, 0) with a margin of 0.8 (slack 0.3).
    collapsed = rows_of(*[[1.0, 0, 0, 0]] * 4)
    ball = ([1.0, 0.5, 0, 0], 0.8)
    local = begun(collapsed, replace(settings, negative_reduction="sum"), task_of(ball, ball))
    local = replace(local, centre=collapsed[0].clone())
    value, slope = gradient(collapsed, local, replace(settings, negative_reduction="sum", centre_push=0.0))
    assert value == pytest.approx(0.3 * 2 * 0.3**2, abs=1e-5)
    # -2 lambda slack (g - A)/d for each of two balls, over a batch of 4; (g - A)/d = (0, -1, 0, 0).
    expected = torch.tensor([0, 2 * 0.3 * 0.3 * 2 / 4, 0, 0]).expand(4, 4)
    torch.testing.assert_close(slope, expected, atol=1e-5, rtol=1e-4)


@BOTH
def test_an_embedding_on_a_proxys_centre_has_a_finite_gradient(settings: Settings) -> None:
    local = begun(THREE, settings, task_of((THREE[0].tolist(), 1.0)))
    value, slope = gradient(THREE, local, settings)
    assert value > 0
    assert slope.abs().max() < 10


@BOTH
def test_an_embedding_on_its_own_centre_has_a_finite_gradient(settings: Settings) -> None:
    one = rows_of([0.0, 0, 1, 0])
    value, slope = gradient(one, replace(begun(one, settings, task_of()), centre=one[0].clone()), settings)
    assert value == pytest.approx(0.0, abs=1e-5)
    assert slope.abs().max() < 1e-3


@pytest.mark.parametrize(
    "bad",
    [
        Payload(np.zeros(D, np.float32), 0.0),
        Payload(np.full(D, np.nan, np.float32), 1.0),
        Payload(np.full(D, np.inf, np.float32), 1.0),
        Payload(np.ones(D, np.float32), float("nan")),
        Payload(np.ones(D, np.float32), float("inf")),
        Payload(np.ones(D, np.float32), -1.0),
        Payload(np.ones(D + 1, np.float32), 1.0),
        Payload(np.empty(0, np.float32), 1.0),
        Payload(np.full(D, 50.0, np.float32), 1.0),
    ],
)
def test_a_zero_or_nan_proxy_is_refused(bad: Payload) -> None:
    settings = Settings()
    state = step(state_of("ab", settings), settings, a=proxy(1.0))
    before = pack(state)
    with pytest.raises(UpdateRejectedError):
        SERVER.check(bad, state, "a", settings)
    assert pack(state) == before


@BOTH
def test_an_antipodal_proxy_pushes_nothing(settings: Settings) -> None:
    # d_E = 2 is beyond any margin that is left after clamping: 1.2, or sqrt(2) for a cap of cosine 0 around |A| = 1.
    quiet = replace(settings, centre_push=0.0)
    east = rows_of([1.0, 0, 0, 0])
    alone = replace(begun(east, quiet, task_of()), centre=east[0].clone())
    other = replace(begun(east, quiet, task_of(([-1.0, 0, 0, 0], 9.0))), centre=east[0].clone())
    assert gradient(east, other, quiet)[0] == gradient(east, alone, quiet)[0]


def test_all_but_one_drop_out_and_the_round_is_aborted() -> None:
    config = TrainingConfig("d", "voice", "tdnn", "fedmetric")
    assert config.quorum(20) == 10
    settings = Settings()
    state = step(state_of("abc", settings), settings, a=proxy(1.0))
    # An aborted round makes no step: nothing ages, nothing is written.
    assert state.rounds == 1
    assert state.age.tolist() == [0, proxies.UNPUBLISHED, proxies.UNPUBLISHED]


def test_a_proxy_not_refreshed_for_more_than_20_rounds_expires() -> None:
    settings = Settings()
    state = step(state_of("ab", settings), settings, a=proxy(1.0), b=proxy(-1.0))
    for age in range(1, 21):
        state = step(state, settings, b=proxy(-1.0))
        assert state.age[0] == age
        assert sent_to(state, "b", settings) == [1.0]
    state = step(state, settings, b=proxy(-1.0))
    assert sent_to(state, "b", settings) == []
    assert SERVER.report(state, settings)["proxies_expired"] == 1
    assert not state.centres[0].any()
    assert SERVER.task(state, "a", None, settings, np.random.default_rng(0)).publish


def test_a_dropout_keeps_its_proxy() -> None:
    settings = Settings()
    state = step(state_of("ab", settings), settings, a=proxy(1.0), b=proxy(-1.0))
    after = step(state, settings, a=proxy(0.5), b=Payload(np.empty(0, np.float32), 0.0))
    np.testing.assert_array_equal(after.centres[1], state.centres[1])
    assert after.age.tolist() == [0, 1]


def test_two_identities_of_one_person_do_not_repel_each_other() -> None:
    settings = Settings()
    linked = step(state_of("abc", settings, a="p", b="p"), settings, a=proxy(1.0), b=proxy(0.9), c=proxy(-1.0))
    assert sent_to(linked, "a", settings) == [-1.0]
    assert sent_to(linked, "b", settings) == [-1.0]
    assert len(sent_to(linked, "c", settings)) == 1
    unlinked = step(state_of("abc", settings), settings, a=proxy(1.0), b=proxy(0.875), c=proxy(-1.0))
    assert sent_to(unlinked, "a", settings) == [-1.0, 0.875]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("measured", ["global", "local"])
@pytest.mark.parametrize("sharing", ["proxy", "true"])
def test_fewer_than_3_samples_train_and_publish_nothing(count: int, measured: str, sharing: str) -> None:
    settings = Settings(measured=measured, sharing=sharing)
    rows = THREE[:count]
    local = begun(rows, settings, task_of(([0.0, 1, 0, 0], 1.2)))
    gradient(rows, local, settings)
    payload, memory = ended(local, rows, settings)
    assert payload.centre.shape == (0,)
    assert payload.margin == 0.0
    assert "offset" not in memory
    state = state_of("ab", settings)
    SERVER.check(payload, state, "a", settings)
    assert sent_to(step(state, settings, a=payload), "b", settings) == []


def test_three_samples_publish() -> None:
    settings = Settings()
    payload, memory = ended(begun(THREE, settings, task_of()), THREE, settings)
    assert payload.centre.shape == (D,)
    assert "offset" in memory


def test_a_radius_of_0_never_publishes_the_embedding_itself() -> None:
    same = rows_of(*[[0.0, 1, 0, 0]] * 5)
    for settings in (Settings(), PAPER):
        payload, _ = ended(begun(same, settings, task_of()), same, settings)
        distance = float(np.linalg.norm(payload.centre - same[0].numpy()))
        assert distance == pytest.approx(settings.offset_min, rel=1e-5)  # D_min
        assert payload.margin == pytest.approx(distance, rel=1e-5)
    # Without a least length there is nothing to publish at all.
    payload, _ = ended(begun(same, Settings(offset_min=0.0), task_of()), same, Settings(offset_min=0.0))
    assert payload.centre.shape == (0,)


@BOTH
def test_an_empty_set_of_proxies_leaves_no_negative_loss(settings: Settings) -> None:
    heavy = replace(settings, negative_weight=1e6, centre_push=1e6)
    alone = begun(THREE, settings, task_of())
    assert gradient(THREE, alone, heavy)[0] == gradient(THREE, alone, settings)[0] < 1.0


def test_a_stranger_gets_nothing() -> None:
    settings = Settings()
    state = state_of("ab", settings)
    with pytest.raises(UpdateRejectedError):
        SERVER.task(state, "stranger", None, settings, np.random.default_rng(0))
    with pytest.raises(UpdateRejectedError):
        SERVER.check(proxy(1.0), state, "stranger", settings)
    assert step(state, settings, stranger=proxy(1.0)).age.tolist() == [proxies.UNPUBLISHED] * 2
